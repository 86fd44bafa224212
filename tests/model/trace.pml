/*
 * trace.pml - the ring of spans (shm/trace/trace.h): writers that never wait, one reader, deaths of both.
 *
 * Each writer has RECORDS records, each of two halves. A record is read whole; each one that was published is read;
 * the reader is never stuck behind a writer that died. KILLS deaths of writers, READERS readers one after the other,
 * each of which but the last may die at any step. Time-outs are left out: the reader passes over a slot once its writer
 * is dead. LATE: it may pass over a writer that lives, too (one that was stopped for a second). That one may then write
 * into another's record, so only the turns are checked: all end.
 *
 * Mutants: PUBLISH_FIRST (the turn before the record), NO_ROOM_CHECK (a writer does not look whether its slot was read),
 * FREE_FIRST (the slot is given back before it is read), NO_PASS_OVER, NO_SKIP (a reader takes the tail at its word),
 * STORE (with LATE: the turn is stored, and not changed by a CAS that fails once the reader has passed over).
 */
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef RECORDS
#define RECORDS 2
#endif
#ifndef KILLS
#define KILLS 1
#endif
#ifndef READERS
#define READERS 2
#endif
#define VALUES (WRITERS * RECORDS)
#define EMPTY(p) (2 * ((p) / SLOTS))
#ifdef LATE
#define MAY_PASS_OVER(p) true
#else
#define MAY_PASS_OVER(p) dead[owner[p]]
#endif

byte turn[SLOTS], first[SLOTS], second[SLOTS];
byte head, tail;
byte kills = KILLS;
/* What only the check knows. */
byte owner[VALUES];      /* of a position */
bool dead[WRITERS];
bool published[VALUES + 1], seen[VALUES + 1];
byte ended;

#define MAY_DIE(id) :: atomic { kills > 0 -> kills--; dead[id] = true; goto end }

proctype Writer(byte id)
{
    byte n = 0, h, s, value;

    do
    :: n == RECORDS -> break
    :: n < RECORDS ->
        n++;
        value = id * RECORDS + n;
        h = head;
again:
        s = h % SLOTS;
        if
#ifndef NO_ROOM_CHECK
        :: turn[s] < EMPTY(h) -> goto next /* full: lost */
#endif
        :: turn[s] > EMPTY(h) -> h = head; goto again
        :: else ->
            if
            :: atomic { head == h -> head++; owner[h] = id }
            :: head != h -> h = head; goto again
            fi
        fi;
        if
        :: skip
        MAY_DIE(id)
        fi;
#ifdef PUBLISH_FIRST
        atomic { turn[s] == EMPTY(h) -> turn[s] = EMPTY(h) + 1; published[value] = true };
#endif
        first[s] = value;
        if
        :: skip
        MAY_DIE(id)
        fi;
        second[s] = value;
        if
        :: skip
        MAY_DIE(id)
        fi;
#ifndef PUBLISH_FIRST
        atomic {
            if
#ifdef STORE
            :: turn[s] = EMPTY(h) + 1; published[value] = true
#else
            :: turn[s] == EMPTY(h) -> turn[s] = EMPTY(h) + 1; published[value] = true
            :: else
#endif
            fi
        };
#endif
next:   skip
    od;
end:
    atomic { ended++ }
}

proctype Reader()
{
    byte at = 0, s, x, y, left = READERS;

    do
    :: turn[at % SLOTS] == EMPTY(at) + 1 ->
        s = at % SLOTS;
#ifdef FREE_FIRST
        turn[s] = EMPTY(at) + 2;
#endif
        x = first[s];
        y = second[s];
#ifndef LATE
        assert(x == y);
#endif
        seen[x] = true;
#ifndef FREE_FIRST
        turn[s] = EMPTY(at) + 2;
#endif
        if /* it may die here, and another one comes */
        :: skip
        :: left > 1 -> left--; at = tail; goto another
        fi;
        at++;
        tail = at;
another:
        skip
#ifndef NO_SKIP
    :: turn[at % SLOTS] > EMPTY(at) + 1 -> at++
#endif
#ifndef NO_PASS_OVER
    :: atomic { turn[at % SLOTS] == EMPTY(at) && head > at && MAY_PASS_OVER(at) -> turn[at % SLOTS] = EMPTY(at) + 2; at++ }
#endif
    :: left > 1 -> left--; at = tail
    :: ended == WRITERS && head == at -> break
    od;
#ifndef LATE
    byte value = 1;
    do
    :: value > VALUES -> break
    :: else -> assert(!published[value] || seen[value]); value++
    od
#endif
}

init
{
    byte i = 0;

    atomic {
        do
        :: i == WRITERS -> break
        :: i < WRITERS -> run Writer(i); i++
        od;
        run Reader()
    }
}
