/*
 * step.h - runs one function of a scene in a child, instruction by instruction (ptrace, x86-64).
 *
 * Three ways to test a function, each over every instruction of it:
 *   on a copy   at each stop the block is copied and drained as if the child had died there;
 *   killed      at every 64th stop, and wherever a word has just changed, a child is really killed;
 *   peers       at each stop another participant acts, and the child goes on to its end.
 */
#ifndef MR_TESTS_CRASH_STEP_H
#define MR_TESTS_CRASH_STEP_H

#include "tests/crash/scene.h"

enum phase { PHASE_BEFORE, PHASE_RUNNING, PHASE_WAITING, PHASE_DONE };

/* What the child did, in shared memory. */
struct outcome {
    _Atomic int phase;
    bool timed_out; /* it waited in vain */
    bool ok;
    int rc;
    uint64_t word;
    struct mr_request request;
    struct mr_descriptor desc;
    struct mr_job job;
    struct mr_delivery got;
    char problem[200];
};

struct function {
    const char *name;
    struct dead dead; /* whom the death of the child makes dead */
    unsigned pages;   /* of each arena, beside reserve and spare */
    bool slow;        /* thousands of instructions, most of them the C library's: not in a quick run */
    bool only_peer;   /* it would block when nobody acts */
    bool reclaim;     /* peer: the child is killed first (a mutant forgets that) */
    void (*build)(struct scene *scene);
    void (*run)(struct scene *scene, struct outcome *outcome);
    /* Only in the child, after the run and not stepped: what it could see. May be NULL. */
    void (*observe)(struct scene *scene, struct outcome *outcome);
    /* Writes what was done into the record: NULL, or what is wrong. */
    const char *(*record)(struct scene *scene, const struct outcome *outcome);
    void (*peer)(struct scene *scene); /* what acts in between; NULL: nobody could interfere */
};

struct counts {
    unsigned instructions, kills, peers, failures;
};

/* Runs all three; prints the first failures. Functions longer than peers_max are sampled in the third. */
void step_function(const struct function *function, uint32_t window, unsigned peers_max, struct counts *counts);

#endif
