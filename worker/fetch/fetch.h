/* fetch.h - the fetch role: PENDING tickets of all lanes -> objects in this slot's arena -> READY. */
#ifndef MR_WORKER_FETCH_FETCH_H
#define MR_WORKER_FETCH_FETCH_H

/* Runs until DRAIN or the supervisor's end. The process's exit status: 0 done, 1 restart, 2 do not restart. */
int mr_fetch_main(unsigned slot);

#endif
