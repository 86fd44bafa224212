/* upload_impl.h - the kinds of request whose body is an object's bytes, taken in pieces as they come. */
#ifndef MR_DEVSTORE_UPLOAD_IMPL_H
#define MR_DEVSTORE_UPLOAD_IMPL_H

#include <stddef.h>
#include <stdint.h>

struct mr_api;
struct mr_bucket;
struct mr_object;
struct mr_reply;
struct mr_request;

/* The first member of each kind. */
struct mr_upload {
    void (*write)(struct mr_upload *upload, const void *bytes, size_t length);
    void (*finish)(struct mr_upload *upload, struct mr_reply *reply);
    void (*destroy)(struct mr_upload *upload);
};

/* As mr_upload_new, for MR_OP_CHUNK (of a resumable upload) and MR_OP_PART (of an XML multipart one). */
struct mr_upload *mr_upload_chunk_new(const struct mr_api *api, const struct mr_request *request, uint64_t length,
                                      struct mr_reply *reply);
struct mr_upload *mr_upload_part_new(const struct mr_api *api, const struct mr_request *request, uint64_t length,
                                     struct mr_reply *reply);
/* The answer to the request that made the object: its resource, or for XML its headers. */
void mr_upload_answer(const struct mr_request *request, struct mr_bucket *bucket, struct mr_object *object,
                      struct mr_reply *reply);

#endif
