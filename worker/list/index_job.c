#include "worker/list/index_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "shm/index/index_build.h"
#include "shm/index/shards.h"
#include "worker/list/index_load.h"

#define URIS_MAX 4096u

/* A message about a data set's index: CONCAT or INDEX_LOAD. */
struct request {
    uint64_t dataset, requests, stale;
    bool replace;
    struct mr_index_want want;
    struct mr_uri uris[URIS_MAX];
    const char *prefixes[URIS_MAX];
    size_t uri_count;
};

static void close_request(struct request *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->uri_count; i++)
        mr_uri_close(&r->uris[i]);
    free(r);
}

/* What the data set is, and where its index may lie. */
static int read_want(struct request *r, struct mr_link *link, struct mr_net *net, const struct mr_msg_in *msg)
{
    const char *const *uris;
    size_t count;
    bool names, shards;
    if (mr_msg_get_strs(msg, "uris", &uris, &count) != 0 || mr_msg_get_bool(msg, "names", &names) != 0 ||
        mr_msg_get_bool(msg, "shards", &shards) != 0 || mr_msg_get_str(msg, "place", &r->want.place) != 0 ||
        mr_msg_get_str(msg, "digest", &r->want.digest) != 0 ||
        mr_msg_get_u64(msg, "max_age_s", &r->want.max_age_s) != 0)
        return -1;
    if (count == 0 || count > URIS_MAX) {
        mr_error_set(MR_E_USAGE, "a data set has 1 to %u URIs", URIS_MAX);
        return -1;
    }
    for (; r->uri_count < count; r->uri_count++) {
        if (mr_uri_init(&r->uris[r->uri_count], uris[r->uri_count]) != 0)
            return -1;
        r->prefixes[r->uri_count] = r->uris[r->uri_count].key;
    }
    r->want.net = net;
    r->want.config = &link->config;
    r->want.identity = (struct mr_index_identity){
        .scheme = r->uris[0].scheme,
        .endpoint = mr_index_endpoint(&link->config, r->uris[0].scheme, r->uris[0].bucket),
        .bucket = r->uris[0].bucket,
        .prefixes = r->prefixes,
        .prefix_count = names ? 0 : count,
        .shards = shards,
        .exclude_classes = &link->config.list.exclude_classes,
    };
    return 0;
}

static int send_done(struct mr_link *link, uint64_t dataset, uint64_t requests, const char *from,
                     const struct mr_index *index, int fd)
{
    char digest[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(index->info.digest, digest);
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_INDEX_DONE);
    if (!msg)
        return -1;
    mr_msg_put_u64(msg, "dataset", dataset);
    mr_msg_put_u64(msg, "objects", index->info.count);
    mr_msg_put_u64(msg, "bytes", index->info.total_bytes);
    mr_msg_put_u64(msg, "largest", index->info.max_size);
    char key[32];
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++) {
        snprintf(key, sizeof key, "dropped_%s", mr_index_drop_name(kind));
        mr_msg_put_u64(msg, key, index->info.dropped[kind]);
    }
    mr_msg_put_u64(msg, "requests", requests);
    mr_msg_put_str(msg, "from", from);
    mr_msg_put_str(msg, "digest", digest);
    mr_msg_put_fd(msg, fd);
    mr_counter_add(link->counters, MR_WC_LIST_JOBS, 1);
    return mr_msg_send(link->socket, msg);
}

/* The data set is ready by now: a cache that fails does not concern it. */
static void index_job_keep(const struct mr_index_want *want, const struct mr_index *index, uint64_t requests)
{
    const struct mr_index_file_extra extra = {requests, want->identity.exclude_classes};
    char folder[PATH_MAX];
    if (mr_index_cache_folder(want->config, folder) != 0)
        return;
    char key[MR_INDEX_KEY_SIZE];
    mr_index_key(&want->identity, key);
    if (mr_index_cache_put(want->config, key, index, &extra) != 0)
        mr_log_warning("the index is not kept in the cache: %s", mr_error_text());
}

/* The image at fd is the data set's: report it, then keep it. */
static int index_job_finish(struct mr_link *link, const struct request *r, uint64_t requests, const char *from,
                            bool cached, int fd)
{
    struct mr_index index;
    if (mr_index_map(&index, fd) != 0)
        return mr_link_send_failed(link, r->dataset, UINT64_MAX);
    int rc = send_done(link, r->dataset, requests, from, &index, fd);
    if (rc == 0 && !cached && !r->replace) /* `millrace index` has its own copy */
        index_job_keep(&r->want, &index, requests);
    mr_index_close(&index);
    return rc;
}

/* ---- CONCAT ---- */

static int add_ranges(struct mr_index_job *job, struct mr_msg_in *msg)
{
    for (unsigned i = 0; i < msg->fd_count; i++) {
        if (job->range_count == MR_INDEX_RANGES_MAX) {
            mr_error_set(MR_E_PROTOCOL, "more than %u ranges of one listing", MR_INDEX_RANGES_MAX);
            return -1;
        }
        if (mr_index_map(&job->ranges[job->range_count], msg->fds[i]) != 0)
            return -1;
        job->range_count++;
    }
    return 0;
}

/* All ranges into one image. The prefixes of the source are those of the ranges, each once. */
static int build(const struct mr_index_job *job, const struct request *r, int fd)
{
    uint32_t prefix_count = 0;
    int64_t created = INT64_MAX;
    const struct mr_index *ranges[MR_INDEX_RANGES_MAX];
    const char *prefixes[MR_INDEX_RANGES_MAX];
    for (unsigned i = 0; i < job->range_count; i++) {
        ranges[i] = &job->ranges[i];
        const char *prefix = mr_index_prefix(&job->ranges[i], 0);
        if (prefix && (prefix_count == 0 || strcmp(prefixes[prefix_count - 1], prefix) != 0))
            prefixes[prefix_count++] = prefix;
        if (job->ranges[i].info.created_wall_ns < created)
            created = job->ranges[i].info.created_wall_ns;
    }
    const struct mr_index_identity *identity = &r->want.identity; /* a list of shards is known by its patterns */
    const struct mr_index_info *first = &job->ranges[0].info;
    struct mr_index_source source = {
        .scheme = first->scheme,
        .version_kind = first->version_kind,
        .bucket = first->bucket,
        .endpoint = first->endpoint,
        .prefixes = identity->shards ? identity->prefixes : prefixes,
        .prefix_count = identity->shards ? (uint32_t)identity->prefix_count : prefix_count,
        .created_wall_ns = created,
    };
    struct mr_index_builder *builder = mr_index_builder_new(&source, fd);
    if (!builder)
        return -1;
    int rc = mr_index_concat(builder, ranges, job->range_count);
    if (rc == 0)
        rc = mr_index_builder_finish(builder, NULL, NULL);
    mr_index_builder_destroy(builder);
    return rc;
}

/* Saves it where the data set's index belongs. 0, 1: another's index is in `out` and counts, -1. */
static int publish(const struct request *r, int fd, int out, struct mr_index_found *found)
{
    struct mr_index index;
    if (mr_index_map(&index, fd) != 0)
        return -1;
    int rc = mr_index_publish(&r->want, &index, r->requests, r->stale, r->replace, out, found);
    mr_index_close(&index);
    return rc;
}

/* Refuses an index of shards without a single sample, naming the likely reason. */
static int check_shards(const struct request *r, int fd)
{
    struct mr_index index;
    if (mr_index_map(&index, fd) != 0)
        return -1;
    char place[600], root[MR_URI_PLACE_SIZE], what[MR_INDEX_NAME_SIZE];
    struct mr_index_entry entry;
    snprintf(place, sizeof place, "%s%.200s%s", mr_uri_root(r->want.identity.scheme, r->want.identity.bucket, root),
             r->uris[0].key, r->uri_count > 1 ? " and more" : "");
    const struct mr_index_info *info = &index.info;
    int rc = -1;
    if (info->total_bytes > 0)
        rc = 0;
    else if (mr_index_shard_count(&index) == 0)
        mr_error_set(MR_E_NOT_FOUND, "%s: %" PRIu64 " names are there, and none ends in .tar: there are no shards",
                     place, info->dropped[MR_DROP_NO_SHARD]);
    else if (info->count == 0)
        mr_error_set(MR_E_NOT_FOUND, "%s: %" PRIu64 " shards are there, and no sample is in them", place,
                     mr_index_shard_count(&index));
    else if (mr_index_get(&index, 0, &entry, what) == 0)
        mr_error_set(MR_E_CORRUPT, "%s: %" PRIu64 " shards are there, and no sample in them is whole; of the first: %s",
                     place, mr_index_shard_count(&index), what);
    mr_index_close(&index);
    return rc;
}

/* Builds the index from its ranges, saves it where it is wanted, and answers the supervisor. If another node saved a
 * newer one meanwhile, that one is used. Failures are answered too; -1: the answer could not be sent. */
static int concat_all(const struct mr_index_job *job, struct mr_link *link, const struct request *r)
{
    struct mr_index_found found = {0};
    int fd = mr_index_memfd(), other = -1, rc = -1;
    if (fd < 0 || build(job, r, fd) != 0 || (r->want.identity.shards && check_shards(r, fd) != 0))
        goto failed;
    if (r->want.place[0] != '\0') {
        other = mr_index_memfd();
        rc = other < 0 ? -1 : publish(r, fd, other, &found);
        if (rc < 0)
            goto failed;
    }
    rc = rc == 1 ? index_job_finish(link, r, found.requests, found.from, false, other)
                 : index_job_finish(link, r, r->requests, "", false, fd);
    goto out;
failed:
    rc = mr_link_send_failed(link, r->dataset, UINT64_MAX);
out:
    if (fd >= 0)
        close(fd);
    if (other >= 0)
        close(other);
    return rc;
}

int mr_index_job_concat(struct mr_index_job *job, struct mr_link *link, struct mr_net *net, struct mr_msg_in *msg)
{
    uint64_t dataset;
    bool more;
    if (mr_msg_get_u64(msg, "dataset", &dataset) != 0 || mr_msg_get_bool(msg, "more", &more) != 0)
        return -1;
    if (job->is_skipping) {
        job->is_skipping = more;
        return 0;
    }
    int rc = add_ranges(job, msg);
    if (rc == 0 && more)
        return 0;
    job->is_skipping = more;
    struct request *r = calloc(1, sizeof *r);
    if (rc == 0 && job->range_count == 0) {
        mr_error_set(MR_E_PROTOCOL, "CONCAT without ranges");
        rc = -1;
    }
    if (rc == 0 && !r) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an index");
        rc = -1;
    }
    if (rc == 0) {
        r->dataset = dataset;
        rc = read_want(r, link, net, msg);
    }
    if (rc == 0 && (mr_msg_get_u64(msg, "requests", &r->requests) != 0 ||
                    mr_msg_get_u64(msg, "stale", &r->stale) != 0 || mr_msg_get_bool(msg, "replace", &r->replace) != 0))
        rc = -1;
    rc = rc == 0 ? concat_all(job, link, r) : mr_link_send_failed(link, dataset, UINT64_MAX);
    close_request(r);
    for (unsigned i = 0; i < job->range_count; i++)
        mr_index_close(&job->ranges[i]);
    job->range_count = 0;
    return rc;
}

/* ---- INDEX_LOAD ---- */

static int send_missing(struct mr_link *link, uint64_t dataset, uint64_t stale)
{
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_INDEX_MISSING);
    if (!msg)
        return -1;
    mr_msg_put_u64(msg, "dataset", dataset);
    mr_msg_put_u64(msg, "stale", stale);
    return mr_msg_send(link->socket, msg);
}

/* The listing that was asked for by its digest no longer exists; the current one came with the message. */
static int explain(struct mr_link *link, const struct request *r, struct mr_msg_in *msg)
{
    int fd = mr_msg_take_fd(msg, 0);
    struct mr_index now;
    if (fd >= 0 && mr_index_map(&now, fd) == 0) {
        mr_index_explain_gone(&r->want, &now);
        mr_index_close(&now);
    }
    if (fd >= 0)
        close(fd);
    return mr_link_send_failed(link, r->dataset, UINT64_MAX);
}

int mr_index_job_load(struct mr_link *link, struct mr_net *net, struct mr_msg_in *msg)
{
    struct mr_index_found found = {0};
    uint64_t dataset;
    if (mr_msg_get_u64(msg, "dataset", &dataset) != 0)
        return -1;
    struct request *r = calloc(1, sizeof *r);
    int fd = mr_index_memfd(), rc = -1;
    if (!r)
        mr_error_set(MR_E_NO_MEMORY, "no memory for an index");
    if (r && fd >= 0) {
        r->dataset = dataset;
        rc = read_want(r, link, net, msg);
    }
    if (rc == 0)
        rc = mr_index_load(&r->want, fd, &found);
    if (rc == 0)
        rc = index_job_finish(link, r, found.requests, found.from, found.cached, fd);
    else if (rc < 0)
        rc = mr_link_send_failed(link, dataset, UINT64_MAX);
    else
        rc = msg->fd_count > 0 ? explain(link, r, msg) : send_missing(link, dataset, found.stale);
    if (fd >= 0)
        close(fd);
    close_request(r);
    return rc;
}
