/*
 * stepper.h - a function in a child that is single-stepped (ptrace, x86-64), for harnesses that kill it anywhere.
 */
#ifndef TESTS_CRASH_STEPPER_H
#define TESTS_CRASH_STEPPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Prints what and errno, and ends with status 2: the harness itself is at a loss. */
void stepper_die(const char *what);
/* A stopped child that runs `run(scene)`. phase, which it shares with us, is 1 from its first instruction on and 2 after
 * its last. */
pid_t stepper_spawn(void (*run)(void *scene), void *scene, _Atomic uint32_t *phase);
void stepper_step(pid_t child);
/* Kills it, or lets it go on to its end; either way it is gone, as a readable pidfd says. */
void stepper_end(pid_t child, bool by_kill);

#endif
