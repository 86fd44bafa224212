/*
 * s3.h - S3's side of the API, on the same objects: which requests are S3's, what they ask for, and the answers to
 * them.
 *
 * Facts: https://docs.aws.amazon.com/AmazonS3/latest/API/. A request is S3's when it carries a signature of version 4
 * or an x-amz-... header, a query parameter x-id, the name of a bucket in its Host header (BUCKET.localhost,
 * BUCKET.s3.localhost), or, with `always`, when its path is one of the XML API. What it does (enum ds_op) is named
 * after the nearest operation of GCS, so that faults, delays and counts are the same.
 */
#ifndef MR_DEVSTORE_S3_H
#define MR_DEVSTORE_S3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/api.h"

#define MR_S3_KEYS_MAX 8
#define MR_S3_PAGE_MAX 1000 /* entries of a page: keys, uploads, parts; keys of one DeleteObjects */

struct ds_s3_key {
    const char *id, *secret, *token; /* token NULL: none is needed */
};

struct ds_s3_settings {
    bool always; /* paths of the XML API are S3's, whatever else the request says */
    /* As some stores do: conditions of writes always hold; checksums are neither checked nor kept. */
    bool ignore_conditions, ignore_checksums;
    int n_keys; /* 0: any signature is accepted, and none */
    struct ds_s3_key keys[MR_S3_KEYS_MAX];
    const char *region; /* NULL: us-east-1, and requests for others are accepted */
    int64_t clock_s;    /* how far the server's clock is ahead */
    uint64_t session_s; /* how long the credentials of CreateSession are valid */
    uint8_t session_secret[32];
};
/* No keys, one region, 300 s, a secret of its own. */
void ds_s3_settings_init(struct ds_s3_settings *settings);
const char *ds_s3_region(const struct ds_s3_settings *settings);
/* Seconds since 1970 by the server's clock. */
int64_t ds_s3_now(const struct ds_s3_settings *settings);

/* Whether the request is S3's. If so it is parsed again. The headers must be there. */
bool ds_s3_claim(const struct ds_api *api, struct ds_request *request);
/* As ds_api_refuse, ds_api_answer and ds_upload_new, for requests that were claimed. */
int ds_s3_refuse(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);
void ds_s3_answer(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);
struct ds_upload *ds_s3_upload_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                   struct ds_reply *reply);
struct ds_fault;
/* Of a fault that is an answer: its code, and the reply. */
const char *ds_s3_fault_code(const struct ds_fault *fault);
void ds_s3_fault_reply(const struct ds_fault *fault, const struct ds_request *request, struct ds_reply *reply);

/* The parts of ds_s3_answer, in files of their own. */
void ds_s3_list(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_get(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_delete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_batch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_initiate(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_complete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_parts(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_uploads(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_buckets(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_s3_session(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);

/* Shared by those parts. */
/* Whether --fault late-error hits the request: then the reply is 200, blanks and an error, and nothing else is to be
 * done. */
bool ds_s3_late_error(const struct ds_request *request, struct ds_reply *reply);
/* Content-Type of a body of XML. */
void ds_s3_xml(struct ds_reply *reply);
/* Writes <name>text</name>; url: percent-encoded, as encoding-type=url requires. */
void ds_s3_put(struct ds_text *out, const char *name, const char *text, bool url);
/* A number from 0 to MR_S3_PAGE_MAX, which is also the default. 0, or -1 with the reply. */
int ds_s3_page(const struct ds_request *request, const char *key, unsigned *most, struct ds_reply *reply);
/* Whether encoding-type=url is asked for: 1, 0, or -1 with the reply. */
int ds_s3_encoding(const struct ds_request *request, struct ds_reply *reply);
/* Whether it is a bucket of S3 Express One Zone, which the end of its name says. */
bool ds_s3_is_express(const char *bucket);

#endif
