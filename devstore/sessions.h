/*
 * sessions.h - uploads that span requests: resumable ones, and multipart ones of the XML API. Known by an id, until
 * they are finished, cancelled or the server ends; nothing of them outlives it.
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

struct mr_session_part {
    unsigned number;
    struct mr_object *object; /* in no bucket; a file is removed with the part */
    char etag[33];
    char sum[MR_S3_SUM_MAX]; /* S3: its checksum, of the upload's algorithm; else "" */
};

struct mr_session {
    atomic_uint refs;
    char id[64];
    bool multipart;
    struct mr_bucket *bucket;
    struct mr_metadata metadata; /* with the name */
    struct mr_conditions conditions;
    int64_t started_us;
    pthread_mutex_t lock; /* all below */
    bool gone;            /* expired: 410 from now on */
    /* resumable */
    struct mr_sink sink; /* what is kept: a multiple of MR_QUANTUM */
    uint8_t *pending;    /* MR_QUANTUM bytes: what came and makes no whole quantum yet; lost with its request */
    size_t pending_length;
    uint64_t total;           /* UINT64_MAX: not known yet */
    const void *writer;       /* the request that may write now: the one that began last */
    struct mr_object *result; /* a stub of the object once it is made */
    /* multipart: by number */
    struct mr_session_part *parts;
    size_t n_parts, capacity;
    /* S3: the checksum that the object gets, and whether the client asked for one. Not changed. */
    enum mr_s3_algorithm algorithm;
    bool composite, announced;
};

struct mr_sessions;

struct mr_sessions *mr_sessions_new(void); /* NULL: no memory */
void mr_sessions_destroy(struct mr_sessions *sessions);

/* A session in no table, of one reference. NULL: no memory. */
struct mr_session *mr_session_new(struct mr_bucket *bucket, bool multipart);
void mr_session_unref(struct mr_session *session); /* NULL is allowed */
/* Frees what a resumable session holds of bytes. The lock is held. */
void mr_session_drop_bytes(struct mr_session *session);
/* Removes a part's file, if it has one, and the reference. */
void mr_session_part_drop(struct mr_object *object);
/* Puts a part in its place, in that of an earlier one of its number too; takes object. The lock is held. 0 or -1. */
int mr_session_add_part(struct mr_session *session, unsigned number, struct mr_object *object, const char *etag,
                        const char *sum);

/* Gives it its id and adds a reference of the table's own. 0 or -1. Any thread, as the functions below. */
int mr_sessions_add(struct mr_sessions *sessions, struct mr_session *session);
/* A new reference, or NULL. bucket, multipart: it must be one of these. */
struct mr_session *mr_sessions_find(struct mr_sessions *sessions, const char *id, const struct mr_bucket *bucket,
                                    bool multipart);
/* The next multipart session of the bucket from *place on, which is moved past it: a new reference, or NULL. */
struct mr_session *mr_sessions_next(struct mr_sessions *sessions, size_t *place, const struct mr_bucket *bucket);
/* 0, or -1 when it was removed already: of several that try, one gets 0. */
int mr_sessions_remove(struct mr_sessions *sessions, const struct mr_session *session);

#endif
