/*
 * auth.h - where credentials enter a request: anonymous access, or Google's Application Default Credentials.
 *
 * The order and the kinds: docs/protocols.md, "Credentials", and docs/credentials.md. Everything that takes time runs
 * on the http loop (reading a small file is the only blocking call). All stores of one mr_http share one token: the
 * first to need it fetches it, the others wait; it is replaced before it expires, while requests continue with the old
 * one.
 *
 * A token stays in this process: it is overwritten before its memory is freed, and a process that holds credentials
 * writes no core dump (PR_SET_DUMPABLE). Not thread-safe, as mr_http is not.
 */
#ifndef MR_WORKER_STORE_AUTH_H
#define MR_WORKER_STORE_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/store/http.h"

struct mr_auth;

#define MR_AUTH_LINES 2

/* Header lines of a request. Valid until the next mr_http_step; mr_http_start copies them. */
struct mr_auth_headers {
    const char *lines[MR_AUTH_LINES]; /* "Authorization: ...", "x-goog-user-project: ..." */
    unsigned count;
    uint64_t serial; /* of the token, for mr_auth_refused; 0: anonymous */
};

/* A request that waits for a token; embedded in its owner, zero-initialised. */
struct mr_auth_waiter {
    /* Called once, from mr_http_step: MR_OK if mr_auth_headers has a token now, else why there is none. */
    void (*ready)(struct mr_auth_waiter *waiter, enum mr_code code, const char *text);
    struct mr_auth_waiter *previous, *next; /* private */
    uint64_t round;                         /* private */
    bool queued;                            /* private */
};

/*
 * mode: "anonymous", or NULL or "default" for the credentials of the environment. `emulator` (the endpoint came from
 * STORAGE_EMULATOR_HOST) means anonymous in either mode. No network. NULL with mr_error: CONFIG for an unknown mode,
 * DENIED, with a remedy, if there are no credentials or their file is broken. http must outlive it.
 */
struct mr_auth *mr_auth_new(const char *mode, bool emulator, struct mr_http *http);
/* No waiter may be left. NULL is allowed. */
void mr_auth_destroy(struct mr_auth *auth);

/* For people: the kind of credentials, whose they are, where they were found, how long the token is good. No secret. */
void mr_auth_describe(const struct mr_auth *auth, char *out, size_t size);

/* Fills in headers. false: there is no valid token; call mr_auth_wait. */
bool mr_auth_headers(struct mr_auth *auth, struct mr_auth_headers *headers);
/* Starts to fetch a token unless a fetch is under way. Never calls back before it returns. */
void mr_auth_wait(struct mr_auth *auth, struct mr_auth_waiter *waiter);
void mr_auth_cancel(struct mr_auth *auth, struct mr_auth_waiter *waiter);
/* A server responded to this token with 401: it is not handed out again. No effect if it has been replaced since. */
void mr_auth_refused(struct mr_auth *auth, uint64_t serial);

#endif
