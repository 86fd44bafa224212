#include "devstore/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "devstore/object.h"
#include "devstore/text.h"

#define SIDE      ".devstore"
#define CHUNK     200  /* bytes of a component in the side folder */
#define PLAIN_MAX 2048 /* a plain path is not longer, so that with the bucket's folder it still fits PATH_MAX */

char *ds_folder_plain_path(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > PLAIN_MAX)
        return NULL;
    for (const char *part = name;;) {
        const char *end = strchrnul(part, '/');
        size_t n = (size_t)(end - part);
        if (n == 0 || n > NAME_MAX || (n == 1 && *part == '.') || (n == 2 && memcmp(part, "..", 2) == 0))
            return NULL;
        if (part == name && n == strlen(SIDE) && memcmp(part, SIDE, n) == 0)
            return NULL;
        if (!*end)
            return strdup(name);
        part = end + 1;
    }
}

char *ds_folder_side_path(const char *name)
{
    struct ds_text coded = {0};
    ds_text_percent(&coded, name);
    struct ds_text path = {0};
    ds_text_puts(&path, SIDE "/");
    for (size_t at = 0; at < coded.length;) {
        size_t n = coded.length - at < CHUNK ? coded.length - at : CHUNK;
        ds_text_append(&path, coded.data + at, n);
        at += n;
        ds_text_puts(&path, at < coded.length ? "+/" : "=");
    }
    if (coded.failed || path.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's path");
        ds_text_close(&path);
    }
    ds_text_close(&coded);
    return path.data;
}

char *ds_folder_side_name(const char *path)
{
    struct ds_text coded = {0};
    char *name = NULL;
    for (const char *part = path;;) {
        const char *end = strchrnul(part, '/');
        if (end - part < 2 || end[-1] != (*end ? '+' : '='))
            goto out;
        ds_text_append(&coded, part, (size_t)(end - part) - 1);
        if (!*end)
            break;
        part = end + 1;
    }
    if (!coded.failed && coded.data)
        name = ds_percent_decode(coded.data, coded.length, false);
out:
    ds_text_close(&coded);
    return name;
}

static struct ds_object *from_stat(const char *name, const char *path, const struct stat *st)
{
    struct ds_object *object = ds_object_new(name);
    if (!object)
        return NULL;
    object->path = strdup(path);
    if (!object->path) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for \"%s\"", path);
        ds_object_unref(object);
        return NULL;
    }
    object->size = (uint64_t)st->st_size;
    object->mtime_ns = st->st_mtim.tv_sec * MR_SECOND_NS + st->st_mtim.tv_nsec;
    object->created_us = object->mtime_ns >= 1000 ? object->mtime_ns / 1000 : 1;
    object->updated_us = object->created_us;
    object->generation = (uint64_t)object->created_us;
    return object;
}

struct ds_object *ds_folder_object(const char *name, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        mr_error_set_errno(errno, "cannot stat \"%s\"", path);
        return NULL;
    }
    if (!S_ISREG(st.st_mode)) {
        mr_error_set(MR_E_NOT_FOUND, "\"%s\" is not a regular file", path);
        return NULL;
    }
    return from_stat(name, path, &st);
}

/* The object name of a path below the bucket's folder, malloc'ed; NULL for what is not an object. */
static char *folder_name_of(const char *path)
{
    size_t length = strlen(path);
    if (strncmp(path, SIDE "/", strlen(SIDE "/")) == 0)
        return ds_folder_side_name(path + strlen(SIDE "/"));
    if (length > MR_NAME_MAX || !ds_utf8_valid(path, length)) {
        mr_log_warning("skipped a file whose path is not an object name (not UTF-8, or over 1024 bytes): %s", path);
        return NULL;
    }
    return strdup(path);
}

int ds_folder_scan(const char *folder, int (*found)(void *cls, struct ds_object *object), void *cls)
{
    int rc = -1;
    size_t skip = strlen(folder) + 1;
    char *const roots[] = {(char *)folder, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk) {
        mr_error_set_errno(errno, "cannot read folder \"%s\"", folder);
        return -1;
    }
    for (FTSENT *entry; (entry = fts_read(walk));) {
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR)
            mr_log_warning("skipped \"%s\": %s", entry->fts_path, strerror(entry->fts_errno));
        if (entry->fts_info != FTS_F && entry->fts_info != FTS_SL)
            continue;
        if (strncmp(entry->fts_path + skip, SIDE "/#", strlen(SIDE "/#")) == 0) {
            unlink(entry->fts_path);
            continue;
        }
        struct stat st;
        /* A link to a file is an object; one to a folder is not followed, so that a loop does no harm. */
        if (stat(entry->fts_path, &st) < 0 || !S_ISREG(st.st_mode))
            continue;
        char *name = folder_name_of(entry->fts_path + skip);
        if (!name)
            continue;
        struct ds_object *object = from_stat(name, entry->fts_path, &st);
        free(name);
        if (!object || found(cls, object) < 0)
            goto out;
    }
    rc = 0;
out:
    fts_close(walk);
    return rc;
}

static char *join(const char *folder, const char *path)
{
    char *whole;
    if (asprintf(&whole, "%s/%s", folder, path) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a path");
        return NULL;
    }
    return whole;
}

/* Creates the folders above path, which begins with an existing folder of `skip` bytes. 0, or -1 with errno. */
static int make_parents(char *path, size_t skip)
{
    for (char *slash = strchr(path + skip + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int rc = mkdir(path, 0777);
        *slash = '/';
        if (rc < 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}

int ds_folder_temporary(const char *folder, char **path)
{
    static atomic_ulong serial;
    char name[64];
    snprintf(name, sizeof name, SIDE "/#%d-%lu", (int)getpid(), atomic_fetch_add(&serial, 1));
    *path = join(folder, name);
    if (!*path)
        return -1;
    int fd = -1;
    if (make_parents(*path, strlen(folder)) == 0)
        fd = open(*path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot create \"%s\"", *path);
        free(*path);
        *path = NULL;
    }
    return fd;
}

/* Moves a file to path below folder. 0, or -1 with errno. */
static int move(const char *folder, const char *from, char *path)
{
    return make_parents(path, strlen(folder)) < 0 || rename(from, path) < 0 ? -1 : 0;
}

/* 0, or -1 with an error. */
static int stamp(const char *path, int64_t ns)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                {.tv_sec = (time_t)(ns / MR_SECOND_NS), .tv_nsec = (long)(ns % MR_SECOND_NS)}};
    if (utimensat(AT_FDCWD, path, times, 0) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot set the time of \"%s\"", path);
    return -1;
}

int ds_folder_stamp(struct ds_object *object)
{
    int64_t ns = (int64_t)object->generation * 1000;
    if (stamp(object->path, ns) < 0)
        return -1;
    object->mtime_ns = ns;
    return 0;
}

int ds_folder_commit(const char *folder, const char *temporary, struct ds_object *object, const char *old_path)
{
    int64_t ns = (int64_t)object->generation * 1000;
    char *below = NULL, *path = NULL;
    int rc = -1;
    if (stamp(temporary, ns) < 0)
        return -1;
    below = old_path ? NULL : ds_folder_plain_path(object->name);
    path = old_path ? strdup(old_path) : below ? join(folder, below) : NULL;
    if (path && move(folder, temporary, path) == 0)
        goto done;
    /* A folder is in the file's place, or a file in a folder's. */
    if (path && errno != ENOTDIR && errno != EISDIR && errno != EEXIST && errno != ENOTEMPTY && errno != ENAMETOOLONG) {
        mr_error_set_errno(errno, "cannot write \"%s\"", path);
        goto out;
    }
    free(below);
    free(path);
    path = NULL;
    below = ds_folder_side_path(object->name);
    if (!below || !(path = join(folder, below)))
        goto out;
    if (move(folder, temporary, path) < 0) {
        mr_error_set_errno(errno, "cannot write \"%s\"", path);
        goto out;
    }
done:
    object->path = path;
    object->mtime_ns = ns;
    path = NULL;
    rc = 0;
out:
    free(below);
    free(path);
    return rc;
}

void ds_folder_remove(const char *folder, const char *path)
{
    size_t keep = strlen(folder);
    char *copy = strdup(path);
    unlink(path);
    for (char *slash; copy && (slash = strrchr(copy, '/')) && (size_t)(slash - copy) > keep;) {
        *slash = 0;
        /* The side folder stays: an upload may be about to create its file there. */
        if (strcmp(copy + keep, "/" SIDE) == 0 || rmdir(copy) < 0)
            break;
    }
    free(copy);
}
