/* Checkpoint parts: the bytes on their way to the store (shm/ring/ckpt_part.h). One lane of two slots, NPARTS parts.
 *
 * Concern: the promise. A writer whose lane is SEALED has been told that its object will be, whatever dies next; an
 * object of an unsealed lane must never appear; nothing half is left behind; no part is lost or sent with the bytes of
 * another one. And a promise needs somebody to keep it: the supervisor answers a client that opens a lane before it hands
 * the lane to the worker (its settle pass), and may die between the two.
 *
 * Processes: the trainer (fills, seals or aborts, dies), the write worker of one slot (restarted after its death, takes
 * up what the lane says), the supervisor (hands the lane out, sees pidfds, recovers, restarts), the nemesis. The store is the variables
 * `sent`, `object`, `completes`: an upload takes effect at one moment, and its answer may be lost with the worker.
 * A supervisor's death (SUPERVISOR_DIES) ends recoveries: a worker then aborts what is open, finishes what is sealed.
 *
 * Checked: at the end no promise is broken, no unsealed object appears, at most one Complete counted, each part's
 * record is there before Complete, every word of an aborted lane is EMPTY; and the run ends.
 *
 * With NEIGHBOUR the supervisor gives the memory of a sealed lane's free slots to another lane, whose trainer writes
 * there at any later time: no part of ours may be sent with those bytes.
 *
 * Flags: NPARTS, KILLS with KILL_WORKER, KILL_TRAINER, SUPERVISOR_DIES, USER_ABORTS, UPLOAD_FAILS, NEIGHBOUR.
 *
 * Mutants:
 *   PLAIN_SEAL        sealed by a look and a store, aborted likewise: no CAS
 *   LATE_RECORD       the answer is recorded after HELD -> RELEASED
 *   LOST_HELD         recovery makes a dead worker's HELD EMPTY in an open lane
 *   NO_SECOND_LOOK    publish does not read the fate again
 *   LATE_COMPLETE_SENT  complete_sent is stored after the request: a lost answer is not looked up but repeated
 *   EARLY_SEAL        sealed before the last part is READY
 *   SEAL_UNADOPTED    sealed without a worker that has taken the lane up
 *   SEAL_IN_TWO_STEPS a look at ADOPTED, then the CAS from whatever is open
 *   STALE_ADOPTED     recovery of a worker leaves the fate ADOPTED
 *   GIVE_OPEN         with NEIGHBOUR: the free slots of an open lane are given too
 *
 * Abstracted: sequential consistency stands for fences; how sleepers are woken is wakeup.pml's (the words are the same);
 * which request uploads a part.
 */
#include "ticket.pml"

#ifndef NPARTS
#define NPARTS 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define SLOTS 2

#define OPEN 0
#define SEALED 1
#define ABORTED 2
#define ADOPTED 3 /* open, and a worker has taken the lane up */
#define IS_OPEN (fate == OPEN || fate == ADOPTED)

/* Shared memory. */
byte state[SLOTS], part[SLOTS], bytes[SLOTS]; /* the word's state; which part; whose bytes lie in the slot */
byte fate;
bool recorded[NPARTS], complete_sent, decided;

/* The store. */
bool sent[NPARTS];
bool object, upload_gone;
byte completes;

/* The world. */
byte kills;
bool kill_worker, dead_worker, kill_trainer, dead_trainer, trainer_done, promised, dead_supervisor;
bool handed_out;      /* the worker's process was sent the lane; the trainer has had its answer before that */
bool serving, served; /* a living worker has the lane; one has had it */

inline sweep()
{
    k = 0;
    do
    :: k < SLOTS ->
        atomic {
            if
            :: state[k] == MR_READY || state[k] == MR_RELEASED -> state[k] = MR_EMPTY
            :: else
            fi
        };
        k++
    :: else -> break
    od
}

/* mr_ckpt_part_abort */
inline mr_ckpt_part_abort()
{
#ifdef PLAIN_SEAL
    if
    :: IS_OPEN -> fate = ABORTED
    :: else
    fi;
#else
    atomic {
        if
        :: IS_OPEN -> fate = ABORTED
        :: else
        fi
    };
#endif
    if
    :: fate == ABORTED -> sweep()
    :: else
    fi
}

inline look_at_fate()
{
#ifndef NO_SECOND_LOOK
    if
    :: fate == ABORTED ->
        atomic {
            if
            :: state[s] == MR_READY -> state[s] = MR_EMPTY
            :: else
            fi
        }
    :: else
    fi
#else
    skip
#endif
}

proctype trainer()
{
    byte n, s, k;
    {
        do
        :: n < NPARTS ->
            s = n % SLOTS;
            /* mr_ckpt_part_fill: waits for the slot, or finds the lane aborted */
            if
            :: fate == ABORTED -> goto failed
            :: dead_supervisor && fate == OPEN -> mr_ckpt_part_abort(); goto failed
            :: atomic { (state[s] == MR_EMPTY || state[s] == MR_RELEASED) && fate != ABORTED -> state[s] = MR_FILLING }
            fi;
            bytes[s] = n;
            part[s] = n;
#ifdef EARLY_SEAL
            if
            :: n == NPARTS - 1 -> atomic { if :: IS_OPEN -> fate = SEALED; promised = 1 :: else fi }
            :: else
            fi;
#endif
            state[s] = MR_READY;
            look_at_fate();
            n++
#ifdef USER_ABORTS
        :: mr_ckpt_part_abort(); goto failed
#endif
        :: n == NPARTS -> break
        od;
        /* mr_ckpt_part_seal, again until a worker has the lane */
#ifdef SEAL_UNADOPTED
        atomic {
            if
            :: IS_OPEN -> fate = SEALED; promised = 1
            :: else
            fi
        };
#else
#ifdef SEAL_IN_TWO_STEPS
        if
        :: fate == ADOPTED ->
            atomic {
                if
                :: IS_OPEN -> fate = SEALED; promised = 1
                :: else
                fi
            }
#else
#ifdef PLAIN_SEAL
        if
        :: fate == ADOPTED -> fate = SEALED; promised = 1
#else
        if
        :: atomic { fate == ADOPTED -> fate = SEALED; promised = 1 }
#endif
#endif
        :: fate == ABORTED
        :: dead_supervisor && fate == OPEN -> mr_ckpt_part_abort()
        fi;
#endif
failed: trainer_done = 1
    } unless { kill_trainer && !trainer_done };
    if
    :: kill_trainer && !trainer_done -> dead_trainer = 1
    :: else
    fi
}

#define NONE_LEFT (state[0] != MR_READY && state[1] != MR_READY)
#define MUST_ABORT (dead_supervisor || dead_trainer)

/* Takes up what the lane says, whether it is the first of its slot or a later one. */
proctype worker()
{
    byte s, n, k;
    {
        if
        :: handed_out
        :: dead_supervisor -> goto gone /* also where it was handed out and not read yet */
        fi;
        serving = 1;
        served = 1;
        /* mr_ckpt_part_adopt */
        atomic { if :: fate == OPEN -> fate = ADOPTED :: else fi };
        do
        :: decided -> break
        :: fate == ABORTED && !decided ->
            sweep();
            upload_gone = 1; /* the store's abort, and deletes of what it kept */
            decided = 1
        :: MUST_ABORT && IS_OPEN -> mr_ckpt_part_abort()
#ifdef UPLOAD_FAILS
        :: IS_OPEN && !decided -> mr_ckpt_part_abort() /* for good: no such bucket, denied */
#endif
        :: fate != ABORTED && !decided && (state[0] == MR_READY || state[1] == MR_READY) ->
            /* mr_ckpt_part_take: the lowest number */
            atomic {
                s = 2;
                if
                :: state[0] == MR_READY && (state[1] != MR_READY || part[0] < part[1]) -> s = 0
                :: state[1] == MR_READY && (state[0] != MR_READY || part[1] < part[0]) -> s = 1
                :: else
                fi;
                if
                :: s < 2 -> state[s] = MR_HELD
                :: else
                fi
            };
            if
            :: s < 2 ->
                n = part[s];
                assert(bytes[s] == n);
                sent[n] = 1; /* the upload; sent again by a successor, it has the same number and bytes */
#ifndef LATE_RECORD
                recorded[n] = 1;
#endif
                state[s] = MR_RELEASED;
#ifdef LATE_RECORD
                recorded[n] = 1;
#endif
                atomic { if :: state[s] == MR_RELEASED -> state[s] = MR_EMPTY :: else fi }
            :: else
            fi
        :: fate == SEALED && NONE_LEFT && state[0] != MR_FILLING && state[1] != MR_FILLING && !decided ->
            if
            :: complete_sent && object /* looked up, size and crc32c compared: it is ours */
            :: else ->
#ifndef LATE_COMPLETE_SENT
                complete_sent = 1;
#endif
                k = 0;
                do
                :: k < NPARTS -> assert(recorded[k] && sent[k]); k++
                :: else -> break
                od;
                atomic { object = 1; completes++ };
                skip; /* the answer comes, or the worker dies first */
#ifdef LATE_COMPLETE_SENT
                complete_sent = 1
#endif
            fi;
            decided = 1
        od;
gone:   skip
    } unless { kill_worker && !decided };
    if
    :: atomic { kill_worker && !decided -> kill_worker = 0; serving = 0; dead_worker = 1 }
    :: else
    fi
}

proctype supervisor()
{
    byte s, k;
end:
    do
    :: dead_supervisor -> break
    :: !dead_supervisor && !dead_worker && !handed_out -> handed_out = 1 /* settle: CKPT_LANE */
    :: !dead_supervisor && dead_worker ->
        /* mr_ckpt_part_recover_worker, then the slot's next one */
#ifndef STALE_ADOPTED
        atomic { if :: fate == ADOPTED -> fate = OPEN :: else fi };
#endif
        s = 0;
        do
        :: s < SLOTS ->
            atomic {
                if
                :: state[s] == MR_HELD ->
#ifdef LOST_HELD
                    state[s] = MR_EMPTY
#else
                    state[s] = MR_READY
#endif
                :: else
                fi
            };
            look_at_fate();
            s++
        :: else -> break
        od;
        atomic { dead_worker = 0; handed_out = 0; run worker() }
    :: !dead_supervisor && dead_trainer && (IS_OPEN || state[0] == MR_FILLING || state[1] == MR_FILLING) ->
        /* mr_ckpt_part_recover_trainer */
        s = 0;
        do
        :: s < SLOTS ->
            atomic { if :: state[s] == MR_FILLING -> state[s] = MR_EMPTY :: else fi };
            s++
        :: else -> break
        od;
        mr_ckpt_part_abort()
    od
}

proctype nemesis()
{
end:
    do
#ifdef KILL_WORKER
    :: atomic { kills < KILLS && !decided && !kill_worker && !dead_worker -> kills++; kill_worker = 1 }
#endif
#ifdef KILL_TRAINER
    :: atomic { kills < KILLS && !trainer_done && !kill_trainer -> kills++; kill_trainer = 1 }
#endif
#ifdef SUPERVISOR_DIES
    /* Supervisor and worker dead at once lose the upload, and the docs say so: not while one is dead or dying, nor,
     * once there is a promise, before its successor has the lane. */
    :: atomic { !dead_supervisor && !dead_worker && !kill_worker && !(promised && served && !serving) ->
            dead_supervisor = 1; kills = KILLS }
#endif
    :: decided -> break
    od
}

#ifdef NEIGHBOUR
#define ANOTHERS 255
#ifdef GIVE_OPEN
#define MAY_GIVE 1
#else
#define MAY_GIVE (fate == SEALED)
#endif
proctype neighbour()
{
    byte s;
    bool given[SLOTS];
end:
    do
    :: s = 0
    :: s = 1
    :: atomic { MAY_GIVE && !dead_supervisor && (state[s] == MR_EMPTY || state[s] == MR_RELEASED) -> given[s] = 1 }
    :: given[s] -> bytes[s] = ANOTHERS
    :: decided -> break
    od
}
#endif

proctype judge()
{
    ((decided || (dead_supervisor && !serving)) && (trainer_done || dead_trainer));
    /* What is under way in the lane of a living trainer comes to rest. */
    (dead_supervisor || (state[0] != MR_FILLING && state[1] != MR_FILLING));
    assert(completes <= 1);
    assert(!(promised && !object));
    assert(!(object && fate != SEALED));
    assert(!(object && upload_gone));
    assert(!(fate == ABORTED && object));
    assert(fate != ABORTED || dead_supervisor ||
           ((state[0] == MR_EMPTY || state[0] == MR_RELEASED) && (state[1] == MR_EMPTY || state[1] == MR_RELEASED)))
}

init
{
    atomic {
        run trainer(); run worker(); run supervisor(); run nemesis(); run judge();
#ifdef NEIGHBOUR
        run neighbour();
#endif
    }
}
