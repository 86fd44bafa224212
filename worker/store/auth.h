/*
 * auth.h - where credentials enter a request: anonymous access, or Google's Application Default Credentials.
 *
 * The order and the kinds: docs/protocols.md, "Credentials", and docs/credentials.md. All that takes time runs on
 * the http loop (reading a small file is the only blocking call). All stores of one mr_http share one token: the first
 * to need it fetches it, the others wait; it is replaced ahead of its end, while requests go on with the one there is.
 *
 * A token lies in this process alone: it is overwritten before its memory is freed, and a process that holds
 * credentials writes no core dump (PR_SET_DUMPABLE). Not thread-safe, as mr_http is not.
 */
#ifndef MR_WORKER_STORE_AUTH_H
#define MR_WORKER_STORE_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/store/http.h"

struct mr_auth;

#define MR_AUTH_LINES 2

/* Header lines of a request. They end with the next mr_http_step; mr_http_start copies them. */
struct mr_auth_headers {
    const char *lines[MR_AUTH_LINES]; /* "Authorization: ...", "x-goog-user-project: ..." */
    unsigned count;
    uint64_t serial; /* of the token, for mr_auth_refused; 0: anonymous */
};

/* A request that waits for a token; embedded in its owner, zero-initialised. */
struct mr_auth_waiter {
    /* From mr_http_step, once: MR_OK, and mr_auth_headers has a token now; or why there is none. */
    void (*ready)(struct mr_auth_waiter *waiter, enum mr_code code, const char *text);
    struct mr_auth_waiter *previous, *next; /* private */
    uint64_t round;                         /* private */
    bool queued;                            /* private */
};

/*
 * mode: "anonymous", or NULL or "default" for the credentials of the environment. `emulator` (the endpoint came from
 * STORAGE_EMULATOR_HOST) means anonymous whatever the mode. No network. NULL with mr_error: CONFIG for an unknown
 * mode, DENIED where there are no credentials or their file is broken, with what to do. http must outlive it.
 */
struct mr_auth *mr_auth_new(const char *mode, bool emulator, struct mr_http *http);
/* Waiters must be gone. NULL is allowed. */
void mr_auth_destroy(struct mr_auth *auth);

/* For people: the kind of credentials, whose they are, where they were found, how long the token is good. No secret. */
void mr_auth_describe(const struct mr_auth *auth, char *out, size_t size);

/* Fills in headers. false: there is no valid token, so mr_auth_wait. */
bool mr_auth_headers(struct mr_auth *auth, struct mr_auth_headers *headers);
/* Fetches a token unless that is under way. Calls nothing back by itself. */
void mr_auth_wait(struct mr_auth *auth, struct mr_auth_waiter *waiter);
void mr_auth_cancel(struct mr_auth *auth, struct mr_auth_waiter *waiter);
/* A server answered 401 to this token: it is not handed out again. One that has been replaced since stays. */
void mr_auth_refused(struct mr_auth *auth, uint64_t serial);

#endif
