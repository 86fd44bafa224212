/* coverage.h - how often each function of the code under test was stopped in. */
#ifndef MR_CRASH_COVERAGE_H
#define MR_CRASH_COVERAGE_H

#include <stdint.h>

/* Once, before the first scenario: counters that all processes of the harness share. */
void coverage_open(void);
void coverage_count(uint64_t offset);
/* A line for each function: instructions tried, and at how many addresses. */
void coverage_print(void);

#endif
