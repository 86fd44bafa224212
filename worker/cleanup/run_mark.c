#include "worker/cleanup/run_mark.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/run_lock.h"
#include "shm/control/runtime_folder.h"
#include "worker/cleanup/lock_file.h"

#define KIND     "composed"
#define TEXT_MAX (64 << 10)

/* ---- our own ---- */

struct mr_run_mark {
    int fd;
    char path[MR_LOCK_FILE_PATH_SIZE];
    char *noted; /* lines, as in the file */
};

struct mr_run_mark *mr_run_mark_new(const struct mr_maker *maker)
{
    struct mr_run_mark *mark = calloc(1, sizeof *mark);
    if (!mark) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a mark");
        return NULL;
    }
    mark->fd = mr_lock_file_new(KIND, maker, mark->path);
    if (mark->fd >= 0)
        return mark;
    free(mark);
    return NULL;
}

/* The line "endpoint bucket\n" in the text: where it begins, or NULL. */
static char *find_line(char *text, const char *endpoint, const char *bucket)
{
    size_t a = strlen(endpoint), b = strlen(bucket);
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, endpoint, a) == 0 && line[a] == ' ' && strncmp(line + a + 1, bucket, b) == 0 &&
            line[a + 1 + b] == '\n')
            return line;
    return NULL;
}

int mr_run_mark_note(struct mr_run_mark *mark, const char *endpoint, const char *bucket)
{
    char *all = NULL;
    if (mark->noted && find_line(mark->noted, endpoint, bucket))
        return 0;
    if (asprintf(&all, "%s%s %s\n", mark->noted ? mark->noted : "", endpoint, bucket) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a mark");
        return -1;
    }
    size_t length = strlen(all);
    if (pwrite(mark->fd, all, length, 0) != (ssize_t)length) {
        mr_error_set_errno(errno, "cannot write %s", mark->path);
        free(all);
        return -1;
    }
    free(mark->noted);
    mark->noted = all;
    return 0;
}

void mr_run_mark_destroy(struct mr_run_mark *mark, bool keep)
{
    if (!mark)
        return;
    if (!keep)
        unlink(mark->path);
    close(mark->fd);
    free(mark->noted);
    free(mark);
}

/* ---- those of the dead ---- */

static char *read_text(int fd)
{
    char *text = malloc(TEXT_MAX + 1);
    ssize_t n = text ? pread(fd, text, TEXT_MAX, 0) : -1;
    if (n < 0) {
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

/* The mark, locked, of a process that has ended; NULL where it lives, another process has taken the mark, or it is not
 * a mark. */
static struct mr_dead_mark *take_one(const char *folder, const char *name)
{
    struct mr_dead_mark *mark = calloc(1, sizeof *mark);
    if (!mark)
        return NULL;
    mark->fd = -1;
    if (!mr_maker_parse_file(name, &mark->maker) || asprintf(&mark->path, "%s/%s", folder, name) < 0) {
        mark->path = NULL;
        goto failed;
    }
    struct stat status;
    mark->fd = mr_lock_file_take(mark->path, &status);
    if (mark->fd < 0 || !(mark->text = read_text(mark->fd)))
        goto failed;
    mark->late = mr_lock_file_is_late(mark->fd, &status, MR_LATE_S);
    mark->gone = mr_run_lock_look(mark->maker.run) == MR_RUN_DEAD;
    return mark;
failed:
    if (mark->fd >= 0)
        close(mark->fd);
    free(mark->path);
    free(mark);
    return NULL;
}

struct mr_dead_mark *mr_dead_marks_take(unsigned most)
{
    struct mr_dead_mark *marks = NULL;
    char folder[PATH_MAX];
    DIR *dir = mr_runtime_folder(KIND, folder) == 0 ? opendir(folder) : NULL;
    if (!dir)
        return NULL;
    for (struct dirent *entry; most > 0 && (entry = readdir(dir));) {
        struct mr_dead_mark *mark = take_one(folder, entry->d_name);
        if (!mark)
            continue;
        mark->next = marks;
        marks = mark;
        most--;
    }
    closedir(dir);
    return marks;
}

void mr_dead_mark_cleaned(struct mr_dead_mark *mark, const char *endpoint, const char *bucket)
{
    char *line = find_line(mark->text, endpoint, bucket);
    if (!line)
        return;
    char *end = strchr(line, '\n') + 1;
    memmove(line, end, strlen(end) + 1);
    if (mark->text[0] ==
        0) /* where other buckets are left, the file keeps all lines, and this bucket is listed again with them */
        unlink(mark->path);
}

void mr_dead_marks_free(struct mr_dead_mark *marks)
{
    for (struct mr_dead_mark *next; marks; marks = next) {
        next = marks->next;
        close(marks->fd);
        free(marks->path);
        free(marks->text);
        free(marks);
    }
}

const struct mr_dead_mark *mr_dead_marks_find(const struct mr_dead_mark *marks, const struct mr_maker *maker)
{
    while (marks && !mr_maker_equal(&marks->maker, maker))
        marks = marks->next;
    return marks;
}

static bool is_taken(const void *marks, const struct mr_maker *maker)
{
    return mr_dead_marks_find(marks, maker) != NULL;
}

bool mr_run_lives(struct mr_run_life *life, const char *run, const struct mr_dead_mark *marks)
{
    if (strcmp(run, life->run) != 0) {
        snprintf(life->run, sizeof life->run, "%s", run);
        life->lives = mr_lock_file_run_lives(KIND, run, is_taken, marks);
    }
    return life->lives;
}
