/* multipart_impl.h - what the multipart uploads of the XML API and of S3 have in common. */
#ifndef MR_DEVSTORE_MULTIPART_IMPL_H
#define MR_DEVSTORE_MULTIPART_IMPL_H

#include "devstore/api.h"
#include "devstore/sessions.h"

#define MR_PARTS_MAX 10000

/* The upload that the request names: a new reference. NULL: the reply says why not. */
struct mr_session *mr_multipart_find(const struct mr_api *api, const struct mr_request *request,
                                     struct mr_reply *reply);
/*
 * Makes an object with its bytes a part of the upload; takes it, on failure too. sum: S3's, or "". etag: what the part
 * has got. 0, or -1 with an error (NOT_FOUND: the upload was completed or aborted meanwhile).
 */
int mr_multipart_add(struct mr_session *session, unsigned number, struct mr_object *object, const char *sum,
                     char etag[33]);
/* The request's partNumber. 0, or -1 with the reply. */
int mr_multipart_number(const struct mr_request *request, unsigned *number, struct mr_reply *reply);

/* What of an upload is to become the object; the parts are the session's, and good while its lock is held. */
struct mr_multipart_chosen {
    const struct mr_session_part **parts;
    struct mr_object **objects;
    size_t n;
};
/*
 * Reads the list of parts in the body of the request that completes the upload. NULL, or the error's code with the
 * error set. The session's lock is held. To be closed in either case.
 */
const char *mr_multipart_choose(const struct mr_api *api, const struct mr_request *request,
                                const struct mr_session *session, struct mr_multipart_chosen *chosen);
void mr_multipart_chosen_close(struct mr_multipart_chosen *chosen);

#endif
