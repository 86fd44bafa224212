#include "worker/cleanup/upload_record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/run_lock.h"
#include "shm/control/runtime_folder.h"

#define FILE_MAX_BYTES (4 << 20)
#define UNKNOWN_S      3600

#define S3_PREFIX "s3://"

const char *mr_upload_place(enum mr_scheme scheme, const char *bucket, char out[MR_UPLOAD_PLACE_SIZE])
{
    snprintf(out, MR_UPLOAD_PLACE_SIZE, "%s%s", scheme == MR_SCHEME_S3 ? S3_PREFIX : "", bucket);
    return out;
}

enum mr_scheme mr_upload_scheme(const struct mr_upload_entry *entry, const char **bucket)
{
    bool s3 = strncmp(entry->bucket, S3_PREFIX, strlen(S3_PREFIX)) == 0;
    *bucket = entry->bucket + (s3 ? strlen(S3_PREFIX) : 0);
    return s3 ? MR_SCHEME_S3 : MR_SCHEME_GS;
}

const char *mr_upload_uri(const struct mr_upload_entry *entry, char *out, size_t size)
{
    const char *bucket;
    char root[MR_URI_PLACE_SIZE];
    enum mr_scheme scheme = mr_upload_scheme(entry, &bucket);
    snprintf(out, size, "%s%s", mr_uri_root(scheme, bucket, root), entry->name);
    return out;
}

/* ---- one log ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place: NULL where it is not percent-encoded as it should be, or holds a NUL. */
static char *decode(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        int high, low;
        if ((high = hex(at[1])) < 0 || (low = hex(at[2])) < 0 || high + low == 0)
            return NULL;
        *to++ = (char)(high << 4 | low);
        at += 2;
    }
    *to = 0;
    return text;
}

static void entry_close(struct mr_upload_entry *entry)
{
    free(entry->endpoint);
    free(entry->bucket);
    free(entry->name);
    free(entry->id);
}

static struct mr_upload_entry *upload_record_find(const struct mr_upload_entries *entries, uint64_t number)
{
    for (unsigned i = 0; i < entries->count; i++)
        if (entries->items[i].number == number)
            return &entries->items[i];
    return NULL;
}

/* A word of the line; NULL: there is none. */
static char *word(char **at)
{
    char *begin = strsep(at, " ");
    return begin && *begin ? begin : NULL;
}

static void add_entry(struct mr_upload_entries *entries, uint64_t number, char *rest)
{
    char *time = word(&rest), *endpoint = word(&rest), *bucket = word(&rest), *name = word(&rest);
    if (!name || !decode(name))
        return;
    struct mr_upload_entry *items = realloc(entries->items, (entries->count + 1) * sizeof *items);
    entries->partial |= !items;
    if (!items)
        return;
    entries->items = items;
    struct mr_upload_entry entry = {.number = number,
                                    .begun_s = strtoll(time, NULL, 10),
                                    .endpoint = strdup(endpoint),
                                    .bucket = strdup(bucket),
                                    .name = strdup(name)};
    if (entry.endpoint && entry.bucket && entry.name) {
        items[entries->count++] = entry;
    } else {
        entries->partial = true;
        entry_close(&entry);
    }
}

/* Lines that cannot be read are skipped: a process may have died while it wrote one. */
static void read_line(struct mr_upload_entries *entries, char *line)
{
    char *rest = line, *kind = word(&rest), *number = word(&rest), *end = NULL;
    uint64_t n = number ? strtoull(number, &end, 10) : 0;
    struct mr_upload_entry *entry = n ? upload_record_find(entries, n) : NULL;
    if (n == 0 || *end)
        return;
    if (strcmp(kind, "B") == 0 && !entry && rest) {
        add_entry(entries, n, rest);
    } else if (strcmp(kind, "I") == 0 && entry && rest) {
        char *id = word(&rest);
        free(entry->id);
        entry->id = id && decode(id) ? strdup(id) : NULL;
        entries->partial |= !entry->id;
    } else if (strcmp(kind, "E") == 0 && entry) {
        entry_close(entry);
        *entry = entries->items[--entries->count];
    }
}

int mr_upload_entries_read(struct mr_upload_entries *entries, int fd, off_t size)
{
    *entries = (struct mr_upload_entries){.partial = size > FILE_MAX_BYTES};
    size_t length = size < FILE_MAX_BYTES ? (size_t)size : FILE_MAX_BYTES;
    char *text = malloc(length + 1);
    ssize_t n = text ? pread(fd, text, length, 0) : -1;
    if (n < 0) {
        mr_error_set_errno(text ? errno : ENOMEM, "cannot read a log of uploads");
        free(text);
        return -1;
    }
    text[n] = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        read_line(entries, line);
    }
    free(text);
    return 0;
}

void mr_upload_entries_close(struct mr_upload_entries *entries)
{
    for (unsigned i = 0; i < entries->count; i++)
        entry_close(&entries->items[i]);
    free(entries->items);
    *entries = (struct mr_upload_entries){0};
}

/* ---- all logs ---- */

static DIR *open_folder(char folder[PATH_MAX])
{
    return mr_runtime_folder(MR_UPLOAD_LOG_KIND, folder) == 0 ? opendir(folder) : NULL;
}

/* Whether the file knows that upload. In doubt true: an upload that is wrongly kept costs less than one that is wrongly
 * aborted. */
static bool has_id(int fd, const char *bucket, const char *id)
{
    struct mr_upload_entries entries;
    struct stat status;
    if (fstat(fd, &status) != 0 || mr_upload_entries_read(&entries, fd, status.st_size) != 0)
        return true;              /* unknown: the careful error */
    bool found = entries.partial; /* unknown: the careful error */
    for (unsigned i = 0; i < entries.count; i++)
        found |=
            entries.items[i].id && strcmp(entries.items[i].id, id) == 0 && strcmp(entries.items[i].bucket, bucket) == 0;
    mr_upload_entries_close(&entries);
    return found;
}

/* A process of the run lives or may be started again, or it has this very file locked. */
static bool is_live(int fd, const struct mr_maker *maker)
{
    if (mr_run_lock_look(maker->run) == MR_RUN_LIVES)
        return true;
    struct stat status; /* a noticed file is a dead process's, even if one that cleans up holds it now */
    return fstat(fd, &status) != 0 || (!mr_lock_file_is_noticed(&status) && flock(fd, LOCK_SH | LOCK_NB) != 0);
}

bool mr_upload_is_live(const char *place, const char *id)
{
    char folder[PATH_MAX];
    DIR *dir = open_folder(folder);
    bool live = !dir && mr_run_lock_cannot_tell();
    for (struct dirent *entry; dir && !live && (entry = readdir(dir));) {
        struct mr_maker maker;
        if (!mr_maker_parse_file(entry->d_name, &maker))
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        live = fd >= 0 ? is_live(fd, &maker) && has_id(fd, place, id) : mr_run_lock_cannot_tell();
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
    return live;
}

static bool is_same(const void *one, const struct mr_maker *other)
{
    return mr_maker_equal(one, other);
}

/* Its process is dead: can no process of its run continue it? If the run has left no trace of itself, its age
 * decides. */
static bool is_dead_for_good(const struct mr_maker *maker, const struct stat *status)
{
    enum mr_run_state state = mr_run_lock_look(maker->run);
    return state == MR_RUN_DEAD || (state == MR_RUN_UNKNOWN && time(NULL) - status->st_mtime > UNKNOWN_S &&
                                    !mr_lock_file_run_lives(MR_UPLOAD_LOG_KIND, maker->run, is_same, maker));
}

void mr_upload_each_dead(mr_upload_dead_fn *found, void *arg)
{
    char folder[PATH_MAX], path[MR_LOCK_FILE_PATH_SIZE];
    DIR *dir = open_folder(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct mr_maker maker;
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int fd = mr_maker_parse_file(entry->d_name, &maker) ? mr_lock_file_take(path, &status) : -1;
        struct mr_upload_entries entries = {0};
        if (fd >= 0 && is_dead_for_good(&maker, &status) && mr_upload_entries_read(&entries, fd, status.st_size) == 0)
            for (unsigned i = 0; i < entries.count; i++)
                if (entries.items[i].id && strcmp(entries.items[i].bucket, MR_UPLOAD_FILE) != 0)
                    found(arg, &entries.items[i], path);
        mr_upload_entries_close(&entries);
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
}
