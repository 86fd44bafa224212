/* list.h - the list role: ranges of the names -> an index of each, and these -> one index. */
#ifndef MR_WORKER_LIST_LIST_H
#define MR_WORKER_LIST_LIST_H

/* Runs until DRAIN or the supervisor's end. The process's exit status: 0 done, 1 restart, 2 do not restart. */
int mr_list_main(unsigned slot);

#endif
