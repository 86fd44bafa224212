#include "worker/store/auth_waiters.h"

#include <stddef.h>

void mr_auth_waiters_add(struct mr_auth_waiters *waiters, struct mr_auth_waiter *waiter)
{
    waiter->previous = waiters->last;
    waiter->next = NULL;
    *(waiters->last ? &waiters->last->next : &waiters->first) = waiter;
    waiters->last = waiter;
    waiter->queued = true;
    waiter->round = waiters->round;
}

void mr_auth_waiters_remove(struct mr_auth_waiters *waiters, struct mr_auth_waiter *waiter)
{
    if (!waiter->queued)
        return;
    *(waiter->previous ? &waiter->previous->next : &waiters->first) = waiter->next;
    *(waiter->next ? &waiter->next->previous : &waiters->last) = waiter->previous;
    waiter->previous = waiter->next = NULL;
    waiter->queued = false;
}

void mr_auth_waiters_wake(struct mr_auth_waiters *waiters, struct mr_http *http, enum mr_code code, const char *text)
{
    waiters->round++;
    while (waiters->first && waiters->first->round != waiters->round) {
        struct mr_auth_waiter *waiter = waiters->first;
        mr_auth_waiters_remove(waiters, waiter);
        waiter->ready(waiter, code, text);
    }
    mr_http_poke(http);
}
