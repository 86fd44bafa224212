/*
 * faults.h - which requests go wrong, and how: --fault KIND:RATE[:ARG][:PATTERN].
 *
 * Whether the n-th request for an object is hit depends only on the seed, the fault, the object and n, so a test gets
 * the same faults each time, in whatever order its requests arrive. Faults above a rate are the exception.
 */
#ifndef MR_DEVSTORE_FAULTS_H
#define MR_DEVSTORE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "devstore/request.h"
#include "devstore/text.h"

enum ds_fault_kind {
    MR_FAULT_STATUS,    /* answers with another status; ARG: CODE[/RETRY_AFTER_S], 503 */
    MR_FAULT_RESET,     /* sends ARG bytes of the body (default: half), then resets the connection */
    MR_FAULT_STALL,     /* sends half of the body, then nothing for ARG seconds (default: until the client leaves) */
    MR_FAULT_SHORT,     /* sends ARG bytes of the body (default: half) under the full Content-Length, then closes */
    MR_FAULT_WRONG,     /* inverts byte ARG of the body (default: the middle one) */
    MR_FAULT_CHANGED,   /* gets only: the object appears under the next generation */
    MR_FAULT_EGRESS,    /* 429 because of the project's egress bandwidth; ARG: Retry-After in seconds */
    MR_FAULT_RATE,      /* 429 because the object, or the bucket, is changed too often; ARG: Retry-After in seconds */
    MR_FAULT_KEEP_LESS, /* chunks only: ARG bytes of it (default: half), rounded down to 256 KiB, are kept */
    MR_FAULT_EXPIRE,    /* chunks only: the session no longer exists, 410 */
    MR_FAULT_CODE,      /* S3 only: answers ARG, one of its codes: SlowDown, ExpiredToken, ... */
    MR_FAULT_LATE,      /* S3's complete only: nothing is done, 200, blanks, and then ARG (InternalError) */
    MR_FAULT_KINDS
};

struct ds_fault {
    enum ds_fault_kind kind;
    uint64_t first; /* hits that many first requests of each object */
    uint64_t over;  /* hits what exceeds that many requests per second, of all objects; both 0: by rate */
    double rate;    /* 0 to 1 */
    bool has_arg;
    uint64_t bytes;  /* ARG of RESET, SHORT, WRONG */
    double seconds;  /* ARG of STALL */
    unsigned status; /* of STATUS */
    bool has_retry_after;
    uint64_t retry_after_s;
    char code[48]; /* of CODE, LATE */
    int op;        /* an enum ds_op, or -1: any */
    char *glob;    /* of object names; as fnmatch(3), '*' matches '/' too */
};

struct ds_faults;

/* 0, or -1 (USAGE) with the reason. fault->glob is the caller's to free. */
int ds_fault_parse(const char *text, struct ds_fault *fault);

struct ds_faults *ds_faults_new(uint64_t seed); /* NULL: no memory */
void ds_faults_destroy(struct ds_faults *faults);
/* Faults are consulted in the order in which they are added. 0 or -1 (USAGE, NO_MEMORY). Not to be called once requests
 * are answered. */
int ds_faults_add(struct ds_faults *faults, const char *text);
/*
 * The fault that hits this request, or NULL; the first that does is the only one, and later ones do not count the
 * request as one of theirs. only_answers: consult only those that are an answer by themselves. Any thread.
 */
const struct ds_fault *ds_faults_draw(struct ds_faults *faults, const struct ds_request *request, bool only_answers);
/* true for the kinds that are an answer by themselves: STATUS, EGRESS, RATE, CODE. */
bool ds_fault_answers(const struct ds_fault *fault);
/* true for the kinds that happen while the body is sent: RESET, STALL, SHORT, WRONG. */
bool ds_fault_in_body(const struct ds_fault *fault);
/* Fills the reply of a fault that answers. */
void ds_fault_reply(const struct ds_fault *fault, const struct ds_request *request, struct ds_reply *reply);
/* Resets the statistics; what is drawn stays the same. */
void ds_faults_forget_hits(struct ds_faults *faults);
/* How often each kind has hit, as a JSON object. */
void ds_faults_statistics(struct ds_faults *faults, struct ds_text *out);

#endif
