#include "worker/list/index_cache.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define AHEAD_NS    (300 * MR_SECOND_NS) /* clocks of machines that share a cache may differ so much */
#define TEMPORARY_S 3600                 /* files that a killed process has left */

/* ---- what an index is of ---- */

/* FNV-1a twice, over each text and its NUL: a name for a folder's files, no protection. */
static void mix(uint64_t *hash, const char *text, bool fold)
{
    do
        *hash = (*hash ^ (uint8_t)(fold ? tolower((unsigned char)*text) : *text)) * UINT64_C(0x100000001b3);
    while (*text++ != '\0');
}

void mr_index_key(const struct mr_index_identity *identity, char key[MR_INDEX_KEY_SIZE])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), classes = 0;
    mix(&hash, mr_scheme_name(identity->scheme), false);
    mix(&hash, identity->endpoint, false);
    mix(&hash, identity->bucket, false);
    for (size_t i = 0; i < identity->prefix_count; i++)
        mix(&hash, identity->prefixes[i], false);
    if (identity->shards)
        mix(&hash, "shards", false);
    for (size_t i = 0; i < identity->exclude_classes->count; i++) { /* in any order */
        uint64_t one = UINT64_C(0xcbf29ce484222325);
        mix(&one, identity->exclude_classes->items[i], true);
        classes += one;
    }
    snprintf(key, MR_INDEX_KEY_SIZE, "%016llx", (unsigned long long)mr_mix64(hash ^ classes));
}

static bool has_class(const struct mr_strings *classes, const char *name)
{
    for (size_t i = 0; i < classes->count; i++)
        if (strcasecmp(classes->items[i], name) == 0)
            return true;
    return false;
}

static bool same_classes(const struct mr_strings *a, const struct mr_strings *b)
{
    for (size_t i = 0; i < a->count; i++)
        if (!has_class(b, a->items[i]))
            return false;
    for (size_t i = 0; i < b->count; i++)
        if (!has_class(a, b->items[i]))
            return false;
    return true;
}

int mr_index_identity_check(const struct mr_index_identity *identity, const struct mr_index_file *file)
{
    if (file->scheme != identity->scheme || strcmp(file->bucket, identity->bucket) != 0) {
        char there[MR_URI_PLACE_SIZE], here[MR_URI_PLACE_SIZE];
        mr_error_set(MR_E_USAGE, "it is of %s, and the data set of %s", mr_uri_place(file->scheme, file->bucket, there),
                     mr_uri_place(identity->scheme, identity->bucket, here));
        return -1;
    }
    if (strcmp(file->endpoint, identity->endpoint) != 0) {
        mr_error_set(MR_E_USAGE, "it was listed at the endpoint \"%s\", and the data set is at \"%s\"", file->endpoint,
                     identity->endpoint);
        return -1;
    }
    if (identity->shards != (file->shards > 0)) {
        mr_error_set(MR_E_USAGE, "it is of %s, and the data set of %s",
                     file->shards > 0 ? "samples in tar shards" : "whole objects",
                     identity->shards ? "samples in tar shards" : "whole objects");
        return -1;
    }
    if (identity->prefix_count == 0)
        return 0;
    bool same = file->prefixes.count == identity->prefix_count;
    for (size_t i = 0; same && i < identity->prefix_count; i++)
        same = strcmp(file->prefixes.items[i], identity->prefixes[i]) == 0;
    if (!same) {
        mr_error_set(MR_E_USAGE, "it is of \"%.200s\"%s, and the data set of \"%.200s\"%s",
                     file->prefixes.count > 0 ? file->prefixes.items[0] : "(a list of objects)",
                     file->prefixes.count > 1 ? " and more" : "", identity->prefixes[0],
                     identity->prefix_count > 1 ? " and more" : "");
        return -1;
    }
    if (!same_classes(&file->exclude_classes, identity->exclude_classes)) {
        mr_error_set(MR_E_USAGE, "it leaves out other storage classes than list.exclude_classes says");
        return -1;
    }
    return 0;
}

/* ---- the folder ---- */

int mr_index_cache_folder(const struct mr_config *config, char folder[PATH_MAX])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (config->list.cache_files > 0 && config->list.cache_bytes > 0) {
        if (base && base[0] == '/')
            n = snprintf(folder, PATH_MAX, "%s/millrace/index", base);
        else if (home && home[0] == '/')
            n = snprintf(folder, PATH_MAX, "%s/.cache/millrace/index", home);
    }
    if (n > 0 && n < PATH_MAX - 200) /* room for the names in it */
        return 0;
    mr_error_set(MR_E_NOT_FOUND, "there is no cache of indexes (XDG_CACHE_HOME, HOME, list.cache_files, "
                                 "list.cache_bytes)");
    return -1;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* KEY-DIGEST.mri of this key, and of this digest. */
static bool is_wanted(const char *name, const char *key, const char *digest)
{
    size_t length = strlen(key);
    return strncmp(name, key, length) == 0 && name[length] == '-' && has_suffix(name, MR_INDEX_FILE_SUFFIX) &&
           (!digest || strncmp(name + length + 1, digest, strlen(digest)) == 0);
}

/* Opens one file of the folder; a damaged one is removed. -1: not usable. */
static int open_entry(int folder, const char *name, struct mr_index_file *file)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    if (mr_index_file_open(file, fd) == 0)
        return fd;
    bool damaged = mr_error_code() == MR_E_CORRUPT;
    mr_log_warning("cached index %s: %s%s", name, mr_error_text(), damaged ? ": removed" : "; it is not used");
    if (damaged)
        unlinkat(folder, name, 0);
    close(fd);
    return -1;
}

bool mr_index_cache_is_ahead(const struct mr_index_file *file)
{
    return file->created_wall_ns - mr_clock_wall_ns() > AHEAD_NS;
}

int mr_index_cache_find(const struct mr_config *config, const char *key, const char *digest, const char *except,
                        struct mr_index_file *file)
{
    char best_name[NAME_MAX + 1] = "";
    int best = -1;
    int64_t best_ns = INT64_MIN;
    memset(file, 0, sizeof *file);
    char path[PATH_MAX];
    if (mr_index_cache_folder(config, path) != 0)
        return -1;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct mr_index_file found;
        int fd = is_wanted(entry->d_name, key, digest) ? open_entry(dirfd(dir), entry->d_name, &found) : -1;
        if (fd < 0)
            continue;
        int64_t created_ns = mr_index_cache_is_ahead(&found) ? INT64_MIN : found.created_wall_ns;
        if ((best >= 0 && created_ns <= best_ns) || (except && strcmp(found.digest, except) == 0)) {
            mr_index_file_close(&found);
            close(fd);
            continue;
        }
        if (best >= 0)
            close(best);
        mr_index_file_close(file);
        *file = found;
        best = fd;
        best_ns = created_ns;
        snprintf(best_name, sizeof best_name, "%s", entry->d_name);
    }
    if (best >= 0)
        utimensat(dirfd(dir), best_name, NULL, 0); /* used now */
    if (dir)
        closedir(dir);
    if (best < 0)
        mr_error_set(MR_E_NOT_FOUND, "it is not in the cache %s", path);
    return best;
}

/* ---- all of them ---- */

struct entry {
    char name[NAME_MAX + 1];
    int64_t used_s;
    uint64_t bytes;
    size_t nth; /* of those of its key, from the youngest on */
};

static int youngest_first(const void *a, const void *b)
{
    const struct entry *one = a, *two = b;
    return (one->used_s < two->used_s) - (one->used_s > two->used_s);
}

static int by_key_youngest_first(const void *a, const void *b)
{
    const struct entry *one = a, *two = b;
    int order = strncmp(one->name, two->name, MR_INDEX_KEY_SIZE);
    return order != 0 ? order : youngest_first(a, b);
}

/* The youngest of each key, then the second of each, ... */
static int best_first(const void *a, const void *b)
{
    const struct entry *one = a, *two = b;
    if (one->nth != two->nth)
        return one->nth < two->nth ? -1 : 1;
    return youngest_first(a, b);
}

/* The entries of the folder; what a killed process left goes at once. */
static struct entry *read_entries(DIR *dir, size_t *count)
{
    struct entry *entries = NULL;
    size_t room = 0;
    *count = 0;
    for (struct dirent *at; (at = readdir(dir));) {
        struct stat status;
        if (fstatat(dirfd(dir), at->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
            continue;
        if (has_suffix(at->d_name, ".tmp") && status.st_mtim.tv_sec + TEMPORARY_S < time(NULL))
            unlinkat(dirfd(dir), at->d_name, 0);
        if (!has_suffix(at->d_name, MR_INDEX_FILE_SUFFIX))
            continue;
        if (*count == room) {
            struct entry *more = realloc(entries, (room + 64) * sizeof *entries);
            if (!more)
                break; /* the rest the next time */
            entries = more;
            room += 64;
        }
        snprintf(entries[*count].name, sizeof entries->name, "%s", at->d_name);
        entries[*count].used_s = status.st_mtim.tv_sec;
        entries[*count].nth = 0;
        entries[(*count)++].bytes = (uint64_t)status.st_size;
    }
    return entries;
}

void mr_index_cache_each_of_shards(const struct mr_config *config, const struct mr_index_identity *identity,
                                   bool (*use)(void *arg, const struct mr_index_file *file, int fd), void *arg)
{
    char path[PATH_MAX];
    size_t count = 0;
    DIR *dir = mr_index_cache_folder(config, path) == 0 ? opendir(path) : NULL;
    struct entry *entries = dir ? read_entries(dir, &count) : NULL;
    if (entries)
        qsort(entries, count, sizeof *entries, youngest_first);
    bool more = true;
    for (size_t i = 0; entries && i < count && more; i++) {
        struct mr_index_file file;
        int fd = open_entry(dirfd(dir), entries[i].name, &file);
        if (fd < 0)
            continue;
        if (file.shards > 0 && file.scheme == identity->scheme && strcmp(file.bucket, identity->bucket) == 0 &&
            strcmp(file.endpoint, identity->endpoint) == 0)
            more = use(arg, &file, fd);
        mr_index_file_close(&file);
        close(fd);
    }
    free(entries);
    if (dir)
        closedir(dir);
}

/* `kept` stays whatever its size. */
static void prune(const struct mr_config *config, const char *folder, const char *kept)
{
    DIR *dir = opendir(folder);
    uint64_t bytes = 0;
    size_t count = 0;
    if (!dir)
        return;
    struct entry *entries = read_entries(dir, &count);
    if (entries)
        qsort(entries, count, sizeof *entries, by_key_youngest_first);
    for (size_t i = 1; entries && i < count; i++)
        if (strncmp(entries[i - 1].name, entries[i].name, MR_INDEX_KEY_SIZE) == 0)
            entries[i].nth = entries[i - 1].nth + 1;
    if (entries)
        qsort(entries, count, sizeof *entries, best_first);
    for (size_t i = 0; entries && i < count; i++) {
        bytes += entries[i].bytes;
        if ((i >= config->list.cache_files || bytes > config->list.cache_bytes) && strcmp(entries[i].name, kept) != 0)
            unlinkat(dirfd(dir), entries[i].name, 0);
    }
    free(entries);
    closedir(dir);
}

int mr_index_cache_put(const struct mr_config *config, const char *key, const struct mr_index *index,
                       const struct mr_index_file_extra *extra)
{
    char folder[PATH_MAX];
    if (mr_index_cache_folder(config, folder) != 0)
        return -1;
    char digest[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(index->info.digest, digest);
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s-%s" MR_INDEX_FILE_SUFFIX, folder, key, digest) >= sizeof path) {
        mr_error_set(MR_E_USAGE, "the cache's path is too long: %.200s", folder);
        return -1;
    }
    /* Names of objects may be confidential, and the base directory specification asks for 0700 too. */
    mode_t mask = umask(077);
    /* The same objects again: the new file has a younger age. */
    int rc = mr_index_file_save(path, index, extra, true);
    umask(mask);
    if (rc != 0)
        return -1;
    prune(config, folder, path + strlen(folder) + 1);
    return 0;
}
