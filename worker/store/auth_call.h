/* auth_call.h - a request to a server that gives credentials, repeated where that helps; small things around secrets. */
#ifndef MR_WORKER_STORE_AUTH_CALL_H
#define MR_WORKER_STORE_AUTH_CALL_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/store/http.h"
#include "worker/store/text.h"

#define MR_AUTH_TOKEN_MAX (32u << 10)

struct mr_auth_answer {
    enum mr_code code; /* of mr_http_result */
    const char *text;
    int status;
    bool sent; /* a connection was there: the server, or what stands before it, has the request */
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

/* ---- small things ---- */

/* A variable of the environment; NULL where it is not set or empty. */
const char *mr_auth_env(const char *name);
/* HOME, else what the system knows of this user; "" where that is nothing. */
const char *mr_auth_home(void);
/* The bytes of a file into text, which is empty, with a NUL behind. 0, or -1 with errno: EFBIG for more than max. */
int mr_auth_text_read(struct mr_text *text, const char *path, size_t max);
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

#endif
