/* s3_impl.h - what the requests of the S3 client have in common. Only worker/store/s3*.c include it. */
#ifndef MR_WORKER_STORE_S3_IMPL_H
#define MR_WORKER_STORE_S3_IMPL_H

#include <stdbool.h>

#include "worker/store/aws_credentials.h"
#include "worker/store/aws_sign.h"
#include "worker/store/get_body.h"
#include "worker/store/http.h"
#include "worker/store/s3.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/upload_parts.h"
#include "worker/store/xml.h"

#define MR_S3_CONTENT_TYPE "application/octet-stream"
#define MR_S3_NAME_MAX     1024 /* bytes; start-after has the same limit */

enum s3_kind {
    S3_LIST,
    S3_UPLOADS, /* unfinished ones */
    S3_GET,
    S3_STAT,
    S3_BUCKET,
    S3_SESSION, /* keys for a directory bucket */
    S3_INSERT,  /* from here on: requests that write */
    S3_DELETE,
    S3_BATCH,
    S3_BEGIN,
    S3_PART,
    S3_COMPLETE,
    S3_ABORT,
};

/* What can be wrong with a request and be put right by us, once each; region and clock also if another request has put
 * them right since this one was signed. */
enum s3_repair {
    S3_REPAIR_NONE = 0,
    S3_REPAIR_CLOCK = 1,
    S3_REPAIR_REGION = 2,
    S3_REPAIR_KEYS = 4,
    S3_REPAIR_TEXT = 8,
    S3_REPAIR_MATCH = 16
};

struct s3_store {
    struct mr_store base;
    struct mr_aws_credentials *credentials;
    char zone[32];                      /* of a directory bucket (S3 Express One Zone), "use1-az4"; "": of any other */
    struct mr_aws_credentials *express; /* keys of its session, which sign all but the request for it; or NULL */
    struct mr_text of_session;          /* header lines of that request, each with its NUL */
    struct mr_aws_signer *signer;
    char *endpoint; /* "http[s]://host[:port]" that was given; NULL: AWS's own for the region */
    char *region;
    unsigned place; /* counts changes of the region */
    bool is_aws, is_tls, region_is_given;
    enum mr_s3_addressing addressing;
    bool sends_checksums, asks_checksums;
    struct mr_text origin;        /* "https://bucket.host", or "https://host/bucket" */
    struct mr_text always;        /* header lines of every request, each with its NUL */
    struct mr_text reads, writes; /* of requests that read an object's bytes or make one (encryption keys) */
    int64_t clock_off_s;          /* by so much the server's clock is ahead of ours */
    bool no_batch;                /* it has no DeleteObjects */
    bool no_delete_match;         /* and no conditions on a delete */
    struct s3_session *sessions;  /* s3_upload.c */
    struct s3_sorted *sorted;     /* s3_sorted.c */
    uint64_t listings;            /* that have begun there */
    struct s3_call *pool;
    struct mr_text url, authorization; /* of the request that is being sent */
};

/* Deletes in one request, or one by one. */
struct s3_batch {
    unsigned count, next;        /* next: of those that are sent one by one */
    struct mr_store_name *names; /* their strings lie in the call's name, each with its NUL */
    struct mr_store_result *each;
    bool *answered;
    size_t *texts; /* offset of each result's text in words, plus 1; 0: "" */
    struct mr_text words;
};

struct s3_call;

/* How a request ended. result is passed to the callback; its text points into text. */
struct s3_answer {
    const struct mr_http_result *http;
    struct mr_store_result result;
    char word[64]; /* <Code> of an error; "" */
    char text[1400];
};
typedef void s3_answered_fn(struct s3_call *call, struct s3_answer *answer);
/* Called once call->etag has the ETag of the requested generation. 0, or -1 with mr_error. */
typedef int s3_resolved_fn(struct s3_call *call);

struct s3_call {
    struct mr_store_call base;
    struct s3_call *next_free;
    enum s3_kind kind;
    struct mr_http_call *http;
    struct mr_auth_waiter waiter;   /* queued while there are no keys */
    struct mr_http_request request; /* sent again after a repair */
    struct mr_text target;          /* of its URL, after the origin: "/key?query" */
    struct mr_text lines;           /* the request's own header lines, each with its NUL */
    unsigned line_count;
    char payload[MR_AWS_PAYLOAD_SIZE]; /* x-amz-content-sha256 */
    s3_answered_fn *answered;
    uint64_t serial;     /* of the keys that it was signed with; 0: none */
    unsigned place;      /* the store's, when it was signed */
    int64_t clock_off_s; /* the same */
    unsigned repaired;   /* enum s3_repair */
    bool asks_why;       /* a GET in place of the HEAD that was refused */
    char refusal[40];    /* the store's error code for its keys; "": they were not refused */
    void *arg;
    union mr_store_done done;
    struct mr_text name; /* the object; list: its strings, each with its NUL */
    struct mr_text head; /* of the body */
    struct mr_http_piece body[1];
    uint64_t generation_match; /* as the request's; of a delete and a stat: the generation that it must be */
    char etag[MR_ETAG_SIZE];   /* of that generation; "": not known */
    s3_resolved_fn *resolved;  /* of a look-up before a request */
    s3_answered_fn *refused;
    struct s3_batch batch;
    struct s3_call *single, *owner; /* single: the one delete that a batch has under way; owner: its batch */
    struct mr_checksum sum;         /* of the part that is sent */
    struct mr_store_list_request list;
    struct s3_sorted *sorted;    /* the listing that this is a page of; NULL: none */
    struct mr_http_timer timer;  /* delivers a page that is there already */
    struct mr_get_body body_in;  /* of a get */
    struct mr_store_chunk chunk; /* of an upload session */
    struct mr_text session;
    struct mr_store_insert_request insert;
    struct mr_text id; /* of the upload that is completed */
    uint64_t size;     /* of the whole */
    uint32_t crc32c;
};

static inline struct s3_store *mr_s3_store(const struct s3_call *call)
{
    return (struct s3_store *)call->base.store;
}

/* ---- calls ---- */

/* From the pool, linked to the store; name is copied. NULL with mr_error. */
struct s3_call *mr_s3_take(struct s3_store *store, enum s3_kind kind, const char *name, size_t name_length, void *arg);
/* Returns a call whose request has ended to the pool, and frees what a batch of deletes holds. */
void mr_s3_give(struct s3_call *call);
/* The credentials that sign it: in a directory bucket those of the session, which is itself requested with the
 * caller's. */
struct mr_aws_credentials *mr_s3_keys_of(const struct s3_call *call);
/* What the call is about, for messages. Returns out. */
const char *mr_s3_uri(const struct s3_call *call, char *out, size_t size);

/* ---- requests: fill in target and lines, then send ---- */

/* Starts a new request: target is "/<name>" (nothing for a bucket) and query; no lines. */
void mr_s3_target(struct s3_call *call, const char *query);
/* "<key>=<value, encoded>" to the target; a value of NULL adds nothing. */
void mr_s3_parameter(struct s3_call *call, const char *key, const char *value);
/* A header line of the request: "Name: " and value. */
void mr_s3_line(struct s3_call *call, const char *name, const char *value);
/* If-Match, If-None-Match: as generation_match and etag say. */
void mr_s3_match_line(struct s3_call *call);
/* x-amz-checksum-*, if checksums are sent to this store. */
void mr_s3_checksum_line(struct s3_call *call, const struct mr_checksum *sum);
/* One of the lists of header lines in struct s3_store. */
void mr_s3_more_lines(struct s3_call *call, const struct mr_text *lines);
/* Sets the body of the request, one piece. signed_data: its bytes are hashed even over TLS. */
void mr_s3_body(struct s3_call *call, struct mr_http_request *request, const void *data, uint64_t length,
                bool signed_data);
/*
 * Starts the request, at once or as soon as there are keys; if it is refused and that can be put right, it is sent
 * again. `answered` is called once, and gives the call back or sends another request. 0, or -1 with mr_error: the call
 * is still the caller's.
 */
int mr_s3_send(struct s3_call *call, struct mr_http_request *request, s3_answered_fn *answered);
/* For the end of a start function: sends, and returns the call, or gives it back and returns NULL. */
struct mr_store_call *mr_s3_start(struct s3_call *call, struct mr_http_request *request, s3_answered_fn *answered);
/*
 * Puts the ETag of generation_match into call->etag, by a look-up, and then calls `resolved`; at once if the ETag is
 * known or generation_match names no generation. `failed` is called if the look-up fails, with CHANGED if another
 * generation is there. 0, or -1 with mr_error.
 */
int mr_s3_resolve(struct s3_call *call, s3_resolved_fn *resolved, s3_answered_fn *failed);

/* ---- answers ---- */

/* Fills answer->result from answer->http. */
void mr_s3_explain(const struct s3_call *call, struct s3_answer *answer);
/* The result becomes mr_error. */
void mr_s3_refuse(const struct s3_call *call, struct s3_answer *answer);
/* The code of S3's error code `word` ("": none) in a response with `status`. */
enum mr_code mr_s3_code(const struct s3_call *call, int status, const char *word);
/* The response's XML if it has that root; else NULL, with the reason in answer->result. */
struct mr_xml *mr_s3_xml(struct s3_call *call, struct s3_answer *answer, const char *root);
/* Puts right what the error response complains about, if it can, and returns that: the request can be sent again.
 * s3_place.c */
enum s3_repair mr_s3_repair(struct s3_call *call, const struct mr_http_result *http, const char *word);
/* An object as the head of a response describes it. 0, or -1 with mr_error. */
int mr_s3_item(const struct s3_call *call, const struct mr_http_headers *headers, uint64_t size,
               struct mr_store_item *item);
/* A HEAD of the call's object. */
int mr_s3_look(struct s3_call *call, s3_answered_fn *answered);
s3_answered_fn mr_s3_on_item;    /* for a response about one object, to a call with done.stat */
s3_answered_fn mr_s3_on_removed; /* for a response without content, to a call with done.remove */

/* ---- s3_place.c ---- */

/* Endpoint, region and style from the options and the environment; then the origin. 0, or -1 with mr_error. */
int mr_s3_place_init(struct s3_store *store, const struct mr_store_options *options);
/* "https://host", without the bucket. Returns out. */
const char *mr_s3_service(const struct s3_store *store, char *out, size_t size);

/* ---- s3_express.c: directory buckets ---- */

/* Sets store->express, which is for stores with a zone. 0, or -1 with mr_error. */
int mr_s3_express_init(struct s3_store *store, const struct mr_store_options *options);
/* How many bytes of a prefix (NULL: none) the store can filter by: in a directory bucket up to its last "/". */
size_t mr_s3_prefix_length(const struct s3_store *store, const char *prefix);
/* Adds that much of it as a parameter of the request. */
void mr_s3_put_prefix(struct s3_call *call, const char *prefix);
/* To be called when a call of the kind S3_SESSION is cancelled. */
void mr_s3_session_forget(struct s3_call *call);

/* ---- s3_page.c, s3_sorted.c ---- */

struct s3_page {
    const char *sent; /* by the caller: the token of this page; NULL: it is the first */
    struct mr_store_item *items;
    size_t count;
    bool over;        /* names from the end of the range on have come */
    const char *next; /* the token of the next page; NULL: it is the last */
};
/* The objects in the response that the call's listing wants; their strings belong to *xml. The caller destroys *xml and
 * frees page->items, on failure too. false: the reason is in answer->result. */
bool mr_s3_take_page(struct s3_call *call, struct s3_answer *answer, struct mr_xml **xml, struct s3_page *page);
/* Starts call, whose list is filled in: a page of a directory bucket's names, in order. 0, or -1 with mr_error. */
int mr_s3_sorted_start(struct s3_call *call);
/* The call has ended, or is cancelled: its listing is free for another. */
void mr_s3_sorted_leave(struct s3_call *call);
void mr_s3_sorted_close(struct s3_store *store);

/* ---- the requests ---- */

mr_store_list_op mr_s3_list;
mr_store_get_op mr_s3_get;
mr_store_stat_op mr_s3_stat;
mr_store_insert_op mr_s3_insert;
mr_store_delete_op mr_s3_delete;
mr_store_batch_op mr_s3_delete_batch;
mr_store_begin_op mr_s3_upload_begin;
mr_store_send_op mr_s3_upload_send;
mr_store_drop_op mr_s3_upload_drop;
mr_store_has_parts_op mr_s3_has_parts;
mr_store_parts_begin_op mr_s3_parts_begin;
mr_upload_part_op mr_s3_part_send;
mr_store_complete_op mr_s3_parts_complete;
mr_store_abort_op mr_s3_parts_abort;
mr_store_parts_list_op mr_s3_parts_list;
mr_store_bucket_op mr_s3_bucket;
mr_store_made_op mr_s3_made;

/* Sends the request that deletes the call's object, with If-Match if that is possible. */
int mr_s3_send_delete(struct s3_call *call);
/* The requests of s3_parts.c, for an existing call. 0, or -1 with mr_error. */
int mr_s3_send_begin(struct s3_call *call, const char *content_type, s3_answered_fn *answered);
int mr_s3_send_part(struct s3_call *call, const char *id, unsigned number, const void *data, uint64_t length,
                    s3_answered_fn *answered);
/* The body of a request that completes an upload, into call->head. */
void mr_s3_put_parts(struct s3_call *call, const struct mr_upload_part *parts, unsigned count);
int mr_s3_send_complete(struct s3_call *call, const char *id, uint64_t size, uint32_t crc32c, s3_answered_fn *answered);
/* The ETag of an object of these parts, if the store derives it from MD5 sums. 0, or -1; mr_error is not set. */
int mr_s3_etag_of_parts(const struct mr_upload_part *parts, unsigned count, char out[MR_ETAG_SIZE]);
/* As mr_store_made, of parts or bytes. */
uint64_t mr_s3_generation_of(const struct mr_store_made *by);
/* Checks a response to a part. Returns its ETag; NULL: the reason is in answer->result. */
const char *mr_s3_part_etag(struct s3_call *call, struct s3_answer *answer);
void mr_s3_sessions_close(struct s3_store *store);

#endif
