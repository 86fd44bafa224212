/*
 * upload_parts.h - a new object in upload parts that are sent in any order and in parallel: multipart uploads of GCS's
 * XML API and of S3; in a folder a temporary file (file_parts.c).
 *
 * https://cloud.google.com/storage/docs/multipart-uploads: begin, parts of 5 MiB (but the last) to 5 GiB, at most
 * 10,000, complete or abort. In GCS there are no preconditions: an existing object is replaced (in S3 and in a folder
 * generation_match is one). An upload that is neither completed nor aborted stays, and is billed, until it is aborted:
 * mr_store_parts_list finds such uploads.
 *
 * mr_store_parts_* are single requests, mr_transfer_parts_* the same with repeats; the rules of store.h and transfer.h
 * hold.
 */
#ifndef MR_WORKER_STORE_UPLOAD_PARTS_H
#define MR_WORKER_STORE_UPLOAD_PARTS_H

#include <stdbool.h>

#include "base/limits.h"
#include "worker/store/store.h"
#include "worker/store/transfer.h"

#define MR_UPLOAD_PARTS_MAX 10000

/*
 * false: the store has none. That an endpoint has none is known, and remembered, once it responds to the first begin
 * with 400, 404, 405 or 501; that mr_store_parts_begin ends with PROTOCOL, and mr_transfer_upload is to be used. true:
 * it has, or that is not known yet.
 */
bool mr_store_has_parts(const struct mr_store *store);

/* id: of the new upload. A repeat after a lost response leaves an upload without parts. */
typedef void mr_store_parts_begin_fn(void *arg, const struct mr_store_result *result, const char *id);
struct mr_store_call *mr_store_parts_begin(struct mr_store *store, const char *name, size_t name_length,
                                           const char *content_type, mr_store_parts_begin_fn *done, void *arg);

struct mr_upload_part_request {
    const char *name; /* copied, as id is */
    size_t name_length;
    const char *id;
    unsigned number;  /* 1 to MR_UPLOAD_PARTS_MAX */
    uint64_t offset;  /* file: its offset in the whole */
    const void *data; /* must stay until done or cancelled */
    uint64_t length;
    uint32_t crc32c; /* of data: the store refuses other bytes */
};
/* etag: to complete with. Safe to repeat: a part that is sent again replaces itself. NOT_FOUND: the upload does not
 * exist (any more). */
typedef void mr_upload_part_fn(void *arg, const struct mr_store_result *result, const char *etag);
struct mr_store_call *mr_upload_part_send(struct mr_store *store, const struct mr_upload_part_request *request,
                                          mr_upload_part_fn *done, void *arg);

struct mr_upload_part {
    unsigned number; /* ascending */
    char etag[MR_ETAG_SIZE];
    uint32_t crc32c; /* of its bytes */
};
struct mr_store_complete_request {
    const char *name; /* copied, as id and parts are */
    size_t name_length;
    const char *id;
    const struct mr_upload_part *parts;
    unsigned count;
    uint64_t size; /* of the whole, which a transfer compares with the object */
    uint32_t crc32c;
    uint64_t generation_match; /* file, s3: as in mr_store_insert_request; gs: ignored */
    bool maybe_done;           /* transfers: a dead process may have sent the same, so the object is looked up first */
};
/* generation: of the new object, if the response had it; else 0. */
typedef void mr_store_complete_fn(void *arg, const struct mr_store_result *result, uint64_t generation);
struct mr_store_call *mr_store_parts_complete(struct mr_store *store, const struct mr_store_complete_request *request,
                                              mr_store_complete_fn *done, void *arg);
struct mr_store_call *mr_store_parts_abort(struct mr_store *store, const char *name, size_t name_length, const char *id,
                                           mr_store_delete_fn *done, void *arg);

struct mr_store_pending {
    const char *name;
    size_t name_length;
    const char *id;
    int64_t started_s; /* seconds since 1970; 0: unknown */
};
struct mr_store_pending_page {
    const struct mr_store_pending *items;
    size_t count;
    const char *next_name, *next_id; /* NULL: this was the last page; else for the next request */
    int64_t now_s;                   /* as in mr_store_page */
};
typedef void mr_store_parts_list_fn(void *arg, const struct mr_store_result *result,
                                    const struct mr_store_pending_page *page);
/* Uploads under way whose names begin with prefix (NULL: all). from_name, from_id: of the previous page, NULL: the
 * first. */
struct mr_store_call *mr_store_parts_list(struct mr_store *store, const char *prefix, const char *from_name,
                                          const char *from_id, mr_store_parts_list_fn *done, void *arg);

/* ---- with repeats ---- */

struct mr_transfer *mr_transfer_parts_begin(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                            size_t name_length, const char *content_type, mr_store_parts_begin_fn *done,
                                            void *arg);
struct mr_transfer *mr_transfer_part_send(struct mr_transfer_engine *engine, struct mr_store *store,
                                          const struct mr_upload_part_request *request, mr_upload_part_fn *done,
                                          void *arg);
/* The object is looked up after the response, and after a lost one before a repeat; its size and crc32c must be those
 * of the request (CORRUPT, and a damaged generation is deleted). */
struct mr_transfer *mr_transfer_parts_complete(struct mr_transfer_engine *engine, struct mr_store *store,
                                               const struct mr_store_complete_request *request, mr_store_stat_fn *done,
                                               void *arg);
/* An upload that does not exist (any more) counts as aborted. */
struct mr_transfer *mr_transfer_parts_abort(struct mr_transfer_engine *engine, struct mr_store *store, const char *name,
                                            size_t name_length, const char *id, mr_store_delete_fn *done, void *arg);
struct mr_transfer *mr_transfer_parts_list(struct mr_transfer_engine *engine, struct mr_store *store,
                                           const char *prefix, const char *from_name, const char *from_id,
                                           mr_store_parts_list_fn *done, void *arg);

#endif
