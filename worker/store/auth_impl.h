/* auth_impl.h - what the kinds of credentials have in common. Only worker/store/auth*.c include it. */
#ifndef MR_WORKER_STORE_AUTH_IMPL_H
#define MR_WORKER_STORE_AUTH_IMPL_H

#include <stdbool.h>

#include "worker/store/auth_file.h"
#include "worker/store/http.h"
#include "worker/store/text.h"

#define MR_AUTH_SCOPE_STORAGE "https://www.googleapis.com/auth/devstorage.read_write"
#define MR_AUTH_SCOPE_CLOUD   "https://www.googleapis.com/auth/cloud-platform" /* to impersonate with */
#define MR_AUTH_TOKEN_MAX     (32u << 10)

/* ---- a source of tokens ---- */

struct mr_auth_token {
    enum mr_code code;
    const char *text;  /* why there is none; "" for MR_OK */
    const char *value; /* printable, without spaces; ends with the callback */
    int64_t lifetime_s;
};

struct mr_auth_source {
    const struct mr_auth_source_ops *ops;
    struct mr_http *http;
    void (*done)(void *arg,
                 const struct mr_auth_token *token); /* once a start, from mr_http_step. May destroy nothing */
    void *arg;
};

struct mr_auth_source_ops {
    /* 0, and done follows, or -1 with mr_error. One at a time. */
    int (*start)(struct mr_auth_source *source);
    void (*cancel)(struct mr_auth_source *source); /* also where nothing is under way */
    void (*destroy)(struct mr_auth_source *source);
};

/* The kinds. Each keeps file and scope by reference. NULL with mr_error. */
struct mr_auth_source *mr_auth_service_account_new(struct mr_http *http, const struct mr_auth_file *file,
                                                   const char *scope);
struct mr_auth_source *mr_auth_user_new(struct mr_http *http, const struct mr_auth_file *file);
struct mr_auth_source *mr_auth_external_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope);
/* inner: destroyed with it, on failure too. */
struct mr_auth_source *mr_auth_impersonate_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope,
                                               struct mr_auth_source *inner);
/* host: "name[:port]" of the metadata server. */
struct mr_auth_source *mr_auth_metadata_new(struct mr_http *http, const char *host);

/* Reports mr_error to source->done. */
void mr_auth_fail(struct mr_auth_source *source);

/* ---- one request, repeated where that helps ---- */

struct mr_auth_answer {
    enum mr_code code; /* of mr_http_result */
    const char *text;
    int status;
    struct mr_http_headers headers;
    char *body; /* may be overwritten; NUL-terminated; ends with the callback */
    size_t length;
};

/*
 * A request to a token server. Zero-initialise, mr_auth_call_init, then add to url, lines and body and send. What it
 * sent and got is overwritten before the memory is freed.
 */
struct mr_auth_call {
    struct mr_http *http;
    struct mr_http_call *call;
    struct mr_http_timer timer;
    const char *method;       /* "GET", "POST", "PUT": a literal */
    struct mr_text url, body; /* body of a GET: not sent */
    struct mr_text lines;     /* each with its NUL */
    unsigned line_count, tries, failures;
    unsigned timeout_ms; /* of one try */
    bool direct;         /* past any proxy */
    char *answer;
    size_t answer_length;
    void (*done)(struct mr_auth_call *call, struct mr_auth_answer *answer);
    void *arg;
};

void mr_auth_call_init(struct mr_auth_call *call, struct mr_http *http, const char *method, const char *url);
/* "Name: value" */
void mr_auth_call_line(struct mr_auth_call *call, const char *name, const char *value);
/* "&key=<value, encoded>" of a form body. */
void mr_auth_call_field(struct mr_auth_call *call, const char *key, const char *value);
/* 0, and done follows from mr_http_step; -1 with mr_error. */
int mr_auth_call_send(struct mr_auth_call *call);
/* Ends it without done, and overwrites all. */
void mr_auth_call_close(struct mr_auth_call *call);

/* 0 for a 2xx answer; -1 with mr_error: DENIED with the server's words, or NET, TIMEOUT, BUSY. `what` was asked for. */
int mr_auth_answer_check(const struct mr_auth_call *call, const struct mr_auth_answer *answer, const char *what);
/* Whether the body of an error answer has this word in it. */
bool mr_auth_answer_says(const struct mr_auth_answer *answer, const char *word);
/* The answer of a token endpoint {"access_token", "expires_in"}, checked. 0, or -1 with mr_error. */
int mr_auth_answer_token(const struct mr_auth_call *call, struct mr_auth_answer *answer, struct mr_auth_token *token);

/* ---- small things ---- */

/* A variable of the environment; NULL where it is not set or empty. */
const char *mr_auth_env(const char *name);
/* The member `key` of the JSON object in text, which is overwritten. 0; *value NULL where it is missing; -1: no
 * JSON. */
struct mr_auth_member {
    const char *key;
    const char *value; /* a string's content; a number's or word's text */
};
int mr_auth_members(char *text, size_t length, struct mr_auth_member *members, size_t count);
/* No control bytes or spaces, not empty, not too long: it may be put into a header line. */
bool mr_auth_is_token(const char *text);
/* text in double quotes, for JSON. */
void mr_auth_put_json(struct mr_text *to, const char *text);
/* Overwrites, and frees. */
void mr_auth_text_wipe(struct mr_text *text);
/* Room for size bytes, so that growing leaves no copy behind. */
void mr_auth_text_reserve(struct mr_text *text, size_t size);
/* Base64 with the alphabet of URLs, unpadded (url != 0), or the usual one. */
void mr_auth_put_base64(struct mr_text *to, const void *data, size_t length, bool url);

/* ---- subject tokens of external accounts ---- */

struct mr_auth_subject {
    struct mr_http *http;
    const struct mr_auth_file *file;
    /* token: NULL with mr_error. Once, from mr_http_step. */
    void (*done)(void *arg, const char *token);
    void *arg;
    struct mr_auth_call call;
    struct mr_http_timer timer; /* executable: polls */
    int pid, fd;
    int64_t deadline_ns;
    char *output;
    size_t output_length;
    struct mr_auth_aws *aws;
};
/* 0, and done follows, or -1 with mr_error. */
int mr_auth_exec_start(struct mr_auth_subject *subject);
void mr_auth_exec_cancel(struct mr_auth_subject *subject);
int mr_auth_aws_start(struct mr_auth_subject *subject);
void mr_auth_aws_cancel(struct mr_auth_subject *subject);

#endif
