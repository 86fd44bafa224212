/* Growth: an arena whose pages are made when they are needed, and given back when nothing is in use.
 *
 * Concern: which pages there are is known to the producer alone, and is lost with it. Its successor begins with none,
 * and learns from the words what lies where the arena had grown to. Nobody reads a page that is not there, or that was
 * given out twice; and nobody waits for ever where the machine has no memory.
 *
 * Processes: one producer, which is killed up to KILLS times, recovered from and started again; one consumer with
 * TICKETS tickets over SLOTS slots, which releases its views in any order and may keep one until the end.
 *
 * Checked: what a HELD word names is there, and has the bytes that were asked for; the run ends, and then no page is
 * left.
 *
 * Flags (sizes): PAGES behind the reserve, TICKETS, KILLS. NO_MEMORY: a page may be refused, now or for good.
 *
 * Mutants:
 *   SMALL_AFTER_RESTART  extents beyond the first pages are not looked for after a restart
 *   TRIM_BLINDLY         pages are given back when no claim is under way, whatever the words name
 *   FORGET_PAGES         what a predecessor had made behind the extents that are found is not given back
 *   NO_RESERVE           (with NO_MEMORY) the head has no page of its own
 *
 * Abstracted: sizes (an extent is a page); lanes, closing, quotas, stealing (lane_life.pml, barrier.pml); the reserve's
 * own growth, which is one page more of the same kind.
 */
#ifndef PAGES
#define PAGES 2
#endif
#ifndef TICKETS
#define TICKETS 3
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define SLOTS 2

#define EMPTY 0
#define PENDING 1
#define FILLING 2
#define READY 3
#define HELD 4
#define NOTHING 9 /* no slot */

/* Shared, or the kernel's: outlives the producer. Page 0 is the reserve. */
byte word[SLOTS], tag[SLOTS], extent[SLOTS];
bool there[PAGES + 1]; /* a page has memory */
byte content[PAGES + 1];
bool finished;

/* The producer's own: lost with it. */
bool fresh = true;    /* it begins */
byte usable;          /* pages 1 .. usable may be given out */
byte user[PAGES + 1]; /* the slot that a page was given to */
byte job = NOTHING;   /* the slot that it fills */
bool growing, trimming, refused;
bool trimmed; /* there is no page behind the usable ones */
byte kills;

/* L5: its word names the page no more. */
#define IS_FREE(p) (user[p] == NOTHING || word[user[p]] < FILLING || extent[user[p]] != p)
#define HAS_ROOM ((usable >= 1 && IS_FREE(1)) || (usable >= 2 && IS_FREE(2)))
#define MAY_GROW (usable < PAGES && !refused)
#ifdef NO_RESERVE
#define HAS_RESERVE false
#else
#define HAS_RESERVE IS_FREE(0)
#endif
#define IS_IDLE (!fresh && job == NOTHING && !growing && !trimming)
#define IS_WANTED (word[0] == PENDING || word[1] == PENDING)
#define HEAD (word[1] != PENDING || (word[0] == PENDING && tag[0] < tag[1]) -> 0 : 1)
#ifdef FORGET_PAGES
#define MAY_TRIM (usable > 0)
#else
#define MAY_TRIM (usable > 0 || !trimmed)
#endif
#ifdef TRIM_BLINDLY
#define ALL_FREE true
#else
#define ALL_FREE (IS_FREE(1) && IS_FREE(2))
#endif

/* mr_extents_rebuild: what the words name is in use, and there. */
inline rebuild()
{
    usable = 0;
    refused = false;
    trimmed = false;
    i = 0;
    do
    :: i <= PAGES -> user[i] = NOTHING; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < SLOTS ->
        if
#ifdef SMALL_AFTER_RESTART
        :: word[i] >= READY && extent[i] == 0 -> user[0] = i
#else
        :: word[i] >= READY ->
            user[extent[i]] = i;
            usable = (extent[i] > usable -> extent[i] : usable)
#endif
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= usable -> there[i] = true; i++ /* back_again: what is there already stays as it is */
    :: else -> break
    od
}

inline claim(p)
{
    job = HEAD;
    extent[job] = p;
    user[p] = job;
    word[job] = FILLING
}

active proctype producer()
{
    byte i;

    there[0] = true;
    do
    :: d_step { fresh -> rebuild(); job = NOTHING; growing = false; trimming = false; fresh = false }
    /* mr_producer_next_job */
    :: d_step { IS_IDLE && IS_WANTED && usable >= 1 && IS_FREE(1) -> claim(1) }
    :: d_step { IS_IDLE && IS_WANTED && usable >= 2 && IS_FREE(2) -> claim(2) }
    :: d_step { IS_IDLE && IS_WANTED && !HAS_ROOM && MAY_GROW -> growing = true }
    :: d_step { IS_IDLE && IS_WANTED && !HAS_ROOM && !MAY_GROW && HAS_RESERVE -> claim(0) }
    /* the page first, then the number of those that may be given out */
    :: d_step { !fresh && growing && !there[usable + 1] -> there[usable + 1] = true }
    :: d_step { !fresh && growing && there[usable + 1] -> usable++; growing = false }
#ifdef NO_MEMORY
    :: d_step { !fresh && growing && !there[usable + 1] -> refused = true; growing = false }
#endif
    /* the download, and mr_producer_publish */
    :: d_step { !fresh && job != NOTHING && content[extent[job]] != tag[job] -> content[extent[job]] = tag[job] }
    :: d_step { !fresh && job != NOTHING && content[extent[job]] == tag[job] -> word[job] = READY; job = NOTHING }
    /* mr_producer_trim: first nothing of it is given out, then the pages go */
    :: d_step { IS_IDLE && MAY_TRIM && ALL_FREE -> usable = 0; trimming = true }
    :: d_step {
           !fresh && trimming ->
           there[1] = false; there[2] = false; content[1] = 0; content[2] = 0;
           trimming = false;
           trimmed = true
       }
    /* a death, and recovery after the pidfd */
    :: d_step {
           !fresh && kills < KILLS && !finished ->
           kills++;
           word[0] = (word[0] == FILLING -> PENDING : word[0]);
           word[1] = (word[1] == FILLING -> PENDING : word[1]);
           fresh = true
       }
    :: finished && IS_IDLE && !MAY_TRIM -> assert(!there[1] && !there[2]); break
    od
}

#define IS_RIGHT(s) (there[extent[s]] && content[extent[s]] == tag[s])

active proctype consumer()
{
    byte posted, released, kept = NOTHING;

    do
    :: d_step { posted < TICKETS && word[0] == EMPTY -> posted++; tag[0] = posted; word[0] = PENDING }
    :: d_step { posted < TICKETS && word[1] == EMPTY -> posted++; tag[1] = posted; word[1] = PENDING }
    /* what lies in the reserve is copied out of it, and released at once */
    :: d_step { word[0] == READY -> assert(IS_RIGHT(0)); word[0] = HELD }
    :: d_step { word[1] == READY -> assert(IS_RIGHT(1)); word[1] = HELD }
    :: d_step { word[0] == HELD && kept != 0 -> assert(IS_RIGHT(0)); word[0] = EMPTY; released++ }
    :: d_step { word[1] == HELD && kept != 1 -> assert(IS_RIGHT(1)); word[1] = EMPTY; released++ }
    :: d_step { word[0] == HELD && kept == NOTHING && extent[0] != 0 -> kept = 0 }
    :: d_step { word[1] == HELD && kept == NOTHING && extent[1] != 0 -> kept = 1 }
    :: released + (kept != NOTHING -> 1 : 0) == TICKETS -> break
    od;
    if
    :: kept != NOTHING -> assert(IS_RIGHT(kept)); word[kept] = EMPTY
    :: else
    fi;
    finished = true
}
