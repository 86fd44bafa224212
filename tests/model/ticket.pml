/* The ticket word, shared by the models: the states and the word's layout have the names of shm/ring/ticket.h.
 *
 * In the code a ticket is one 64-bit word `state:4 | owner:12 | attempt:16 | lap:32`. Here each field is as narrow as
 * the models need: state 3 bits, owner 3, attempt 2, lap 2. Laps start at their highest value, so that every model
 * crosses the wrap.
 */
#define MR_EMPTY 0
#define MR_PENDING 1
#define MR_FILLING 2
#define MR_READY 3
#define MR_HELD 4
#define MR_RELEASED 5
#define MR_FAILED 6

#define MR_OWNER_SUPERVISOR 7
#define MR_ATTEMPT_MAX 2    /* deaths are counted up to here */
#define MR_ATTEMPT_POISON 3 /* FAILED by the supervisor: the descriptor is an older fill's, and means nothing */

#define MR_TICKET(state, owner, attempt, lap) \
    ((state) + 8 * (owner) + 64 * ((attempt) & 3) + 256 * ((lap) & 3))
#define MR_STATE(w) ((w) & 7)
#define MR_OWNER(w) (((w) >> 3) & 7)
#define MR_ATTEMPT(w) (((w) >> 6) & 3)
#define MR_LAP(w) (((w) >> 8) & 3)

/* The same ticket in another state: attempt and lap stay. */
#define MR_MOVED(w, state, owner) MR_TICKET(state, owner, MR_ATTEMPT(w), MR_LAP(w))

#define EMPTIED(w) MR_TICKET(MR_EMPTY, 0, 0, MR_LAP(w))
#define POISONED(w) MR_TICKET(MR_FAILED, MR_OWNER_SUPERVISOR, MR_ATTEMPT_POISON, MR_LAP(w))
/* Recovery: what a dead producer had FILLING. */
#define RECOVERED(w) \
    MR_TICKET(MR_PENDING, 0, (MR_ATTEMPT(w) < MR_ATTEMPT_MAX -> MR_ATTEMPT(w) + 1 : MR_ATTEMPT_MAX), MR_LAP(w))

#define FIRST_LAP 3 /* the highest lap: the next one wraps */
#define LAP_OF(n) (FIRST_LAP + (n) / W)

/* The one instruction by which a ticket changes its owner. The outcome is in `ok`. */
#define CAS(x, expected, desired) \
    d_step { \
        if \
        :: word[x] == (expected) -> word[x] = (desired); ok = 1 \
        :: else -> ok = 0 \
        fi \
    }

/* What the closing of a lane turns into EMPTY. FILLING stays: its producer looks at `closed` again when it is done.
 * HELD stays while its owner lives: the owner looks again when it releases. */
#define SWEPT(w) \
    (MR_STATE(w) == MR_PENDING || MR_STATE(w) == MR_READY || MR_STATE(w) == MR_FAILED || MR_STATE(w) == MR_RELEASED)

/* A word whose descriptor names an extent that somebody may read. */
#define NAMES_EXTENT(w) \
    (MR_STATE(w) == MR_READY || (MR_STATE(w) == MR_HELD && MR_ATTEMPT(w) != MR_ATTEMPT_POISON))
