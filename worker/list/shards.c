#include "worker/list/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/index/shards.h"
#include "shm/memory/segment.h"
#include "worker/list/index_load.h"
#include "worker/list/shards_impl.h"

#define AHEAD     64 /* shards that may be done before the first one that is not */
#define REPORT_NS (200 * MR_MILLISECOND_NS)

void mr_shards_destroy(struct mr_shards *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < MR_SHARD_READERS; i++) {
        if (s->readers[i].shard)
            mr_shard_reader_end(&s->readers[i]);
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
        struct mr_shard *items = realloc(s->items, room * sizeof *items);
        if (!items)
            goto failed;
        s->items = items;
        s->room = room;
    }
    char *copy = strdup(name);
    if (!copy)
        goto failed;
    s->items[s->count++] = (struct mr_shard){.name = copy, .size = size, .version = version};
    s->counts.shards++;
    s->counts.shard_bytes += size;
    return 0;
failed:
    mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
    return -1;
}

const struct mr_shards_counts *mr_shards_counts(const struct mr_shards *s)
{
    return &s->counts;
}

/* ---- the index ---- */

/* Of one shard, from its own index or a cached one. */
static int take_samples(struct mr_shards *s, const struct mr_shard *of, const struct mr_index *index,
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
            mr_shards_warn(s, of, it.name, ": the rest of this shard cannot be read");
            continue;
        }
        s->counts.samples++;
        s->counts.bytes += e.size;
        s->counts.largest = e.size > s->counts.largest ? e.size : s->counts.largest;
        s->counts.unverified += !e.has_crc32c;
    }
    return 0;
}

static int put_out(struct mr_shards *s, struct mr_shard *shard)
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

/* In the same version. */
static bool has_shard(const struct mr_index *index, const struct mr_shard *shard, struct mr_index_shard *found)
{
    return mr_index_find_shard(index, shard->name, strlen(shard->name), found) == 0 &&
           found->version == shard->version && found->size == shard->size;
}

/* The one of a cached index: false where there is none. */
static bool find_known(const struct mr_shards *s, const struct mr_shard *shard, const struct mr_index **index,
                       struct mr_index_shard *found)
{
    for (unsigned i = 0; i < s->known_count; i++) {
        *index = &s->known[i];
        if (has_shard(*index, shard, found))
            return true;
    }
    return false;
}

/* Whether the index has a shard that those before it have not. */
static bool is_of_use(const struct mr_shards *s, const struct mr_index *index)
{
    for (size_t i = s->unknown; i < s->count; i++) {
        const struct mr_shard *shard = &s->items[i];
        const struct mr_index *other;
        struct mr_index_shard found;
        if (has_shard(index, shard, &found) && !find_known(s, shard, &other, &found))
            return true;
    }
    return false;
}

static bool use_known(void *arg, const struct mr_index_file *file, int fd)
{
    struct mr_shards *s = arg;
    const struct mr_index *other;
    struct mr_index_shard found;
    while (s->unknown < s->count && find_known(s, &s->items[s->unknown], &other, &found))
        s->unknown++;
    if (s->unknown == s->count || s->known_count == MR_SHARDS_KNOWN)
        return false;
    if (file->kind != s->options.source->version_kind || file->image_bytes > s->known_bytes)
        return true; /* reading the shards again needs less */
    int out = mr_index_memfd();
    struct mr_index *index = &s->known[s->known_count];
    if (out < 0 || mr_index_file_unpack(file, fd, out) != 0 || mr_index_map(index, out) != 0) {
        mr_log_debug("a cached index of shards is not used: %s", mr_error_text());
    } else if (is_of_use(s, index)) {
        s->known_count++;
        s->known_bytes -= file->image_bytes;
    } else {
        mr_index_close(index);
    }
    if (out >= 0)
        close(out);
    return true;
}

/* ---- all of them ---- */

static struct mr_shard_reader *free_reader(struct mr_shards *s)
{
    for (unsigned i = 0; i < MR_SHARD_READERS; i++)
        if (!s->readers[i].shard)
            return &s->readers[i];
    return NULL;
}

/* A known shard needs no reader: its samples are taken when it is its turn. */
static int put_out_ready(struct mr_shards *s)
{
    while (s->next_out < s->count && s->items[s->next_out].done) {
        struct mr_shard *shard = &s->items[s->next_out];
        const struct mr_index *index;
        struct mr_index_shard found;
        bool known = !shard->image && find_known(s, shard, &index, &found);
        if (put_out(s, shard) != 0 || (known && take_samples(s, shard, index, &found) != 0))
            return -1;
        s->next_out++;
    }
    return 0;
}

static int shards_fail(struct mr_shards *s, const struct mr_shard *shard)
{
    char uri[500];
    mr_shards_label(s, shard, uri, sizeof uri);
    if (!strstr(mr_error_text(), shard->name)) /* the store names it itself */
        mr_error_append("%s", uri);
    return -1;
}

/* As many as may be under way. 0 or -1. */
static int start_shards(struct mr_shards *s)
{
    struct mr_shard_reader *r;
    while (s->next_start < s->count && s->next_start < s->next_out + AHEAD && (r = free_reader(s)) &&
           mr_transfer_free(s->options.net->engine) > 0) {
        struct mr_shard *shard = &s->items[s->next_start++];
        const struct mr_index *index;
        struct mr_index_shard found;
        if (find_known(s, shard, &index, &found)) {
            mr_shards_read(s, shard);
            s->counts.known++;
            if (put_out_ready(s) != 0)
                return -1;
        } else if (mr_shard_reader_start(s, r, shard) != 0) {
            return shards_fail(s, shard);
        }
    }
    return 0;
}

/* What is put out makes room for others to start, and an empty one may be done at once: again until nothing moves. */
static int shards_go_on(struct mr_shards *s)
{
    uint32_t before;
    do {
        before = s->next_out;
        if (start_shards(s) != 0 || put_out_ready(s) != 0)
            return -1;
    } while (s->next_out != before);
    return 0;
}

/* False: s may have been destroyed. */
static bool shards_report(struct mr_shards *s, bool failed)
{
    bool done = !failed && s->next_out == s->count;
    if (done && s->warned > MR_SHARDS_WARNED)
        mr_log_warning("%u more shards are damaged, have no end or more behind it, or a sidecar that does not fit",
                       s->warned - MR_SHARDS_WARNED);
    if (done && s->counts.sidecars > 0)
        mr_log_info("of %llu of %llu shards the members are known by their sidecars (%s)",
                    (unsigned long long)s->counts.sidecars, (unsigned long long)s->count, mr_shards_sidecar_suffix(s));
    if (done && s->counts.skipped + s->counts.bad > 0)
        mr_log_info("%llu members of the shards belong to no sample, and %llu samples are marked __bad__: left out",
                    (unsigned long long)s->counts.skipped, (unsigned long long)s->counts.bad);
    return s->options.progress(s->options.arg, done, failed);
}

static uint64_t passed(const struct mr_shards *s)
{
    uint64_t bytes = s->done_bytes;
    for (unsigned i = 0; i < MR_SHARD_READERS; i++) {
        const struct mr_shard_reader *r = &s->readers[i];
        if (r->shard)
            bytes += r->tar.at < r->shard->size ? r->tar.at : r->shard->size;
    }
    return bytes;
}

/* After each answer, of which rc says what came of it. The reader may have another shard by now, or none. */
static bool answered(struct mr_shards *s, struct mr_shard *shard, int rc)
{
    int64_t now_ns = mr_clock_mono_ns();
    bool done = shard->done;
    rc = rc != 0 ? shards_fail(s, shard) : done ? shards_go_on(s) : 0;
    s->counts.passed = passed(s);
    if (rc == 0 && !done && now_ns - s->reported_ns < REPORT_NS)
        return true;
    s->reported_ns = now_ns;
    return shards_report(s, rc != 0);
}

struct mr_shards *mr_shards_new(const struct mr_shards_options *options)
{
    struct mr_shards *s = calloc(1, sizeof *s);
    if (s)
        *s = (struct mr_shards){.options = *options, .answered = answered};
    else
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of shards");
    return s;
}

int mr_shards_start(struct mr_shards *s, const struct mr_index_identity *identity, const struct mr_config *config)
{
    s->known_bytes = mr_memory_available_bytes() / 4;
    if (s->options.checksums)
        s->sidecars = MR_SIDECARS_NONE;
    else
        mr_index_cache_each_of_shards(config, identity, use_known, s);
    if (shards_go_on(s) != 0)
        return -1;
    return s->next_out == s->count;
}
