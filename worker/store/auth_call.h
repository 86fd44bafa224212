/* auth_call.h - a request to a server of credentials, repeated where that helps; helpers for secrets. */
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
    bool sent; /* it was sent on a connection: the server, or what is in front of it, has it */
    struct mr_http_headers headers;
    char *body; /* may be overwritten; NUL-terminated; valid until the callback returns */
    size_t length;
};

/* A request to a token server. Zero-initialise, mr_auth_call_init, then add to url, lines and body and send. What it
 * sent and received is overwritten before the memory is freed. */
struct mr_auth_call {
    struct mr_http *http;
    struct mr_http_call *call;
    struct mr_http_timer timer;
    const char *method;       /* "GET", "POST", "PUT": a literal */
    struct mr_text url, body; /* body of a GET: not sent */
    struct mr_text lines;     /* each with its NUL */
    unsigned line_count, tries, failures;
    unsigned timeout_ms;   /* of one try */
    int64_t patient_until; /* monotonic, ns: until then it is repeated however often it has failed */
    bool direct;           /* bypasses any proxy */
    char *answer;
    size_t answer_length;
    void (*done)(struct mr_auth_call *call, struct mr_auth_answer *answer);
    void *arg;
};

/* Also for the next request of the same call: what it held is overwritten. Sets tries, timeout_ms and
 * patient_until to their defaults, to be changed before it is sent. */
void mr_auth_call_init(struct mr_auth_call *call, struct mr_http *http, const char *method, const char *url);
/* "Name: value" */
void mr_auth_call_line(struct mr_auth_call *call, const char *name, const char *value);
/* "&key=<value, encoded>" of a form body. */
void mr_auth_call_field(struct mr_auth_call *call, const char *key, const char *value);
/* 0, and done follows from mr_http_step; -1 with mr_error. */
int mr_auth_call_send(struct mr_auth_call *call);
/* Ends it without calling done, and overwrites everything. */
void mr_auth_call_close(struct mr_auth_call *call);

/* 0 for a 2xx response; -1 with mr_error: DENIED with the server's words, or NET, TIMEOUT, BUSY. what: names what was
 * requested. */
int mr_auth_answer_check(const struct mr_auth_call *call, const struct mr_auth_answer *answer, const char *what);
/* Whether the same request may succeed later. */
bool mr_auth_worth_a_repeat(const struct mr_auth_answer *answer);
/* Whether the body contains this word. false if there was no response. */
bool mr_auth_answer_says(const struct mr_auth_answer *answer, const char *word);

/* ---- small things ---- */

/* A variable of the environment; NULL if it is not set or empty. */
const char *mr_auth_env(const char *name);
/* HOME, else the home directory in the passwd entry; "" if there is neither. */
const char *mr_auth_home(void);
/* Reads a file into text, which must be empty, and adds a NUL. 0, or -1 with errno: EFBIG if it is longer than max. */
int mr_auth_text_read(struct mr_text *text, const char *path, size_t max);
/* The member `key` of the JSON object in text, which is overwritten. 0, with value NULL where it is missing; -1: not
 * JSON. */
struct mr_auth_member {
    const char *key;
    const char *value; /* a string's content; a number's or word's text */
};
int mr_auth_members(char *text, size_t length, struct mr_auth_member *members, size_t count);
/* No control bytes or spaces, not empty, not too long: it may be put into a header line. */
bool mr_auth_is_token(const char *text);
/* Appends text as a JSON string, with its quotes. */
void mr_auth_put_json(struct mr_text *to, const char *text);
/* Overwrites the memory and frees it; text is empty then. */
void mr_auth_text_wipe(struct mr_text *text);
/* Allocates size bytes at once, so that growing leaves no copy behind. No effect if text has memory already. */
void mr_auth_text_reserve(struct mr_text *text, size_t size);
/* Base64 with the alphabet of URLs, unpadded (url != 0), or the usual one. */
void mr_auth_put_base64(struct mr_text *to, const void *data, size_t length, bool url);

#endif
