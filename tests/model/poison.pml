/* Poison: an object that kills whoever fetches it must fail at last, and no innocent one with it.
 *
 * Concern: a producer dies with several tickets FILLING. Which one killed it? Recovery counts the death in all of them
 * (`attempt`); after the second a ticket is fetched alone, nothing else in flight, so that a further death by one of
 * the signals that a bad object causes can only be its own. The third such death makes it FAILED. A SIGKILL (an
 * operator, a node that is short of memory because of others) never counts.
 *
 * Processes: one producer that keeps up to FLIGHT tickets in flight and starts again whenever it dies; the supervisor,
 * folded into its death: it recovers at once and counts. The operator may send KILLS SIGKILLs. Of TICKETS tickets the
 * last is poison: it is never fetched whole, and kills by a signal that counts.
 *
 * Checked: an innocent ticket is never FAILED; the poison is never READY; the run ends (a non-progress cycle is an epoch
 * that a poison keeps from ending).
 *
 * Flags (sizes): TICKETS, FLIGHT, KILLS.
 *
 * Mutants:
 *   NO_SOLO          a suspect is fetched along with others
 *   COUNT_SIGKILL    any death in a solo fetch counts
 *   NO_POISON        deaths are not counted
 *
 * Abstracted: everything about the words but their states and attempts (recovery.pml, lane_life.pml).
 */
#include "ticket.pml"

#ifndef TICKETS
#define TICKETS 3
#endif
#ifndef FLIGHT
#define FLIGHT 2
#endif
#ifndef KILLS
#define KILLS 4
#endif

#define SOLO_AFTER 2
#define SOLO_DEATHS 3
#define POISON (TICKETS - 1)

byte state[TICKETS];
byte attempt[TICKETS];     /* in the word; stops at its maximum */
byte solo_deaths[TICKETS]; /* the supervisor's own count */
byte in_flight, kills;
bool solo;

#define SUSPECT(x) (attempt[x] >= SOLO_AFTER)
#ifdef NO_SOLO
#define MAY_START(x) (in_flight < FLIGHT)
#define IS_SOLO(x) SUSPECT(x)
#else
#define MAY_START(x) (!solo && (SUSPECT(x) -> in_flight == 0 : in_flight < FLIGHT))
#define IS_SOLO(x) (SUSPECT(x))
#endif
#ifdef COUNT_SIGKILL
#define COUNTS(signal) true
#else
#define COUNTS(signal) (signal)
#endif

/* The producer is gone: the supervisor recovers its words. bad_signal: SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE. */
inline die(bad_signal)
{
    y = 0;
    do
    :: y < TICKETS ->
        if
        :: state[y] == MR_FILLING ->
            state[y] = MR_PENDING;
#ifndef NO_POISON
            if
            :: IS_SOLO(y) && COUNTS(bad_signal) -> solo_deaths[y]++
            :: else
            fi;
#endif
            if
            :: attempt[y] < MR_ATTEMPT_MAX -> attempt[y]++
            :: else
            fi;
            if
            :: solo_deaths[y] == SOLO_DEATHS -> state[y] = MR_FAILED; assert(y == POISON) /* mr_lane_poison */
            :: else
            fi
        :: else
        fi;
        y++
    :: else -> break
    od;
    y = 0;
    in_flight = 0;
    solo = 0
}

#define AT(x, s) ((x) < TICKETS && state[x] == (s))
#define ALL_DONE \
    (in_flight == 0 && !AT(0, MR_PENDING) && !AT(1, MR_PENDING) && !AT(2, MR_PENDING) && !AT(3, MR_PENDING))

init
{
    byte x, y;
    atomic {
        do
        :: x < TICKETS -> state[x] = MR_PENDING; x++
        :: else -> x = 0; break
        od
    };
    do
    :: ALL_DONE -> break
    /* mr_lane_claim */
    :: atomic {
           if
           :: AT(0, MR_PENDING) && MAY_START(0) -> x = 0
           :: AT(1, MR_PENDING) && MAY_START(1) -> x = 1
           :: AT(2, MR_PENDING) && MAY_START(2) -> x = 2
           :: AT(3, MR_PENDING) && MAY_START(3) -> x = 3
           fi;
           state[x] = MR_FILLING;
           in_flight++;
           solo = IS_SOLO(x);
           x = 0
       }
    /* mr_lane_publish of an innocent one */
    :: atomic {
           if
           :: AT(0, MR_FILLING) && POISON != 0 -> x = 0
           :: AT(1, MR_FILLING) && POISON != 1 -> x = 1
           :: AT(2, MR_FILLING) && POISON != 2 -> x = 2
           fi;
           state[x] = MR_READY;
           in_flight--;
           solo = 0;
           x = 0
       }
    /* the poison works */
    :: atomic { AT(POISON, MR_FILLING) -> die(true) }
    /* somebody sends SIGKILL */
    :: atomic { in_flight > 0 && kills < KILLS -> kills++; die(false) }
    od;
    assert(state[POISON] == MR_FAILED)
}
