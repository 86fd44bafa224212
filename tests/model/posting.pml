/* Posting: what the consumer of one lane asks for, and when, while its user keeps views.
 *
 * Concern: the user may keep any view for ever (a list of samples, a traceback). mr_consumer_next must still deliver
 * every sample in order: it may never wait for a ticket that cannot be posted. Four rules see to it: it posts in blocks,
 * but also whenever it is about to wait for its head; a slot that is HELD is skipped; a take that would leave more than
 * 3/4 of the window or of the quota as views copies out at once; over the quota only the awaited ticket is posted.
 *
 * Processes: the consumer of one lane of N samples; its user, who drops any views at any time or none ever; a producer
 * that fills whatever is PENDING; the supervisor, which may shrink the quota at any time.
 *
 * Checked: the run ends, each sample is delivered once and in order, and never more than the window is held.
 *
 * Flags (sizes): W, N, POST_BLOCK (max(1, W/4) by the rule), QUOTA (bytes; objects have 1 or 2), SHRINK (the supervisor
 * rewrites the quota, down to 0).
 *
 * Mutants:
 *   NO_SKIP          a slot that is HELD stops posting until it is free
 *   NO_COPY          next() never copies out
 *   BLOCKS_ONLY      posts whole blocks only, also when it is about to wait
 *   QUOTA_BLOCKS     over the quota nothing is posted at all
 *
 * Abstracted: the producer (it always has room; barrier.pml), waking (wakeup.pml), close (lane_life.pml).
 */
#include "ticket.pml"

#ifndef W
#define W 4
#endif
#ifndef N
#define N 6
#endif
#ifndef POST_BLOCK
#define POST_BLOCK (W / 4)
#endif
#ifndef QUOTA
#define QUOTA W
#endif

byte state[W];
byte sample[W]; /* which sample a slot's ticket stands for: number and sample part where slots are skipped */
byte size[W];   /* bytes */
byte held, held_bytes, used_bytes;
byte quota = QUOTA;
bool done;

/* The consumer's private queue: samples posted and not yet delivered, by the slot of their ticket. */
byte slot_of[N];
byte posted;    /* samples */
byte delivered; /* samples */
byte slot;      /* next number to post, mod W */

#define FREE(x) (state[x] == MR_EMPTY || state[x] == MR_RELEASED)
#define ABOUT_TO_WAIT (posted == delivered)

inline count_free()
{
    free = 0;
    i = 0;
    do
    :: i < W ->
        if
        :: FREE(i) -> free++
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* mr_consumer_feed */
inline post_what_may_be()
{
    do
#ifndef NO_SKIP
    :: posted < N && state[slot] == MR_HELD && held < W -> slot = (slot + 1) % W /* this number names nothing */
#endif
    :: posted < N && FREE(slot) ->
        count_free();
        if
#ifdef BLOCKS_ONLY
        :: free >= POST_BLOCK && (used_bytes < quota || ABOUT_TO_WAIT) ->
#elif defined(QUOTA_BLOCKS)
        :: (free >= POST_BLOCK || ABOUT_TO_WAIT) && used_bytes < quota ->
#else
        :: (free >= POST_BLOCK || ABOUT_TO_WAIT) && (used_bytes < quota || ABOUT_TO_WAIT) ->
#endif
            if
            :: size[slot] = 1
            :: size[slot] = 2
            fi;
            used_bytes = used_bytes + size[slot];
            sample[slot] = posted;
            state[slot] = MR_PENDING; /* mr_lane_post */
            slot_of[posted] = slot;
            slot = (slot + 1) % W;
            posted++
        :: else -> break
        fi;
        free = 0
    :: else -> break
    od;
    free = 0
}

inline release(x)
{
    used_bytes = used_bytes - size[x];
    size[x] = 0;
    sample[x] = 0;
    state[x] = MR_RELEASED
}

active proctype consumer()
{
    byte i, free, x;
    do
    :: delivered < N ->
        atomic { post_what_may_be() };
        /* mr_consumer_next: waits for the head, and delivers a view or a copy */
        atomic {
            posted > delivered && state[slot_of[delivered]] == MR_READY ->
            x = slot_of[delivered];
            assert(sample[x] == delivered);
            slot_of[delivered] = 0;
            delivered++;
            if
#ifndef NO_COPY
            :: (held + 1) * 4 > 3 * W || (held_bytes + size[x]) * 4 > 3 * quota -> release(x)
            :: !((held + 1) * 4 > 3 * W || (held_bytes + size[x]) * 4 > 3 * quota) ->
#else
            :: true ->
#endif
                state[x] = MR_HELD;
                held++;
                held_bytes = held_bytes + size[x]
            fi;
            assert(held <= W);
            x = 0
        };
        /* The user drops some of the views, or none. */
        do
        :: atomic {
               x < W ->
               if
               :: state[x] == MR_HELD -> held--; held_bytes = held_bytes - size[x]; release(x)
               :: true
               fi;
               x++
           }
        :: x == W -> break
        od;
        x = 0
    :: else -> break
    od;
    done = 1
}

#define PENDING_AT(x) ((x) < W && state[x] == MR_PENDING)
active proctype producer()
{
    byte x;
    do
    :: atomic {
           if
           :: PENDING_AT(0) -> x = 0
           :: PENDING_AT(1) -> x = 1
           :: PENDING_AT(2) -> x = 2
           :: PENDING_AT(3) -> x = 3
           :: PENDING_AT(4) -> x = 4
           :: PENDING_AT(5) -> x = 5
           :: PENDING_AT(6) -> x = 6
           :: PENDING_AT(7) -> x = 7
           fi;
           state[x] = MR_READY;
           x = 0
       }
    :: done -> break
    od
}

#ifdef SHRINK
active proctype supervisor()
{
    if
    :: quota = 0
    :: quota = 1
    :: quota = QUOTA + 2
    :: true
    fi
}
#endif
