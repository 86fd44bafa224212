/*
 * dataset.c - see dataset.h. A data set gets its number last, when it is complete, and keeps it until it is freed. Its
 * state only moves forward; FAILED is final, and has a text. The board shows a state no earlier than a reader can rely
 * on it.
 */
#include "supervisor/dataset.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/uri.h"
#include "shm/memory/segment.h"
#include "supervisor/run_impl.h"

#define URIS_MAX 4096u
#define NAMES_COMPARED_MAX \
    (64u << 20) /* longer lists of names are not compared with each other: it would take too long */

const char *mr_dataset_label(const struct mr_dataset *dataset)
{
    if (dataset->name)
        return dataset->name;
    return dataset->uris.count > 0 ? dataset->uris.items[0] : "(list of objects)";
}

static struct mr_board_dataset *board_of(const struct mr_dataset *dataset)
{
    return &dataset->supervisor->board->dataset[dataset->number];
}

/* ---- open ---- */

void mr_dataset_close(struct mr_dataset *dataset)
{
    if (!dataset)
        return;
    mr_name_ranges_clear(&dataset->ranges);
    for (size_t i = 0; i < dataset->uris.count; i++)
        free(dataset->uris.items[i]);
    free(dataset->uris.items);
    free(dataset->name);
    free(dataset->place);
    if (dataset->names >= 0)
        close(dataset->names);
    if (dataset->index >= 0)
        close(dataset->index);
    free(dataset);
}

/* The data set of that id, NULL if it has gone. */
static struct mr_dataset *with_id(const struct mr_supervisor *s, uint64_t id)
{
    struct mr_dataset *dataset = s->datasets[mr_dataset_number(id)];
    return dataset && dataset->id == id ? dataset : NULL;
}

struct mr_dataset *mr_dataset_find(struct mr_supervisor *s, uint64_t id)
{
    uint32_t number = mr_dataset_number(id);
    struct mr_dataset *dataset = with_id(s, id);
    if (dataset)
        return dataset;
    if (id / MR_DATASETS_MAX >= s->dataset_uses[number])
        mr_error_set(MR_E_USAGE, "there is no data set %llu", (unsigned long long)id);
    else
        mr_error_set(MR_E_USAGE, MR_DATASET_IS_GONE, number);
    return NULL;
}

struct mr_dataset *mr_dataset_at(struct mr_supervisor *s, uint64_t number)
{
    if (number < MR_DATASETS_MAX && s->datasets[number])
        return s->datasets[number];
    mr_error_set(MR_E_USAGE, "there is no data set %llu", (unsigned long long)number);
    return NULL;
}

void mr_dataset_left(struct mr_dataset *dataset)
{
    dataset->clients--;
    dataset->left_ns = mr_clock_mono_ns();
}

bool mr_dataset_is_at_work(const struct mr_dataset *dataset)
{
    if (dataset->concat)
        return true;
    for (const struct mr_name_range *range = dataset->ranges.first; range; range = range->next)
        if (range->worker)
            return true;
    return false;
}

/* A number for a new data set; -1: all are taken (mr_dataset_end_make_room). */
static int free_number(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (!s->datasets[i])
            return (int)i;
    mr_error_set(MR_E_NO_MEMORY,
                 "%u data sets are open, which is all that one supervisor has room for: drop some that are no longer "
                 "read",
                 MR_DATASETS_MAX);
    return -1;
}

static struct mr_name_range *new_range(struct mr_dataset *dataset, const char *uri)
{
    return mr_name_ranges_add(&dataset->ranges, dataset, ++dataset->supervisor->listing.last_range, uri);
}

/* Without a number: no reader can find it until admit(). */
static struct mr_dataset *new_dataset(struct mr_supervisor *s, const char *name, const char *place)
{
    struct mr_dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset || !(dataset->place = strdup(place)) || (name && !(dataset->name = strdup(name)))) {
        if (dataset)
            free(dataset->place);
        free(dataset);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a data set");
        return NULL;
    }
    dataset->supervisor = s;
    dataset->state = MR_DATASET_NEW;
    dataset->names = dataset->index = -1;
    dataset->load = place[0] != '\0' || s->config.list.max_age_s > 0 ? MR_LOAD_WANTED : MR_LOAD_NO;
    dataset->opened_ns = mr_clock_mono_ns();
    return dataset;
}

/* It is complete: gives it its number and shows it on the board. */
static int admit(struct mr_dataset *dataset)
{
    struct mr_supervisor *s = dataset->supervisor;
    int number = free_number(s);
    if (number < 0)
        return -1;
    dataset->number = (uint32_t)number;
    dataset->id = (uint64_t)number + MR_DATASETS_MAX * s->dataset_uses[number]++;
    s->datasets[number] = dataset;
    struct mr_board_dataset *board = board_of(dataset);
    atomic_store_explicit(&board->id, dataset->id, memory_order_relaxed); /* B0: before NEW */
    atomic_store_explicit(&board->listed, 0, memory_order_relaxed);
    atomic_store_explicit(&board->pages, 0, memory_order_relaxed);
    atomic_store_explicit(&board->index_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&board->block_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&board->state, MR_DATASET_NEW, memory_order_release); /* B0 */
    if (!dataset->ranged)
        mr_log_info("data set %u is %s: %s%s", dataset->number,
                    dataset->load == MR_LOAD_NO ? "being listed" : "looked for in saved indexes",
                    mr_dataset_label(dataset), dataset->uris.count > 1 ? " and more" : "");
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Drops those of the sorted URIs that lie under another one: everything under that is in the list already. Under the
 * name of one object, as those of shards are, lies that object alone.
 */
static int drop_covered(struct mr_strings *uris, enum mr_scheme scheme, bool names)
{
    size_t kept = 1;
    for (size_t i = 1; i < uris->count; i++) {
        const char *last = uris->items[kept - 1];
        size_t length = strlen(last);
        if (strncmp(last, uris->items[i], length) != 0 || (names && uris->items[i][length] != '\0')) {
            char *item = uris->items[i];
            uris->items[i] = NULL;
            uris->items[kept++] = item;
            continue;
        }
        /* "/data/a" is the folder a or, if there is none, everything that begins so: only the list worker can find
         * out. */
        if (scheme == MR_SCHEME_FILE && last[length - 1] != '/' && !strchr("/", uris->items[i][length])) {
            mr_error_set(MR_E_USAGE,
                         "'%.200s' and '%.200s': does the first mean a folder, or all that begins so? Write folders "
                         "with a slash at their end",
                         last, uris->items[i]);
            return -1;
        }
        free(uris->items[i]);
        uris->items[i] = NULL;
    }
    uris->count = kept;
    return 0;
}

/* Sorted copies in one spelling, without those that lie under another; all of one bucket. */
static int normalise(struct mr_strings *uris, const char *const *given, size_t count, enum mr_format format)
{
    enum mr_scheme scheme = MR_SCHEME_FILE;
    char *bucket = NULL;
    int rc = -1;
    uris->items = calloc(count, sizeof *uris->items);
    if (!uris->items) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu URIs", count);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        struct mr_uri uri;
        if (mr_uri_init(&uri, given[i]) != 0)
            goto out;
        if (!bucket) {
            scheme = uri.scheme;
            bucket = strdup(uri.bucket);
        }
        bool same = bucket && uri.scheme == scheme && strcmp(uri.bucket, bucket) == 0;
        if (same)
            uris->items[uris->count] = mr_uri_format(uri.scheme, uri.bucket, uri.key);
        mr_uri_close(&uri);
        if (!same) {
            mr_error_set(MR_E_USAGE, "the places of one data set must lie in one bucket: '%.200s' and '%.200s' do not",
                         given[0], given[i]);
            goto out;
        }
        if (!uris->items[uris->count]) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for %zu URIs", count);
            goto out;
        }
        uris->count++;
    }
    qsort(uris->items, uris->count, sizeof *uris->items, by_bytes);
    rc = drop_covered(uris, scheme, format != MR_FORMAT_OBJECTS && mr_shard_uris_some(uris));
out:
    free(bucket);
    return rc;
}

static bool same_uris(const struct mr_strings *a, const struct mr_strings *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return true;
}

/* Messages to workers hold all URIs of a data set. */
static int check_length(const struct mr_strings *uris)
{
    size_t bytes = 0;
    for (size_t i = 0; i < uris->count; i++)
        bytes += strlen(uris->items[i]) + 5;
    if (bytes <= MR_MSG_URIS_BYTES_MAX && uris->count <= URIS_MAX)
        return 0;
    mr_error_set(MR_E_USAGE,
                 "%zu URIs of %zu bytes are too many for one data set (%u, %u bytes): name prefixes, or give single "
                 "objects with from_objects",
                 uris->count, bytes, URIS_MAX, MR_MSG_URIS_BYTES_MAX);
    return -1;
}

/* Not yet admitted. URIs with braces are expanded where they name shards, whose names then become one range. */
static struct mr_dataset *new_of_uris(struct mr_supervisor *s, const char *name, const char *place,
                                      const char *const *uris, size_t count, enum mr_format format)
{
    if (count == 0) {
        mr_error_set(MR_E_USAGE, "a data set needs a URI");
        return NULL;
    }
    struct mr_strings split = {0};
    struct mr_dataset *dataset = new_dataset(s, name, place);
    if (format != MR_FORMAT_OBJECTS && mr_shard_uris_split(uris, count, &split) != 0)
        goto fail;
    if (split.count > count && mr_shard_uris_are(&split)) {
        uris = (const char *const *)split.items;
        count = split.count;
    }
    if (!dataset || normalise(&dataset->uris, uris, count, format) != 0 || check_length(&dataset->uris) != 0)
        goto fail;
    int shards = mr_shard_uris_open(&dataset->uris, format, &dataset->names);
    if (shards < 0)
        goto fail;
    dataset->shards = shards == 1;
    for (size_t i = 0; i < (dataset->names >= 0 ? 1 : dataset->uris.count); i++)
        if (!new_range(dataset, dataset->uris.items[i]))
            goto fail;
    mr_strings_close(&split);
    return dataset;
fail:
    mr_strings_close(&split);
    mr_dataset_close(dataset);
    return NULL;
}

/* An equal data set that is open is shared; otherwise a new one is admitted. */
static struct mr_dataset *open_uris(struct mr_supervisor *s, const char *name, const char *place,
                                    const char *const *uris, size_t count, enum mr_format format, uint64_t nth,
                                    uint64_t block_bytes)
{
    struct mr_dataset *dataset = new_of_uris(s, name, place, uris, count, format);
    if (!dataset)
        return NULL;
    dataset->nth = nth;
    dataset->block_bytes = block_bytes;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *other = s->datasets[i];
        if (other && other->state != MR_DATASET_FAILED && !other->ranged && other->wanted[0] == '\0' &&
            (other->block_bytes > 0) == (block_bytes > 0) && other->nth == nth && !other->closing &&
            other->shards == dataset->shards && (other->names < 0) == (dataset->names < 0) &&
            same_uris(&other->uris, &dataset->uris)) {
            mr_dataset_close(dataset);
            return other;
        }
    }
    if (admit(dataset) == 0)
        return dataset;
    mr_dataset_close(dataset);
    return NULL;
}

struct mr_dataset *mr_dataset_open_uris(struct mr_supervisor *s, const char *const *uris, size_t count,
                                        enum mr_format format, uint64_t nth, uint64_t block_bytes)
{
    return open_uris(s, NULL, "", uris, count, format, nth, block_bytes);
}

struct mr_dataset *mr_dataset_open_to_save(struct mr_supervisor *s, const char *uri, const char *place, bool checksums)
{
    struct mr_dataset *dataset = new_of_uris(s, NULL, place, &uri, 1, MR_FORMAT_BY_NAME);
    if (!dataset)
        return NULL;
    dataset->load = MR_LOAD_NO;
    dataset->replace = true;
    dataset->checksums = checksums;
    if (checksums && !dataset->shards)
        mr_error_set(MR_E_USAGE, "%.300s: --checksums is for tar shards; those of objects are the store's", uri);
    else if (admit(dataset) == 0)
        return dataset;
    mr_dataset_close(dataset);
    return NULL;
}

struct mr_dataset *mr_dataset_open_named(struct mr_supervisor *s, const char *name, enum mr_format format)
{
    const struct mr_config_dataset *entry = mr_config_find_dataset(&s->config, name);
    if (entry)
        return open_uris(s, name, entry->index, (const char *const *)entry->uris.items, entry->uris.count, format, 0,
                         0);
    char known[200] = "";
    for (size_t i = 0; i < s->config.dataset_count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", s->config.datasets[i].name);
    }
    mr_error_set(MR_E_CONFIG, "there is no [dataset.%.100s] in the configuration%s%s", name,
                 known[0] != '\0' ? ", only " : "; name a URI, or add it", known);
    return NULL;
}

/* Two files of the same bytes. */
static bool same_bytes(int a, int b)
{
    static char left[65536], right[65536];
    struct stat one, two;
    if (fstat(a, &one) != 0 || fstat(b, &two) != 0 || one.st_size != two.st_size || one.st_size > NAMES_COMPARED_MAX)
        return false;
    for (off_t at = 0; at < one.st_size; at += (off_t)sizeof left) {
        ssize_t n = pread(a, left, sizeof left, at);
        if (n <= 0 || pread(b, right, sizeof right, at) != n || memcmp(left, right, (size_t)n) != 0)
            return false;
    }
    return true;
}

/* The list's first line gives scheme and bucket: the URI that all names are under. name: NULL, or gets a malloc'ed text
 * that names its reader. */
static int bucket_of_names(int fd, struct mr_strings *uris, char **name)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        mr_error_set(MR_E_USAGE, "a list of objects must come in a file or memfd");
        return -1;
    }
    char line[MR_INDEX_NAME_SIZE + 300];
    ssize_t n = pread(fd, line, sizeof line - 1, 0);
    if (n <= 0) {
        mr_error_set(MR_E_USAGE, "the list of objects is empty");
        return -1;
    }
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    struct mr_uri uri;
    if (mr_uri_init(&uri, line) != 0) {
        mr_error_append("line 1 of the list of objects");
        return -1;
    }
    uris->items = calloc(1, sizeof *uris->items);
    if (uris->items)
        uris->items[0] = mr_uri_format(uri.scheme, uri.bucket, uri.scheme == MR_SCHEME_FILE ? "/" : "");
    mr_uri_close(&uri);
    bool named = !name || asprintf(name, "reader of %.200s", line) >= 0;
    if (!named)
        *name = NULL;
    if (!uris->items || !uris->items[0] || !named) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a data set");
        return -1;
    }
    uris->count = 1;
    return 0;
}

/* Takes over fd on success only; on failure it stays the caller's. */
static struct mr_dataset *new_of_names(struct mr_supervisor *s, int fd, uint64_t block_bytes,
                                       struct mr_client_peer *owner, bool shards)
{
    struct mr_dataset *dataset = new_dataset(s, NULL, "");
    if (!dataset)
        return NULL;
    dataset->load = MR_LOAD_NO;
    dataset->block_bytes = block_bytes;
    dataset->ranged = block_bytes > 0;
    dataset->owner = owner;
    dataset->shards = shards;
    if (bucket_of_names(fd, &dataset->uris, block_bytes > 0 ? &dataset->name : NULL) != 0 ||
        !new_range(dataset, dataset->uris.items[0]))
        goto fail;
    dataset->names = fd;
    if (admit(dataset) == 0)
        return dataset;
    dataset->names = -1; /* stays the caller's */
fail:
    mr_dataset_close(dataset);
    return NULL;
}

struct mr_dataset *mr_dataset_open_names(struct mr_supervisor *s, int fd, enum mr_format format)
{
    bool shards = format == MR_FORMAT_TAR;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *other = s->datasets[i];
        if (other && other->state != MR_DATASET_FAILED && other->names >= 0 && other->wanted[0] == '\0' &&
            !other->ranged && !other->closing && other->shards == shards && same_bytes(other->names, fd)) {
            close(fd);
            return other;
        }
    }
    return new_of_names(s, fd, 0, NULL, shards);
}

struct mr_dataset *mr_dataset_open_ranged(struct mr_supervisor *s, int fd, uint64_t block_bytes,
                                          struct mr_client_peer *owner)
{
    if (block_bytes == 0) {
        mr_error_set(MR_E_USAGE, "objects cannot be read by ranges of 0 bytes");
        return NULL;
    }
    return new_of_names(s, fd, block_bytes, owner, false);
}

/* ---- indexed ---- */

uint64_t mr_dataset_extent(const struct mr_dataset *dataset)
{
    bool in_blocks = dataset->block_bytes > 0 && dataset->block_bytes < dataset->largest;
    return in_blocks ? dataset->block_bytes : dataset->largest;
}

static void log_indexed(const struct mr_dataset *dataset)
{
    static const char *const reasons[MR_DROP_KINDS] = {
        "folder markers",   "temporary objects", "in excluded storage classes",
        "no regular files", "no shards",         "rests of damaged shards, whose reading is an error",
    };
    char left_out[200] = "";
    if (dataset->ranged) {
        mr_log_debug("data set %u: %llu objects to be read by ranges, %llu bytes", dataset->number,
                     (unsigned long long)dataset->objects, (unsigned long long)dataset->bytes);
        return;
    }
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++) {
        size_t used = strlen(left_out);
        if (dataset->dropped[kind] > 0)
            snprintf(left_out + used, sizeof left_out - used, "%s%llu %s",
                     used > 0 ? ", " : "; left out: ", (unsigned long long)dataset->dropped[kind], reasons[kind]);
    }
    double seconds = (double)(mr_clock_mono_ns() - dataset->opened_ns) / 1e9;
    char how[400];
    if (dataset->from[0] != '\0')
        snprintf(how, sizeof how, "opened in %.2f s: the index %s", seconds, dataset->from);
    else
        snprintf(how, sizeof how, "listed in %.1f s by %llu requests", seconds,
                 (unsigned long long)dataset->ranges.requests);
    char largest[32];
    mr_size_format(dataset->largest, largest);
    mr_log_info("data set %u (%s): %llu objects, %llu bytes, the largest %s, %s%s", dataset->number,
                mr_dataset_label(dataset), (unsigned long long)dataset->objects, (unsigned long long)dataset->bytes,
                largest, how, left_out);
    if (dataset->objects == 0)
        mr_log_warning("data set %u (%s): no objects are there: is the prefix right?", dataset->number,
                       mr_dataset_label(dataset));
}

static void settle_waiting(struct mr_dataset *base);

void mr_dataset_begun(struct mr_dataset *dataset)
{
    if (dataset->state != MR_DATASET_NEW)
        return;
    dataset->state = MR_DATASET_LISTING;
    atomic_store_explicit(&board_of(dataset)->state, MR_DATASET_LISTING, memory_order_release); /* B0 */
}

static void show_indexed(struct mr_dataset *dataset)
{
    struct mr_board_dataset *board = board_of(dataset);
    mr_dataset_begun(dataset);
    dataset->indexed = true;
    atomic_store_explicit(&board->listed, dataset->objects, memory_order_relaxed);
    atomic_store_explicit(&board->index_bytes, dataset->index_bytes, memory_order_relaxed);
    settle_waiting(dataset);
}

/* ---- the listing of a state ---- */

static int copy_strings(struct mr_strings *to, const struct mr_strings *from)
{
    for (size_t i = 0; i < from->count; i++)
        if (mr_strings_add(to, from->items[i]) != 0)
            return -1;
    return 0;
}

struct mr_dataset *mr_dataset_open_like(struct mr_supervisor *s, uint64_t id, const char *digest)
{
    struct mr_dataset *base = mr_dataset_find(s, id);
    if (!base)
        return NULL;
    if (base->block_bytes > 0) {
        mr_error_set(MR_E_USAGE, "data set %u is read by ranges: it has no other listing", base->number);
        return NULL;
    }
    if (base->wanted[0] != '\0' && !(base = mr_dataset_find(s, base->like)))
        return NULL;
    if (base->closing) {
        mr_error_set(MR_E_USAGE, "data set %u was closed", base->number);
        return NULL;
    }
    if (strlen(digest) != MR_INDEX_DIGEST_SIZE - 1 || strspn(digest, "0123456789abcdef") != strlen(digest)) {
        mr_error_set(MR_E_USAGE, "'%.80s' is not a digest of a listing", digest);
        return NULL;
    }
    if (base->indexed && strcmp(base->digest, digest) == 0)
        return base;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *other = s->datasets[i];
        if (other && other->state != MR_DATASET_FAILED && !other->closing && other->like == base->id &&
            strcmp(other->wanted, digest) == 0)
            return other;
    }
    struct mr_dataset *dataset = new_dataset(s, base->name, base->place);
    if (!dataset || copy_strings(&dataset->uris, &base->uris) != 0)
        goto fail;
    if (base->names >= 0 && (dataset->names = fcntl(base->names, F_DUPFD_CLOEXEC, 0)) < 0) {
        mr_error_set_errno(errno, "cannot make a descriptor for a data set");
        goto fail;
    }
    memcpy(dataset->wanted, digest, sizeof dataset->wanted);
    dataset->like = base->id;
    dataset->shards = base->shards;
    dataset->load = MR_LOAD_WANTED;
    if (admit(dataset) == 0)
        return dataset;
fail:
    mr_dataset_close(dataset);
    return NULL;
}

const struct mr_dataset *mr_dataset_base(const struct mr_dataset *dataset)
{
    return with_id(dataset->supervisor, dataset->like);
}

bool mr_dataset_adopt(struct mr_dataset *dataset)
{
    const struct mr_dataset *base = mr_dataset_base(dataset);
    if (dataset->wanted[0] == '\0' || !base || !base->indexed || strcmp(base->digest, dataset->wanted) != 0 ||
        (dataset->index = fcntl(base->index, F_DUPFD_CLOEXEC, 0)) < 0)
        return false;
    dataset->objects = base->objects;
    dataset->bytes = base->bytes;
    dataset->largest = base->largest;
    dataset->index_bytes = base->index_bytes;
    dataset->index_requests = base->index_requests;
    memcpy(dataset->dropped, base->dropped, sizeof dataset->dropped);
    memcpy(dataset->digest, base->digest, sizeof dataset->digest);
    dataset->load = MR_LOAD_NO;
    show_indexed(dataset);
    return true;
}

void mr_dataset_not_saved(struct mr_dataset *dataset, uint64_t stale)
{
    const struct mr_dataset *base = mr_dataset_base(dataset);
    dataset->stale = stale;
    dataset->load = MR_LOAD_NO;
    if (dataset->wanted[0] == '\0')
        return;
    dataset->load = MR_LOAD_WAITS;
    if (!base || base->state == MR_DATASET_FAILED)
        mr_dataset_fail(dataset, MR_E_CHANGED,
                        "the listing that the state was saved over is in no cache, and the data set cannot be listed");
    else if (base->indexed)
        dataset->load = MR_LOAD_WANTED; /* it was not when we asked */
}

/* Continues the data sets that wait for `base`, which is listed now, or never will be. */
static void settle_waiting(struct mr_dataset *base)
{
    struct mr_supervisor *s = base->supervisor;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        struct mr_dataset *dataset = s->datasets[i];
        if (!dataset || dataset->load != MR_LOAD_WAITS || dataset->like != base->id)
            continue;
        if (base->indexed)
            dataset->load = MR_LOAD_WANTED;
        else
            mr_dataset_not_saved(dataset, 0);
    }
}

bool mr_dataset_is_list(const struct mr_dataset *dataset)
{
    const char *uri = dataset->uris.items[0]; /* of a list: all that its names are under */
    return dataset->names >= 0 && (!dataset->shards || uri[strlen(uri) - 1] == '/');
}

void mr_dataset_put(const struct mr_dataset *dataset, struct mr_msg_out *out)
{
    mr_msg_put_u64(out, "dataset", dataset->number);
    mr_msg_put_strs(out, "uris", (const char *const *)dataset->uris.items, dataset->uris.count);
    mr_msg_put_bool(out, "names", mr_dataset_is_list(dataset));
    mr_msg_put_bool(out, "shards", dataset->shards);
    mr_msg_put_str(out, "place", dataset->place);
    mr_msg_put_str(out, "digest", dataset->wanted);
    mr_msg_put_u64(out, "max_age_s", dataset->supervisor->config.list.max_age_s);
}

/* ---- progress ---- */

void mr_dataset_progress(struct mr_dataset *dataset)
{
    atomic_store_explicit(&board_of(dataset)->listed, mr_name_ranges_objects(&dataset->ranges), memory_order_relaxed);
    atomic_store_explicit(&board_of(dataset)->pages, dataset->ranges.requests, memory_order_relaxed);
}

int mr_dataset_indexed(struct mr_dataset *dataset, struct mr_msg_in *in)
{
    const char *digest;
    if (mr_msg_get_u64(in, "objects", &dataset->objects) != 0 || mr_msg_get_u64(in, "bytes", &dataset->bytes) != 0 ||
        mr_msg_get_u64(in, "largest", &dataset->largest) != 0 || mr_msg_get_str(in, "digest", &digest) != 0)
        return -1;
    const char *from;
    if (mr_msg_get_str(in, "from", &from) != 0 || mr_msg_get_u64(in, "requests", &dataset->index_requests) != 0)
        return -1;
    char key[32];
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++) {
        snprintf(key, sizeof key, "dropped_%s", mr_index_drop_name(kind));
        if (mr_msg_get_u64(in, key, &dataset->dropped[kind]) != 0)
            return -1;
    }
    snprintf(dataset->from, sizeof dataset->from, "%s", from);
    if (strlen(digest) != MR_INDEX_DIGEST_SIZE - 1) {
        mr_error_set(MR_E_PROTOCOL, "an index digest of %zu characters", strlen(digest));
        return -1;
    }
    memcpy(dataset->digest, digest, MR_INDEX_DIGEST_SIZE);
    int fd = mr_msg_take_fd(in, 0);
    if (fd < 0)
        return -1;
    dataset->index = mr_segment_reopen_readonly(fd);
    close(fd);
    if (dataset->index < 0)
        return -1;
    struct stat status;
    if (fstat(dataset->index, &status) != 0 || status.st_size <= 0) {
        mr_error_set(MR_E_PROTOCOL, "an index of no bytes");
        return -1;
    }
    dataset->index_bytes = (uint64_t)status.st_size;
    mr_name_ranges_clear(&dataset->ranges);
    log_indexed(dataset);
    show_indexed(dataset);
    return 0;
}

void mr_dataset_ready(struct mr_dataset *dataset)
{
    dataset->state = MR_DATASET_READY;
    atomic_store_explicit(&board_of(dataset)->block_bytes, dataset->block_bytes, memory_order_relaxed);
    atomic_store_explicit(&board_of(dataset)->state, MR_DATASET_READY, memory_order_release); /* B0 */
}

void mr_dataset_fail(struct mr_dataset *dataset, enum mr_code code, const char *text)
{
    if (dataset->state == MR_DATASET_FAILED)
        return;
    dataset->state = MR_DATASET_FAILED;
    struct mr_board_dataset *board = board_of(dataset);
    board->code = code;
    snprintf(board->text, sizeof board->text, "%s", text);
    atomic_store_explicit(&board->state, MR_DATASET_FAILED, memory_order_release); /* B0 */
    if (!dataset->ranged && !dataset->closing)
        mr_log_limited(&dataset->supervisor->failures_logged, MR_LOG_ERROR, "data set %u (%s) has failed: %s",
                       dataset->number, mr_dataset_label(dataset), text);
    else /* not open any more; or its one reader gets the error, and may have asked only whether the object exists */
        mr_log_debug("data set %u: %s", dataset->number, text);
    settle_waiting(dataset);
}

void mr_dataset_explain(const struct mr_dataset *dataset)
{
    const struct mr_board_dataset *board = board_of(dataset);
    mr_error_set((enum mr_code)board->code, "%s", board->text);
}

void mr_dataset_fail_all(struct mr_supervisor *s, enum mr_code code, const char *text)
{
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++)
        if (s->datasets[i])
            mr_dataset_fail(s->datasets[i], code, text);
}

void mr_dataset_send(const struct mr_dataset *dataset, struct mr_child *fetch_worker)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_DATASET);
    mr_msg_put_u64(out, "dataset", dataset->number);
    mr_msg_put_str(out, "uri", dataset->uris.items[0]);
    mr_msg_put_bool(out, "ranged", dataset->ranged);
    mr_msg_put_fd(out, dataset->index);
    mr_child_send(fetch_worker, out);
}
