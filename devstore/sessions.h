/*
 * sessions.h - uploads that span requests: resumable ones, and multipart ones of the XML API. Known by an id until they
 * are finished or cancelled, or the server ends, which none of them outlives.
 */
#ifndef MR_DEVSTORE_SESSIONS_H
#define MR_DEVSTORE_SESSIONS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "devstore/bucket.h"
#include "devstore/metadata.h"
#include "devstore/s3_sums.h"
#include "devstore/sink.h"

#define MR_QUANTUM ((size_t)256 << 10) /* what a resumable session keeps is a multiple of this, until it ends */

struct ds_session_part {
    unsigned number;
    struct ds_object *object; /* in no bucket; a file is removed with the part */
    char etag[33];
    char sum[MR_S3_SUM_MAX]; /* S3: its checksum, of the upload's algorithm; otherwise "" */
};

struct ds_session {
    atomic_uint refs;
    char id[64];
    bool multipart;
    struct ds_bucket *bucket;
    struct ds_metadata metadata; /* with the name */
    struct ds_conditions conditions;
    int64_t started_us;
    pthread_mutex_t lock; /* all below */
    bool gone;            /* it takes no more: expired (410), failed, aborted, or a multipart one completed */
    /* resumable */
    struct ds_sink sink; /* what is kept: a multiple of MR_QUANTUM */
    uint8_t *pending;    /* MR_QUANTUM bytes: what has come and is no whole quantum yet; lost with its request */
    size_t pending_length;
    uint64_t total;           /* UINT64_MAX: not known yet */
    const void *writer;       /* the request that may write now: the one that began last */
    struct ds_object *result; /* a stub of the object once it is made */
    /* multipart: by number */
    struct ds_session_part *parts;
    size_t n_parts, capacity;
    /* S3: the checksum that the object gets, and whether the client asked for one. Not changed. */
    enum ds_s3_algorithm algorithm;
    bool composite, announced;
};

struct ds_sessions;

struct ds_sessions *ds_sessions_new(void); /* NULL: no memory */
void ds_sessions_destroy(struct ds_sessions *sessions);

/* A session in no table, of one reference. NULL: no memory. */
struct ds_session *ds_session_new(struct ds_bucket *bucket, bool multipart);
void ds_session_unref(struct ds_session *session); /* NULL is allowed */
/* Frees the bytes that a resumable session holds. The lock is held. */
void ds_session_drop_bytes(struct ds_session *session);
/* Removes a part's file, if it has one, and the reference. */
void ds_session_part_drop(struct ds_object *object);
/* Inserts a part, or replaces the earlier one of its number; takes object, on failure too. The lock is held. 0 or
 * -1. */
int ds_session_add_part(struct ds_session *session, unsigned number, struct ds_object *object, const char *etag,
                        const char *sum);

/* Gives it its id and adds a reference of the table's own. 0 or -1. Any thread, as the functions below. */
int ds_sessions_add(struct ds_sessions *sessions, struct ds_session *session);
/* A new reference, or NULL. bucket, multipart: it must be one of these. */
struct ds_session *ds_sessions_find(struct ds_sessions *sessions, const char *id, const struct ds_bucket *bucket,
                                    bool multipart);
/* The next multipart session of the bucket from *place on, which is moved past it: a new reference, or NULL. */
struct ds_session *ds_sessions_next(struct ds_sessions *sessions, size_t *place, const struct ds_bucket *bucket);
/* 0, or -1 when it was removed already: of several that try, one gets 0. */
int ds_sessions_remove(struct ds_sessions *sessions, const struct ds_session *session);

#endif
