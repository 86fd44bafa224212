/* write.h - the write role: checkpoint parts in shared memory -> whole, verified objects. */
#ifndef MR_WORKER_WRITE_WRITE_H
#define MR_WORKER_WRITE_WRITE_H

/*
 * Runs until DRAIN, and after the supervisor's end until what was promised (sealed) is stored, checkpoint.drain_s at
 * most. The process's exit status: 0 done, 1 restart, 2 do not restart.
 */
int mr_write_main(unsigned slot);

#endif
