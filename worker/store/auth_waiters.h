/* auth_waiters.h - requests that wait for credentials: which are woken, and in which order. */
#ifndef MR_WORKER_STORE_AUTH_WAITERS_H
#define MR_WORKER_STORE_AUTH_WAITERS_H

#include "worker/store/auth.h"

/* Zero-initialised. */
struct mr_auth_waiters {
    struct mr_auth_waiter *first, *last;
    uint64_t round; /* of waking */
};

void mr_auth_waiters_add(struct mr_auth_waiters *waiters, struct mr_auth_waiter *waiter);
/* No effect on one that is not waiting. */
void mr_auth_waiters_remove(struct mr_auth_waiters *waiters, struct mr_auth_waiter *waiter);
/* Calls ready for those that wait now; those that wait again from their callback are left for the next time. */
void mr_auth_waiters_wake(struct mr_auth_waiters *waiters, struct mr_http *http, enum mr_code code, const char *text);

#endif
