#include "worker/list/list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/index/index_build.h"
#include "worker/cleanup/temporary.h"
#include "worker/list/index_job.h"
#include "worker/list/index_load.h"
#include "worker/list/names.h"
#include "worker/list/shards.h"
#include "worker/list/split.h"
#include "worker/role.h"

/* One range at a time. */
struct range {
    bool busy;
    bool ranged; /* of a ranged data set (supervisor/dataset_end.h): its reader reports a failure */
    uint64_t id, dataset;
    struct mr_uri uri;
    struct mr_store *store;
    char *start;           /* NULL: from the first name on */
    char *end;             /* NULL: unbounded. Moves down when the upper half is given away */
    char *first;           /* the first name that was listed */
    char *last;            /* the last name that was listed */
    char *from;            /* what the pages that are being read started at: a token belongs to its parameters */
    char *token;           /* of the next page; NULL: none, or the range's end has moved since */
    struct mr_shape shape; /* how the names differ */
    struct mr_index_builder *builder;
    int fd; /* of its index */
    uint64_t pages, bytes, largest;
    struct mr_names names;     /* an explicit list instead of a range */
    size_t next_name, waiting; /* names asked for, answers outstanding */
    struct name_look_up *look_ups;
    struct mr_shards *shards; /* the names are tar shards, whose samples are wanted; NULL: they are objects */
    struct mr_index_source source;
    const char *prefix; /* the source's */
};

struct name_look_up {
    struct lister *lister;
    struct mr_transfer *transfer; /* NULL: not under way */
    uint64_t size, generation;
    uint32_t crc32c;
    bool has_crc32c;
};

struct lister {
    struct mr_role role;
    struct range range;
    bool split_wanted;
    uint64_t split_level;
    struct mr_index_job job; /* CONCAT in several messages */
};

static enum mr_index_version_kind version_of(enum mr_scheme scheme)
{
    return scheme == MR_SCHEME_FILE ? MR_INDEX_MTIME : scheme == MR_SCHEME_S3 ? MR_INDEX_ETAG : MR_INDEX_GENERATION;
}

/* Releases all of the range, in flight or not; the lister is idle afterwards. */
static void range_close(struct lister *l)
{
    struct range *r = &l->range;
    for (size_t i = 0; r->look_ups && i < r->next_name; i++)
        if (r->look_ups[i].transfer)
            mr_transfer_cancel(l->role.net.engine, r->look_ups[i].transfer);
    mr_shards_destroy(r->shards);
    mr_index_builder_destroy(r->builder);
    if (r->fd >= 0)
        close(r->fd);
    mr_uri_close(&r->uri);
    free(r->start);
    free(r->end);
    free(r->first);
    free(r->last);
    free(r->from);
    free(r->token);
    free(r->look_ups);
    mr_names_close(&r->names);
    memset(r, 0, sizeof *r);
    r->fd = -1;
}

/* The data set cannot be listed: reports it, and is ready for other work. */
static void range_failed(struct lister *l)
{
    if (l->range.ranged)
        mr_log_debug("%s", mr_error_text());
    else
        mr_log_error("%s", mr_error_text());
    if (mr_link_send_failed(&l->role.link, l->range.dataset, l->range.id) != 0)
        mr_role_lost(&l->role);
    range_close(l);
}

static int send_page(struct lister *l)
{
    struct range *r = &l->range;
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_RANGE_PAGE);
    if (!msg)
        return -1;
    mr_msg_put_u64(msg, "range", r->id);
    static const struct mr_shards_counts none;
    const struct mr_shards_counts *counts = r->shards ? mr_shards_counts(r->shards) : &none;
    mr_msg_put_u64(msg, "objects", mr_index_builder_count(r->builder));
    mr_msg_put_u64(msg, "bytes", r->bytes);
    mr_msg_put_u64(msg, "pages", r->pages + counts->requests);
    mr_msg_put_u64(msg, "shards", counts->shards);
    mr_msg_put_u64(msg, "shards_done", counts->shards_done);
    mr_msg_put_u64(msg, "shard_bytes", counts->shard_bytes);
    mr_msg_put_u64(msg, "passed", counts->passed);
    mr_msg_put_str(msg, "last", r->last ? r->last : "");
    return mr_msg_send(l->role.link.socket, msg);
}

/* Hands the finished index to the supervisor and closes the range. */
static int finish_range(struct lister *l)
{
    struct range *r = &l->range;
    uint64_t objects = mr_index_builder_count(r->builder);
    if (mr_index_builder_finish(r->builder, NULL, NULL) != 0)
        return -1;
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_RANGE_DONE);
    if (!msg)
        return -1;
    mr_msg_put_u64(msg, "range", r->id);
    mr_msg_put_u64(msg, "objects", objects);
    mr_msg_put_u64(msg, "bytes", r->bytes);
    mr_msg_put_u64(msg, "largest", r->largest);
    mr_msg_put_fd(msg, r->fd);
    mr_counter_add(l->role.link.counters, MR_WC_LIST_JOBS, 1);
    int rc = mr_msg_send(l->role.link.socket, msg);
    range_close(l);
    return rc;
}

/* ---- shards ---- */

static bool shards_read(void *arg, bool done, bool failed)
{
    struct lister *l = arg;
    struct range *r = &l->range;
    const struct mr_shards_counts *counts = mr_shards_counts(r->shards);
    r->bytes = counts->bytes;
    r->largest = counts->largest;
    if (done)
        mr_counter_add(l->role.link.counters, MR_WC_DROPPED_DAMAGED, counts->damaged);
    mr_role_count_operations(&l->role);
    if (!failed && send_page(l) == 0 && (!done || finish_range(l) == 0))
        return !done;
    range_failed(l);
    return false;
}

/* All names are there: done, or the samples of the shards are read. */
static int range_done(struct lister *l)
{
    struct range *r = &l->range;
    if (!r->shards)
        return finish_range(l);
    const struct mr_index_identity identity = {
        .scheme = r->source.scheme, .endpoint = r->source.endpoint, .bucket = r->source.bucket};
    int rc = mr_shards_start(r->shards, &identity, &l->role.link.config);
    if (rc == 1)
        shards_read(l, true, false);
    return rc < 0 ? -1 : 0;
}

static void list_drop(struct lister *l, enum mr_index_drop kind, uint64_t n)
{
    mr_index_builder_drop(l->range.builder, kind, n);
    mr_counter_add(l->role.link.counters, MR_WC_DROPPED_FOLDER + (unsigned)kind, n);
}

/* A name of the listing, which is a shard or none. */
static int add_shard(struct lister *l, const struct mr_store_item *item)
{
    bool is_shard;
    if (mr_shards_is_one(item->name, &is_shard) != 0)
        return -1;
    if (is_shard)
        return mr_shards_add(l->range.shards, item->name, item->size, item->generation);
    list_drop(l, MR_DROP_NO_SHARD, 1);
    return 0;
}

/* ---- pages of a range ---- */

static bool excluded_class(const struct lister *l, const char *class)
{
    const struct mr_strings *excluded = &l->role.link.config.list.exclude_classes;
    for (size_t i = 0; i < excluded->count; i++) {
        if (strcasecmp(class, excluded->items[i]) == 0)
            return true;
    }
    return false;
}

/* An object of a page: counted as left out, or added to the index or the shards to be read. */
static int add_item(struct lister *l, const struct mr_store_item *item)
{
    struct range *r = &l->range;
    if (mr_store_item_is_folder(item)) {
        list_drop(l, MR_DROP_FOLDER, 1);
        return 0;
    }
    if (mr_temporary_has_name(item->name)) {
        list_drop(l, MR_DROP_TEMPORARY, 1);
        return 0;
    }
    if (excluded_class(l, item->storage_class)) {
        list_drop(l, MR_DROP_CLASS, 1);
        return 0;
    }
    if (r->shards)
        return add_shard(l, item);
    r->bytes += item->size;
    if (item->size > r->largest)
        r->largest = item->size;
    return mr_index_builder_add(r->builder, item->name, item->name_length, item->size, item->generation, item->crc32c,
                                item->has_crc32c);
}

static int ask_page(struct lister *l);

/* Gives away [cut, end). The token of the page after this one would run past the cut: continue by name. */
static int give_half(struct lister *l)
{
    struct range *r = &l->range;
    uint64_t level = 0;
    struct mr_split_place place = {
        .first = r->first,
        .last = r->last,
        .end = r->end,
        .prefix = strlen(r->uri.key),
        .level = l->split_level,
    };
    char cut[MR_SPLIT_MAX];
    bool found = r->busy && r->last && mr_store_lists_ranges(r->store) && mr_split(&r->shape, &place, cut, &level);
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_RANGE_SPLIT);
    if (!msg)
        return -1;
    l->split_wanted = false;
    mr_msg_put_u64(msg, "range", r->id);
    mr_msg_put_bool(msg, "none", !found);
    if (found) {
        mr_msg_put_str(msg, "mid", cut);
        mr_msg_put_u64(msg, "level", level);
        mr_msg_put_u64(msg, "deepest", r->shape.deepest);
        mr_msg_put_bool(msg, "has_end", r->end != NULL);
        mr_msg_put_str(msg, "end", r->end ? r->end : "");
        free(r->end);
        r->end = strdup(cut);
        free(r->token);
        r->token = NULL;
        if (!r->end) {
            mr_msg_discard(msg);
            mr_error_set(MR_E_NO_MEMORY, "no memory for a range");
            return -1;
        }
    }
    return mr_msg_send(l->role.link.socket, msg);
}

static int take_page(struct lister *l, const struct mr_store_page *page)
{
    struct range *r = &l->range;
    r->pages++;
    mr_role_count_operations(&l->role);
    mr_counter_add(l->role.link.counters, MR_WC_LIST_PAGES, 1);
    mr_counter_add(l->role.link.counters, MR_WC_LISTED, page->count);
    if (page->skipped)
        list_drop(l, MR_DROP_SPECIAL, page->skipped);
    for (size_t i = 0; i < page->count; i++) {
        mr_shape_add(&r->shape, i > 0 ? page->items[i - 1].name : r->last, page->items[i].name);
        if (add_item(l, &page->items[i]) != 0)
            return -1;
    }
    if (page->count > 0) {
        mr_shape_page(&r->shape, page->items[0].name, page->items[page->count - 1].name);
        if (!r->first)
            r->first = strdup(page->items[0].name);
        free(r->last);
        r->last = strdup(page->items[page->count - 1].name);
    }
    free(r->token);
    r->token = page->next_token ? strdup(page->next_token) : NULL;
    if ((page->count > 0 && (!r->first || !r->last)) || (page->next_token && !r->token)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a page");
        return -1;
    }
    if (send_page(l) != 0)
        return -1;
    if (!r->token)
        return range_done(l);
    if (l->split_wanted && give_half(l) != 0)
        return -1;
    return ask_page(l);
}

static void list_page_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct lister *l = arg;
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
    if (result->code != MR_OK || take_page(l, page) != 0)
        range_failed(l);
}

static int ask_page(struct lister *l)
{
    struct range *r = &l->range;
    if (!r->token) {
        /* The range's start, or after the last name (after a split): the smallest name above it. A name holds no NUL,
         * so that is the name followed by the byte 1. */
        free(r->from);
        r->from = NULL;
        if (r->last ? asprintf(&r->from, "%s\001", r->last) < 0 : r->start && !(r->from = strdup(r->start))) {
            r->from = NULL;
            mr_error_set(MR_E_NO_MEMORY, "no memory for a page");
            return -1;
        }
    }
    struct mr_store_list_request request = {
        .prefix = r->uri.key,
        .start_offset = r->from,
        .end_offset = r->end,
        .page_token = r->token,
        .after = r->last,
    };
    return mr_transfer_list(l->role.net.engine, r->store, &request, list_page_arrived, l) ? 0 : -1;
}

/* ---- an explicit list of names ---- */

static void ask_names(struct lister *l);

static int names_done(struct lister *l)
{
    struct range *r = &l->range;
    for (size_t i = 0; i < r->names.count; i++) {
        const struct name_look_up *found = &r->look_ups[i];
        if (r->shards && mr_shards_add(r->shards, r->names.names[i], found->size, found->generation) != 0)
            return -1;
        if (r->shards)
            continue;
        r->bytes += found->size;
        if (found->size > r->largest)
            r->largest = found->size;
        if (mr_index_builder_add(r->builder, r->names.names[i], strlen(r->names.names[i]), found->size,
                                 found->generation, found->crc32c, found->has_crc32c) != 0)
            return -1;
    }
    mr_counter_add(l->role.link.counters, MR_WC_LISTED, r->names.count);
    return range_done(l);
}

static void name_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct name_look_up *at = arg;
    struct lister *l = at->lister;
    at->transfer = NULL;
    l->range.waiting--;
    mr_role_count_operations(&l->role);
    if (result->code != MR_OK) {
        mr_error_set(result->code, "%s", result->text);
        if (!l->range.ranged)
            mr_error_append("the list of objects");
        range_failed(l);
        return;
    }
    at->size = item->size;
    at->generation = item->generation;
    at->crc32c = item->crc32c;
    at->has_crc32c = item->has_crc32c;
    if (l->range.next_name == l->range.names.count && l->range.waiting == 0) {
        if (names_done(l) != 0)
            range_failed(l);
    } else {
        ask_names(l);
    }
}

static void ask_names(struct lister *l)
{
    struct range *r = &l->range;
    while (r->next_name < r->names.count && mr_transfer_free(l->role.net.engine) > 0) {
        struct name_look_up *at = &r->look_ups[r->next_name];
        const char *name = r->names.names[r->next_name];
        at->lister = l;
        at->transfer = mr_transfer_stat(l->role.net.engine, r->store, name, strlen(name), 0, name_arrived, at);
        if (!at->transfer) {
            range_failed(l);
            return;
        }
        r->next_name++;
        r->waiting++;
    }
}

static int start_names(struct lister *l, int fd)
{
    struct range *r = &l->range;
    if (mr_names_init(&r->names, fd, r->uri.scheme, r->uri.bucket) != 0)
        return -1;
    if (r->names.count == 0)
        return names_done(l);
    r->look_ups = calloc(r->names.count, sizeof *r->look_ups);
    if (!r->look_ups) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of %zu objects", r->names.count);
        return -1;
    }
    ask_names(l);
    return 0;
}

/* ---- messages ---- */

/* RANGE's fields into l->range. -1: the range has failed (or the message is bad). */
static int open_range(struct lister *l, struct mr_msg_in *msg)
{
    struct range *r = &l->range;
    const char *uri, *start, *end;
    bool has_end, shards, checksums;
    if (mr_msg_get_bool(msg, "shards", &shards) != 0 || mr_msg_get_bool(msg, "checksums", &checksums) != 0 ||
        mr_msg_get_str(msg, "uri", &uri) != 0 || mr_msg_get_str(msg, "start", &start) != 0 ||
        mr_msg_get_str(msg, "end", &end) != 0 || mr_msg_get_bool(msg, "has_end", &has_end) != 0 ||
        mr_uri_init(&r->uri, uri) != 0)
        return -1;
    r->start = start[0] ? strdup(start) : NULL;
    r->end = has_end ? strdup(end) : NULL;
    if ((start[0] && !r->start) || (has_end && !r->end)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a range");
        return -1;
    }
    r->store = mr_net_store(&l->role.net, r->uri.scheme, r->uri.bucket);
    if (!r->store)
        return -1;
    r->fd = mr_index_memfd();
    if (r->fd < 0)
        return -1;
    r->prefix = r->uri.key;
    r->source = (struct mr_index_source){
        .scheme = r->uri.scheme,
        .version_kind = version_of(r->uri.scheme),
        .bucket = r->uri.bucket,
        .endpoint = mr_index_endpoint(&l->role.link.config, r->uri.scheme, r->uri.bucket),
        .prefixes = &r->prefix,
        .prefix_count = msg->fd_count > 0 ? 0 : 1, /* an explicit list has none */
        .created_wall_ns = mr_clock_wall_ns(),
    };
    r->builder = mr_index_builder_new(&r->source, r->fd);
    if (!r->builder || !shards)
        return r->builder ? 0 : -1;
    const struct mr_shards_options options = {.net = &l->role.net,
                                              .store = r->store,
                                              .builder = r->builder,
                                              .source = &r->source,
                                              .checksums = checksums,
                                              .progress = shards_read,
                                              .arg = l};
    r->shards = mr_shards_new(&options);
    return r->shards ? 0 : -1;
}

static int take_range(struct lister *l, struct mr_msg_in *msg)
{
    struct range *r = &l->range;
    if (r->busy) {
        mr_error_set(MR_E_PROTOCOL, "a second range came while one is listed");
        return -1;
    }
    if (mr_msg_get_u64(msg, "dataset", &r->dataset) != 0 || mr_msg_get_u64(msg, "range", &r->id) != 0 ||
        mr_msg_get_bool(msg, "ranged", &r->ranged) != 0)
        return -1;
    r->busy = true;
    l->split_wanted = false;
    int rc = open_range(l, msg);
    if (rc == 0) {
        int fd = msg->fd_count > 0 ? mr_msg_take_fd(msg, 0) : -1;
        rc = fd >= 0 ? start_names(l, fd) : ask_page(l);
        if (fd >= 0)
            close(fd);
    }
    if (rc != 0)
        range_failed(l);
    return 0;
}

static int list_split(struct lister *l, struct mr_msg_in *msg)
{
    uint64_t id, level;
    if (mr_msg_get_u64(msg, "range", &id) != 0 || mr_msg_get_u64(msg, "level", &level) != 0)
        return -1;
    if (l->range.busy && l->range.id == id) {
        l->split_level = level;
        l->split_wanted = true; /* answered with the next page, or by RANGE_DONE */
        return 0;
    }
    return 0; /* it was done while the message was under way: RANGE_DONE has been sent */
}

static int list_handle(struct mr_role *role, struct mr_msg_in *msg)
{
    struct lister *l = MR_CONTAINER_OF(role, lister, role);
    switch (msg->type) {
    case MR_MSG_RANGE:
        return take_range(l, msg);
    case MR_MSG_SPLIT:
        return list_split(l, msg);
    case MR_MSG_CONCAT:
        return mr_index_job_concat(&l->job, &role->link, &role->net, msg);
    case MR_MSG_INDEX_LOAD:
        return mr_index_job_load(&role->link, &role->net, msg);
    default:
        return mr_role_unknown(role, msg);
    }
}

static const struct mr_role_ops ops = {.kind = {.role = "list"}, .handle = list_handle};

int mr_list_main(unsigned slot)
{
    struct lister *l = calloc(1, sizeof *l);
    if (!l)
        return 1;
    l->range.fd = -1;
    return mr_role_main(&l->role, &ops, slot);
}
