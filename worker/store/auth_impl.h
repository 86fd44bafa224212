/* auth_impl.h - what the kinds of credentials have in common. Only worker/store/auth*.c include it. */
#ifndef MR_WORKER_STORE_AUTH_IMPL_H
#define MR_WORKER_STORE_AUTH_IMPL_H

#include <stdbool.h>

#include "worker/store/auth_call.h"
#include "worker/store/auth_file.h"
#include "worker/store/auth_program.h"
#include "worker/store/http.h"

#define MR_AUTH_SCOPE_STORAGE "https://www.googleapis.com/auth/devstorage.read_write"
#define MR_AUTH_SCOPE_CLOUD   "https://www.googleapis.com/auth/cloud-platform" /* to impersonate with */

/* ---- a source of tokens ---- */

struct mr_auth_token {
    enum mr_code code;
    const char *text;  /* why there is none; "" if MR_OK */
    const char *value; /* printable, without spaces; valid until the callback returns */
    int64_t lifetime_s;
};

struct mr_auth_source {
    const struct mr_auth_source_ops *ops;
    struct mr_http *http;
    void (*done)(void *arg,
                 const struct mr_auth_token *token); /* once per start, from mr_http_step. Must not destroy anything */
    void *arg;
};

struct mr_auth_source_ops {
    /* 0, and done follows, or -1 with mr_error. One at a time. */
    int (*start)(struct mr_auth_source *source);
    void (*cancel)(struct mr_auth_source *source); /* also when nothing is under way */
    void (*destroy)(struct mr_auth_source *source);
};

/* The kinds. Each keeps file and scope by reference. NULL with mr_error. */
struct mr_auth_source *mr_auth_service_account_new(struct mr_http *http, const struct mr_auth_file *file,
                                                   const char *scope);
/* Also for external_account_authorized_user. */
struct mr_auth_source *mr_auth_user_new(struct mr_http *http, const struct mr_auth_file *file);
struct mr_auth_source *mr_auth_external_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope);
/* inner: owned by it, on failure too. NULL: its constructor failed, and so does this one, with the same mr_error. */
struct mr_auth_source *mr_auth_impersonate_new(struct mr_http *http, const struct mr_auth_file *file, const char *scope,
                                               struct mr_auth_source *inner);
/* host: "name[:port]" of the metadata server. */
struct mr_auth_source *mr_auth_metadata_new(struct mr_http *http, const char *host);

/* The header "Authorization: Basic ..." with the file's OAuth client. */
void mr_auth_call_client(struct mr_auth_call *call, const struct mr_auth_file *file);

/* Reports mr_error to source->done. */
void mr_auth_fail(struct mr_auth_source *source);

/* The response of a token endpoint {"access_token", "expires_in"}, checked. 0, or -1 with mr_error. */
int mr_auth_answer_token(const struct mr_auth_call *call, struct mr_auth_answer *answer, struct mr_auth_token *token);

/* ---- subject tokens of external accounts ---- */

struct mr_auth_subject {
    struct mr_http *http;
    const struct mr_auth_file *file;
    /* token: NULL with mr_error. Once, from mr_http_step. */
    void (*done)(void *arg, const char *token);
    void *arg;
    struct mr_auth_call call;
    struct mr_http_timer timer; /* executable: starts */
    struct mr_auth_program program;
    struct mr_auth_aws *aws;
};
/* 0, and done follows, or -1 with mr_error. */
int mr_auth_exec_start(struct mr_auth_subject *subject);
void mr_auth_exec_cancel(struct mr_auth_subject *subject);
int mr_auth_aws_start(struct mr_auth_subject *subject);
void mr_auth_aws_cancel(struct mr_auth_subject *subject);

#endif
