/* upload_impl.h - the kinds of request whose body is an object's bytes, taken in pieces as they arrive. */
#ifndef MR_DEVSTORE_UPLOAD_IMPL_H
#define MR_DEVSTORE_UPLOAD_IMPL_H

#include <stddef.h>
#include <stdint.h>

struct ds_api;
struct ds_bucket;
struct ds_object;
struct ds_reply;
struct ds_request;

/* The first member of each kind. */
struct ds_upload {
    void (*write)(struct ds_upload *upload, const void *bytes, size_t length);
    void (*finish)(struct ds_upload *upload, struct ds_reply *reply);
    void (*destroy)(struct ds_upload *upload);
};

/* As ds_upload_new, for MR_OP_CHUNK (of a resumable upload) and MR_OP_PART (of an XML multipart one). */
struct ds_upload *ds_upload_chunk_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                      struct ds_reply *reply);
struct ds_upload *ds_upload_part_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                     struct ds_reply *reply);
/* The answer to the request that made the object: its resource, or for XML its headers. */
void ds_upload_answer(const struct ds_request *request, struct ds_bucket *bucket, struct ds_object *object,
                      struct ds_reply *reply);

#endif
