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

struct mr_buckets;
struct mr_counts;
struct mr_faults;
struct mr_s3_settings;
struct mr_sessions;
struct mr_upload;

struct mr_api {
    struct mr_buckets *buckets;
    unsigned page_max;   /* the most entries of a listing page */
    const char **denied; /* permissions that nobody has here: "storage.objects.create", ... */
    int n_denied;
    bool md5;          /* sum uploads with MD5 too */
    uint64_t min_part; /* the least size of a multipart upload's parts but the last */
    struct mr_sessions *sessions;
    struct mr_counts *counts; /* NULL: nothing is counted */
    struct mr_faults *faults; /* for the calls inside a batch; NULL: none */
    const struct mr_s3_settings *s3;
};

/* ---- dispatch.c ---- */

/* 0, or the status with which this request is refused before its body is read; the reply is filled in. */
int mr_api_refuse(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);
/* Answers a request of any operation but ADMIN and those of mr_op_uploads. reply: initialised; closed by the caller. */
void mr_api_answer(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);

/* ---- upload.c ---- */

/* For the operations of mr_op_uploads. NULL: the reply says why. request must stay until the upload is destroyed.
 * length: Content-Length, or 0 if unknown.
 */
struct mr_upload *mr_upload_new(const struct mr_api *api, const struct mr_request *request, uint64_t length,
                                struct mr_reply *reply);
/* Takes the next bytes of the body. After a failure it ignores more of them; finish reports. */
void mr_upload_write(struct mr_upload *upload, const void *bytes, size_t length);
/* The body is complete: makes the object live, or says in the reply why not. */
void mr_upload_finish(struct mr_upload *upload, struct mr_reply *reply);
void mr_upload_destroy(struct mr_upload *upload); /* also of one that was broken off: leaves nothing. NULL is allowed */

/* The parts of mr_api_answer, in files of their own. */
void mr_api_list(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_compose(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
/* answer: mr_api_answer, for each call in it. */
typedef void mr_api_answer_fn(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);
void mr_api_batch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply,
                  mr_api_answer_fn *answer);
void mr_api_copy(const struct mr_api *api, struct mr_request *request, struct mr_reply *reply);
/* POST /_devstore/touch?bucket=B&name=N */
void mr_api_touch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_resumable(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_cancel(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_initiate(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_complete(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_abort(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_parts(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
void mr_api_uploads(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);

/* Get, list and create buckets. bucket: the one in the path, or NULL. */
void mr_api_buckets(const struct mr_api *api, const struct mr_request *request, struct mr_bucket *bucket,
                    struct mr_reply *reply);

/* Whether nobody has this permission (--deny). */
bool mr_api_has_denied(const struct mr_api *api, const char *permission);
/* The permission that the operation needs and nobody has, or NULL. */
const char *mr_api_denied(const struct mr_api *api, enum mr_op op);

/* ---- api.c ---- */

/* Shared by those parts. Each returns NULL or -1 with the reply filled in. */
struct mr_bucket *mr_api_bucket(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply);
int mr_api_conditions(const struct mr_request *request, struct mr_conditions *conditions, struct mr_reply *reply);
/*
 * The live object that the request means, its conditions checked. One whose file was changed by another program
 * is looked at again first, so that the conditions hold for what is there. NULL: the reply says why.
 */
struct mr_object *mr_api_find(const struct mr_request *request, struct mr_bucket *bucket, struct mr_reply *reply);
/*
 * mr_api_find, and then, where they are not NULL, its crc32c and its open file (-1 for one in memory): all of one
 * generation.
 */
struct mr_object *mr_api_open(const struct mr_request *request, struct mr_bucket *bucket, struct mr_reply *reply,
                              uint32_t *crc, int *fd);
/* The query parameter as a number; fallback when it is absent. */
int mr_api_number(const struct mr_request *request, const char *key, uint64_t fallback, uint64_t *value,
                  struct mr_reply *reply);
/*
 * Makes object live out of the bytes of the sources in their order, with the crc32c put together from theirs. In memory
 * it points into them. 0, or -1 as mr_bucket_put.
 */
int mr_api_join(struct mr_bucket *bucket, struct mr_object *const *sources, size_t n, struct mr_object *object,
                const struct mr_conditions *conditions);
/* x-goog-hash: its crc32c, and its MD5 if it has one. */
void mr_api_put_sums(const struct mr_object *object, uint32_t crc, struct mr_reply *reply);
/* Puts the object's JSON resource into the reply, as `fields` asks. */
void mr_api_resource(const struct mr_request *request, struct mr_bucket *bucket, struct mr_object *object,
                     struct mr_reply *reply);

#endif
