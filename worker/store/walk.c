#include "worker/store/walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "worker/store/leftovers.h"
#include "worker/store/store.h"
#include "worker/store/text.h"

/* An open folder: its entries in order, folders with a "/" at their end: "a" the folder comes after "a.b" the file. */
struct level {
    char **names;
    size_t count, at;
    size_t path_length; /* of the folder, its "/" included */
    dev_t dev;
    ino_t ino;
};

struct mr_walk {
    char path[MR_STORE_NAME_MAX + 256 + 2]; /* room for one more entry before the limit is checked */
    struct level *levels;
    size_t depth, size;
    char *prefix, *lower, *upper;
    bool exclusive, no_links;
};

static void walk_fail(const struct mr_walk *walk, size_t length, int errnum, const char *what)
{
    char quoted[300];
    mr_error_set_errno(errnum, "cannot %s \"%s\"", what, mr_text_quote(quoted, sizeof quoted, walk->path, length));
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void level_close(struct level *level)
{
    for (size_t i = level->at; i < level->count; i++) /* those before `at` are free already */
        free(level->names[i]);
    free(level->names);
}

/* Whether there is nothing at that name, or a link that leads nowhere. No other failure of a look-up may make a listing
 * shorter: a file server that does not respond is not a deleted file. */
static bool is_gone(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP;
}

static bool is_link(int dir_fd, const struct dirent *entry)
{
    struct stat st;
    return entry->d_type == DT_LNK ||
           (entry->d_type == DT_UNKNOWN && fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(st.st_mode));
}

/* 1: name is a folder to enter, 0: it may be a file, -1: it no longer exists, or is neither. */
static int kind_of(int dir_fd, const struct dirent *entry, bool no_links)
{
    if (entry->d_type == DT_DIR)
        return 1;
    if (entry->d_type == DT_REG)
        return 0;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return -1;
    struct stat st;
    if (fstatat(dir_fd, entry->d_name, &st, 0) != 0)
        return is_gone(errno) ? -1 : 0; /* mr_walk_next looks it up again, and says why it cannot */
    if (S_ISDIR(st.st_mode))
        return no_links && is_link(dir_fd, entry) ? -1 : 1;
    return S_ISREG(st.st_mode) ? 0 : -1;
}

/* -1: no memory; mr_error is not set. */
static int level_add(struct level *level, size_t *size, const char *name, int is_folder)
{
    size_t n = strlen(name);
    if (level->count == *size) {
        size_t grown = *size ? 2 * *size : 64;
        char **names = realloc(level->names, grown * sizeof *names);
        if (!names)
            return -1;
        level->names = names;
        *size = grown;
    }
    char *copy = malloc(n + 2);
    if (!copy)
        return -1;
    memcpy(copy, name, n);
    memcpy(copy + n, is_folder ? "/" : "", is_folder ? 2 : 1);
    level->names[level->count++] = copy;
    return 0;
}

/* Whether it is a folder that the walk is inside of already, as by a symbolic link. */
static bool inside_itself(const struct mr_walk *walk, const struct stat *st)
{
    for (size_t i = 0; i < walk->depth; i++) {
        if (walk->levels[i].dev == st->st_dev && walk->levels[i].ino == st->st_ino)
            return true;
    }
    return false;
}

/* Temporary files of writers (leftovers.h) are left out. On -1 with mr_error the caller closes level too. */
static int read_folder(struct mr_walk *walk, DIR *dir, struct level *level, uint64_t *skipped)
{
    errno = 0;
    const struct dirent *entry;
    size_t size = 0;
    for (; (entry = readdir(dir)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            mr_leftover_kind(entry->d_name) != MR_LEFTOVER_NONE) /* no object yet */
            continue;
        int kind = kind_of(dirfd(dir), entry, walk->no_links);
        if (kind < 0) {
            ++*skipped;
        } else if (level_add(level, &size, entry->d_name, kind) != 0) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for the entries of a folder");
            return -1;
        }
    }
    if (errno != 0) {
        walk_fail(walk, level->path_length, errno, "read the folder");
        return -1;
    }
    if (level->count > 1)
        qsort(level->names, level->count, sizeof *level->names, by_bytes);
    return 0;
}

/* Enters the folder whose path (with its "/") is the first `length` bytes of walk->path. 0, also if it no longer exists
 * or the walk is inside of it; -1 with mr_error. */
static int walk_enter(struct mr_walk *walk, size_t length, uint64_t *skipped)
{
    struct level level = {.path_length = length};
    int rc = -1;
    walk->path[length] = 0;
    DIR *dir = opendir(walk->path);
    if (!dir && walk->depth > 0 && errno == ENOENT)
        return 0; /* removed since its parent was read */
    struct stat st;
    if (!dir || fstat(dirfd(dir), &st) != 0) {
        walk_fail(walk, length, errno, "open the folder");
        goto out;
    }
    if (inside_itself(walk, &st)) {
        ++*skipped;
        rc = 0;
        goto out;
    }
    level.dev = st.st_dev;
    level.ino = st.st_ino;
    if (walk->depth == walk->size) {
        size_t size = walk->size ? 2 * walk->size : 8;
        struct level *levels = realloc(walk->levels, size * sizeof *levels);
        if (!levels) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a walk through folders");
            goto out;
        }
        walk->levels = levels;
        walk->size = size;
    }
    if (read_folder(walk, dir, &level, skipped) != 0) {
        level_close(&level);
        goto out;
    }
    walk->levels[walk->depth++] = level;
    rc = 0;
out:
    if (dir)
        closedir(dir);
    return rc;
}

/* Whether a name that begins with the folder's path can be wanted. */
static bool folder_wanted(const struct mr_walk *walk, size_t length)
{
    size_t prefix = strlen(walk->prefix), lower = walk->lower ? strlen(walk->lower) : 0;
    if (memcmp(walk->path, walk->prefix, length < prefix ? length : prefix) != 0)
        return false;
    return !walk->lower || memcmp(walk->path, walk->lower, length < lower ? length : lower) >= 0;
}

static bool file_wanted(const struct mr_walk *walk)
{
    if (strncmp(walk->path, walk->prefix, strlen(walk->prefix)) != 0)
        return false;
    if (!walk->lower)
        return true;
    int order = strcmp(walk->path, walk->lower);
    return walk->exclusive ? order > 0 : order >= 0;
}

int mr_walk_next(struct mr_walk *walk, const char **path, struct stat *st, uint64_t *skipped)
{
    while (walk->depth > 0) {
        struct level *level = &walk->levels[walk->depth - 1];
        if (level->at == level->count) {
            level_close(level);
            walk->depth--;
            continue;
        }
        char *name = level->names[level->at++];
        size_t n = strlen(name), length = level->path_length + n;
        bool is_folder = name[n - 1] == '/';
        memcpy(walk->path + level->path_length, name, n + 1); /* n <= 256: NAME_MAX and the slash */
        free(name);
        if (length >= MR_STORE_NAME_MAX) {
            char quoted[300];
            mr_error_set(MR_E_USAGE, "\"%s\": a path of more than %d bytes",
                         mr_text_quote(quoted, sizeof quoted, walk->path, length), MR_STORE_NAME_MAX - 1);
            return -1;
        }
        if (walk->upper && strcmp(walk->path, walk->upper) >= 0)
            return 0; /* the walk is in order: all that follows is beyond too */
        if (is_folder) {
            if (folder_wanted(walk, length) && walk_enter(walk, length, skipped) != 0)
                return -1;
            continue;
        }
        if (!file_wanted(walk))
            continue;
        int rc = stat(walk->path, st);
        if (rc != 0 && !is_gone(errno)) {
            walk_fail(walk, length, errno, "look up");
            return -1;
        }
        if (rc == 0 && S_ISREG(st->st_mode)) {
            *path = walk->path;
            return 1;
        }
        ++*skipped; /* removed or replaced since the folder was read */
    }
    return 0;
}

struct mr_walk *mr_walk_new(const char *prefix, const char *lower, bool exclusive, const char *upper, bool no_links)
{
    uint64_t skipped = 0;
    size_t n = strlen(prefix);
    if (prefix[0] != '/' || n + 1 >= MR_STORE_NAME_MAX) {
        mr_error_set(MR_E_USAGE, "\"%.100s\" is not an absolute path of at most %d bytes", prefix,
                     MR_STORE_NAME_MAX - 2);
        return NULL;
    }
    struct mr_walk *walk = calloc(1, sizeof *walk);
    if (!walk || mr_text_dup(&walk->lower, lower) || mr_text_dup(&walk->upper, upper) ||
        !(walk->prefix = malloc(n + 2))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a walk through folders");
        goto fail;
    }
    memcpy(walk->prefix, prefix, n + 1);
    struct stat st = {0};
    if (walk->prefix[n - 1] != '/' && stat(prefix, &st) != 0 && !is_gone(errno)) {
        memcpy(walk->path, prefix, n);
        walk_fail(walk, n, errno, "look up");
        goto fail;
    }
    if (S_ISDIR(st.st_mode) && walk->prefix[n - 1] != '/')
        memcpy(walk->prefix + n++, "/", 2);
    walk->exclusive = exclusive;
    walk->no_links = no_links;
    while (walk->prefix[n - 1] != '/') /* the folder that holds every name with this prefix */
        n--;
    memcpy(walk->path, walk->prefix, n);
    if (walk_enter(walk, n, &skipped) != 0)
        goto fail;
    return walk;
fail:
    mr_walk_destroy(walk);
    return NULL;
}

void mr_walk_destroy(struct mr_walk *walk)
{
    if (!walk)
        return;
    for (size_t i = 0; i < walk->depth; i++)
        level_close(&walk->levels[i]);
    free(walk->levels);
    free(walk->prefix);
    free(walk->lower);
    free(walk->upper);
    free(walk);
}
