/* Cells: one request for tickets of two lanes, into memory that they share.
 *
 * Concern: the memory of such a job is one, its tickets are several, of lanes that end each in its own time. Nobody
 * reads bytes of another sample: not when a lane is closed while the request is under way, and not after the producer's
 * death, when its successor learns from each lane's words what is in use.
 *
 * Processes: one producer, killed up to KILLS times, with memory for one job of two pieces; two consumers, one a lane,
 * with TICKETS tickets one after the other. Each may close its lane at any time.
 *
 * Checked: what is READY and HELD has the bytes that were asked for; the run ends.
 *
 * Flags (sizes): TICKETS, KILLS.
 *
 * Mutants:
 *   GIVE_BACK_ONE  a closed lane's ticket is given back while the request goes on for the other lane
 *   ONE_LANE       a successor takes the memory to be that of the lane that it has read last
 *
 * Abstracted: gaps between the pieces, which nobody reads; which tickets are neighbours (test_cells.c); patience, which
 * only delays a claim; several jobs, sizes, the reserve (barrier.pml).
 */
#ifndef TICKETS
#define TICKETS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif

#define EMPTY 0
#define PENDING 1
#define FILLING 2
#define READY 3
#define HELD 4

/* Shared. */
byte word[2], tag[2];  /* of lane l's ticket: its state, and which object it asks for */
byte place[2];         /* its piece of the memory */
bool closed[2];
byte content[2];       /* of the pieces */
byte ended;            /* lanes */

/* The producer's own. */
bool reading;          /* a request is under way */
byte at;               /* the piece that comes next */
byte wanted[2];        /* what the request brings there; 0: nothing, or a gap */
byte lane_of[2];       /* whose ticket the piece is of */
byte late[2];          /* what a request that nobody waits for has still to write */
bool fresh = true;
byte owner = 2;        /* ONE_LANE: whose the memory is; 2: by the words */
byte kills;

#define NAMES(l) (word[l] >= FILLING)
#ifdef ONE_LANE
#define IS_FREE (owner < 2 -> !NAMES(owner) : !NAMES(0) && !NAMES(1))
#else
#define IS_FREE (!NAMES(0) && !NAMES(1))
#endif
#define IS_IDLE (!fresh && !reading)
/* Nobody waits for what is left of the request. */
#define IS_LEFT(p) (wanted[p] != 0 && at <= p)
#define IS_STALE ((!IS_LEFT(0) || closed[lane_of[0]]) && (!IS_LEFT(1) || closed[lane_of[1]]))

inline claim(l, p)
{
    word[l] = FILLING;
    place[l] = p;
    wanted[p] = tag[l];
    lane_of[p] = l
}

inline begin()
{
    reading = true;
    at = 0;
    owner = 2
}

active proctype producer()
{
    do
    /* mr_extents_rebuild, lane after lane */
    :: d_step { fresh && ended < 2 -> fresh = false; owner = (word[1] >= READY -> 1 : (word[0] >= READY -> 0 : 2)) }
    /* mr_cells_plan: what is PENDING, in one request; alone it lies at either place */
    :: d_step { IS_IDLE && IS_FREE && word[0] == PENDING && word[1] == PENDING -> claim(0, 0); claim(1, 1); begin() }
    :: d_step { IS_IDLE && IS_FREE && word[0] == PENDING && word[1] != PENDING -> claim(0, 0); begin() }
    :: d_step { IS_IDLE && IS_FREE && word[0] == PENDING && word[1] != PENDING -> claim(0, 1); begin() }
    :: d_step { IS_IDLE && IS_FREE && word[0] != PENDING && word[1] == PENDING -> claim(1, 0); begin() }
    :: d_step { IS_IDLE && IS_FREE && word[0] != PENDING && word[1] == PENDING -> claim(1, 1); begin() }
    /* bytes come in order; a ticket is published with its last one, the request goes on */
    :: d_step { reading && at < 2 && wanted[at] == 0 -> at++ }
    :: d_step { reading && at < 2 && wanted[at] != 0 && content[at] != wanted[at] -> content[at] = wanted[at] }
    :: d_step {
           reading && at < 2 && wanted[at] != 0 && content[at] == wanted[at] ->
           word[lane_of[at]] = (closed[lane_of[at]] -> EMPTY : READY); /* with the second look */
           wanted[at] = 0;
           at++
       }
    :: d_step { reading && at == 2 -> reading = false }
    /* mr_jobs_give_back: the request is cancelled first */
    :: d_step {
           reading && (IS_LEFT(0) || IS_LEFT(1)) && IS_STALE ->
           reading = false;
           word[lane_of[0]] = (IS_LEFT(0) -> EMPTY : word[lane_of[0]]);
           word[lane_of[1]] = (IS_LEFT(1) -> EMPTY : word[lane_of[1]]);
           wanted[0] = 0;
           wanted[1] = 0
       }
#ifdef GIVE_BACK_ONE
    :: d_step {
           reading && at <= 1 && wanted[1] != 0 && closed[lane_of[1]] ->
           word[lane_of[1]] = EMPTY;
           late[1] = wanted[1];
           wanted[1] = 0
       }
    :: d_step { late[1] != 0 -> content[1] = late[1]; late[1] = 0 }
#endif
    /* a death, and recovery after the pidfd */
    :: d_step {
           !fresh && kills < KILLS ->
           kills++;
           word[0] = (word[0] == FILLING -> (closed[0] -> EMPTY : PENDING) : word[0]);
           word[1] = (word[1] == FILLING -> (closed[1] -> EMPTY : PENDING) : word[1]);
           reading = false;
           wanted[0] = 0;
           wanted[1] = 0;
           late[1] = 0;
           fresh = true
       }
    :: ended == 2 && !reading -> break
    od
}

#define IS_RIGHT(l) (content[place[l]] == tag[l])

proctype consumer(byte l)
{
    byte posted, released;

    do
    :: d_step { posted < TICKETS && word[l] == EMPTY -> posted++; tag[l] = 4 * l + posted; word[l] = PENDING }
    :: d_step { word[l] == READY -> assert(IS_RIGHT(l)); word[l] = HELD }
    :: d_step { word[l] == HELD -> assert(IS_RIGHT(l)); word[l] = EMPTY; released++ }
    :: released == TICKETS -> break
    :: d_step { word[l] != HELD -> closed[l] = true; word[l] = (word[l] == FILLING -> FILLING : EMPTY) } -> break
    od;
    word[l] != FILLING; /* the lane drains */
    ended++
}

init {
    atomic {
        run consumer(0);
        run consumer(1)
    }
}
