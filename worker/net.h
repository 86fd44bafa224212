/*
 * net.h - the HTTP loop, the transfer engine and the open stores of one worker, set up from the configuration.
 */
#ifndef MR_WORKER_NET_H
#define MR_WORKER_NET_H

#include "base/uri.h"
#include "shm/control/config.h"
#include "worker/store/transfer.h"

struct mr_net_store;
struct mr_net {
    const struct mr_config *config;
    struct mr_http *http;
    struct mr_transfer_engine *engine;
    struct mr_net_store *stores; /* one a bucket: opened once, kept */
};

/* config must outlive net. 0 or -1. */
int mr_net_init(struct mr_net *net, const struct mr_config *config);
void mr_net_close(struct mr_net *net);
/* The store of a scheme and bucket; it lives as long as net. NULL with mr_error. */
struct mr_store *mr_net_store(struct mr_net *net, enum mr_scheme scheme, const char *bucket);
/* One of s3 that sends checksums, whatever the configuration says; the caller closes it. NULL with mr_error. */
struct mr_store *mr_net_store_summed(struct mr_net *net, const char *bucket);

#endif
