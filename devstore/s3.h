/*
 * s3.h - S3's side of the API, on the same objects: which requests are S3's, what they ask for, what they are answered.
 *
 * Facts: https://docs.aws.amazon.com/AmazonS3/latest/API/. A request is S3's when it carries a signature of version 4 or
 * an x-amz-... header, a query parameter x-id, the name of a bucket in its Host header (BUCKET.localhost,
 * BUCKET.s3.localhost), or, with `always`, when its path is one of the XML API. What it does (enum mr_op) is named as
 * the operation of GCS that is nearest, so that faults, delays and counts are the same.
 */
#ifndef MR_DEVSTORE_S3_H
#define MR_DEVSTORE_S3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/api.h"

#define MR_S3_KEYS_MAX 8
#define MR_S3_PAGE_MAX 1000 /* entries of a page: keys, uploads, parts; keys of one DeleteObjects */

struct mr_s3_key {
    const char *id, *secret, *token; /* token NULL: none is needed */
};

struct mr_s3_settings {
    bool always; /* paths of the XML API are S3's, whatever else the request says */
    /* As some stores do: conditions of writes hold always; checksums are neither looked at nor kept. */
    bool ignore_conditions, ignore_checksums;
    int n_keys; /* 0: any signature is good, and none */
    struct mr_s3_key keys[MR_S3_KEYS_MAX];
    const char *region; /* NULL: us-east-1, and requests for others are good */
    int64_t clock_s;    /* how far the server's clock is ahead */
    uint64_t session_s; /* how long the credentials of CreateSession are good */
    uint8_t session_secret[32];
};
/* No keys, one region, 300 s, a secret of its own. */
void mr_s3_settings_init(struct mr_s3_settings *settings);
const char *mr_s3_region(const struct mr_s3_settings *settings);
/* Seconds since 1970 by the server's clock. */
int64_t mr_s3_now(const struct mr_s3_settings *settings);

/* Whether the request is S3's. If so it is taken apart anew. The headers must be there. */
bool mr_s3_claim(const struct mr_api *api, struct mr_request *request);
/* As mr_api_refuse, mr_api_answer and mr_upload_new, for requests that were claimed. */
int mr_s3_refuse(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);
void mr_s3_answer(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);
struct mr_upload *mr_s3_upload_new(const struct mr_api *api, const struct mr_request *request, uint64_t length,
                                   struct mr_reply *reply);
struct mr_fault;
/* Of a fault that is an answer: its code, and the reply. */
const char *mr_s3_fault_code(const struct mr_fault *fault);
void mr_s3_fault_reply(const struct mr_fault *fault, const struct mr_request *request, struct mr_reply *reply);

/* The parts of mr_s3_answer, in files of their own. */
void mr_s3_list(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_get(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_delete(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_batch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_initiate(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_complete(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_parts(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_uploads(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_buckets(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_s3_session(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);

/* Shared by those parts. */
/* Whether --fault late-error hits the request: the reply is 200, blanks and an error then, and nothing is to be done. */
bool mr_s3_late_error(const struct mr_request *request, struct mr_reply *reply);
/* Content-Type of a body of XML. */
void mr_s3_xml(struct mr_reply *reply);
/* Writes <name>text</name>; url: percent-encoded, as encoding-type=url wants it. */
void mr_s3_put(struct mr_text *out, const char *name, const char *text, bool url);
/* A number from 0 to MR_S3_PAGE_MAX, which is also what it is without the parameter. 0, or -1 with the reply. */
int mr_s3_page(const struct mr_request *request, const char *key, unsigned *most, struct mr_reply *reply);
/* Whether encoding-type=url is asked for: 1, 0, or -1 with the reply. */
int mr_s3_encoding(const struct mr_request *request, struct mr_reply *reply);
/* A bucket of S3 Express One Zone: its name ends so. */
bool mr_s3_is_express(const char *bucket);

#endif
