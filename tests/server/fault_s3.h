/*
 * fault_s3.h - an S3 bucket in memory on a fault server, with a script of what goes wrong at which request of which
 * operation (fault_bucket.h). Path style, "/bucket/name"; signatures are looked at and not computed.
 */
#ifndef MR_TESTS_FAULT_S3_H
#define MR_TESTS_FAULT_S3_H

#include "fault_bucket.h"

#define S3_OBJECTS 64
#define S3_PARTS   16

struct s3_object {
    char name[256], etag[64];
    unsigned char *data;
    uint64_t size;
    char checksum[128]; /* header lines of an answer about it */
};

struct fault_s3 {
    const struct bucket_step *script;
    unsigned steps;
    /* What it demands of each request, where that is set. */
    int64_t clock_off_s;       /* its clock's, against this machine's: a date that is another is refused */
    const char *region, *keys; /* in the scope of the signature; the access key in front of it */
    bool ignores_match;        /* conditions, as old servers do */
    bool no_batch, no_etag_of_parts;
    unsigned page; /* names of a page; 0: 1,000 */
    /* A directory bucket: requests but for that of a session need the keys of one; listings are of folders, from the
     * greatest name to the least; ETags are drawn; no Content-MD5. */
    bool express;
    unsigned session_s;             /* that its keys are good for */
    bool read_only;                 /* other sessions are denied */
    unsigned session, session_from; /* the last one's number, and the first whose keys are taken */
    /* Under the lock; read them when no request is under way. */
    pthread_mutex_t lock;
    struct s3_object objects[S3_OBJECTS];
    struct s3_upload {
        char name[256], id[32];
        unsigned char *part[S3_PARTS];
        uint64_t size[S3_PARTS];
        bool used;
    } uploads[8];
    unsigned begun;
    char next[32]; /* token of a page of a directory bucket */
    unsigned count[OP_COUNT];
    unsigned matches; /* GETs with If-Match */
    char last_head[OP_COUNT][8192], last_target[OP_COUNT][8192], last_body[OP_COUNT][8192];
};

void fault_s3_init(struct fault_s3 *s3);
void fault_s3_close(struct fault_s3 *s3);
/* NULL: none. */
struct s3_object *fault_s3_find(struct fault_s3 *s3, const char *name);
struct s3_object *fault_s3_put(struct fault_s3 *s3, const char *name, const void *data, uint64_t size);
/* If it is there. */
void fault_s3_remove(struct fault_s3 *s3, const char *name);
unsigned fault_s3_uploads(const struct fault_s3 *s3);

/* A fault_handler; arg is a struct fault_s3. */
bool fault_s3_handle(void *arg, struct fault_conn *conn, const struct fault_request *request);

#endif
