/* options.h - the command line of millrace-devstore. */
#ifndef MR_DEVSTORE_OPTIONS_H
#define MR_DEVSTORE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "devstore/bucket.h"
#include "devstore/request.h"
#include "devstore/s3.h"
#include "devstore/shapes.h"

#define MR_SYNTHETIC_MAX 16
#define MR_DENY_MAX      16
#define MR_FAULT_MAX     32

struct ds_options {
    const char *host; /* of --listen */
    const char *port;
    const char *root, *port_file, *log_file, *tls_file;
    bool memory, exit_with_parent, md5;
    double latency_ms[MR_OP_COUNT];
    bool compress;
    double download_mibps, download_total_mibps, upload_mibps, upload_total_mibps; /* 0: no limit */
    unsigned page_max, threads;
    uint64_t seed, min_part;
    struct ds_bucket_settings bucket; /* of every bucket */
    int n_synthetic, n_denied, n_faults;
    const char *synthetic[MR_SYNTHETIC_MAX]; /* as ds_synthetic_spec_parse reads them */
    const char *denied[MR_DENY_MAX];
    const char *faults[MR_FAULT_MAX];
    struct ds_s3_settings s3;
    char *s3_keys[MR_S3_KEYS_MAX]; /* what its keys point into */
    char *listen;                  /* what host and port point into */
};

/* 0: go on. 1: --help or --version was answered on standard output. -1 (USAGE). */
int ds_options_parse(struct ds_options *options, int argc, char **argv);
void ds_options_close(struct ds_options *options);

struct ds_synthetic_spec {
    char bucket[256];
    enum ds_shape shape;
    uint64_t count, size_min, size_max, seed;
};
/* BUCKET:[SHAPE:]COUNT:SIZE[-SIZE][:SEED]. 0 or -1 (USAGE). */
int ds_synthetic_spec_parse(const char *text, uint64_t default_seed, struct ds_synthetic_spec *spec);

#endif
