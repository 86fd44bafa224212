/*
 * fault_bucket.h - a bucket in memory on a fault server: all that writes and asks, with a script of what goes wrong at
 * which request of which operation.
 *
 * The n-th request of an operation follows the n-th step of the script that names it; those beyond are answered well.
 */
#ifndef MR_TESTS_FAULT_BUCKET_H
#define MR_TESTS_FAULT_BUCKET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "fault_server.h"

enum bucket_op {
    OP_INSERT,
    OP_DELETE,
    OP_BATCH,
    OP_COMPOSE,
    OP_STAT,
    OP_BUCKET,
    OP_PERMISSIONS,
    OP_BEGIN, /* of a resumable session */
    OP_CHUNK,
    OP_PROBE,
    OP_DROP,
    OP_INITIATE, /* of a multipart upload */
    OP_PART,
    OP_COMPLETE,
    OP_ABORT,
    OP_UPLOADS,
    OP_LIST,
    OP_GET,
    OP_SESSION, /* s3: keys for a directory bucket */
    OP_COUNT
};

enum bucket_fault {
    WELL,
    ANSWER_STATUS,   /* `status` instead of doing it */
    DONE_STATUS,     /* done, and answered with `status` all the same */
    RESET_BEFORE,    /* not done, and the connection is reset */
    RESET_AFTER,     /* done, and the connection is reset before the answer */
    STALL_AFTER,     /* done, and silence */
    SHORT_ANSWER,    /* done; half the answer, then the end of the connection */
    GARBAGE,         /* done; 200 and no JSON or XML */
    WRONG_CRC,       /* done; the object has other bytes, and their crc32c */
    DONE_TWICE,      /* done; another writer's object replaces it; the answer is lost */
    REPLACED,        /* done; another writer's object of one byte more replaces it; then the answer comes */
    KEEP_LESS,       /* a chunk: `after` bytes of it are kept */
    KEEP_THEN_RESET, /* a chunk: `after` bytes of it are kept, and the answer is lost */
    FORGET,          /* a chunk or probe: the session is gone, `status` */
    FORGET_BYTES,    /* a chunk: the session has only `after` bytes of all */
    LEAVE_OUT,       /* a batch: its last part is missing */
    PART_STATUS,     /* a batch: its first part answers `status`, not done */
    ERROR_IN_200,    /* s3: not done; 200, with the error `extra` in it (NULL: InternalError) */
    /* s3, of an answer after it was done: */
    CLOSE_BEFORE,  /* the end of the connection, without a word */
    RESET_IN_HEAD, /* half a header line, and a reset */
    STALL_IN_HEAD, /* the status line, and silence */
    STALL_IN_BODY, /* half the body, and silence */
    LONGER,        /* it has a byte more than the object or the document */
    SHORTER,       /* a byte less */
    OTHER_VERSION, /* with another ETag */
    NO_HTTP,       /* another protocol */
};

struct bucket_step {
    enum bucket_op op;
    enum bucket_fault fault;
    int status;
    uint64_t after;
    const char *extra; /* header lines of an answer with `status` */
};

struct bucket_object {
    char name[256];
    unsigned char *data;
    uint64_t size, generation;
    uint32_t crc; /* as given to clients */
    int64_t created_s;
};

#define BUCKET_OBJECTS 256

struct fault_bucket {
    const struct bucket_step *script;
    unsigned steps;
    /* Under the lock; read them when no request is under way. */
    pthread_mutex_t lock;
    struct bucket_object objects[BUCKET_OBJECTS];
    struct bucket_session {
        char name[256];
        unsigned char *data; /* of a multipart upload: its upload parts one after the other */
        uint64_t size, match;
        uint64_t part_size[64];
        unsigned char *part[64];
        uint64_t finished; /* generation */
        bool used, gone;
    } sessions[16];
    uint64_t generation; /* of the last object */
    int64_t clock_off_s; /* what listings say of the time, against this machine's clock */
    bool started_now;    /* uploads under way were begun now, and not on 2 January 2026 */
    unsigned count[OP_COUNT];
    unsigned seen_on_conn[OP_COUNT]; /* of the last request: requests on its connection before it */
    char last_head[OP_COUNT][8192], last_target[OP_COUNT][8192], last_body[OP_COUNT][8192];
};

void fault_bucket_init(struct fault_bucket *bucket);
void fault_bucket_close(struct fault_bucket *bucket);
/* NULL: none. */
struct bucket_object *fault_bucket_find(struct fault_bucket *bucket, const char *name);
/* Returns its generation. */
uint64_t fault_bucket_put(struct fault_bucket *bucket, const char *name, const void *data, uint64_t size);
/* If it is there. */
void fault_bucket_remove(struct fault_bucket *bucket, const char *name);

/* A fault_handler; arg is a struct fault_bucket. */
bool fault_bucket_handle(void *arg, struct fault_conn *conn, const struct fault_request *request);

#endif
