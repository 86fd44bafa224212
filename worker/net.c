#include "worker/net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "worker/store/flight.h"
#include "worker/store/s3.h"

struct mr_net_store {
    struct mr_net_store *next;
    enum mr_scheme scheme;
    char *bucket;
    struct mr_store *store;
};

/* Connections that are found: no more than a quarter of the descriptors that this process may have, as each takes three
 * (http_line.c). */
static unsigned most_connections(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur / 4 >= MR_FLIGHT_MOST)
        return MR_FLIGHT_MOST;
    return limit.rlim_cur / 4 < MR_FLIGHT_FIRST ? MR_FLIGHT_FIRST : (unsigned)(limit.rlim_cur / 4);
}

int mr_net_init(struct mr_net *net, const struct mr_config *config)
{
    memset(net, 0, sizeof *net);
    net->config = config;
    unsigned connections = (unsigned)config->fetch.connections, most = connections ? connections : most_connections();
    struct mr_http_options http = {
        .connections = most,
        .buffer_bytes = (unsigned)config->fetch.receive_buffer_bytes,
        .connect_timeout_ms = (unsigned)config->http.connect_timeout_ms,
        .proxy = config->http.proxy[0] ? config->http.proxy : NULL,
        .ca_bundle = config->http.ca_bundle[0] ? config->http.ca_bundle : NULL,
        .headers = (const char *const *)config->http.headers.items,
        .header_count = (unsigned)config->http.headers.count,
    };
    net->http = mr_http_new(&http);
    if (!net->http)
        return -1;
    struct mr_transfer_options transfer = {
        .connections = connections,
        .connections_most = most,
        .retry_base_ms = (unsigned)config->retry.base_ms,
        .retry_cap_ms = (unsigned)config->retry.cap_ms,
        .deadline_ms = (unsigned)config->retry.deadline_ms,
        .attempts = (unsigned)config->retry.attempts,
        .stall_min_ms = (unsigned)config->http.stall_min_ms,
        .range_min_bytes = config->fetch.range_threshold_bytes,
        .range_bytes = config->fetch.range_bytes,
    };
    net->engine = mr_transfer_new(&transfer, net->http);
    if (!net->engine) {
        mr_http_destroy(net->http);
        return -1;
    }
    return 0;
}

void mr_net_close(struct mr_net *net)
{
    mr_transfer_destroy(net->engine);
    for (struct mr_net_store *at = net->stores, *next; at; at = next) {
        next = at->next;
        mr_store_close(at->store);
        free(at->bucket);
        free(at);
    }
    mr_http_destroy(net->http);
}

_Static_assert((int)MR_S3_KMS == (int)MR_S3_ENCRYPTION_KMS, "the order of s3.encryption's values in the configuration");

static struct mr_store *open_store(struct mr_net *net, enum mr_scheme scheme, const char *bucket, bool summed)
{
    const struct mr_config *config = net->config;
    const char *plain = bucket;
    const struct mr_config_s3 *at = scheme == MR_SCHEME_S3 ? mr_config_s3_of(config, bucket, &plain) : &config->s3;
    if (!at)
        return NULL;
    const struct mr_s3_options s3 = {
        .region = at->region,
        .profile = at->profile,
        .addressing = (enum mr_s3_addressing)at->addressing,
        .checksums = summed ? MR_S3_CHECKSUMS_ALWAYS : (enum mr_s3_checksums)at->checksums,
        .encryption = (enum mr_s3_encryption)at->encryption,
        .kms_key_id = at->kms_key_id,
        .customer_key_file = at->customer_key_file,
        .requester_pays = at->requester_pays == MR_REQUESTER_PAYS,
        .cleartext = at->cleartext_credentials == MR_CLEARTEXT_ALLOW,
    };
    const char *endpoint = scheme == MR_SCHEME_S3 ? at->endpoint : config->gcs.endpoint;
    uint64_t auth = scheme == MR_SCHEME_S3 ? at->auth : config->gcs.auth;
    struct mr_store_options options = {
        .scheme = scheme,
        .bucket = plain,
        .named = bucket,
        .endpoint = endpoint[0] ? endpoint : NULL,
        .auth = auth == MR_AUTH_ANONYMOUS ? "anonymous" : NULL,
        .user_project = config->gcs.user_project[0] ? config->gcs.user_project : NULL,
        .s3 = &s3,
        .stall_timeout_ms = (unsigned)config->http.stall_timeout_ms,
        .http = net->http,
    };
    return mr_store_open(&options);
}

struct mr_store *mr_net_store_summed(struct mr_net *net, const char *bucket)
{
    return open_store(net, MR_SCHEME_S3, bucket, true);
}

struct mr_store *mr_net_store(struct mr_net *net, enum mr_scheme scheme, const char *bucket)
{
    for (struct mr_net_store *open = net->stores; open; open = open->next) {
        if (open->scheme == scheme && strcmp(open->bucket, bucket) == 0)
            return open->store;
    }
    struct mr_net_store *entry = calloc(1, sizeof *entry);
    if (!entry || !(entry->bucket = strdup(bucket))) {
        free(entry);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        return NULL;
    }
    entry->scheme = scheme;
    entry->store = open_store(net, scheme, bucket, false);
    if (!entry->store) {
        free(entry->bucket);
        free(entry);
        return NULL;
    }
    entry->next = net->stores;
    net->stores = entry;
    return entry->store;
}
