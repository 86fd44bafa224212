/*
 * api.h - what the store answers: one function from request to reply, and an upload that takes its bytes in pieces.
 *
 * Facts: https://cloud.google.com/storage/docs/json_api/v1 and /storage/docs/xml-api. Everything here may block on the
 * disk, and any thread may call it.
 */
#ifndef MR_DEVSTORE_API_H
#define MR_DEVSTORE_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devstore/request.h"

#define MR_BATCH_CALLS 100                  /* calls in one batch: GCS's limit */
#define MR_BODY_MAX    (UINT64_C(10) << 20) /* bytes of a JSON or batch body: GCS's limit for a batch */

struct ds_buckets;
struct ds_counts;
struct ds_faults;
struct ds_s3_settings;
struct ds_sessions;
struct ds_upload;

struct ds_api {
    struct ds_buckets *buckets;
    unsigned page_max;   /* the most entries of a listing page */
    const char **denied; /* permissions that are denied to all: "storage.objects.create", ... */
    int n_denied;
    bool md5;          /* compute the MD5 of uploads too */
    uint64_t min_part; /* the least size of a multipart upload's parts but the last */
    struct ds_sessions *sessions;
    struct ds_counts *counts; /* NULL: nothing is counted */
    struct ds_faults *faults; /* for the calls inside a batch; NULL: none */
    const struct ds_s3_settings *s3;
};

/* ---- dispatch.c ---- */

/* 0, or the status with which this request is refused before its body is read; the reply is filled in. */
int ds_api_refuse(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);
/* Answers a request of any operation but ADMIN and those of ds_op_uploads. reply: initialised; closed by the caller. */
void ds_api_answer(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);

/* ---- upload.c ---- */

/* For the operations of ds_op_uploads. NULL: the reply says why. request must stay until the upload is destroyed.
 * length: Content-Length, or 0 if unknown.
 */
struct ds_upload *ds_upload_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                struct ds_reply *reply);
/* Takes the next bytes of the body. After a failure it ignores more of them; finish reports. */
void ds_upload_write(struct ds_upload *upload, const void *bytes, size_t length);
/* The body is complete: makes the object live, or says in the reply why not. */
void ds_upload_finish(struct ds_upload *upload, struct ds_reply *reply);
void ds_upload_destroy(struct ds_upload *upload); /* also if broken off: nothing is left. NULL is allowed */

/* The parts of ds_api_answer, in files of their own. */
void ds_api_list(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_compose(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
/* answer: ds_api_answer, for each call in it. */
typedef void ds_api_answer_fn(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);
void ds_api_batch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply,
                  ds_api_answer_fn *answer);
void ds_api_copy(const struct ds_api *api, struct ds_request *request, struct ds_reply *reply);
/* POST /_devstore/touch?bucket=B&name=N */
void ds_api_touch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_resumable(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_cancel(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_initiate(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_complete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_abort(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_parts(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
void ds_api_uploads(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);

/* Get, list and create buckets. bucket: the one in the path, or NULL. */
void ds_api_buckets(const struct ds_api *api, const struct ds_request *request, struct ds_bucket *bucket,
                    struct ds_reply *reply);

/* Whether this permission is denied to all (--deny). */
bool ds_api_has_denied(const struct ds_api *api, const char *permission);
/* A permission that the operation needs and that is denied, or NULL. */
const char *ds_api_denied(const struct ds_api *api, enum ds_op op);

/* ---- api.c ---- */

/* Shared by those parts. Each returns NULL or -1 with the reply filled in. */
struct ds_bucket *ds_api_bucket(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply);
int ds_api_conditions(const struct ds_request *request, struct ds_conditions *conditions, struct ds_reply *reply);
/*
 * The live object that the request means, with its conditions checked. If another program has changed its file, it is
 * refreshed first, so that the conditions apply to what is there. NULL: the reply says why.
 */
struct ds_object *ds_api_find(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply);
/*
 * ds_api_find, and then, where they are not NULL, its crc32c and its open file (*fd stays as it is for one in memory):
 * all of one generation.
 */
struct ds_object *ds_api_open(const struct ds_request *request, struct ds_bucket *bucket, struct ds_reply *reply,
                              uint32_t *crc, int *fd);
/* The query parameter as a number; fallback when it is absent. */
int ds_api_number(const struct ds_request *request, const char *key, uint64_t fallback, uint64_t *value,
                  struct ds_reply *reply);
/*
 * Makes object live with the bytes of the sources in their order; its crc32c is combined from theirs. In memory it may
 * point into them. 0, or -1 as ds_bucket_put.
 */
int ds_api_join(struct ds_bucket *bucket, struct ds_object *const *sources, size_t n, struct ds_object *object,
                const struct ds_conditions *conditions);
/* x-goog-hash: its crc32c, and its MD5 if it has one. */
void ds_api_put_sums(const struct ds_object *object, uint32_t crc, struct ds_reply *reply);
/* Puts the object's JSON resource into the reply, as `fields` selects it. */
void ds_api_resource(const struct ds_request *request, struct ds_bucket *bucket, struct ds_object *object,
                     struct ds_reply *reply);

#endif
