#include "worker/list/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shm/base/checksum.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/index/sample.h"
#include "shm/index/shards.h"
#include "shm/index/tar.h"
#include "shm/memory/segment.h"
#include "worker/list/index_load.h"

#define FIRST_BYTES  ((size_t)256 << 10)
#define STREAM_BYTES ((size_t)1 << 20)
#define HOP_BYTES    ((size_t)8 << 10)    /* a header, small members after it, and their headers */
#define HOP_MIN      ((uint64_t)64 << 10) /* fewer bytes are read more cheaply than asked for by another request */
#define READERS      32                   /* shards that are read at once: as many windows of memory */
#define AHEAD        64                   /* shards that may be done before the first one that is not */
#define KNOWN_MAX    16                   /* cached indexes that are looked at */
#define WARNED_MAX   10                   /* shards that get a line of their own */

struct shard {
    char *name;
    uint64_t size, version;
    bool done;
    void *image; /* its own index, until it is its turn */
    size_t image_bytes;
};

/* A shard that is being read. */
struct reader {
    struct mr_shards *shards;
    struct shard *shard; /* NULL: free */
    struct mr_transfer *transfer;
    struct mr_index_builder *builder; /* of the one shard */
    unsigned char *window;
    size_t room;
    uint64_t start, length; /* of the archive, in the window */
    struct mr_tar tar;
    struct mr_sample_group group;
    /* The crc of the open sample up to `summed`, and at its last member's end; has_crc: no byte of it was left out. */
    bool has_crc;
    uint64_t summed, member_end; /* member_end: not summed up to it yet; 0: done */
    uint32_t crc, end_crc;
    bool hopped;
};

struct mr_shards {
    struct mr_shards_options options;
    struct shard *items;
    size_t count, room;
    size_t next_start, next_out;
    struct reader readers[READERS];
    struct mr_index known[KNOWN_MAX];
    unsigned known_count, warned;
    struct mr_shards_counts counts;
};

struct mr_shards *mr_shards_new(const struct mr_shards_options *options)
{
    struct mr_shards *s = calloc(1, sizeof *s);
    if (s)
        s->options = *options;
    else
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
    return s;
}

static void reader_end(struct reader *r)
{
    if (r->transfer)
        mr_transfer_cancel(r->shards->options.net->engine, r->transfer);
    mr_index_builder_destroy(r->builder);
    r->transfer = NULL;
    r->builder = NULL;
    r->shard = NULL;
}

void mr_shards_destroy(struct mr_shards *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < READERS; i++) {
        if (s->readers[i].shard)
            reader_end(&s->readers[i]);
        free(s->readers[i].window);
    }
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i].name);
        free(s->items[i].image);
    }
    for (unsigned i = 0; i < s->known_count; i++)
        mr_index_close(&s->known[i]);
    free(s->items);
    free(s);
}

int mr_shards_add(struct mr_shards *s, const char *name, uint64_t size, uint64_t version)
{
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 256;
        struct shard *items = realloc(s->items, room * sizeof *items);
        if (!items)
            goto failed;
        s->items = items;
        s->room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        goto failed;
    s->items[s->count++] = (struct shard){.name = copy, .size = size, .version = version};
    return 0;
failed:
    mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
    return -1;
}

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcasecmp(name + n - m, suffix) == 0;
}

int mr_shards_is_one(const char *name, bool *is_shard)
{
    static const char *const compressed[] = {".tar.gz",  ".tgz",      ".tar.zst", ".tzst",   ".tar.zstd",
                                             ".tar.bz2", ".tbz2",     ".tbz",     ".tar.xz", ".txz",
                                             ".tar.lz4", ".tar.lzma", ".tar.z",   ".tar.br", ".tar.zip"};
    size_t length = strlen(name);
    *is_shard = length >= 4 && strcmp(name + length - 4, ".tar") == 0;
    for (size_t i = 0; i < sizeof compressed / sizeof compressed[0]; i++) {
        if (!ends_in(name, compressed[i]))
            continue;
        mr_error_set(MR_E_USAGE,
                     "%.300s is compressed: samples are read as ranges of plain tar archives. Store the shards "
                     "uncompressed, or name those that are",
                     name);
        return -1;
    }
    return 0;
}

const struct mr_shards_counts *mr_shards_counts(const struct mr_shards *s)
{
    return &s->counts;
}

/* ---- what is said ---- */

static void label(const struct mr_shards *s, const struct shard *shard, char *out, size_t size)
{
    const struct mr_index_source *source = s->options.source;
    snprintf(out, size, "%s://%s%s%.300s", mr_scheme_name(source->scheme), source->bucket,
             source->scheme == MR_SCHEME_FILE ? "" : "/", shard->name);
}

static void warn(struct mr_shards *s, const struct shard *shard, const char *text, const char *outcome)
{
    char uri[500];
    label(s, shard, uri, sizeof uri);
    if (s->warned++ < WARNED_MAX)
        mr_log_warning("%s: %s%s", uri, text, outcome);
}

/* ---- the index ---- */

/* Of one shard, from its own index or a cached one. */
static int take_samples(struct mr_shards *s, const struct shard *of, const struct mr_index *index,
                        const struct mr_index_shard *shard)
{
    static struct mr_index_iter it;
    mr_index_iter_init(&it, index, shard->first);
    struct mr_index_entry e;
    for (uint64_t i = 0; i < shard->count; i++) {
        if (mr_index_iter_next(&it, &e) <= 0 || mr_index_builder_sample(s->options.builder, it.name, it.name_length,
                                                                        e.version, e.size, e.crc32c, e.has_crc32c) != 0)
            return -1;
        if (e.size == 0) {
            mr_index_builder_drop(s->options.builder, MR_DROP_DAMAGED, 1);
            s->counts.damaged++;
            warn(s, of, it.name, ": the rest of this shard cannot be read");
            continue;
        }
        s->counts.samples++;
        s->counts.bytes += e.size;
        s->counts.largest = e.size > s->counts.largest ? e.size : s->counts.largest;
        s->counts.unverified += !e.has_crc32c;
    }
    return 0;
}

static int put_out(struct mr_shards *s, struct shard *shard)
{
    struct mr_index index;
    struct mr_index_shard row;
    if (mr_index_builder_shard(s->options.builder, shard->name, strlen(shard->name), shard->size, shard->version) != 0)
        return -1;
    int rc = 0;
    if (shard->image) {
        rc = mr_index_attach(&index, shard->image, shard->image_bytes);
        if (rc == 0 && mr_index_shard_count(&index) > 0)
            rc = mr_index_shard(&index, 0, &row) == 0 ? take_samples(s, shard, &index, &row) : -1;
        free(shard->image);
        shard->image = NULL;
    }
    return rc;
}

/* The one of a cached index, in the same version: false where there is none. */
static bool find_known(const struct mr_shards *s, const struct shard *shard, const struct mr_index **index,
                       struct mr_index_shard *found)
{
    for (unsigned i = 0; i < s->known_count; i++) {
        *index = &s->known[i];
        if (mr_index_find_shard(*index, shard->name, strlen(shard->name), found) == 0 &&
            found->version == shard->version && found->size == shard->size)
            return true;
    }
    return false;
}

static void use_known(void *arg, const struct mr_index_file *file, int fd)
{
    struct mr_shards *s = arg;
    if (s->known_count == KNOWN_MAX || file->kind != s->options.source->version_kind ||
        file->image_bytes > mr_memory_available_bytes() / 4) /* reading the shards again needs less */
        return;
    int out = mr_index_memfd();
    struct mr_index *index = &s->known[s->known_count];
    if (out >= 0 && mr_index_file_unpack(file, fd, out) == 0 && mr_index_map(index, out) == 0)
        s->known_count++;
    else
        mr_log_debug("a cached index of shards is not used: %s", mr_error_text());
    if (out >= 0)
        close(out);
}

/* ---- one shard ---- */

/* The crc goes on to `to`, which is in the window or its end. */
static void sum_to(struct reader *r, uint64_t to)
{
    if (!r->has_crc || to <= r->summed)
        return;
    if (r->member_end > 0 && r->member_end <= to) {
        r->crc = mr_crc32c(r->crc, r->window + (r->summed - r->start), r->member_end - r->summed);
        r->end_crc = r->crc;
        r->summed = r->member_end;
        r->member_end = 0;
    }
    r->crc = mr_crc32c(r->crc, r->window + (r->summed - r->start), to - r->summed);
    r->summed = to;
}

static int end_sample(struct reader *r)
{
    const struct mr_sample_range *sample = &r->group.sample;
    if (r->member_end <= r->start + r->length)
        sum_to(r, r->member_end);
    bool has_crc = r->has_crc && r->member_end == 0;
    if (!r->group.open)
        return 0;
    r->group.open = false;
    if (sample->bad) {
        r->shards->counts.bad++;
        return 0;
    }
    return mr_index_builder_sample(r->builder, sample->key, sample->key_length, sample->begin,
                                   sample->end - sample->begin, r->end_crc, has_crc);
}

static int take_member(struct reader *r, const struct mr_tar_member *member)
{
    uint64_t window_end = r->start + r->length;
    if (mr_sample_group_ends(&r->group, member) && end_sample(r) != 0)
        return -1;
    bool begins = !r->group.open;
    if (!mr_sample_group_add(&r->group, member))
        return 0;
    if (begins) {
        r->has_crc = member->begin >= r->start;
        r->summed = member->begin;
        r->crc = r->end_crc = 0;
        r->member_end = 0;
    }
    uint64_t end = r->group.sample.end;
    if (r->has_crc && end > r->summed)
        r->member_end = end;
    sum_to(r, end < window_end ? end : window_end);
    return 0;
}

static void got_window(void *arg, const struct mr_transfer_result *result);

/* Bytes from `from` on into the window. */
static int ask(struct reader *r, uint64_t from, size_t bytes)
{
    struct mr_shards *s = r->shards;
    uint64_t left = r->shard->size - from, needed = r->tar.at - from + r->tar.need;
    bytes = bytes < needed ? (size_t)needed : bytes;
    bytes = bytes < left ? bytes : (size_t)left;
    if (r->room < bytes) {
        free(r->window);
        r->room = 0;
        r->window = malloc(bytes);
        if (!r->window) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for the headers of a shard");
            return -1;
        }
        r->room = bytes;
    }
    r->start = from;
    r->length = bytes;
    struct mr_transfer_request request = {
        .store = s->options.store,
        .name = r->shard->name,
        .name_length = strlen(r->shard->name),
        .generation = r->shard->version,
        .size = r->shard->size,
        .offset = from,
        .length = bytes,
        .dest = r->window,
    };
    s->counts.requests++;
    r->transfer = mr_transfer_fetch(s->options.net->engine, &request, got_window, r);
    return r->transfer ? 0 : -1;
}

/* What follows the window: the bytes between are left out where that pays. */
static int ask_next(struct reader *r)
{
    uint64_t end = r->start + r->length, next = r->tar.extended ? r->tar.begin : r->tar.at;
    if (next >= end && next - end >= HOP_MIN) {
        r->has_crc = false;
        r->hopped = true;
        return ask(r, next, HOP_BYTES);
    }
    if (next > end)
        next = end;
    sum_to(r, next);
    return ask(r, next, r->hopped ? FIRST_BYTES : STREAM_BYTES);
}

/* Archives that were put one behind another: what is behind the first is not read by anybody. */
static bool more_follows(const struct reader *r)
{
    for (uint64_t at = r->tar.at; at >= r->start && at < r->start + r->length; at++)
        if (r->window[at - r->start] != 0)
            return true;
    return false;
}

static int finish_shard(struct reader *r)
{
    struct shard *shard = r->shard;
    if (mr_index_builder_finish(r->builder, &shard->image, &shard->image_bytes) != 0)
        return -1;
    r->shards->counts.skipped += r->group.skipped;
    shard->done = true;
    reader_end(r);
    return 0;
}

static int end_shard(struct reader *r)
{
    struct shard *shard = r->shard;
    if (end_sample(r) != 0)
        return -1;
    if (r->tar.unended)
        warn(r->shards, shard, "it ends without the blocks of zeros that end an archive: was it written whole?", "");
    else if (more_follows(r))
        warn(r->shards, shard, "there is more behind the end of its archive, which is left out", "");
    return finish_shard(r);
}

/*
 * mr_error says where and how the archive is damaged: its samples end there. The one that is open may go on behind the
 * damage, which nobody can read: it belongs to the rest, unless `cut`, the member at which the archive ends, is another's.
 */
static int end_damaged_shard(struct reader *r, const struct mr_tar_member *cut)
{
    char text[512];
    snprintf(text, sizeof text, "%s", mr_error_text());
    if (cut && mr_sample_group_ends(&r->group, cut) && end_sample(r) != 0)
        return -1;
    uint64_t begin = r->group.open ? r->group.sample.begin : r->tar.extended ? r->tar.begin : r->tar.at;
    r->group.open = false;
    if (mr_index_builder_sample(r->builder, text, strlen(text), begin, 0, 0, false) != 0)
        return -1;
    return finish_shard(r);
}

/* All that the window has. 0 or -1. */
static int read_window(struct reader *r)
{
    for (;;) {
        struct mr_tar_member member;
        uint64_t end = r->start + r->length, at = r->tar.at < end ? r->tar.at : end;
        switch (mr_tar_next(&r->tar, r->window + (at - r->start), end - at, &member)) {
        case MR_TAR_MEMBER:
            if (take_member(r, &member) != 0)
                return -1;
            break;
        case MR_TAR_MORE:
            return ask_next(r);
        case MR_TAR_END:
            return end_shard(r);
        case MR_TAR_ERROR:
            return mr_error_code() == MR_E_CORRUPT ? end_damaged_shard(r, r->tar.cut ? &member : NULL) : -1;
        }
    }
}

static int start_shard(struct mr_shards *s, struct reader *r, struct shard *shard)
{
    r->shards = s;
    r->shard = shard;
    r->builder = mr_index_builder_new(s->options.source, -1);
    if (!r->builder ||
        mr_index_builder_shard(r->builder, shard->name, strlen(shard->name), shard->size, shard->version) != 0)
        return -1;
    mr_tar_init(&r->tar, shard->size);
    r->group.open = false;
    r->group.skipped = 0;
    r->has_crc = r->hopped = false;
    r->start = r->length = 0;
    return shard->size > 0 ? ask(r, 0, FIRST_BYTES) : read_window(r);
}

/* ---- all of them ---- */

static struct reader *free_reader(struct mr_shards *s)
{
    for (unsigned i = 0; i < READERS; i++)
        if (!s->readers[i].shard)
            return &s->readers[i];
    return NULL;
}

/* A known shard needs no reader: its samples are taken when it is its turn. */
static int put_out_ready(struct mr_shards *s)
{
    while (s->next_out < s->count && s->items[s->next_out].done) {
        struct shard *shard = &s->items[s->next_out];
        const struct mr_index *index;
        struct mr_index_shard found;
        bool known = !shard->image && find_known(s, shard, &index, &found);
        if (put_out(s, shard) != 0 || (known && take_samples(s, shard, index, &found) != 0))
            return -1;
        s->next_out++;
    }
    return 0;
}

static int fail(struct mr_shards *s, const struct shard *shard)
{
    char uri[500];
    label(s, shard, uri, sizeof uri);
    if (!strstr(mr_error_text(), shard->name)) /* the store names it itself */
        mr_error_append("%s", uri);
    return -1;
}

/* As many as may be under way. 0 or -1. */
static int start_shards(struct mr_shards *s)
{
    struct reader *r;
    while (s->next_start < s->count && s->next_start < s->next_out + AHEAD && (r = free_reader(s)) &&
           mr_transfer_free(s->options.net->engine) > 0) {
        struct shard *shard = &s->items[s->next_start++];
        const struct mr_index *index;
        struct mr_index_shard found;
        if (find_known(s, shard, &index, &found)) {
            shard->done = true;
            s->counts.known++;
            if (put_out_ready(s) != 0)
                return -1;
        } else if (start_shard(s, r, shard) != 0) {
            return fail(s, shard);
        }
    }
    return 0;
}

/* What is put out makes room for others to start, and an empty one may be done at once: again until nothing moves. */
static int go_on(struct mr_shards *s)
{
    uint32_t before;
    do {
        before = s->next_out;
        if (start_shards(s) != 0 || put_out_ready(s) != 0)
            return -1;
    } while (s->next_out != before);
    return 0;
}

static void report(struct mr_shards *s, bool failed)
{
    bool done = !failed && s->next_out == s->count;
    if (done && s->warned > WARNED_MAX)
        mr_log_warning("%u more shards are damaged, have no end or more behind it", s->warned - WARNED_MAX);
    if (done && s->counts.skipped + s->counts.bad > 0)
        mr_log_info("%llu members of the shards belong to no sample, and %llu samples are marked __bad__: left out",
                    (unsigned long long)s->counts.skipped, (unsigned long long)s->counts.bad);
    s->options.progress(s->options.arg, done, failed);
}

static void got_window(void *arg, const struct mr_transfer_result *result)
{
    struct reader *r = arg;
    struct mr_shards *s = r->shards;
    struct shard *shard = r->shard;
    r->transfer = NULL;
    int rc = 0;
    if (result->code != MR_OK) {
        mr_error_set(result->code, "%s", result->text);
        rc = -1;
    } else if (read_window(r) != 0) {
        rc = fail(s, shard);
    }
    bool more = shard->done;
    if (rc == 0 && more)
        rc = go_on(s);
    if (rc != 0 || more)
        report(s, rc != 0);
}

int mr_shards_start(struct mr_shards *s, const struct mr_index_identity *identity, const struct mr_config *config)
{
    mr_index_cache_each_of_shards(config, identity, use_known, s);
    if (go_on(s) != 0)
        return -1;
    return s->next_out == s->count;
}
