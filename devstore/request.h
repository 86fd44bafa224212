/*
 * request.h - a parsed request (method, route, bucket, object, query), and the reply to it.
 *
 * Neither knows of the HTTP library, so that the calls inside a batch go through the same functions.
 */
#ifndef MR_DEVSTORE_REQUEST_H
#define MR_DEVSTORE_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "devstore/bucket.h"
#include "devstore/text.h"

/* What a request does; the names (ds_op_names) are those of --fault patterns and of the statistics. */
enum ds_op {
    MR_OP_LIST,   /* objects of a bucket */
    MR_OP_GET,    /* an object's bytes */
    MR_OP_STAT,   /* an object's metadata */
    MR_OP_UPLOAD, /* an object in one request */
    MR_OP_COMPOSE,
    MR_OP_COPY, /* copyTo, moveTo */
    MR_OP_DELETE,
    MR_OP_BATCH,
    MR_OP_BUCKET,    /* get, list and create buckets */
    MR_OP_IAM,       /* testPermissions */
    MR_OP_RESUMABLE, /* begins a resumable upload */
    MR_OP_CHUNK,     /* its bytes, and probes of what it has */
    MR_OP_CANCEL,    /* ends it */
    MR_OP_INITIATE,  /* begins a multipart upload of the XML API */
    MR_OP_PART,      /* its bytes */
    MR_OP_COMPLETE,
    MR_OP_ABORT,
    MR_OP_PARTS,   /* lists its parts */
    MR_OP_UPLOADS, /* lists the multipart uploads under way */
    MR_OP_SESSION, /* S3's CreateSession */
    MR_OP_ADMIN,   /* /_devstore/... */
    MR_OP_OTHER,   /* no such route */
    MR_OP_COUNT
};
/* Whether its body is an object's bytes, to be taken by a ds_upload. */
bool ds_op_uploads(enum ds_op op);
extern const char *const ds_op_names[MR_OP_COUNT];

#define MR_QUERY_MAX 64

struct ds_fault;
struct ds_s3_auth;

struct ds_request {
    char *method, *uri; /* as sent */
    enum ds_op op;
    int bad;                      /* a status with which to refuse it (400, 404, 405), or 0 */
    const char *why;              /* for bad */
    bool bad_query;               /* the query cannot be read */
    const char *code;             /* S3: for bad */
    bool changed;                 /* answer as if the object had the next generation (a fault) */
    const struct ds_fault *fault; /* that hits it, or NULL */
    bool xml;                     /* /bucket/object: errors are XML */
    bool secure;                  /* came by TLS */
    bool s3;                      /* it is one of S3's, whose errors are XML too */
    uint64_t id;                  /* S3: of the request */
    struct ds_s3_auth *auth;      /* S3: what its signature says, once that was checked; malloc'ed */
    char *bucket, *object;        /* decoded, or NULL */
    char *to_bucket, *to_object;  /* COPY: where to; otherwise NULL */
    bool move;                    /* COPY: a moveTo */
    char *tail;                   /* ADMIN: what follows /_devstore/ */
    int n_query;
    struct {
        char *key, *value; /* decoded; a key without '=' has an empty value */
    } query[MR_QUERY_MAX];
    /* Looks up a request header, case ignored; NULL when absent. Set by the code that holds the headers. */
    const char *(*header)(void *cls, const char *name);
    /* Calls visit for each header; NULL: they cannot be walked. */
    void (*each_header)(void *cls, void (*visit)(void *visit_cls, const char *name, const char *value),
                        void *visit_cls);
    void *header_cls;
    struct ds_text body; /* of the operations that take JSON or a batch */
};

/* Parses method and uri. 0, or -1 (no memory). What is wrong with them is in `bad`. */
int ds_request_init(struct ds_request *request, const char *method, const char *uri);
void ds_request_close(struct ds_request *request);
/* The value of the first query parameter of that name, or NULL. */
const char *ds_request_query(const struct ds_request *request, const char *key);
const char *ds_request_header(const struct ds_request *request, const char *name);

#define MR_REPLY_HEADERS 48

struct ds_reply {
    unsigned status;
    int n_headers;
    struct {
        const char *name; /* a constant, or in the value's memory */
        char *value;
    } headers[MR_REPLY_HEADERS];
    struct ds_text body; /* when object is NULL */
    /* Bytes [first, first + length) of an object; fd: its open file, or -1 when it is in memory. Owned. */
    struct ds_object *object;
    int fd;
    uint64_t first, length;
    bool chunked; /* the body is sent without its length */
    bool close;   /* end the connection after this reply: the request's body was not read */
};

void ds_reply_init(struct ds_reply *reply);
void ds_reply_close(struct ds_reply *reply);
void ds_reply_header(struct ds_reply *reply, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a name that is copied. */
void ds_reply_header_named(struct ds_reply *reply, const char *name, const char *value);
/* Replaces what is in the reply with an error in GCS's form (XML for the XML routes, where reason is the Code), or in
 * S3's. reason NULL: by the status. */
void ds_reply_error(struct ds_reply *reply, const struct ds_request *request, unsigned status, const char *reason,
                    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The same from this thread's mr_error: NOT_FOUND 404, CHANGED 412, EXISTS 409, USAGE and PROTOCOL 400, others 500. */
void ds_reply_from_error(struct ds_reply *reply, const struct ds_request *request);
/* "Not Found" */
const char *ds_status_phrase(unsigned status);
/* The Code of an XML error of that status: "NoSuchKey" */
const char *ds_status_code(unsigned status);

#endif
