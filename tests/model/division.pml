/* Divisions: the memory is divided anew, and nobody reads a sample in the arena of another division.
 *
 * Concern: the supervisor gives a division up (a worker cannot start) and makes other arenas for the next data set. A
 * process that mapped the old ones opens another lane: under READY words of the new division it must not read the old
 * memory, whose extents have the same numbers.
 *
 * Processes: the supervisor, which divides up to DIVISIONS times; one client, which opens LANES lanes one after the
 * other, takes one ticket of each, and maps the arenas as mr_client_views and mr_client_open_lane do; one producer, of
 * the present division: it ends and starts again with each.
 *
 * Checked: bytes that are delivered are those that were asked for; a sample is refused only where its lane is older than
 * the present division; the run ends.
 *
 * Flags (sizes): DIVISIONS, LANES. ANY_TIME: the memory is divided while a lane is open too, whose data set has failed
 * then (today's supervisor does not; the rules hold nevertheless).
 *
 * Mutants:
 *   KEEP_VIEWS        what was mapped once is used for ever
 *   BOARD_ONLY        the client compares with the board before it opens the lane, and not with the lane
 *   SERVE_OLD_LANES   (with ANY_TIME) workers of the new division are sent lanes of older ones, and
 *   NO_LOOK           the reader does not compare the descriptor's division with its own
 *
 * Abstracted: everything about a ticket but PENDING, READY, FAILED (lane_life.pml); one arena with one extent; old
 * arenas stay mapped for as long as their lane lives (references).
 */
#ifndef DIVISIONS
#define DIVISIONS 3
#endif
#ifndef LANES
#define LANES 3
#endif

#define NONE 0
#define PENDING 1
#define READY 2
#define FAILED 3

byte division;                /* the board's, the supervisor's and the producer's: its processes end before a new one */
byte content[DIVISIONS + 1];  /* the extent of each division's arena: the tag of what lies there */
byte word, tag, described;    /* the open lane's ticket; its request; the descriptor's division */
byte lane_division;           /* constant in the lane's segment */
bool open, finished;

/* The supervisor answers PRODUCERS and OPEN_LANE, each in one turn. */
inline map() { views = division }
inline open_lane() { d_step { open = true; lane_division = division; word = NONE; described = 0 } }

#ifdef ANY_TIME
#define MAY_DIVIDE true
#else
#define MAY_DIVIDE (!open)
#endif

active proctype supervisor()
{
    do
    :: d_step {
           division == 0 -> division = 1
       }
    :: d_step {
           MAY_DIVIDE && division > 0 && division < DIVISIONS && !finished -> division++
       }
#ifdef ANY_TIME
    /* mr_lanes_settle: the data set has failed, so have the tickets that wait; again for those posted later */
    :: d_step { open && word == PENDING && lane_division != division -> word = FAILED }
#endif
    :: finished -> break
    od
}

#ifdef SERVE_OLD_LANES
#define IS_SENT true
#else
#define IS_SENT (lane_division == division)
#endif

active proctype producer()
{
    do
    /* mr_lane_claim to mr_lane_publish. A division in between ends this process first: its ticket is PENDING again. */
    :: d_step {
           open && word == PENDING && IS_SENT -> content[division] = tag; described = division; word = READY
       }
    :: finished -> break
    od
}

active proctype client()
{
    byte views, n;

    division > 0;
    do
    :: n < LANES ->
        /* mr_client_views */
        if
#ifdef KEEP_VIEWS
        :: views == 0 -> map()
#else
        :: views != division -> map()
#endif
        :: else
        fi;
        open_lane();
        /* fit_views; BUSY where it does not fit even then */
#if !defined(KEEP_VIEWS) && !defined(BOARD_ONLY)
        if
        :: views != lane_division -> map()
        :: else
        fi;
        if
        :: views != lane_division -> goto closed
        :: else
        fi;
#endif
        d_step { tag = 1 + n; word = PENDING };
        (word == READY || word == FAILED);
        if
        :: word == FAILED -> assert(lane_division != division)
#ifndef NO_LOOK
        :: word == READY && described != views -> assert(lane_division != division) /* mr_views_at: refused */
        :: word == READY && described == views -> assert(content[views] == tag)
#else
        :: word == READY -> assert(content[views] == tag)
#endif
        fi;
closed: open = false;
        n++
    :: else -> break
    od;
    finished = true
}
