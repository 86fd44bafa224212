/* Wake-up: who wakes whom, so that nobody sleeps while there is something for him to do.
 *
 * Concern: a consumer sleeps on the futex word `seq` of its lane, a producer in poll on its eventfd. The timed waits of
 * the code (100 ms) are left out here, so each wake that is lost is a hang. The lanes of two ranks that meet at a
 * barrier share one producer with very little room, so taking back is needed, and `want` has both of its uses: whom to
 * wake, and what must not be taken back.
 *
 * Processes: LANES consumers (each takes N tickets in order, copies and releases each at once, and meets the others
 * after each), one producer with EXTENTS extents, the supervisor, the nemesis. Each access to a shared word is a step.
 *
 * Checked: the run ends (an invalid end state is a lost wake); with -DNP and weak fairness: no livelock.
 *
 * Flags (sizes): LANES 1 or 2, W, N, EXTENTS, BREAK (rank 0 may close its lane early), KILLS with KILL_PRODUCER or
 * KILL_OWNER (rank 0's process).
 *
 * Mutants:
 *   FUTEX_FLAG           the futex word is `want`, which the publisher does not change
 *   ONE_BIT_SEQ          `seq` has one bit
 *   PUB_CLEARS_WANT      the publisher clears `want`
 *   NO_RELOOK            the consumer does not read the ticket again after it has stored `want`
 *   SEQ_READ_LATE        the consumer reads `seq` only then
 *   NO_RESCAN            the producer does not scan again after it has stored `asleep`
 *   NO_WAKE_ON_WANT, NO_WAKE_ON_RELEASE, NO_WAKE_ON_CLOSE    that step of a consumer wakes no producer
 *   NO_SUPERVISOR_WAKE   the supervisor recovers, but wakes nobody
 *
 * NO_WAKE_ON_POST is no mutant: the run still ends, since a consumer that waits wakes the producer again when it stores
 * `want`. The wake after a post is there for speed: without it nothing is fetched ahead.
 *
 * Abstracted: sequential consistency stands for the fences (shm/ring/wake.h names them); which producers may serve a ticket
 * (here all); what is in the bytes.
 */
#include "ticket.pml"

#ifndef LANES
#define LANES 2
#endif
#ifndef W
#define W 1
#endif
#ifndef N
#define N 2
#endif
#ifndef EXTENTS
#define EXTENTS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifdef ONE_BIT_SEQ
#define SEQ_VALUES 2
#else
#define SEQ_VALUES 16 /* more than one run adds between a read and its wait */
#endif

#define SLOTS (LANES * W)
#define SLOT(lane, n) ((lane) * W + (n) % W)

/* Shared memory. */
byte state[SLOTS], number[SLOTS];
byte want[LANES];
byte seq[LANES];
bool closed[LANES];
bool asleep;

/* The kernel. */
bool sleeping[LANES]; /* in FUTEX_WAIT */
bool eventfd;         /* readable */

/* The world around. */
byte arrived[LANES], ranks_done, kills;
bool done, kill_producer, dead_producer, kill_owner, dead_owner;

#define BUSY(x) ((x) < SLOTS && (state[x] == MR_FILLING || state[x] == MR_READY || state[x] == MR_HELD))
#define ROOM ((BUSY(0) + BUSY(1) + BUSY(2) + BUSY(3)) < EXTENTS)
#define WANTED(x) (want[(x) / W] == number[x] + 1)
#define VICTIM(x) ((x) < SLOTS && state[x] == MR_READY && !WANTED(x))
#define ANY_VICTIM (VICTIM(0) || VICTIM(1) || VICTIM(2) || VICTIM(3))
#define CAN_START(x) (state[x] == MR_PENDING && (ROOM || (WANTED(x) && ANY_VICTIM)))

/* mr_wake_producer: by a consumer after post, want, release, close. */
inline mr_wake_producer()
{
    if
    :: asleep -> eventfd = 1
    :: else
    fi
}

/* mr_wake_consumer: by the publisher after its CAS. */
inline mr_wake_consumer(lane)
{
    if
    :: want[lane] != 0 ->
#ifdef PUB_CLEARS_WANT
        want[lane] = 0;
#endif
        seq[lane] = (seq[lane] + 1) % SEQ_VALUES;
        sleeping[lane] = 0 /* FUTEX_WAKE */
    :: else
    fi
}

/* One look at every ticket, one after the other. */
inline scan()
{
    x = 0;
    found = 0;
    do
    :: atomic { x < SLOTS && CAN_START(x) -> found = 1; break }
    :: atomic { x < SLOTS && !CAN_START(x) -> x++ }
    :: atomic { x == SLOTS -> x = 0; break }
    od
}

proctype producer()
{
    byte x, victim;
    bool found;
start:
    {
        asleep = 0; /* what a dead one left */
        do
        :: done -> break
        :: !done ->
            scan();
            if
            :: !found ->
                /* mr_producer_sleep */
                asleep = 1;
#ifndef NO_RESCAN
                scan();
#endif
                if
                :: !found ->
                    if
                    :: eventfd -> eventfd = 0
                    :: done
                    fi
                :: else
                fi;
                asleep = 0
            :: else
            fi;
            if
            :: found ->
                /* mr_lane_take_back */
                if
                :: atomic {
                       !ROOM && ANY_VICTIM ->
                       if
                       :: VICTIM(0) -> victim = 0
                       :: VICTIM(1) -> victim = 1
                       :: VICTIM(2) -> victim = 2
                       :: VICTIM(3) -> victim = 3
                       fi;
                       state[victim] = MR_PENDING
                   };
                   if
                   :: atomic { closed[victim / W] && state[victim] == MR_PENDING -> state[victim] = MR_EMPTY }
                   :: atomic { !(closed[victim / W] && state[victim] == MR_PENDING) -> skip }
                   fi;
                   victim = 0
                :: atomic { !(!ROOM && ANY_VICTIM) -> skip }
                fi;
                /* mr_lane_claim, mr_lane_publish */
                if
                :: atomic { ROOM && state[x] == MR_PENDING -> state[x] = MR_FILLING };
                   assert(state[x] == MR_FILLING);
                   state[x] = MR_READY;
                   if
                   :: atomic { closed[x / W] && state[x] == MR_READY -> state[x] = MR_EMPTY }
                   :: atomic { !(closed[x / W] && state[x] == MR_READY) -> skip }
                   fi;
                   mr_wake_consumer(x / W)
                :: atomic { !(ROOM && state[x] == MR_PENDING) -> skip }
                fi
            :: else
            fi;
            atomic { x = 0; found = 0 }
        od
    } unless { kill_producer };
    if
    :: atomic { kill_producer -> kill_producer = 0; dead_producer = 1; x = 0; victim = 0; found = 0 };
       if
       :: atomic { !dead_producer -> goto start }
       :: done
       fi
    :: done
    fi
}

/* mr_lane_close: by the owner, or by the supervisor after it (HELD too). */
inline close_lane(lane, held_too)
{
    closed[lane] = 1;
    i = 0;
    do
    :: i < W ->
        atomic {
            if
            :: state[SLOT(lane, i)] == MR_FILLING || (state[SLOT(lane, i)] == MR_HELD && !held_too)
            :: else -> state[SLOT(lane, i)] = MR_EMPTY
            fi;
            i++
        }
    :: else -> break
    od;
    i = 0
}

proctype consumer(byte a)
{
    byte next, posted, stop_at, x, i, seen;
    {
        stop_at = N;
#ifdef BREAK
        atomic {
            do
            :: a == 0 && stop_at > 0 -> stop_at--
            :: break
            od
        };
#endif
        do
        :: next < N ->
            /* mr_lane_post */
            do
            :: posted < N && posted < next + W ->
                number[SLOT(a, posted)] = posted;
                state[SLOT(a, posted)] = MR_PENDING;
                posted++;
#ifndef NO_WAKE_ON_POST
                mr_wake_producer()
#endif
            :: else -> break
            od;
            if
            :: next == stop_at -> break
            :: true
            fi;

            /* mr_lane_take, mr_wake_set_want, mr_wake_wait */
            x = SLOT(a, next);
            do
            :: atomic { state[x] == MR_READY -> state[x] = MR_HELD };
               want[a] = 0;
               break
            :: state[x] != MR_READY ->
#ifndef SEQ_READ_LATE
                seen = seq[a];
#endif
                if
                :: want[a] != next + 1 ->
                    want[a] = next + 1;
#ifndef NO_WAKE_ON_WANT
                    mr_wake_producer()
#endif
                :: else
                fi;
#ifndef NO_RELOOK
                if
                :: state[x] == MR_READY
                :: else ->
#endif
#ifdef SEQ_READ_LATE
                    seen = seq[a];
#endif
                    /* FUTEX_WAIT: sleeps only if the word still has the value that was read */
#ifdef FUTEX_FLAG
                    atomic { (want[a] == next + 1) -> sleeping[a] = 1 };
#else
                    atomic {
                        if
                        :: seq[a] == seen -> sleeping[a] = 1
                        :: else
                        fi
                    };
#endif
                    if
                    :: !sleeping[a]
                    :: next == stop_at -> sleeping[a] = 0; goto leave /* a signal ends the wait, and the user breaks */
                    fi
#ifndef NO_RELOOK
                fi;
#endif
                seen = 0
            od;
            x = 0;
            next++;

            /* mr_lane_release, since the sample is copied */
            state[SLOT(a, next - 1)] = MR_RELEASED;
#ifndef NO_WAKE_ON_RELEASE
            mr_wake_producer();
#endif
            arrived[a]++;
            (LANES == 1 || arrived[LANES - 1 - a] >= arrived[a] || closed[LANES - 1 - a]);
progress:
            skip
        :: else -> break
        od;
leave:
        if
        :: next < N ->
            close_lane(a, false);
#ifndef NO_WAKE_ON_CLOSE
            mr_wake_producer()
#endif
        :: else
        fi
    } unless { a == 0 && kill_owner };
    if
    :: atomic { a == 0 && kill_owner -> kill_owner = 0; dead_owner = 1 }
    :: else
    fi;
    atomic {
        next = 0; posted = 0; stop_at = 0; x = 0; i = 0; seen = 0;
        ranks_done++;
        if
        :: ranks_done == LANES -> done = 1
        :: else
        fi
    }
}

/* After any death: every lane, whatever its `want`, and every producer, whatever its `asleep`. */
inline wake_all()
{
#ifndef NO_SUPERVISOR_WAKE
    i = 0;
    do
    :: i < LANES -> atomic { seq[i] = (seq[i] + 1) % SEQ_VALUES; sleeping[i] = 0; i++ }
    :: else -> break
    od;
    i = 0;
    eventfd = 1;
#endif
    skip
}

proctype supervisor()
{
    byte i;
end:
    do
    :: dead_producer ->
        /* mr_lane_recover */
        do
        :: i < SLOTS ->
            atomic {
                if
                :: state[i] == MR_FILLING -> state[i] = (closed[i / W] -> MR_EMPTY : MR_PENDING)
                :: else
                fi;
                i++
            }
        :: else -> break
        od;
        wake_all();
        dead_producer = 0
    :: dead_owner ->
        close_lane(0, true);
        wake_all();
        dead_owner = 0
#ifdef KILL_PRODUCER
    :: atomic { kills < KILLS && !done && !kill_producer && !dead_producer -> kills++; kill_producer = 1 }
#endif
#ifdef KILL_OWNER
    :: atomic { kills < KILLS && ranks_done == 0 && !kill_owner && !dead_owner && !closed[0] -> kills++; kill_owner = 1 }
#endif
    od
}

init
{
    atomic {
        run consumer(0);
#if LANES > 1
        run consumer(1);
#endif
        run producer();
        run supervisor()
    }
}
