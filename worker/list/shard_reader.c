#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "worker/list/shards_impl.h"

#define FIRST_BYTES  ((size_t)256 << 10)
#define STREAM_BYTES ((size_t)1 << 20)
#define HOP_BYTES    ((size_t)12 << 10) /* a header, small members after it, and the end that tar fills up to 10 KiB */
#define HOP_MIN      ((uint64_t)64 << 10) /* fewer bytes are read more cheaply than asked for by another request */
#define SIDECAR_MAX  ((uint64_t)64 << 20) /* bytes: a million members */

/* In place of a shard's ".tar". */
static const char *const sidecar_suffixes[] = {".idx", ".tar.index"};
#define SIDECAR_KINDS (sizeof sidecar_suffixes / sizeof sidecar_suffixes[0])

const char *mr_shards_sidecar_suffix(const struct mr_shards *s)
{
    return sidecar_suffixes[s->sidecar_kind];
}

/* ---- samples ---- */

/* Continues the crc to `to`, which is in the window or its end. */
static void sum_to(struct mr_shard_reader *r, uint64_t to)
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

static int end_sample(struct mr_shard_reader *r)
{
    const struct mr_sample_range *sample = &r->group.sample;
    if (r->member_end <= r->start + r->length)
        sum_to(r, r->member_end);
    bool has_crc = r->has_crc && r->member_end == 0;
    if (!r->group.open)
        return 0;
    r->group.open = false;
    if (sample->bad) {
        r->bad++;
        return 0;
    }
    return mr_index_builder_sample(r->builder, sample->key, sample->key_length, sample->begin,
                                   sample->end - sample->begin, r->end_crc, has_crc);
}

static int take_member(struct mr_shard_reader *r, const struct mr_tar_member *member)
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

/* ---- windows of bytes ---- */

static void got_window(void *arg, const struct mr_transfer_result *result);

/* Bytes from `from` on into the window: so many, or up to the next header where that is near. */
static int shard_reader_ask(struct mr_shard_reader *r, uint64_t from, size_t bytes)
{
    struct mr_shards *s = r->shards;
    uint64_t left = r->shard->size - from, gap = r->tar.at - from, needed = gap + r->tar.need;
    if ((gap < HOP_MIN || r->tar.extended) && bytes < needed)
        bytes = (size_t)needed;
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
static int ask_next(struct mr_shard_reader *r)
{
    uint64_t end = r->start + r->length, next = r->tar.extended ? r->tar.begin : r->tar.at;
    if (next >= end && next - end >= HOP_MIN && !r->shards->options.checksums) {
        r->has_crc = false;
        r->hopped = true;
        return shard_reader_ask(r, next, HOP_BYTES);
    }
    if (next > end)
        next = end;
    sum_to(r, next);
    return shard_reader_ask(r, next, r->hopped ? FIRST_BYTES : STREAM_BYTES);
}

/* ---- its end ---- */

void mr_shard_reader_end(struct mr_shard_reader *r)
{
    if (r->transfer)
        mr_transfer_cancel(r->shards->options.net->engine, r->transfer);
    mr_index_builder_destroy(r->builder);
    mr_sidecar_close(&r->sidecar);
    free(r->sidecar_text);
    r->sidecar_text = NULL;
    r->transfer = NULL;
    r->builder = NULL;
    r->shard = NULL;
}

/* Concatenated archives: only the first is read. Whether the window has anything of a second one. */
static bool more_follows(const struct mr_shard_reader *r)
{
    for (uint64_t at = r->tar.at > r->start ? r->tar.at : r->start; at < r->start + r->length; at++)
        if (r->window[at - r->start] != 0)
            return true;
    return false;
}

static int finish_shard(struct mr_shard_reader *r)
{
    struct mr_shard *shard = r->shard;
    if (mr_index_builder_finish(r->builder, &shard->image, &shard->image_bytes) != 0)
        return -1;
    r->shards->counts.skipped += r->group.skipped;
    r->shards->counts.bad += r->bad;
    r->shards->counts.sidecars += r->sidecar.count > 0;
    mr_shards_read(r->shards, shard);
    mr_shard_reader_end(r);
    return 0;
}

static int end_shard(struct mr_shard_reader *r)
{
    struct mr_shard *shard = r->shard;
    uint64_t window_end = r->start + r->length;
    if (!r->past_end && end_sample(r) != 0)
        return -1;
    if (r->tar.unended) {
        mr_shards_warn(r->shards, shard,
                       "it ends without the blocks of zeros that end an archive: was it written whole?", "");
    } else if (more_follows(r)) {
        mr_shards_warn(r->shards, shard, "there is more behind the end of its archive, which is left out", "");
    } else if (!r->past_end && window_end < shard->size) {
        r->past_end = true; /* zeros up to here, as tar fills its last block with: what is behind them? */
        return shard_reader_ask(r, window_end, FIRST_BYTES);
    }
    return finish_shard(r);
}

/*
 * mr_error says where and how the archive is damaged: its samples end there. The one that is open may continue after
 * the damage, where it cannot be read: it belongs to the rest, unless `cut`, the member at which the archive ends, is
 * another's.
 */
static int end_damaged_shard(struct mr_shard_reader *r, const struct mr_tar_member *cut)
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

/* ---- sidecars ---- */

static int begin_shard(struct mr_shard_reader *r);
static int ask_sidecar(struct mr_shard_reader *r);

static void sidecar_name(const struct mr_shard_reader *r, char name[MR_INDEX_NAME_SIZE])
{
    size_t length = strlen(r->shard->name) - strlen(".tar");
    snprintf(name, MR_INDEX_NAME_SIZE, "%.*s%s", (int)length, r->shard->name, sidecar_suffixes[r->sidecar_kind]);
}

/* mr_error says what is wrong with it: the shard is read from its beginning, by its own headers. */
static int refuse_sidecar(struct mr_shard_reader *r)
{
    char text[600], name[MR_INDEX_NAME_SIZE];
    sidecar_name(r, name);
    const char *slash = strrchr(name, '/');
    snprintf(text, sizeof text, "its sidecar %.150s does not fit (%.300s)", slash ? slash + 1 : name, mr_error_text());
    mr_shards_warn(r->shards, r->shard, text, ": it is not used, the headers of the shard are");
    mr_sidecar_close(&r->sidecar);
    return begin_shard(r);
}

static bool wants_sidecar(const struct mr_shard_reader *r)
{
    bool is_shard;
    return !r->sidecar_tried && r->shards->sidecars != MR_SIDECARS_NONE &&
           mr_shards_is_one(r->shard->name, &is_shard) == 0 && is_shard;
}

/* There is no sidecar, which is not an error: where a store does not answer, a shard cannot be read either. */
static bool is_absent(enum mr_code code)
{
    return code == MR_E_NOT_FOUND || code == MR_E_DENIED || code == MR_E_CHANGED || code == MR_E_USAGE;
}

/* It is not there, or not to be had: 0 or -1, as read_window. */
static int read_window(struct mr_shard_reader *r);
static int without_sidecar(struct mr_shard_reader *r)
{
    struct mr_shards *s = r->shards;
    if (s->sidecars != MR_SIDECARS_LOOKED_FOR)
        return read_window(r);
    if (++r->sidecar_kind < SIDECAR_KINDS)
        return ask_sidecar(r);
    s->sidecars = MR_SIDECARS_NONE;
    return read_window(r);
}

static int take_sidecar(struct mr_shard_reader *r)
{
    char *text = r->sidecar_text;
    r->sidecar_text = NULL;
    if (mr_sidecar_init(&r->sidecar, text, r->sidecar_bytes, r->shard->size) == 0)
        return begin_shard(r); /* what has been read is compared with it */
    return mr_error_code() == MR_E_CORRUPT ? refuse_sidecar(r) : -1;
}

static void got_sidecar(void *arg, const struct mr_transfer_result *result)
{
    struct mr_shard_reader *r = arg;
    struct mr_shard *shard = r->shard;
    r->transfer = NULL;
    int rc = -1;
    if (result->code == MR_OK)
        rc = take_sidecar(r);
    else if (is_absent(result->code))
        rc = read_window(r);
    else
        mr_error_set(result->code, "%s", result->text);
    r->shards->answered(r->shards, shard, rc);
}

static int fetch_sidecar(struct mr_shard_reader *r, const char *name, const struct mr_store_item *item)
{
    struct mr_shards *s = r->shards;
    r->sidecar_bytes = item->size;
    r->sidecar_text = malloc(item->size + 1);
    if (!r->sidecar_text) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the sidecar of a shard, %s", name);
        return -1;
    }
    struct mr_transfer_request request = {
        .store = s->options.store,
        .name = name,
        .name_length = strlen(name),
        .generation = item->generation,
        .size = item->size,
        .length = item->size,
        .dest = r->sidecar_text,
    };
    s->counts.requests++;
    r->transfer = mr_transfer_fetch(s->options.net->engine, &request, got_sidecar, r);
    return r->transfer ? 0 : -1;
}

/* Those that waited for the answer whether there are sidecars. */
static void end_waiting(struct mr_shards *s)
{
    bool more = true;
    for (unsigned i = 0; more && i < MR_SHARD_READERS; i++) {
        struct mr_shard_reader *r = &s->readers[i];
        struct mr_shard *shard = r->shard;
        if (!shard || !r->waits)
            continue;
        r->waits = false;
        more = s->answered(s, shard, read_window(r));
    }
}

static void found_sidecar(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct mr_shard_reader *r = arg;
    struct mr_shards *s = r->shards;
    struct mr_shard *shard = r->shard;
    char name[MR_INDEX_NAME_SIZE];
    r->transfer = NULL;
    int rc;
    if (is_absent(result->code)) {
        rc = without_sidecar(r);
    } else if (result->code != MR_OK) {
        mr_error_set(result->code, "%s", result->text);
        rc = -1;
    } else {
        s->sidecars = MR_SIDECARS_THERE;
        s->sidecar_kind = r->sidecar_kind;
        sidecar_name(r, name);
        mr_error_set(MR_E_CORRUPT, "%llu bytes are not a list of members", (unsigned long long)item->size);
        rc = item->size > 0 && item->size <= SIDECAR_MAX ? fetch_sidecar(r, name, item) : refuse_sidecar(r);
    }
    if (s->answered(s, shard, rc) && s->sidecars != MR_SIDECARS_LOOKED_FOR)
        end_waiting(s);
}

static int ask_sidecar(struct mr_shard_reader *r)
{
    struct mr_shards *s = r->shards;
    char name[MR_INDEX_NAME_SIZE];
    if (s->sidecars == MR_SIDECARS_UNKNOWN)
        s->sidecars = MR_SIDECARS_LOOKED_FOR;
    else if (s->sidecars == MR_SIDECARS_THERE)
        r->sidecar_kind = s->sidecar_kind;
    r->sidecar_tried = true;
    sidecar_name(r, name);
    s->counts.requests++;
    r->transfer = mr_transfer_stat(s->options.net->engine, s->options.store, name, strlen(name), 0, found_sidecar, r);
    return r->transfer ? 0 : -1;
}

static int wait_for_sidecars(struct mr_shard_reader *r)
{
    r->waits = true;
    return 0;
}

/* The next member by the sidecar alone, where that has it. */
static bool follow_sidecar(struct mr_shard_reader *r, struct mr_tar_member *member)
{
    if (r->sidecar.count == 0 || r->tar.extended || !mr_sidecar_next(&r->sidecar, r->tar.at, member))
        return false;
    mr_tar_skip(&r->tar, member);
    return true;
}

/* ---- members ---- */

/* A member, of which `read` says whether its header was. */
static int shard_reader_take(struct mr_shard_reader *r, const struct mr_tar_member *member, bool read)
{
    if (read && r->sidecar.count > 0 && mr_sidecar_compare(&r->sidecar, member) != 0)
        return refuse_sidecar(r) == 0 ? 1 : -1;
    if (take_member(r, member) != 0)
        return -1;
    if (!read) {
        r->has_crc = false;
        r->hopped = true;
    }
    return 0;
}

static int end_of_shard(struct mr_shard_reader *r)
{
    if (r->sidecar.count > 0 && mr_sidecar_end(&r->sidecar) != 0)
        return refuse_sidecar(r);
    /* An archive that ends with the data of its last member: that may not have been read. */
    if (r->shards->options.checksums && r->group.open && r->has_crc && r->member_end > r->start + r->length)
        return ask_next(r);
    return end_shard(r);
}

/* Damage that is none may be the sidecar's, which has led to a place that is no header. */
static int end_of_reading(struct mr_shard_reader *r, const struct mr_tar_member *cut)
{
    if (mr_error_code() != MR_E_CORRUPT)
        return -1;
    return r->sidecar.count > 0 ? refuse_sidecar(r) : end_damaged_shard(r, cut);
}

/* All that the window has. 0 or -1. */
static int read_window(struct mr_shard_reader *r)
{
    const struct mr_shards *s = r->shards;
    for (;;) {
        struct mr_tar_member member;
        uint64_t end = r->start + r->length, at = r->tar.at < end ? r->tar.at : end;
        int rc = 0;
        switch (mr_tar_next(&r->tar, r->window + (at - r->start), end - at, &member)) {
        case MR_TAR_MEMBER:
            rc = shard_reader_take(r, &member, true);
            break;
        case MR_TAR_MORE:
            if (r->length > 0 && wants_sidecar(r))
                return s->sidecars == MR_SIDECARS_LOOKED_FOR ? wait_for_sidecars(r) : ask_sidecar(r);
            if (!follow_sidecar(r, &member))
                return ask_next(r);
            rc = shard_reader_take(r, &member, false);
            break;
        case MR_TAR_END:
            return end_of_shard(r);
        case MR_TAR_ERROR:
            return end_of_reading(r, r->tar.cut ? &member : NULL);
        }
        if (rc != 0)
            return rc < 0 ? -1 : 0;
    }
}

/* From its first header on: those that are in the window are not asked for again. 0 or -1. */
static int begin_shard(struct mr_shard_reader *r)
{
    struct mr_shard *shard = r->shard;
    mr_index_builder_destroy(r->builder);
    r->builder = mr_index_builder_new(r->shards->options.source, -1);
    if (!r->builder ||
        mr_index_builder_shard(r->builder, shard->name, strlen(shard->name), shard->size, shard->version) != 0)
        return -1;
    mr_tar_init(&r->tar, shard->size);
    r->group.open = false;
    r->group.skipped = r->bad = 0;
    r->has_crc = r->hopped = r->past_end = false;
    if (r->start > 0)
        r->start = r->length = 0;
    return shard->size > 0 && r->length == 0 ? shard_reader_ask(r, 0, FIRST_BYTES) : read_window(r);
}

int mr_shard_reader_start(struct mr_shards *s, struct mr_shard_reader *r, struct mr_shard *shard)
{
    r->shards = s;
    r->shard = shard;
    r->start = r->length = 0;
    r->sidecar_kind = 0;
    r->sidecar_tried = r->waits = false;
    return begin_shard(r);
}

static void got_window(void *arg, const struct mr_transfer_result *result)
{
    struct mr_shard_reader *r = arg;
    struct mr_shard *shard = r->shard;
    r->transfer = NULL;
    int rc = -1;
    if (result->code == MR_OK)
        rc = r->past_end ? end_shard(r) : read_window(r);
    else
        mr_error_set(result->code, "%s", result->text);
    r->shards->answered(r->shards, shard, rc);
}
