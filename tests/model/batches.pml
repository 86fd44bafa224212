/* Batches: from a DataLoader worker to the training process, through the slots of its lane.
 *
 * Concern: views on both ends outlive everything. The trainer keeps a batch as long as it likes, in any number, and a
 * slot is written again only when its last view is gone; a worker may keep what it shipped, too. A worker is killed,
 * and the next one of its lane begins in the same slots, while messages of the dead one may still be read.
 *
 * Processes: one worker, which is killed up to KILLS times and started again after the trainer recovered its lane; the
 * trainer, which takes BATCHES batches in order, keeps up to KEEP of them until the end and gives others back in any
 * order. `queue` is torch's: it carries which slot, under which word.
 *
 * Checked: whatever is read through a view, at any time, is the batch that was made; the run ends.
 *
 * Flags (sizes): SLOTS, BATCHES, KILLS, KEEP. WORKER_KEEPS: the worker keeps a view of one slot, and reads it.
 *
 * Mutants:
 *   RELEASE_EARLY      a slot is given back while a view of it lives
 *   NO_GENERATION      a message names its slot alone, not the word that it had
 *   RECLAIM_EARLY      the lane is recovered before its worker is gone
 *   KEEP_READY         recovery frees FILLING alone: what was READY for a message that is lost stays
 *   REUSE_UNDER_VIEW   (with WORKER_KEEPS) the worker writes into a slot of which it has a view itself
 *   NO_COPY            the trainer keeps views without bound
 *   NO_RELOOK          the worker sleeps without a second look after `want`
 *   LATE_BYTES         READY before the bytes are written
 *
 * Abstracted: sizes and growth (a slot's memory is its own and only grows); several lanes, which share nothing; what
 * finds no room and is sent by the queue; the trainer's death, with which everything is gone.
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BATCHES
#define BATCHES 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef KEEP
#define KEEP 1
#endif
#define LIMIT (SLOTS - 1) /* HELD at most; the next ones are copied */

#define EMPTY 0
#define FILLING 1
#define READY 2
#define HELD 3
#define NOTHING 9 /* no slot */

/* Shared. The word is (state, lap). */
byte state[SLOTS], lap[SLOTS], content[SLOTS];
byte want, seq;
chan queue = [6] of { byte, byte, byte }; /* slot, lap, number of the batch */

/* The worker's own: lost with it. */
bool alive = true;
byte making, slot = NOTHING, seen, kept_slot = NOTHING, kept_number;
bool waiting, looked;
#ifdef RECLAIM_EARLY
byte ghost = NOTHING; /* what a worker that was taken for dead still writes into */
#endif

/* The trainer's. */
byte got;                           /* batches that the loop was given */
byte view[SLOTS];                   /* number of the batch that is viewed, 0: none */
bool keeps[SLOTS];
byte kills, kept;
bool finished;

#ifdef REUSE_UNDER_VIEW
#define IS_FREE(s) (state[s] == EMPTY)
#else
#define IS_FREE(s) (state[s] == EMPTY && kept_slot != s)
#endif
#define ANY_FREE (IS_FREE(0) || IS_FREE(1) || (SLOTS > 2 && IS_FREE(SLOTS - 1)))
#define IDLE (alive && slot == NOTHING && making < BATCHES)

inline reserve(s)
{
    slot = s;
    state[s] = FILLING;
    lap[s]++;
    making++;
    waiting = false;
    looked = false;
    want = 0
}

active proctype worker()
{
    do
    /* mr_batch_reserve */
    :: d_step { IDLE && !waiting && IS_FREE(0) -> reserve(0) }
    :: d_step { IDLE && !waiting && IS_FREE(1) -> reserve(1) }
#if SLOTS > 2
    :: d_step { IDLE && !waiting && IS_FREE(2) -> reserve(2) }
#endif
    /* no slot: seq, want, a second look, the futex */
    :: d_step { IDLE && !waiting && !ANY_FREE -> seen = seq; waiting = true; looked = false }
    :: d_step { IDLE && waiting && !want && !looked -> want = 1 }
#ifdef NO_RELOOK
    :: d_step { IDLE && waiting && want && !looked -> looked = true }
#else
    :: d_step { IDLE && waiting && want && !looked && !ANY_FREE -> looked = true }
    :: d_step { IDLE && waiting && want && !looked && ANY_FREE -> want = 0; waiting = false }
#endif
    :: d_step { IDLE && waiting && looked && seq != seen -> want = 0; waiting = false; looked = false }
    /* the collate writes; mr_batch_publish; the message */
#ifdef LATE_BYTES
    :: d_step { alive && slot != NOTHING && state[slot] == FILLING -> state[slot] = READY; queue!slot,lap[slot],making }
    :: d_step {
           alive && slot != NOTHING && state[slot] != FILLING && content[slot] != making ->
           content[slot] = making; slot = NOTHING
       }
#else
    :: d_step { alive && slot != NOTHING && content[slot] != making -> content[slot] = making }
    :: d_step { alive && slot != NOTHING && content[slot] == making && state[slot] == FILLING -> state[slot] = READY }
    :: d_step {
           alive && slot != NOTHING && content[slot] == making && state[slot] != FILLING ->
           queue!slot,lap[slot],making;
#ifdef WORKER_KEEPS
           if
           :: kept_slot == NOTHING -> kept_slot = slot; kept_number = making
           :: else
           fi;
#endif
           slot = NOTHING
       }
#endif
#ifdef WORKER_KEEPS
    :: d_step { alive && kept_slot != NOTHING && making == BATCHES && slot == NOTHING -> kept_slot = NOTHING }
    :: d_step { alive && kept_slot != NOTHING && content[kept_slot] != kept_number -> assert(false) }
#endif
#ifdef RECLAIM_EARLY
    :: d_step { ghost != NOTHING -> content[ghost] = 99; ghost = NOTHING }
#endif
    :: finished -> break
    od
}

#ifdef RELEASE_EARLY
#define GIVEN_BACK(s) (state[s] == HELD)
#else
#define GIVEN_BACK(s) (state[s] == HELD && view[s] == 0)
#endif

inline give_back(s)
{
    state[s] = EMPTY;
    if
    :: want -> seq++ /* abstract: the fence between the two is litmus' business */
    :: else
    fi
}

inline take(s, l, n)
{
#ifdef NO_GENERATION
    if
    :: state[s] == READY ->
#else
    if
    :: state[s] == READY && lap[s] == l ->
#endif
        assert(content[s] == n);
        if
        :: n == got + 1 ->
            got++;
#ifdef NO_COPY
            state[s] = HELD; view[s] = n
#else
            if
            :: held >= LIMIT -> give_back(s) /* a copy, which is nobody's business */
            :: else -> state[s] = HELD; view[s] = n
            fi
#endif
        :: else -> give_back(s) /* of the iteration before */
        fi
    :: else
    fi
}

#define IS_GOOD(s) (view[s] == 0 || content[s] == view[s])

active proctype trainer()
{
    byte i, s, l, n, held;

    do
    :: d_step {
           got < BATCHES && queue?[s, l, n] ->
           queue?s,l,n;
           held = 0;
           i = 0;
           do
           :: i < SLOTS -> held = held + (state[i] == HELD -> 1 : 0); i++
           :: else -> break
           od;
           take(s, l, n)
       }
    /* views end in any order; some are kept */
    :: d_step { view[0] && !keeps[0] -> assert(IS_GOOD(0)); view[0] = 0 }
    :: d_step { view[1] && !keeps[1] -> assert(IS_GOOD(1)); view[1] = 0 }
    :: d_step { view[0] && !keeps[0] && kept < KEEP -> keeps[0] = true; kept++ }
    :: d_step { view[1] && !keeps[1] && kept < KEEP -> keeps[1] = true; kept++ }
    :: d_step { GIVEN_BACK(0) -> give_back(0) }
    :: d_step { GIVEN_BACK(1) -> give_back(1) }
#if SLOTS > 2
    :: d_step { view[2] && !keeps[2] -> assert(IS_GOOD(2)); view[2] = 0 }
    :: d_step { view[2] && !keeps[2] && kept < KEEP -> keeps[2] = true; kept++ }
    :: d_step { GIVEN_BACK(2) -> give_back(2) }
#endif
    /* the worker dies; its messages may be read later, or never */
    :: d_step { alive && kills < KILLS && got < BATCHES -> kills++; alive = false }
#ifdef RECLAIM_EARLY
    :: d_step { alive && kills < KILLS && slot != NOTHING -> kills++; ghost = slot; alive = false }
#endif
    :: d_step {
           !alive && nempty(queue) ->
           queue?s,l,n /* lost with the queue, or read: see above */
       }
    /* mr_batch_recover, then the next worker: it makes what the loop has not got */
    :: d_step {
           !alive ->
           i = 0;
           do
#ifdef KEEP_READY
           :: i < SLOTS && state[i] == FILLING -> state[i] = EMPTY; i++
           :: i < SLOTS && state[i] != FILLING -> i++
#else
           :: i < SLOTS && (state[i] == FILLING || state[i] == READY) -> state[i] = EMPTY; i++
           :: i < SLOTS && state[i] != FILLING && state[i] != READY -> i++
#endif
           :: i == SLOTS -> break
           od;
           making = got;
           slot = NOTHING;
           kept_slot = NOTHING;
           waiting = false;
           looked = false;
           want = 0;
           alive = true
       }
    :: got == BATCHES -> break
    od;
    i = 0;
    do
    :: i < SLOTS -> assert(IS_GOOD(i)); i++
    :: else -> break
    od;
    finished = true
}
