/* Recovery: what the supervisor does to the words of a dead producer, and what its successor learns from them.
 *
 * Concern: a producer dies at any instruction. The supervisor makes its FILLING words PENDING again, and may itself
 * stop in the middle and begin again, any number of times; consumers and other producers go on meanwhile. Then the
 * producer's successor finds out from the words which extents of its arena are in use. No byte may be given to two
 * tickets, each death is counted once in a ticket's `attempt` (poison depends on it), and a closed lane drains.
 *
 * Processes: one consumer of one lane (posts and takes TICKETS in order, closes after any number of them), PRODUCERS
 * producers with EXTENTS extents each, the supervisor (RESTARTS: how often it may begin a recovery again), the nemesis
 * (KILLS, of producer 1). Death comes in two steps: SIGKILL is sent; later, when the last write has landed, the pidfd
 * is readable.
 *
 * Checked: bytes of a held ticket are those that were asked for; no extent is named by two words, nor adopted twice;
 * nobody changes a word that another process has FILLING; attempt = deaths of producers that had the ticket FILLING;
 * a recovery that is done finds nothing when it is done again; the run ends.
 *
 * Flags (sizes): W, TICKETS, PRODUCERS, EXTENTS, KILLS, RESTARTS, EARLY_CLOSE (the consumer may stop before the end), HOME_BLOCKS
 * (producer 1 serves the first W tickets, producer 2 the rest; else whoever comes first).
 *
 * Mutants:
 *   RECLAIM_EARLY        recovery when SIGKILL is sent, before the pidfd is readable
 *   START_EARLY          the successor starts before the recovery
 *   SPLIT_ATTEMPT        the attempt is counted by one CAS and the ticket freed by the next
 *   NO_RECOVERY_SWEEP    recovery leaves the words of a closed lane that were not FILLING
 *   REBUILD_NO_REREAD    the successor does not read a word again after its descriptor
 *   REBUILD_READY_ONLY   the successor takes only READY words to name extents in use
 *
 * Abstracted: take-back and failures (lane_life.pml), waking (wakeup.pml), whose turn it is (any).
 */
#include "ticket.pml"

#ifndef W
#define W 2
#endif
#ifndef TICKETS
#define TICKETS 3
#endif
#ifndef PRODUCERS
#define PRODUCERS 1
#endif
#ifndef EXTENTS
#define EXTENTS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif

#define OWNER 6
#define SLOT(n) ((n) % W)
#define CONTENT(p, e) (((p)-1) * EXTENTS + (e)-1)

/* Shared memory. */
short word[W];
byte request[W];
byte arena[W];  /* descriptor: the producer slot */
byte extent[W]; /* descriptor: 1.. in that arena, 0: length 0 */
bool closed;
byte content[PRODUCERS * EXTENTS];

/* The world around. */
bool signalled;   /* SIGKILL is on its way to producer 1 */
byte gone;        /* so many incarnations of producer 1 are dead: their pidfds are readable */
byte recovered;   /* so many of them are recovered */
byte kills, restarts;
byte deaths[W];   /* what `attempt` should be */
bool finished;

inline check_extents()
{
    d_step {
        assert(!(NAMES_EXTENT(word[0]) && NAMES_EXTENT(word[1]) && extent[0] != 0 && extent[0] == extent[1] &&
                 arena[0] == arena[1]))
    }
}

#ifdef HOME_BLOCKS
#define SERVES(p, w) ((p) == (MR_LAP(w) == FIRST_LAP -> 1 : 2))
#else
#define SERVES(p, w) true
#endif
#define POSSIBLE(w) (MR_STATE(w) == MR_PENDING && !closed && SERVES(p, w))
#define MAY_NAME(w, p) ((MR_STATE(w) == MR_READY && MR_OWNER(w) == (p)) || HELD_NAMES(w))
#ifdef REBUILD_READY_ONLY
#define HELD_NAMES(w) false
#else
#define HELD_NAMES(w) (MR_STATE(w) == MR_HELD)
#endif
#ifdef REBUILD_NO_REREAD
#define CHANGED_SINCE(x, w) false
#else
#define CHANGED_SINCE(x, w) (word[x] != w)
#endif

/* mr_producer_add_lane: the word, its descriptor field by field, the word again. */
inline adopt_extents()
{
    x = 0;
    do
    :: x < W ->
        w = word[x];
        if
        :: MAY_NAME(w, p) ->
            from = arena[x];
            e = extent[x];
            atomic {
                if
                :: CHANGED_SINCE(x, w) /* look again */
                :: !CHANGED_SINCE(x, w) ->
                    if
                    :: from == p && e != 0 ->
                        assert(used_by[e - 1] == 0); /* else the arena's map is corrupt */
                        used_by[e - 1] = x + 1;
                        used_lap[e - 1] = MR_LAP(w)
                    :: else
                    fi;
                    x++
                fi;
                from = 0;
                e = 0;
                w = 0
            }
        :: else -> x++
        fi
    :: else -> break
    od;
    atomic { x = 0; w = 0 }
}

/* The extents are this incarnation's private memory. */
#define NAMED(i) \
    (used_by[i] != 0 && NAMES_EXTENT(word[used_by[i] - 1]) && MR_LAP(word[used_by[i] - 1]) == used_lap[i])
#define ROOM (!NAMED(0) || !NAMED(EXTENTS - 1))

proctype producer(byte p; byte incarnation)
{
    byte x, e, from, wanted;
    byte used_by[EXTENTS], used_lap[EXTENTS];
    short w;
    bit ok;
    {
        adopt_extents();
        do
        :: finished -> break
        /* mr_lane_claim */
        :: atomic {
               ROOM && (POSSIBLE(word[0]) || POSSIBLE(word[1])) ->
               if
               :: POSSIBLE(word[0]) -> x = 0
               :: POSSIBLE(word[1]) -> x = 1
               fi;
               if
               :: !NAMED(0) -> e = 1
               :: !NAMED(EXTENTS - 1) -> e = EXTENTS
               fi;
               used_by[e - 1] = 0;
               w = word[x]
           };
           atomic {
               CAS(x, w, MR_MOVED(w, MR_FILLING, p));
               if
               :: ok -> w = MR_MOVED(w, MR_FILLING, p); wanted = request[x]
               :: else
               fi
           };
           if
           :: ok ->
               /* mr_lane_describe, the transfer */
               extent[x] = e;
               arena[x] = p;
               content[CONTENT(p, e)] = wanted;
               /* mr_lane_publish */
               atomic {
                   CAS(x, w, MR_MOVED(w, MR_READY, p));
#ifndef RECLAIM_EARLY
                   assert(ok);
#endif
                   if
                   :: ok -> used_by[e - 1] = x + 1; used_lap[e - 1] = MR_LAP(w); check_extents()
                   :: else
                   fi;
                   w = MR_MOVED(w, MR_READY, p)
               };
               if
               :: atomic { closed && ok -> CAS(x, w, EMPTIED(w)) }
               :: atomic { !(closed && ok) -> skip }
               fi
           :: else
           fi;
           atomic { x = 0; e = 0; w = 0; ok = 0; wanted = 0 }
        od
    } unless { p == 1 && gone > incarnation };
    /* Private memory is gone with it. */
    atomic {
        x = 0; e = 0; from = 0; wanted = 0; w = 0; ok = 0;
        used_by[0] = 0; used_lap[0] = 0; used_by[EXTENTS - 1] = 0; used_lap[EXTENTS - 1] = 0
    }
}

inline sweep()
{
    x = 0;
    do
    :: x < W ->
        w = word[x];
        if
        :: SWEPT(w) ->
            CAS(x, w, EMPTIED(w));
            if
            :: ok -> x++
            :: else /* retried on the same word */
            fi
        :: else -> x++
        fi
    :: else -> break
    od
}

proctype consumer()
{
    byte posted, taken, stop_at = TICKETS, x;
    short w;
    bit ok;
#ifdef EARLY_CLOSE
    atomic {
        do
        :: stop_at > 0 -> stop_at--
        :: break
        od
    };
#endif
    do
    /* mr_lane_post */
    :: posted < TICKETS && posted < taken + W && taken < stop_at ->
        x = SLOT(posted);
        d_step {
            w = word[x];
            assert(MR_STATE(w) == MR_EMPTY || MR_STATE(w) == MR_RELEASED);
            request[x] = posted + 1;
            deaths[x] = 0
        };
        atomic { word[x] = MR_TICKET(MR_PENDING, 0, 0, LAP_OF(posted)); posted++; x = 0; w = 0 }
    /* mr_lane_take: a view that is held a while, then released */
    :: taken < stop_at && taken < posted && MR_STATE(word[SLOT(taken)]) == MR_READY ->
        atomic {
            x = SLOT(taken);
            w = word[x];
            CAS(x, w, MR_MOVED(w, MR_HELD, OWNER));
            assert(ok);
            w = word[x];
            assert(MR_LAP(w) == (LAP_OF(taken) & 3));
#ifndef RECLAIM_EARLY
            assert(MR_ATTEMPT(w) == deaths[x]);
#endif
            assert(content[CONTENT(arena[x], extent[x])] == taken + 1);
            check_extents()
        };
        atomic {
            assert(content[CONTENT(arena[x], extent[x])] == taken + 1);
            CAS(x, w, MR_TICKET(MR_RELEASED, OWNER, 0, MR_LAP(w)));
            assert(ok);
            content[CONTENT(arena[x], extent[x])] = 0; /* so that equal states look equal */
            request[x] = 0;
            deaths[x] = 0;
            taken++;
            x = 0;
            w = 0;
            ok = 0
        }
    :: taken == stop_at -> break
    od;
    /* mr_lane_close */
    closed = 1;
    sweep();
    atomic { x = 0; w = 0; ok = 0; posted = 0; taken = 0; stop_at = 0 };
    /* Drained, unless words leak; nobody dies any more. */
    atomic {
        MR_STATE(word[0]) == MR_EMPTY && MR_STATE(word[1]) == MR_EMPTY && recovered == kills && gone == kills ->
        finished = 1
    }
}

#ifdef RECLAIM_EARLY
#define DEAD (kills > recovered)
#else
#define DEAD (gone > recovered)
#endif
#if defined(RECLAIM_EARLY) || defined(START_EARLY)
#define ONLY_ONCE true /* these let their mistake show in what follows from it */
#else
#define ONLY_ONCE false
#endif

/* The supervisor dies here; who comes after it, or calls again, begins at the first word. */
inline maybe_begin_again()
{
    if
    :: restarts < RESTARTS -> restarts++; again = 1; goto begin
    :: true
    fi
}

active proctype supervisor()
{
    byte x, again;
    short w;
    bit ok;
    atomic {
        run consumer();
        run producer(1, 0);
#if PRODUCERS > 1
        run producer(2, 0);
#endif
    };
    do
    :: DEAD ->
#ifdef START_EARLY
        run producer(1, recovered + 1);
#endif
        /* mr_lane_recover; the supervisor may begin again at each step, and once it is done */
begin:
        x = 0;
        do
        :: x < W ->
            w = word[x];
            if
            :: MR_STATE(w) == MR_FILLING && MR_OWNER(w) == 1 ->
                assert(ONLY_ONCE || again < 2); /* a recovery that was done left nothing */
#ifdef SPLIT_ATTEMPT
                CAS(x, w, RECOVERED(w) - MR_TICKET(MR_PENDING, 0, 0, 0) + MR_TICKET(MR_FILLING, 1, 0, 0));
                w = word[x];
                maybe_begin_again();
                CAS(x, w, MR_MOVED(w, MR_PENDING, 0));
#else
                CAS(x, w, RECOVERED(w));
#endif
                w = word[x];
                maybe_begin_again();
                if
                :: closed && SWEPT(w) -> CAS(x, w, EMPTIED(w))
                :: else
                fi
            :: else
            fi;
            x++
        :: else -> break
        od;
#ifndef NO_RECOVERY_SWEEP
        /* It may have died after its last CAS and before its look at `closed`. */
        if
        :: closed -> sweep()
        :: else
        fi;
#endif
        if
        :: restarts < RESTARTS -> restarts++; again = 2; goto begin
        :: true
        fi;
        atomic {
            x = 0; w = 0; ok = 0; again = 0;
            recovered++;
#ifndef START_EARLY
            run producer(1, recovered)
#endif
        }
    :: finished -> break
    od
}

active proctype nemesis()
{
end:
    do
    :: atomic { kills < KILLS && !finished && !signalled && recovered == kills -> kills++; signalled = 1 }
    :: atomic {
           signalled ->
           if
           :: MR_STATE(word[0]) == MR_FILLING && MR_OWNER(word[0]) == 1 -> deaths[0]++
           :: else
           fi;
           if
           :: MR_STATE(word[1]) == MR_FILLING && MR_OWNER(word[1]) == 1 -> deaths[1]++
           :: else
           fi;
           signalled = 0;
           gone++
       }
    :: finished -> break
    od
}
