/* Room: two ranks that meet at a barrier after each batch, and the least memory that must be enough for them.
 *
 * Concern: each rank's consumer takes its own lane in order, holds a batch, and then waits for the other rank. No
 * process crashes, yet they can stop for ever: the memory holds samples that one rank will ask for only after the other
 * has got its own. The rules that prevent it: a reserve extent for heads alone, next() copies out of it, taking back,
 * `want` as a ticket's number, give-back of what does not fit. With two producers: home blocks, stealing, and a
 * producer that is stopped (SIGSTOP) with a claim in its hand.
 *
 * Processes: LANES consumers, PRODUCERS producers with EXTENTS normal extents and one reserve each, the supervisor
 * (recovers at once; it also kills and stops). Each step that the code does by one CAS is one step here; the choice
 * what to do next (mr_producer_next_job) reads everything in one step, and may be out of date when it is acted on.
 *
 * Checked: the run ends (every rank gets all of its N samples); with -DNP and weak fairness that no rank waits for ever
 * while the rest go round (livelock). With STOP one producer may stop for ever at any step: then the run ends, or some
 * rank waits for a ticket that the stopped one has claimed, or that is in its home block.
 *
 * Flags (sizes): W, BATCH, N (samples a rank), LANES 2, PRODUCERS, EXTENTS, BLOCK (tickets a block), QUOTA (tickets
 * posted and not released), KILLS (of producers), STOP, JOB (tickets that one claim may take: 1 or 2), FRESH_PLANS
(reading and the first CAS after it are one step: for large sizes).
 *
 * Mutants:
 *   NO_RESERVE          all extents serve any ticket
 *   NO_TAKE_BACK        what is in the reserve stays there until it is taken
 *   TAKE_BACK_WANTED    a ticket may be taken back although its own consumer waits for it
 *   WANT_FLAG           `want` says only that the consumer waits, not for which ticket
 *   CLEAR_WANT_FIRST    the consumer clears `want` before its CAS to HELD
 *   NO_GIVE_BACK        the rest of a job that does not fit stays FILLING until there is room
 *   NO_COPY             next() does not copy out of the reserve
 *
 * Abstracted: what is in the bytes (lane_life.pml), waking (everybody who has work sees it; wakeup.pml), the steps
 * inside recovery (recovery.pml), sizes (an extent holds one object).
 */
#include "ticket.pml"

#ifndef LANES
#define LANES 2
#endif
#ifndef W
#define W 2
#endif
#ifndef BATCH
#define BATCH 1
#endif
#ifndef N
#define N 4
#endif
#ifndef PRODUCERS
#define PRODUCERS 1
#endif
#ifndef EXTENTS
#define EXTENTS 1
#endif
#ifndef BLOCK
#define BLOCK 1
#endif
#ifndef QUOTA
#define QUOTA W
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef JOB
#define JOB 1
#endif

#define SLOTS (LANES * W)
#define SLOT(lane, n) ((lane) * W + (n) % W)
#define RESERVE EXTENTS
#define NO_EXTENT 255

/* How a planned claim finds its room. */
#define PLAN_NONE 0
#define PLAN_NORMAL 1
#define PLAN_RESERVE 2
#define PLAN_TAKE_BACK 3

/* Shared memory. The word is split, since its parts are looked at from C: */
byte state[SLOTS];
byte owner[SLOTS];  /* the producer of FILLING, READY; it stays under HELD as the descriptor's arena */
byte number[SLOTS]; /* lap * W + slot: the ticket's number */
byte extent[SLOTS];
byte want[LANES]; /* number + 1, or 0 */

/* The world around. */
byte arrived[LANES]; /* batches done */
byte ranks_done;
bool done;
bool kill[PRODUCERS], dead[PRODUCERS], stop[PRODUCERS], stopped;
byte kills;

/* What a producer has planned: the ticket, how, and whom it takes the reserve from. */
byte plan_x[PRODUCERS], plan_how[PRODUCERS], plan_victim[PRODUCERS]; /* victim: slot + 1 */

c_code {
    enum { PLANS_MAX = SLOTS + 1 };
    static int options_x[PLANS_MAX], options_how[PLANS_MAX], options_victim[PLANS_MAX];

    int is_busy(int p, int e)
    {
        int x;
        for (x = 0; x < SLOTS; x++)
            if ((now.state[x] == MR_FILLING || now.state[x] == MR_READY || now.state[x] == MR_HELD) &&
                now.owner[x] == p && now.extent[x] == e)
                return 1;
        return 0;
    }

    /* A free normal extent of p, or -1. */
    int free_extent(int p)
    {
        int e, extents = EXTENTS;
#ifdef NO_RESERVE
        extents++;
#endif
        for (e = 0; e < extents; e++)
            if (!is_busy(p, e))
                return e;
        return -1;
    }

    int home(int x) { return (x / W + now.number[x] / BLOCK) % PRODUCERS; }

    /* The lowest ticket of its lane that is PENDING or FILLING. */
    int is_head(int x)
    {
        int y, first = x / W * W;
        for (y = first; y < first + W; y++)
            if ((now.state[y] == MR_PENDING || now.state[y] == MR_FILLING) && now.number[y] < now.number[x])
                return 0;
        return 1;
    }

    /* A producer takes the tickets of its own blocks lowest first. */
    int is_lowest_of(int x, int p)
    {
        int y, first = x / W * W;
        for (y = first; y < first + W; y++)
            if (now.state[y] == MR_PENDING && home(y) == p && now.number[y] < now.number[x])
                return 0;
        return 1;
    }

    int is_wanted(int x)
    {
#ifdef WANT_FLAG
        return now.want[x / W] != 0;
#else
        return now.want[x / W] == now.number[x] + 1;
#endif
    }

    /* The READY ticket in p's reserve that may be taken back for x, or -1. */
    int victim_for(int x, int p)
    {
        int y;
#ifndef NO_TAKE_BACK
        for (y = 0; y < SLOTS; y++)
            if (now.state[y] == MR_READY && now.owner[y] == p && now.extent[y] == RESERVE) {
#if defined(TAKE_BACK_WANTED)
                return y;
#elif defined(WANT_FLAG)
                if (y / W != x / W && !is_wanted(y))
                    return y;
#else
                if (!is_wanted(y))
                    return y;
#endif
            }
#endif
        return -1;
    }

    int how(int x, int p)
    {
        if (free_extent(p) >= 0)
            return PLAN_NORMAL;
#ifndef NO_RESERVE
        if (!is_head(x))
            return PLAN_NONE;
        if (!is_busy(p, RESERVE))
            return PLAN_RESERVE;
        if (is_wanted(x) && victim_for(x, p) >= 0)
            return PLAN_TAKE_BACK;
#endif
        return PLAN_NONE;
    }

    void add_option(int x, int p, int *n)
    {
        int h = how(x, p);
        if (h == PLAN_NONE)
            return;
        options_x[*n] = x;
        options_how[*n] = h;
        options_victim[*n] = h == PLAN_TAKE_BACK ? victim_for(x, p) + 1 : 0;
        (*n)++;
    }

    /* What p may start now: its own tickets; another's only when none of its own can start, and then only a head, or a
     * ticket whose home is dead. */
    int options(int p)
    {
        int x, n = 0;
        for (x = 0; x < SLOTS; x++)
            if (now.state[x] == MR_PENDING && home(x) == p && is_lowest_of(x, p))
                add_option(x, p, &n);
        if (n)
            return n;
        for (x = 0; x < SLOTS; x++)
            if (now.state[x] == MR_PENDING && home(x) != p && (is_head(x) || now.dead[home(x)]))
                add_option(x, p, &n);
        return n;
    }

    void plan(int p, int j)
    {
        options(p);
        now.plan_x[p] = options_x[j];
        now.plan_how[p] = options_how[j];
        now.plan_victim[p] = options_victim[j];
    }

    /* The ticket after x, if p may add it to its job: same lane, its own block. -1: none. */
    int next_of_job(int x, int p)
    {
        int y, first = x / W * W;
        for (y = first; y < first + W; y++)
            if (now.state[y] == MR_PENDING && now.number[y] == now.number[x] + 1 && home(y) == p)
                return y;
        return -1;
    }

    /* A rank may wait for a stopped producer: it has the ticket, or it is the ticket's home. */
    int is_excused()
    {
        int x;
        for (x = 0; x < SLOTS; x++)
            if (now.want[x / W] == now.number[x] + 1 &&
                ((now.state[x] == MR_PENDING && now.stop[home(x)]) ||
                 (now.state[x] == MR_FILLING && now.stop[now.owner[x]])))
                return 1;
        return 0;
    }
}

c_decl {
    \#define OPTIONS_0 options(0)
    \#define OPTIONS_1 options(1)
    \#define ROOM_0 (free_extent(0) >= 0)
    \#define ROOM_1 (free_extent(1) >= 0)
    \#define EXCUSED is_excused()
    \#define NEXT_0 (next_of_job(now.plan_x[0], 0) >= 0)
    \#define NEXT_1 (next_of_job(now.plan_x[1], 1) >= 0)
}
#define CAN_START(p) ((p == 0 && c_expr { OPTIONS_0 }) || (p == 1 && c_expr { OPTIONS_1 }))
#define HAS_ROOM(p) ((p == 0 && c_expr { ROOM_0 }) || (p == 1 && c_expr { ROOM_1 }))
#define HAS_NEXT(p) ((p == 0 && c_expr { NEXT_0 }) || (p == 1 && c_expr { NEXT_1 }))

/* A word that names no extent any more; what it named is wiped, so that equal states look equal. */
inline unname(x, state_)
{
    owner[x] = 0;
    extent[x] = 0;
    state[x] = state_
}

/* mr_lane_take_back */
inline take_back()
{
    if
    :: state[plan_victim[p] - 1] == MR_READY && owner[plan_victim[p] - 1] == p ->
        unname(plan_victim[p] - 1, MR_PENDING);
        plan_how[p] = PLAN_RESERVE
    :: else -> plan_how[p] = PLAN_NONE /* its consumer was faster */
    fi
}

/* mr_lane_claim */
inline claim()
{
    if
    :: plan_how[p] != PLAN_NONE && state[plan_x[p]] == MR_PENDING ->
        if
        :: plan_how[p] == PLAN_RESERVE -> extent[plan_x[p]] = RESERVE
        :: else -> c_code { now.extent[now.plan_x[Pproducer->p]] = free_extent(Pproducer->p); }
        fi;
        owner[plan_x[p]] = p;
        state[plan_x[p]] = MR_FILLING
    :: else -> plan_how[p] = PLAN_NONE /* another producer was faster */
    fi;
    plan_victim[p] = 0
}

inline forget_plan()
{
    plan_x[p] = 0;
    plan_how[p] = PLAN_NONE;
    plan_victim[p] = 0;
    second = 0
}

proctype producer(byte p)
{
    byte j, n, second; /* second: slot + 1 of the job's other ticket */
start:
    {
        do
        :: done -> break

        /* mr_producer_next_job */
        :: atomic {
               !stop[p] && CAN_START(p) ->
               c_code { Pproducer->n = options(Pproducer->p); };
               do
               :: j + 1 < n -> j++
               :: break
               od;
               c_code { plan(Pproducer->p, Pproducer->j); };
               j = 0;
               n = 0;
#ifdef FRESH_PLANS
               if
               :: plan_how[p] != PLAN_TAKE_BACK -> claim()
               :: else -> take_back()
               fi
#endif
           };

#ifdef FRESH_PLANS
           if
           :: atomic { plan_victim[p] != 0 && !stop[p] -> claim() }
           :: plan_victim[p] == 0
           fi;
#else
           if
           :: atomic { plan_how[p] == PLAN_TAKE_BACK && !stop[p] -> take_back() }
           :: plan_how[p] != PLAN_TAKE_BACK
           fi;
           atomic { !stop[p] -> claim() };
#endif

#if JOB > 1
           /* A job of two: claimed ticket by ticket, and shrunk to what fits. */
           if
           :: atomic {
                  plan_how[p] == PLAN_NORMAL && HAS_NEXT(p) && !stop[p] ->
                  c_code { Pproducer->second = 1 + next_of_job(now.plan_x[Pproducer->p], Pproducer->p); };
                  state[second - 1] = MR_FILLING;
                  owner[second - 1] = p;
                  extent[second - 1] = NO_EXTENT
              };
              if
              :: atomic {
                     !stop[p] && HAS_ROOM(p) ->
                     c_code { now.extent[Pproducer->second - 1] = free_extent(Pproducer->p); }
                 }
              :: atomic {
                     !stop[p] && !HAS_ROOM(p) ->
#ifndef NO_GIVE_BACK
                     unname(second - 1, MR_PENDING); /* mr_lane_give_back */
                     second = 0
#endif
                 }
              fi
           :: true
           fi;
#endif

           /* mr_lane_publish */
           if
           :: plan_how[p] != PLAN_NONE ->
               atomic {
                   !stop[p] ->
                   assert(state[plan_x[p]] == MR_FILLING && owner[plan_x[p]] == p);
                   state[plan_x[p]] = MR_READY
               };
#if JOB > 1
               if
               :: second != 0 ->
#ifdef NO_GIVE_BACK
                   atomic {
                       HAS_ROOM(p) || extent[second - 1] != NO_EXTENT ->
                       if
                       :: extent[second - 1] == NO_EXTENT ->
                           c_code { now.extent[Pproducer->second - 1] = free_extent(Pproducer->p); }
                       :: else
                       fi
                   };
#endif
                   atomic { !stop[p] -> assert(state[second - 1] == MR_FILLING); state[second - 1] = MR_READY }
               :: else
               fi;
#endif
           :: else
           fi;
           atomic { forget_plan() }
        od
    } unless { kill[p] };
    if
    :: atomic { kill[p] && !done -> kill[p] = 0; dead[p] = 1; j = 0; n = 0; forget_plan() };
       if
       :: atomic { !dead[p] -> goto start }
       :: done
       fi
    :: done
    fi
}

/* mr_consumer_feed: posts what the window and the quota allow; over the quota only what next() waits for. */
inline post()
{
    atomic {
        do
        :: posted < N && (state[SLOT(a, posted)] == MR_EMPTY || state[SLOT(a, posted)] == MR_RELEASED) &&
           (posted - released < QUOTA || posted == next) ->
            number[SLOT(a, posted)] = posted;
            state[SLOT(a, posted)] = MR_PENDING;
            posted++
        :: else -> break
        od
    }
}

proctype consumer(byte a)
{
    byte next, x, posted, released;
    do
    :: next < N ->
        x = SLOT(a, next);
        post();

        /* mr_lane_take, or wait for it */
        do
        :: atomic {
               state[x] == MR_READY && number[x] == next ->
#ifdef CLEAR_WANT_FIRST
               skip
           };
           want[a] = 0;
           atomic {
               if
               :: state[x] == MR_READY -> state[x] = MR_HELD; break
               :: else
               fi
           }
#else
               state[x] = MR_HELD
           };
           want[a] = 0;
           break
#endif
        :: atomic { !(state[x] == MR_READY && number[x] == next) && want[a] == 0 -> want[a] = next + 1 }
        od;
        next++;
        if
#ifndef NO_COPY
        :: extent[x] == RESERVE -> atomic { unname(x, MR_RELEASED); released++ }
#endif
        :: else
        fi;
        post();

        /* The batch is whole: the step, the barrier, and its views go. */
        if
        :: next % BATCH == 0 || next == N ->
            arrived[a]++;
            (arrived[1 - a] >= arrived[a]);
progress:
            x = a * W;
            do
            :: x < a * W + W ->
                if
                :: state[x] == MR_HELD -> atomic { unname(x, MR_RELEASED); released++ }
                :: else
                fi;
                x++
            :: else -> break
            od;
            post()
        :: else
        fi
    :: else -> break
    od;
    atomic {
        ranks_done++;
        if
        :: ranks_done == LANES ->
            done = 1;
            stop[0] = 0; /* a stopped producer goes on (SIGCONT), and finds the end */
#if PRODUCERS > 1
            stop[1] = 0
#endif
        :: else
        fi
    }
}

inline recover(p)
{
    x = 0;
    do
    :: x < SLOTS ->
        if
        :: state[x] == MR_FILLING && owner[x] == p -> unname(x, MR_PENDING)
        :: else
        fi;
        x++
    :: else -> break
    od;
    x = 0;
    dead[p] = 0
}

proctype supervisor()
{
    byte x;
end:
    do
    :: atomic { dead[0] -> recover(0) }
    :: atomic { kills < KILLS && !done && !kill[0] && !dead[0] && !stop[0] -> kill[0] = 1; kills++ }
#if PRODUCERS > 1
    :: atomic { dead[1] -> recover(1) }
    :: atomic { kills < KILLS && !done && !kill[1] && !dead[1] && !stop[1] -> kill[1] = 1; kills++ }
#endif
#ifdef STOP
    :: atomic { !stopped && !done && !kill[0] && !dead[0] -> stop[0] = 1; stopped = 1 }
#if PRODUCERS > 1
    :: atomic { !stopped && !done && !kill[1] && !dead[1] -> stop[1] = 1; stopped = 1 }
#endif
#endif
    od
}

#ifdef STOP
/* Nobody can move: that is the end, or a wait that a stopped producer excuses. */
active proctype monitor()
{
    bool turn;
    if
    :: done
    :: timeout ->
        assert(done || c_expr { EXCUSED });
        do
        :: turn = !turn /* for ever, so that an excused wait is no invalid end state */
        od
    fi
}
#endif

init
{
    atomic {
        run consumer(0);
        run consumer(1);
        run producer(0);
#if PRODUCERS > 1
        run producer(1);
#endif
        run supervisor()
    }
}
