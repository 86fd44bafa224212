/* The life of a lane: post, claim, publish, take, release, close, and the next lane.
 *
 * Concern: after any interleaving of these with a close, with the death of the lane's owner and with the death of a
 * producer, every word of the closed lane becomes EMPTY (else its quota, its owner index and its extents leak for
 * ever), and no consumer ever sees bytes of another ticket.
 *
 * Processes: OWNER is the consumer; it opens lane 0, posts and takes TICKETS tickets in order, may close at any moment,
 * and then opens lane 1 in a fresh segment. PRODUCERS producers have EXTENTS extents each. The supervisor closes the
 * lane of a dead owner, recovers after a dead producer and lets it start again. The nemesis kills.
 *
 * Checked: bytes of a held ticket are those that were asked for; no extent is named by two READY or HELD words; a word
 * that a process owns is not changed by another; and the run ends (an invalid end state is a leak or a hang).
 *
 * Flags (sizes): W, LANES, TICKETS, PRODUCERS, EXTENTS, KILLS, KILL_PRODUCER, KILL_OWNER (whom the nemesis may kill),
 * TAKE_BACKS (how often READY may be taken back), FAILURES (a producer may publish FAILED), POISON (how often the
 * supervisor makes a PENDING ticket FAILED), LINGER (the next
 * lane opens as soon as the last one is closed; else when it is EMPTY).
 *
 * Mutants:
 *   NO_SECOND_LOOK        whoever publishes, gives back, takes back, releases or recovers does not read `closed` again
 *   REUSE_SEGMENT         the next lane lives in the segment of the last one, wiped, instead of in a fresh one
 *   DESC_BEFORE_HELD      the consumer reads the descriptor before its CAS to HELD
 *   REQUEST_BEFORE_CLAIM  the producer uses the request that it read when it scanned, before its claim
 *   FAILED_WITH_EXTENT    FAILED is published with the descriptor of an earlier fill still there
 *   POISON_UNMARKED       a word that the supervisor has FAILED does not say so: the descriptor of an earlier fill,
 *                         which the supervisor may not write, seems to belong to it once it is HELD
 *   REBUILD_SKIPS_CLOSED  a restarted producer does not look for its extents in closed lanes
 *
 * Abstracted: an extent is a number, its bytes are the tag of the request that they answer; which ticket is served
 * first (any); waking (wakeup.pml); room for the head (barrier.pml); the steps inside recovery (recovery.pml).
 */
#include "ticket.pml"

#ifndef W
#define W 2
#endif
#ifndef LANES
#define LANES 2
#endif
#ifndef TICKETS
#define TICKETS 2
#endif
#ifndef PRODUCERS
#define PRODUCERS 1
#endif
#ifndef EXTENTS
#define EXTENTS 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef TAKE_BACKS
#define TAKE_BACKS 0
#endif
#ifndef POISON
#define POISON 0
#endif

#define OWNER 6 /* owner index of the consumer */
#define TAG(lane, n) (1 + (lane) * TICKETS + (n))
#define EXTENT(p, e) (1 + ((p)-1) * EXTENTS + (e)) /* 0 is "length 0" */
#define ARENAS (1 + PRODUCERS * EXTENTS)

#ifdef POISON_UNMARKED
#define FAILED_BY_SUPERVISOR(w) MR_MOVED(w, MR_FAILED, MR_OWNER_SUPERVISOR)
#else
#define FAILED_BY_SUPERVISOR(w) POISONED(w)
#endif

#ifdef REUSE_SEGMENT
#define SEGMENTS 1
#else
#define SEGMENTS LANES
#endif
#define SLOTS (SEGMENTS * W)
#define SEGMENT(lane) ((lane) % SEGMENTS)
#define SLOT(lane, n) (SEGMENT(lane) * W + (n) % W)

/* Shared memory. */
short word[SLOTS];    /* the tickets */
byte request[SLOTS];  /* written by the owner before PENDING */
byte extent[SLOTS];   /* descriptor: written by the producer that has the word FILLING */
bit closed[SEGMENTS]; /* written by the owner or by the supervisor after it */
byte content[ARENAS]; /* the arenas */

/* Private memory of the producers: which word an extent was published in. Lost by their death. */
byte used_by[ARENAS]; /* slot + 1 */
byte used_lap[ARENAS];

/* The world around: who is killed, who is dead, which lane is open. */
bool kill[PRODUCERS + 1]; /* by producer, from 1 */
bool dead[PRODUCERS + 1];
byte kill_owner, dead_owner; /* the owner of this lane + 1 */
bool alive[LANES];           /* by lane: its owner */
byte kills, lane, take_backs, poisoned;
bool finished;

/* "The word is read again before an extent is reused." */
#define IN_USE(x) \
    (used_by[x] != 0 && NAMES_EXTENT(word[used_by[x] - 1]) && MR_LAP(word[used_by[x] - 1]) == used_lap[x])
#define ROOM(p) (!IN_USE(EXTENT(p, 0)) || (EXTENTS > 1 && !IN_USE(EXTENT(p, EXTENTS - 1))))
#define POSTABLE(w) (MR_STATE(w) == MR_EMPTY || MR_STATE(w) == MR_RELEASED)
#define TAKEABLE(w) (MR_STATE(w) == MR_READY || MR_STATE(w) == MR_FAILED)
#define STARTABLE(x) ((x) < SLOTS && MR_STATE(word[x]) == MR_PENDING && !closed[(x) / W])
#define ANY_STARTABLE (STARTABLE(0) || STARTABLE(1) || STARTABLE(2) || STARTABLE(3))
#define READY_BY(x, p) ((x) < SLOTS && MR_STATE(word[x]) == MR_READY && MR_OWNER(word[x]) == (p))
#define ANY_READY_BY(p) (READY_BY(0, p) || READY_BY(1, p) || READY_BY(2, p) || READY_BY(3, p))

#ifdef REBUILD_SKIPS_CLOSED
#define REBUILT(x) (!closed[(x) / W])
#else
#define REBUILT(x) true
#endif

inline second_look(x, w)
{
#ifndef NO_SECOND_LOOK
    if
    :: closed[(x) / W] -> CAS(x, w, EMPTIED(w))
    :: else
    fi
#else
    skip
#endif
}

/* Invariant 3: no extent is named by two words. */
inline check_extents()
{
    d_step {
        i = 0;
        do
        :: i < SLOTS ->
            j = i + 1;
            do
            :: j < SLOTS ->
                assert(!(NAMES_EXTENT(word[i]) && NAMES_EXTENT(word[j]) && extent[i] != 0 && extent[i] == extent[j]));
                j++
            :: else -> break
            od;
            i++
        :: else -> break
        od;
        i = 0;
        j = 0
    }
}

/* A starting producer learns from the words which of its extents are in use; all the rest is free. */
inline rebuild_arena(p)
{
    d_step {
        e = 0;
        do
        :: e < EXTENTS -> used_by[EXTENT(p, e)] = 0; e++
        :: else -> break
        od;
        x = 0;
        do
        :: x < SLOTS ->
            if
            :: NAMES_EXTENT(word[x]) && extent[x] >= EXTENT(p, 0) && extent[x] < EXTENT(p, EXTENTS) && REBUILT(x) ->
                used_by[extent[x]] = x + 1;
                used_lap[extent[x]] = MR_LAP(word[x])
            :: else
            fi;
            x++
        :: else -> break
        od;
        x = 0;
        e = 0
    }
}

proctype producer(byte p)
{
    byte x, e, wanted, i, j;
    short w;
    bit ok;
start:
    {
        rebuild_arena(p);
        do
        :: finished -> break

        /* mr_lane_take_back */
        :: atomic {
               take_backs < TAKE_BACKS && ANY_READY_BY(p) ->
               if
               :: READY_BY(0, p) -> x = 0
               :: READY_BY(1, p) -> x = 1
               :: READY_BY(2, p) -> x = 2
               :: READY_BY(3, p) -> x = 3
               fi;
               w = word[x];
               take_backs++
           };
           atomic {
               CAS(x, w, MR_MOVED(w, MR_PENDING, 0));
               if
               :: ok -> used_by[extent[x]] = 0; w = word[x]
               :: else -> w = 0
               fi
           };
           if
           :: w != 0 -> second_look(x, w)
           :: else
           fi;
           atomic { x = 0; w = 0; ok = 0 }

        /* mr_lane_claim: the scan finds a ticket that it has room for, */
        :: atomic {
               ROOM(p) && ANY_STARTABLE ->
               if
               :: STARTABLE(0) -> x = 0
               :: STARTABLE(1) -> x = 1
               :: STARTABLE(2) -> x = 2
               :: STARTABLE(3) -> x = 3
               fi;
               e = (IN_USE(EXTENT(p, 0)) -> EXTENT(p, EXTENTS - 1) : EXTENT(p, 0));
               w = word[x];
#ifdef REQUEST_BEFORE_CLAIM
               wanted = request[x]
#endif
           };
#ifdef REQUEST_BEFORE_CLAIM
           atomic { w = word[x]; if :: MR_STATE(w) != MR_PENDING -> w = -1 :: else fi };
#endif
           /* then one CAS makes it ours, and the request is read. */
           CAS(x, w, MR_MOVED(w, MR_FILLING, p));
           if
           :: ok ->
               w = MR_MOVED(w, MR_FILLING, p);
#ifndef REQUEST_BEFORE_CLAIM
               wanted = request[x];
#endif
               if
               :: /* mr_lane_publish */
                  d_step { extent[x] = e; used_by[e] = x + 1; used_lap[e] = MR_LAP(w) };
                  content[e] = wanted;
                  CAS(x, w, MR_MOVED(w, MR_READY, p));
                  assert(ok);
                  check_extents();
                  second_look(x, MR_MOVED(w, MR_READY, p))
#ifdef FAILURES
               :: /* mr_lane_fail */
#ifndef FAILED_WITH_EXTENT
                  extent[x] = 0;
#endif
                  CAS(x, w, MR_MOVED(w, MR_FAILED, p));
                  assert(ok);
                  second_look(x, MR_MOVED(w, MR_FAILED, p))
#endif
               :: /* mr_lane_give_back */
                  CAS(x, w, MR_MOVED(w, MR_PENDING, 0));
                  assert(ok);
                  second_look(x, MR_MOVED(w, MR_PENDING, 0))
               fi
           :: else
           fi;
           atomic { x = 0; e = 0; wanted = 0; w = 0; ok = 0 }
        od
    } unless { kill[p] };
    if
    :: finished
    :: else ->
        d_step { kill[p] = 0; dead[p] = 1; x = 0; e = 0; wanted = 0; w = 0; ok = 0; i = 0; j = 0 };
        if
        :: atomic { !dead[p] -> goto start } /* the supervisor has recovered and starts it again */
        :: finished
        fi
    fi
}

/* mr_lane_close, by the owner or, once it is dead, by the supervisor; that one makes HELD EMPTY as well. */
inline sweep(lane_, held_too)
{
    closed[SEGMENT(lane_)] = 1;
    x = SLOT(lane_, 0);
    do
    :: x < SLOT(lane_, 0) + W ->
        w = word[x];
        if
        :: SWEPT(w) || (held_too && MR_STATE(w) == MR_HELD) ->
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

proctype owner(byte my)
{
    byte x, posted, taken, stop_at, held, tag, desc, i, j;
    short w;
    bit ok;
    bool closing;
    alive[my] = 1;
    {
        /* The loop breaks after this many tickets; TICKETS is the end of the epoch. */
        atomic {
            do
            :: stop_at < TICKETS -> stop_at++
            :: break
            od
        };
        do
        /* mr_lane_post */
        :: !closing && posted < TICKETS && posted < taken + W && POSTABLE(word[SLOT(my, posted)]) ->
            request[SLOT(my, posted)] = TAG(my, posted);
            d_step {
                word[SLOT(my, posted)] = MR_TICKET(MR_PENDING, 0, 0, LAP_OF(posted));
                posted++
            }

        /* mr_lane_take */
        :: !closing && !held && taken < stop_at && taken < posted && TAKEABLE(word[SLOT(my, taken)]) ->
            atomic {
                x = SLOT(my, taken);
                w = word[x];
                if
                :: !TAKEABLE(w) -> w = -1 /* taken back just now: the CAS fails */
                :: else
                fi
            };
#ifdef DESC_BEFORE_HELD
            desc = extent[x];
#endif
            CAS(x, w, MR_MOVED(w, MR_HELD, OWNER));
            atomic {
                if
                :: ok ->
#ifndef DESC_BEFORE_HELD
                    desc = extent[x];
#endif
                    held = x + 1;
                    tag = (MR_STATE(w) == MR_FAILED -> 0 : TAG(my, taken));
                    taken++;
                    assert(tag == 0 || content[desc] == tag);
                    check_extents()
                :: else -> desc = 0
                fi;
                x = 0;
                w = 0;
                ok = 0
            }

        /* mr_lane_release: at once, or long after the close */
        :: held != 0 ->
            atomic {
                assert(tag == 0 || content[desc] == tag);
                w = word[held - 1];
                assert(MR_STATE(w) == MR_HELD)
            };
            CAS(held - 1, w, MR_TICKET(MR_RELEASED, OWNER, 0, MR_LAP(w)));
            assert(ok || kill_owner == my + 1);
            second_look(held - 1, MR_TICKET(MR_RELEASED, OWNER, 0, MR_LAP(w)));
            atomic { held = 0; w = 0; ok = 0; tag = 0; desc = 0 }

        /* mr_lane_close */
        :: !closing && taken == stop_at ->
            closing = 1;
            sweep(my, false);
            atomic { x = 0; w = 0; ok = 0; posted = 0; taken = 0; stop_at = 0 }
        :: atomic { closing && !held -> alive[my] = 0; break }
        od
    } unless { kill_owner == my + 1 };
    atomic {
        if
        :: kill_owner == my + 1 -> kill_owner = 0; dead_owner = my + 1; alive[my] = 0
        :: else
        fi;
        x = 0; posted = 0; taken = 0; stop_at = 0; held = 0; tag = 0; desc = 0; i = 0; j = 0; w = 0; ok = 0
    }
}

#define ALL_EMPTY(lane_) (MR_STATE(word[SLOT(lane_, 0)]) == MR_EMPTY && MR_STATE(word[SLOT(lane_, 1)]) == MR_EMPTY)
#define GONE(lane_) (closed[SEGMENT(lane_)] && ALL_EMPTY(lane_))
#ifdef LINGER
#define MAY_OPEN (closed[SEGMENT(lane)] && dead_owner == 0 && kill_owner == 0)
#else
#define MAY_OPEN (GONE(lane) && dead_owner == 0 && kill_owner == 0)
#endif
#ifdef REUSE_SEGMENT
#define OPENED closed[0] = 0
#else
#define OPENED skip
#endif

active proctype supervisor()
{
    byte x, p;
    short w;
    bit ok;
    atomic {
        run owner(0);
        p = 1;
        do
        :: p <= PRODUCERS -> run producer(p); p++
        :: else -> p = 0; break
        od
    };
    do
    /* A producer's pidfd is readable: mr_lane_recover over every lane, the closed ones too, then it starts again. */
    :: atomic {
           if
           :: dead[1] -> p = 1
#if PRODUCERS > 1
           :: dead[2] -> p = 2
#endif
           fi
       };
       do
       :: x < SLOTS ->
           w = word[x];
           if
           :: MR_STATE(w) == MR_FILLING && MR_OWNER(w) == p ->
               CAS(x, w, RECOVERED(w));
               assert(ok);
               w = word[x]
           :: else
           fi;
#ifndef NO_SECOND_LOOK
           if
           :: closed[x / W] && SWEPT(w) -> CAS(x, w, EMPTIED(w))
           :: else
           fi;
#endif
           x++
       :: else -> break
       od;
       atomic { x = 0; w = 0; ok = 0; dead[p] = 0; p = 0 }

    /* The owner's pidfd is readable: its lane is closed. */
    :: atomic { dead_owner != 0 -> p = dead_owner - 1 };
       sweep(p, true);
       atomic { x = 0; w = 0; ok = 0; dead_owner = 0; p = 0 }

#if POISON > 0
    /* mr_lane_poison: PENDING to FAILED, by the supervisor. */
    :: atomic {
           poisoned < POISON && ANY_STARTABLE ->
           if
           :: STARTABLE(0) -> x = 0
           :: STARTABLE(1) -> x = 1
           :: STARTABLE(2) -> x = 2
           :: STARTABLE(3) -> x = 3
           fi;
           poisoned++;
           w = word[x]
       };
       CAS(x, w, FAILED_BY_SUPERVISOR(w));
       if
       :: ok -> second_look(x, FAILED_BY_SUPERVISOR(w))
       :: else
       fi;
       atomic { x = 0; w = 0; ok = 0 }
#endif

    /* The next lane opens: with LINGER at once, while views of the last one may be held still. Else what is left of
     * the last one is wiped, so that equal states look equal: in a fresh segment nobody reads it again. */
    :: atomic {
           lane + 1 < LANES && MAY_OPEN ->
#ifndef LINGER
           do
           :: x < W -> word[SLOT(lane, x)] = 0; request[SLOT(lane, x)] = 0; extent[SLOT(lane, x)] = 0; x++
           :: else -> break
           od;
           x = 0;
           do
           :: x < ARENAS -> content[x] = 0; used_by[x] = 0; used_lap[x] = 0; x++
           :: else -> break
           od;
           x = 0;
#endif
           lane++;
           OPENED;
           run owner(lane)
       }

    /* Every word is EMPTY: quotas and owner indices return. */
    :: lane + 1 == LANES && GONE(0) && GONE(LANES - 1) && !dead_owner && !kill_owner -> finished = 1; break
    od
}

active proctype nemesis()
{
end:
    do
#ifdef KILL_PRODUCER
    :: atomic { kills < KILLS && !finished && !kill[1] && !dead[1] -> kill[1] = 1; kills++ }
#if PRODUCERS > 1
    :: atomic { kills < KILLS && !finished && !kill[2] && !dead[2] -> kill[2] = 1; kills++ }
#endif
#endif
#ifdef KILL_OWNER
    :: atomic { kills < KILLS && alive[0] && !kill_owner -> kill_owner = 1; kills++ }
#if LANES > 1
    :: atomic { kills < KILLS && alive[1] && !kill_owner -> kill_owner = 2; kills++ }
#endif
#endif
    :: finished -> break
    od
}
