#include "worker/cleanup/run_mark.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/control/runtime_folder.h"

#define TEXT_MAX     (64 << 10)
#define ABANDONED_S  (7 * 86400) /* a mark whose bucket nobody reads any more */
#define MODE_NOTICED 0400
#define UUID_LENGTH  36

/* ---- names ---- */

struct mr_maker mr_maker_of(const char *run, unsigned slot, uint64_t start)
{
    struct mr_maker maker = {.slot = slot, .start = (uint32_t)start};
    snprintf(maker.run, sizeof maker.run, "%s", run);
    return maker;
}

bool mr_maker_equal(const struct mr_maker *a, const struct mr_maker *b)
{
    return a->slot == b->slot && a->start == b->start && strcmp(a->run, b->run) == 0;
}

static bool parse_number(const char **at, char end, uint64_t most, uint64_t *number)
{
    const char *p = *at;
    uint64_t n = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (n > (most - (uint64_t)(*p - '0')) / 10)
            return false;
        n = n * 10 + (uint64_t)(*p - '0');
    }
    if (*p != end)
        return false;
    *at = p + (end != 0);
    *number = n;
    return true;
}

static bool parse_maker(const char *text, char behind_run, char between, struct mr_maker *maker, const char **rest)
{
    uint64_t slot, start;
    if (strnlen(text, UUID_LENGTH + 1) <= UUID_LENGTH || text[UUID_LENGTH] != behind_run ||
        strspn(text, "0123456789abcdef-") != UUID_LENGTH)
        return false;
    memset(maker, 0, sizeof *maker);
    memcpy(maker->run, text, UUID_LENGTH);
    text += UUID_LENGTH + 1;
    if (!parse_number(&text, between, UINT32_MAX, &slot) ||
        !parse_number(&text, between == '-' ? '-' : 0, UINT32_MAX, &start))
        return false;
    maker->slot = (unsigned)slot;
    maker->start = (uint32_t)start;
    *rest = text;
    return true;
}

bool mr_maker_parse(const char *text, struct mr_maker *maker, uint64_t *number)
{
    uint64_t ignored;
    const char *rest;
    return parse_maker(text, '/', '-', maker, &rest) && parse_number(&rest, 0, UINT64_MAX, number ? number : &ignored);
}

/* ---- our own ---- */

struct mr_run_mark {
    int fd;
    char path[PATH_MAX + 80];
    char *noted; /* lines, as in the file */
};

static int folder(char path[PATH_MAX])
{
    if (mr_runtime_folder(path) != 0)
        return -1;
    size_t used = strlen(path);
    if (snprintf(path + used, PATH_MAX - used, "/composed") >= (int)(PATH_MAX - used)) {
        mr_error_set(MR_E_CONFIG, "XDG_RUNTIME_DIR is too long");
        return -1;
    }
    return mr_private_folder(path);
}

struct mr_run_mark *mr_run_mark_new(const struct mr_maker *maker)
{
    char base[PATH_MAX];
    struct stat ours, there;
    if (folder(base) != 0)
        return NULL;
    struct mr_run_mark *mark = calloc(1, sizeof *mark);
    if (!mark) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a mark");
        return NULL;
    }
    snprintf(mark->path, sizeof mark->path, "%s/%s.%u.%" PRIu32, base, maker->run, maker->slot, maker->start);
    for (unsigned i = 0; i < 10; i++) {
        mark->fd = open(mark->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (mark->fd < 0)
            break;
        /* Somebody may have taken the new file for a dead one's in the moment before the lock, and removed it. */
        if (flock(mark->fd, LOCK_EX) == 0 && fstat(mark->fd, &ours) == 0 && stat(mark->path, &there) == 0 &&
            ours.st_ino == there.st_ino)
            return mark;
        close(mark->fd);
    }
    mr_error_set_errno(errno, "cannot lock %s", mark->path);
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

/* The lock is ours and the file is still the one of that name. */
static bool still_there(int fd, const char *path, struct stat *status)
{
    struct stat there;
    return fstat(fd, status) == 0 && stat(path, &there) == 0 && status->st_ino == there.st_ino;
}

static struct mr_dead_mark *take_one(const char *base, const char *name)
{
    struct mr_maker maker;
    const char *rest;
    struct stat status;
    char *path = NULL;
    if (!parse_maker(name, '.', '.', &maker, &rest) || asprintf(&path, "%s/%s", base, name) < 0)
        return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct mr_dead_mark *mark = NULL;
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || !still_there(fd, path, &status))
        goto not_ours;
    time_t now = time(NULL);
    if (status.st_size == 0 || now - status.st_mtime > ABANDONED_S) { /* it made nothing, or nobody can clean up */
        unlink(path);
        goto not_ours;
    }
    mark = calloc(1, sizeof *mark);
    if (!mark || !(mark->text = read_text(fd)))
        goto not_ours;
    bool noticed = (status.st_mode & 0777) == MODE_NOTICED;
    if (!noticed && fchmod(fd, MODE_NOTICED) == 0) /* changes ctime, which is then the time of the notice */
        (void)fstat(fd, &status);
    mark->late = noticed && now - status.st_ctime > MR_MARK_LATE_S;
    mark->maker = maker;
    mark->fd = fd;
    mark->path = path;
    return mark;
not_ours:
    if (fd >= 0)
        close(fd);
    free(mark);
    free(path);
    return NULL;
}

struct mr_dead_mark *mr_dead_marks_take(unsigned most)
{
    char base[PATH_MAX];
    struct mr_dead_mark *marks = NULL;
    DIR *dir = folder(base) == 0 ? opendir(base) : NULL;
    struct dirent *entry;
    if (!dir)
        return NULL;
    while (most > 0 && (entry = readdir(dir))) {
        struct mr_dead_mark *mark = take_one(base, entry->d_name);
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
    if (mark->text[0] == 0) /* other buckets stand in the file for who reads them next; ours is looked at again then */
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

bool mr_run_mark_lives(const char *run, const struct mr_dead_mark *marks)
{
    char base[PATH_MAX];
    struct mr_maker maker;
    const char *rest;
    bool lives = false;
    DIR *dir = folder(base) == 0 ? opendir(base) : NULL;
    struct dirent *entry;
    if (!dir)
        return false;
    while (!lives && (entry = readdir(dir))) {
        if (strncmp(entry->d_name, run, strlen(run)) != 0 || entry->d_name[strlen(run)] != '.' ||
            !parse_maker(entry->d_name, '.', '.', &maker, &rest) || mr_dead_marks_find(marks, &maker))
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        lives = flock(fd, LOCK_SH | LOCK_NB) != 0; /* a janitor's lock counts as life for a moment: the careful error */
        close(fd);
    }
    closedir(dir);
    return lives;
}
