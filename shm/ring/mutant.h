/*
 * mutant.h - rules that the checkers can leave out; for this folder and its checkers.
 *
 * The library is built with MR_MUTANT_NONE and the conditions fold away. tests/crash builds the files again with one of
 * the names below (-DMR_MUTANT=MR_MUTANT_NO_SKIP), and its checkers must then fail: two relaxed orders under
 * ThreadSanitizer, CKPT_PART_* in ckpt_parts.c, BATCH_* in batches.c, all others in whole/.
 */
#ifndef MR_SHM_RING_MUTANT_H
#define MR_SHM_RING_MUTANT_H

#ifndef MR_MUTANT
#define MR_MUTANT MR_MUTANT_NONE
#endif

enum mr_mutant {
    MR_MUTANT_NONE,
    MR_MUTANT_NO_SECOND_LOOK,           /* `closed` is not read again after publish, give-back, take-back, release */
    MR_MUTANT_NO_GIVE_BACK,             /* a ticket that cannot be filled stays FILLING */
    MR_MUTANT_NO_RESERVE,               /* heads get no extent of their own */
    MR_MUTANT_NO_TAKE_BACK,             /* the reserve waits for its reader, whatever that reader waits for */
    MR_MUTANT_TAKE_BACK_WANTED,         /* a READY ticket is taken from under a consumer that asks for it */
    MR_MUTANT_NO_SKIP,                  /* a slot that is HELD stops the lane */
    MR_MUTANT_EARLY_DESCRIPTOR,         /* extent and length are read before the CAS to HELD */
    MR_MUTANT_EARLY_REQUEST,            /* the request is read before the word that is then claimed */
    MR_MUTANT_FAILED_WITH_EXTENT,       /* FAILED keeps the extent that it had */
    MR_MUTANT_RELAXED_PUBLISH,          /* FILLING -> READY without release */
    MR_MUTANT_RELAXED_TAKE,             /* READY -> HELD without acquire */
    MR_MUTANT_NO_ASLEEP_RESCAN,         /* a producer sleeps without a rescan after `asleep` = 1 */
    MR_MUTANT_NO_RECOVERY_WAKE,         /* no process is woken after a death (the harness' supervisor) */
    MR_MUTANT_EARLY_RECLAIM,            /* recovery before the process has exited (the harness' supervisor) */
    MR_MUTANT_LATE_WANT,                /* `want` is stored after the last load of the word */
    MR_MUTANT_NO_RECOVERY_SWEEP,        /* recovery does not sweep closed lanes */
    MR_MUTANT_REUSE_WITHOUT_LOOK,       /* an extent is used again before its word allows it */
    MR_MUTANT_SMALL_AFTER_RESTART,      /* what lies where the arena had grown to is not found again */
    MR_MUTANT_CKPT_PART_NO_SECOND_LOOK, /* checkpoint parts: the fate is not read again after publish and recovery */
    MR_MUTANT_CKPT_PART_PLAIN_SEAL,     /* checkpoint parts: sealed by a load and a store */
    MR_MUTANT_CKPT_PART_LATE_RECORD,    /* checkpoint parts: the store's answer is recorded after the word */
    MR_MUTANT_CKPT_PART_LOST_HELD,      /* checkpoint parts: what a dead worker held is not uploaded again */
    MR_MUTANT_CKPT_PART_SEAL_UNADOPTED, /* checkpoint parts: sealed before a worker has the lane */
    MR_MUTANT_CKPT_PART_STALE_ADOPTED,  /* checkpoint parts: a dead worker still has the lane */
    MR_MUTANT_BATCH_LATE_WANT,          /* batches: `want` is stored after the last look at the words */
    MR_MUTANT_BATCH_NO_LAP,             /* batches: a message names its slot alone, not the word */
    MR_MUTANT_BATCH_KEEP_READY,         /* batches: recovery leaves what was READY for a message that is lost */
    MR_MUTANT_BATCH_REUSE_UNDER_VIEW,   /* batches: a slot is reserved under a view that its worker has */
    MR_MUTANT_BATCH_EARLY_RECLAIM,      /* batches: recovery before the worker has exited (the harness' trainer) */
    MR_MUTANT_BATCH_EARLY_RELEASE,      /* batches: released while a view lives (the harness' trainer) */
    MR_MUTANT_COUNT
};

#define MR_MUTANT_IS(n) (MR_MUTANT == (n))

#endif
