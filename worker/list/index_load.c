#include "worker/list/index_load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/index/shards.h"
#include "shm/memory/segment.h"
#include "worker/store/s3.h"

#define FIRST_BYTES    (UINT64_C(64) << 10) /* of an object: its head, and most often all of its header */
#define REPLACED_TRIES 8                    /* of an index that other nodes are replacing */
#define NAMES_SHOWN    3 /* of those that differ; the text goes through the board, which has room for 480 bytes */
#define NAME_SHOWN     40
#define LOCK_US        20000
#define LOCK_TRIES     50 /* of a node that has stopped while it held the lock */

const char *mr_index_endpoint(const struct mr_config *config, enum mr_scheme scheme, const char *bucket)
{
    static char text[512]; /* without slashes at its end: they do not make it another endpoint */
    const char *environment = getenv("STORAGE_EMULATOR_HOST");
    const char *endpoint = config->gcs.endpoint[0] != '\0' ? config->gcs.endpoint : environment;
    char *s3 = NULL; /* an error in it shows where the store is opened */
    if (scheme == MR_SCHEME_S3) {
        const struct mr_config_s3 *at = mr_config_s3_of(config, bucket, &bucket);
        endpoint = at && mr_s3_endpoint(at->endpoint, at->profile, &s3) == 0 ? s3 : NULL;
    }
    if (scheme == MR_SCHEME_FILE || !endpoint)
        return "";
    snprintf(text, sizeof text, "%s", endpoint);
    free(s3);
    for (size_t n = strlen(text); n > 0 && text[n - 1] == '/'; n--)
        text[n - 1] = '\0';
    return text;
}

int mr_index_memfd(void)
{
    int fd = memfd_create("millrace-index", MFD_CLOEXEC);
    if (fd < 0)
        mr_error_set_errno(errno, "cannot make memory for a saved index");
    return fd;
}

/* ---- requests, one at a time ---- */

struct waiting {
    bool answered;
    struct mr_store_item item;
};

static void looked_up(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct waiting *w = arg;
    w->answered = true;
    w->item = item ? *item : (struct mr_store_item){0};
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
    else
        mr_error_clear();
}

static void fetched(void *arg, const struct mr_transfer_result *result)
{
    struct waiting *w = arg;
    w->answered = true;
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
    else
        mr_error_clear();
}

/* Messages of the supervisor wait meanwhile: DRAIN too, which is followed by SIGKILL soon. */
static int await(struct mr_net *net, struct waiting *w, const struct mr_transfer *started)
{
    if (!started)
        return -1;
    while (!w->answered)
        if (mr_http_step(net->http, 1000, -1) < 0)
            return -1;
    w->answered = false;
    return mr_error_code() == MR_OK ? 0 : -1;
}

/* ---- reading ---- */

static void age_text(int64_t seconds, char *out, size_t size)
{
    if (seconds < 120)
        snprintf(out, size, "%" PRId64 " s", seconds);
    else if (seconds < 7200)
        snprintf(out, size, "%" PRId64 " min", seconds / 60);
    else if (seconds < 172800)
        snprintf(out, size, "%" PRId64 " h", seconds / 3600);
    else
        snprintf(out, size, "%" PRId64 " days", seconds / 86400);
}

static int64_t age_of(const struct mr_index_file *file)
{
    int64_t age_ns = mr_clock_wall_ns() - file->created_wall_ns;
    return age_ns > 0 ? age_ns / 1000000000 : 0;
}

/* Too much would be the end of this process, or of another, and no error. */
static int check_room(const char *name, uint64_t bytes)
{
    uint64_t available = mr_memory_available_bytes();
    if (bytes <= available)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "the index %s needs %" PRIu64 " bytes of memory, and %" PRIu64 " are available", name,
                 bytes, available);
    return -1;
}

/* Is the file, of which the header is there, what is wanted, and is there room for it? As mr_index_load. */
static int judge_file(const struct mr_index_want *want, const struct mr_index_file *file, const char *name,
                      uint64_t more_bytes)
{
    bool by_digest = want->digest[0] != '\0';
    char age[32];
    age_text(age_of(file), age, sizeof age);
    if (mr_index_identity_check(&want->identity, file) != 0) {
        mr_error_append("the index %s cannot be used", name);
        return -1;
    }
    if (by_digest && strcmp(file->digest, want->digest) != 0)
        return 1;
    if (!by_digest && want->max_age_s > 0 && mr_index_cache_is_ahead(file)) {
        mr_log_info("the index %s was listed while the clock was ahead: it is listed again", name);
        return 1;
    }
    if (!by_digest && want->max_age_s > 0 && (uint64_t)age_of(file) > want->max_age_s) {
        mr_log_info("the index %s is %s old: it is listed again", name, age);
        return 1;
    }
    return check_room(name, file->image_bytes + more_bytes);
}

/* Its image into `out`. */
static int unpack_file(const struct mr_index_file *file, int fd, const char *name, int out,
                       struct mr_index_found *found)
{
    char age[32];
    age_text(age_of(file), age, sizeof age);
    if (ftruncate(out, 0) != 0 || mr_index_file_unpack(file, fd, out) != 0) {
        mr_error_append("the index %s cannot be used", name);
        return -1;
    }
    found->requests = file->requests;
    snprintf(found->from, sizeof found->from, "%.150s, listed %s ago", name, age);
    return 0;
}

/* The opened file at `fd`, if it is what is wanted, into `out`. As mr_index_load. */
static int use_file(const struct mr_index_want *want, const struct mr_index_file *file, int fd, const char *name,
                    int out, struct mr_index_found *found)
{
    int rc = judge_file(want, file, name, 0);
    return rc == 0 ? unpack_file(file, fd, name, out, found) : rc;
}

static void index_load_refuse(const char *name)
{
    mr_error_append("the index %s cannot be used (remove it, and it is made again)", name);
}

/* Of a file that may be replaced. An inode alone is used again at once. */
static uint64_t identity_of(const struct stat *status)
{
    return mr_mix64((uint64_t)status->st_ino) ^
           ((uint64_t)status->st_mtim.tv_sec * MR_SECOND_NS + (uint64_t)status->st_mtim.tv_nsec);
}

/* 0: loaded; 1: there is no such file; -1: it cannot be used. `stale` names the file that was read, so that a later
 * save replaces that one only. */
static int load_path(const struct mr_index_want *want, int out, struct mr_index_found *found)
{
    int fd = mr_index_file_open_path(want->place);
    if (fd < 0)
        return mr_error_code() == MR_E_NOT_FOUND ? 1 : -1;
    struct stat status;
    found->stale = fstat(fd, &status) == 0 ? identity_of(&status) : 0;
    struct mr_index_file file;
    int rc = mr_index_file_open(&file, fd);
    if (rc == 0)
        rc = use_file(want, &file, fd, want->place, out, found);
    else
        index_load_refuse(want->place);
    mr_index_file_close(&file);
    close(fd);
    return rc;
}

static bool is_path(const char *place)
{
    return !strstr(place, "://");
}

/* Bytes [offset, end) of the object into the memfd, which has its size, and memory for what has come of it. */
static int download(struct mr_net *net, struct mr_store *store, const char *key, const struct mr_store_item *item,
                    int fd, uint64_t offset, uint64_t end)
{
    if (offset >= end)
        return 0;
    uint64_t length = end - offset, skip = offset % (uint64_t)sysconf(_SC_PAGESIZE);
    int failed;
    do {
        failed = posix_fallocate(fd, (off_t)offset, (off_t)length);
    } while (failed == EINTR);
    if (failed != 0) {
        mr_error_set_errno(failed, "no room for a saved index of %" PRIu64 " bytes", item->size);
        return -1;
    }
    unsigned char *at = mmap(NULL, skip + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (at == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map a saved index");
        return -1;
    }
    struct waiting w = {0};
    struct mr_transfer_request request = {
        .store = store,
        .name = key,
        .name_length = strlen(key),
        .generation = item->generation,
        .size = item->size,
        .offset = offset,
        .length = length,
        .dest = at + skip,
    };
    int rc = await(net, &w, mr_transfer_fetch(net->engine, &request, fetched, &w));
    munmap(at, skip + length);
    return rc;
}

/*
 * The object may be any file of any size: its first bytes, then its header, and only what that describes, and what
 * there is room for, is downloaded whole.
 */
static int download_and_use(const struct mr_index_want *want, struct mr_store *store, const char *key,
                            const struct mr_store_item *item, int fd, int out, struct mr_index_found *found)
{
    struct mr_index_file file = {0};
    uint64_t first = item->size < FIRST_BYTES ? item->size : FIRST_BYTES, header = first;
    if (item->size > INT64_MAX || ftruncate(fd, (off_t)item->size) != 0) {
        mr_error_set(MR_E_NO_MEMORY, "no room for a saved index of %" PRIu64 " bytes", item->size);
        return -1;
    }
    if (download(want->net, store, key, item, fd, 0, first) != 0)
        return -1;
    if (mr_index_file_head(fd, &header) != 0) {
        index_load_refuse(want->place);
        return -1;
    }
    if (download(want->net, store, key, item, fd, first, header) != 0)
        return -1;
    int rc = mr_index_file_open(&file, fd);
    if (rc != 0)
        index_load_refuse(want->place);
    else
        rc = judge_file(want, &file, want->place, item->size);
    if (rc == 0)
        rc = download(want->net, store, key, item, fd, header > first ? header : first, item->size);
    if (rc == 0)
        rc = unpack_file(&file, fd, want->place, out, found);
    mr_index_file_close(&file);
    return rc;
}

/* On success the caller closes `uri`; the store stays the net's. */
static int open_place(const struct mr_index_want *want, struct mr_uri *uri, struct mr_store **store)
{
    if (mr_uri_init(uri, want->place) != 0)
        return -1;
    if (uri->key[0] == '\0' || uri->key[strlen(uri->key) - 1] == '/') {
        mr_error_set(MR_E_CONFIG, "the index %.200s names no object", want->place);
        mr_uri_close(uri);
        return -1;
    }
    *store = mr_net_store(want->net, uri->scheme, uri->bucket);
    if (!*store)
        mr_uri_close(uri);
    return *store ? 0 : -1;
}

/* One look-up and its downloads. 0, 1 where there is none, or -1. */
static int try_uri(const struct mr_index_want *want, struct mr_store *store, const char *key, int out,
                   struct mr_index_found *found)
{
    struct waiting w = {0};
    if (await(want->net, &w, mr_transfer_stat(want->net->engine, store, key, strlen(key), 0, looked_up, &w)) != 0)
        return mr_error_code() == MR_E_NOT_FOUND ? 1 : -1;
    found->stale = w.item.generation;
    int fd = mr_index_memfd();
    if (fd < 0)
        return -1;
    int rc = download_and_use(want, store, key, &w.item, fd, out, found);
    close(fd);
    return rc;
}

/* 0, 1 and -1 as load_path(). */
static int load_uri(const struct mr_index_want *want, int out, struct mr_index_found *found)
{
    struct mr_uri uri;
    struct mr_store *store;
    if (open_place(want, &uri, &store) != 0)
        return -1;
    int rc = -1;
    /* Another node may replace it between the look-up and the download. */
    for (unsigned i = 0; i < REPLACED_TRIES; i++) {
        rc = try_uri(want, store, uri.key, out, found);
        if (rc >= 0 || mr_error_code() != MR_E_CHANGED)
            break;
    }
    mr_uri_close(&uri);
    return rc;
}

static int load_place(const struct mr_index_want *want, int out, struct mr_index_found *found)
{
    return is_path(want->place) ? load_path(want, out, found) : load_uri(want, out, found);
}

/* 0: loaded; 1: nothing in the cache can be used, which is no error. */
static int load_cached(const struct mr_index_want *want, const char *except, int out, struct mr_index_found *found)
{
    char key[MR_INDEX_KEY_SIZE];
    mr_index_key(&want->identity, key);
    struct mr_index_file file;
    int fd = mr_index_cache_find(want->config, key, want->digest[0] != '\0' ? want->digest : NULL, except, &file);
    if (fd < 0)
        return 1;
    int rc = use_file(want, &file, fd, "in the cache", out, found);
    mr_index_file_close(&file);
    close(fd);
    if (rc < 0) { /* it was only kept for a case like this: listing is as good */
        mr_log_warning("%s", mr_error_text());
        return 1;
    }
    found->cached = rc == 0;
    return rc;
}

int mr_index_load(const struct mr_index_want *want, int out, struct mr_index_found *found)
{
    memset(found, 0, sizeof *found);
    int rc = 1;
    if (want->digest[0] != '\0') {
        rc = load_cached(want, NULL, out, found);
        if (rc == 1 && want->place[0] != '\0')
            rc = load_place(want, out, found);
        return rc;
    }
    if (want->place[0] != '\0')
        return load_place(want, out, found);
    return want->max_age_s > 0 && want->identity.prefix_count > 0 ? load_cached(want, NULL, out, found) : 1;
}

/* ---- writing ---- */

/* Unlinks the index that was too old, if it is still that one. Nodes that do so take turns, where there are locks: one
 * could remove what another one has saved between its look and its unlink. */
static void remove_stale(const char *path, uint64_t stale)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    for (unsigned i = 0; i < LOCK_TRIES && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++)
        usleep(LOCK_US);
    struct stat status;
    if (stat(path, &status) == 0 && identity_of(&status) == stale)
        unlink(path);
    close(fd);
}

/* A file that was too old goes: then the first to link a new one wins. */
static int publish_path(const struct mr_index_want *want, const struct mr_index *index,
                        const struct mr_index_file_extra *extra, uint64_t stale, bool replace)
{
    if (stale != 0 && !replace)
        remove_stale(want->place, stale);
    return mr_index_file_save(want->place, index, extra, replace);
}

/* -1 with MR_E_EXISTS or MR_E_CHANGED: another node has saved its index first, and ours was not written. */
static int publish_uri(const struct mr_index_want *want, const struct mr_index *index,
                       const struct mr_index_file_extra *extra, uint64_t stale, bool replace)
{
    struct waiting w = {0};
    void *at = MAP_FAILED;
    size_t length = 0;
    int rc = -1;
    struct mr_uri uri;
    struct mr_store *store;
    if (open_place(want, &uri, &store) != 0)
        return -1;
    int fd = mr_index_memfd();
    if (fd < 0)
        goto out;
    if (mr_index_file_write(fd, index, extra) != 0)
        goto out;
    length = (size_t)lseek(fd, 0, SEEK_END);
    at = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map a saved index");
        goto out;
    }
    struct mr_store_insert_request request = {
        .name = uri.key,
        .name_length = strlen(uri.key),
        .body = at,
        .length = length,
        .crc32c = mr_crc32c(0, at, length),
        .generation_match = replace ? MR_STORE_ANY : stale,
    };
    rc = await(want->net, &w, mr_transfer_insert(want->net->engine, store, &request, looked_up, &w));
out:
    if (at != MAP_FAILED)
        munmap(at, length);
    if (fd >= 0)
        close(fd);
    mr_uri_close(&uri);
    return rc;
}

int mr_index_publish(const struct mr_index_want *want, const struct mr_index *index, uint64_t requests, uint64_t stale,
                     bool replace, int out, struct mr_index_found *found)
{
    const struct mr_index_file_extra extra = {requests, want->identity.exclude_classes};
    memset(found, 0, sizeof *found);
    int rc = is_path(want->place) ? publish_path(want, index, &extra, stale, replace)
                                  : publish_uri(want, index, &extra, stale, replace);
    if (rc == 0) {
        mr_log_info("the index is saved as %s", want->place);
        return 0;
    }
    if (mr_error_code() != MR_E_EXISTS && mr_error_code() != MR_E_CHANGED) {
        mr_error_append("the index cannot be saved as %s", want->place);
        return -1;
    }
    mr_log_info("another node has saved %s first: its listing is used", want->place);
    struct mr_index_want any_age = *want;
    any_age.max_age_s = 0;
    rc = load_place(&any_age, out, found);
    if (rc == 0)
        return 1;
    if (rc == 1)
        mr_error_set(MR_E_CHANGED, "the index %s has disappeared: start again", want->place);
    return -1;
}

/* ---- differences ---- */

struct differences {
    uint64_t added, removed, changed;
    char names[200];
    unsigned shown;
};

static void index_load_show(struct differences *d, char sign, const char *name)
{
    size_t used = strlen(d->names);
    size_t length = strlen(name), skipped = length > NAME_SHOWN ? length - NAME_SHOWN : 0;
    if (d->shown++ < NAMES_SHOWN) /* the end of a name identifies it better than its beginning, which many share */
        snprintf(d->names + used, sizeof d->names - used, "%s%c%s%s", used > 0 ? ", " : "", sign,
                 skipped > 0 ? "..." : "", name + skipped);
}

/* Counts and shows what differs between two listings of one place. Both are in name order. */
static int index_load_compare(const struct mr_index *then, const struct mr_index *now, struct differences *d)
{
    static struct mr_index_iter a, b;
    mr_index_iter_init(&a, then, 0);
    mr_index_iter_init(&b, now, 0);
    struct mr_index_entry one, two;
    int left = mr_index_iter_next(&a, &one), right = mr_index_iter_next(&b, &two);
    while (left > 0 || right > 0) {
        int order = left <= 0 ? 1 : right <= 0 ? -1 : strcmp(a.name, b.name);
        if (left < 0 || right < 0)
            return -1;
        if (order < 0) {
            d->removed++;
            index_load_show(d, '-', a.name);
        } else if (order > 0) {
            d->added++;
            index_load_show(d, '+', b.name);
        } else if (one.version != two.version || one.size != two.size) {
            d->changed++;
            index_load_show(d, '~', a.name);
        }
        if (order <= 0)
            left = mr_index_iter_next(&a, &one);
        if (order >= 0)
            right = mr_index_iter_next(&b, &two);
    }
    return left < 0 || right < 0 ? -1 : 0;
}

/* What the last cached listing that is not the present one has, against the present one. */
static int compare_cached(const struct mr_index_want *want, const struct mr_index *now, struct differences *d,
                          char *from, size_t size)
{
    struct mr_index_want any = *want;
    struct mr_index_found found = {0};
    int out = mr_index_memfd(), rc = 1;
    char digest[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(now->info.digest, digest);
    any.digest = "";
    any.max_age_s = 0;
    if (out >= 0)
        rc = load_cached(&any, digest, out, &found);
    struct mr_index then;
    if (rc == 0 && mr_index_map(&then, out) == 0) {
        rc = mr_index_shard_count(now) > 0 ? 1 : index_load_compare(&then, now, d); /* keys are in no order */
        mr_index_close(&then);
        snprintf(from, size, "%s", found.from);
    }
    if (out >= 0)
        close(out);
    return rc;
}

void mr_index_explain_gone(const struct mr_index_want *want, const struct mr_index *now)
{
    struct differences d = {0};
    char from[256] = "", digest[MR_INDEX_DIGEST_SIZE], change[400] = "";
    int rc = compare_cached(want, now, &d, from, sizeof from);
    mr_index_digest_text(now->info.digest, digest);
    if (rc == 0 && d.added + d.removed + d.changed > 0)
        snprintf(change, sizeof change,
                 " Since the last other listing %.40s: %" PRIu64 " objects added, %" PRIu64 " removed, %" PRIu64
                 " replaced: %s%s",
                 from, d.added, d.removed, d.changed, d.names, d.shown > NAMES_SHOWN ? ", ..." : "");
    mr_error_set(MR_E_CHANGED,
                 "the state was saved over another listing (digest %.12s...) than there is now (%.12s..., %" PRIu64
                 " objects), which is neither in the cache%s%.60s.%s",
                 want->digest, digest, now->info.count, want->place[0] != '\0' ? " nor at " : " nor saved elsewhere",
                 want->place, change);
}
