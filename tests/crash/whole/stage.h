/* stage.h - one scenario, played with a death or another role's step at each instruction. */
#ifndef MR_CRASH_STAGE_H
#define MR_CRASH_STAGE_H

#include "tests/crash/whole/cast.h"

#define PEERS_MAX 5u

struct peer {
    const char *name;
    void (*act)(struct cast *cast);
};

struct scenario {
    const char *name; /* the function that is stepped, and in which case */
    enum role role;   /* whose process it is */
    unsigned producers, arena_pages, reserve_pages;
    uint64_t object_bytes;
    bool grows, no_memory, cells;
    uint32_t window; /* the only one it is made for; 0: each */
    void (*setup)(struct cast *cast);
    void (*op)(struct cast *cast);
    /* SUPERVISOR: what a second one does after the first one's death (recovery and its like: the same again), and what
     * follows in both cases. */
    void (*again)(struct cast *cast);
    void (*finish)(struct cast *cast);
    void (*check)(struct cast *cast); /* what must be true after the operation, if no one has died */
    bool kill_after;                  /* the process dies when the operation is done, whatever the peers did */
    struct peer peers[PEERS_MAX];
};

/* What came out; in memory that all processes of the harness share. */
struct result {
    unsigned instructions, states, drains, kills, peer_runs, failed;
    char text[1500];
};

extern const struct scenario scenarios[];
extern const unsigned scenario_count;

/* Plays it in a process of its own. all: recover and drain a copy at each instruction, not only where one differs. */
void stage_run(const struct scenario *scenario, uint32_t window, int mutant, bool all, struct result *result);

#endif
