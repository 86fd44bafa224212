/*
 * tracee.h - a child process that does one operation, one instruction of the code under test at a time.
 *
 * The code under test is a shared library (CMakeLists.txt), so its instructions are told by their address. What it
 * calls outside (the C library, the replaced system calls) is run through, not counted; what qsort calls back is.
 */
#ifndef MR_CRASH_TRACEE_H
#define MR_CRASH_TRACEE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/crash/whole/cast.h"

enum stop {
    STOP_CODE,  /* before an instruction of the code under test */
    STOP_YIELD, /* it has handed the turn over: it waits, or its operation is done (status->op_done) */
    STOP_GONE,  /* it has ended: a failure, unless it was killed */
};

struct tracee {
    struct cast *cast;
    pid_t pid;
    int pidfd;
    uint64_t rip;
    uint32_t yields;
    bool was_out;  /* the last step went through code that is not under test */
    uint64_t back; /* it is in qsort, which calls the code under test and returns to here; else 0 */
};

/* Where a stop is: its address, and how many stops were at that address before. */
struct point {
    uint64_t rip;
    unsigned visits;
};

/* The code under test: its size, and an address in it as an offset. */
uint64_t tracee_code_size(void);
uint64_t tracee_code_offset(uint64_t rip);

/* Forks a child that stops before op. */
void tracee_start(struct tracee *tracee, struct cast *cast, void (*op)(struct cast *));
/* To the next instruction of the code under test. */
enum stop tracee_step(struct tracee *tracee);
/* Runs to a point, at full speed. Yields on the way end it. */
enum stop tracee_go(struct tracee *tracee, const struct point *point);
/* To the next yield. */
enum stop tracee_continue(struct tracee *tracee);
/* SIGKILL; returns when the pidfd is readable and the child has been waited for. */
void tracee_kill(struct tracee *tracee);
/* The process has ended, as the supervisor may know it. */
bool tracee_is_dead(const struct tracee *tracee);

#endif
