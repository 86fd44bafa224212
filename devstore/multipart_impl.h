/* multipart_impl.h - what the multipart uploads of the XML API and of S3 have in common. */
#ifndef MR_DEVSTORE_MULTIPART_IMPL_H
#define MR_DEVSTORE_MULTIPART_IMPL_H

#include "devstore/api.h"
#include "devstore/sessions.h"

#define MR_PARTS_MAX 10000

/* The upload that the request names: a new reference. NULL: the reply says why not. */
struct ds_session *ds_multipart_find(const struct ds_api *api, const struct ds_request *request,
                                     struct ds_reply *reply);
/*
 * Makes an object with its bytes a part of the upload; takes it, on failure too. sum: S3's, or "". etag: receives the
 * part's. 0, or -1 with an error (NOT_FOUND: the upload was completed or aborted meanwhile).
 */
int ds_multipart_add(struct ds_session *session, unsigned number, struct ds_object *object, const char *sum,
                     char etag[33]);
/* The request's partNumber. 0, or -1 with the reply. */
int ds_multipart_number(const struct ds_request *request, unsigned *number, struct ds_reply *reply);

/* The parts of an upload that become the object; they are the session's, and valid while its lock is held. */
struct ds_multipart_chosen {
    const struct ds_session_part **parts;
    struct ds_object **objects;
    size_t n;
};
/*
 * Reads the list of parts in the body of the request that completes the upload. NULL, or the error's code with the
 * error set. The session's lock is held. Close `chosen` in either case.
 */
const char *ds_multipart_choose(const struct ds_api *api, const struct ds_request *request,
                                const struct ds_session *session, struct ds_multipart_chosen *chosen);
void ds_multipart_chosen_close(struct ds_multipart_chosen *chosen);

#endif
