/*
 * log.h - lines on standard error: "millrace[fetch 2] warning: text".
 *
 * One write(2) a line, so that lines of several processes do not mix. A message equal to the one before it (same
 * format, same text) is counted and not printed again; the count comes with the next different line, or
 * when the same one comes after 10 s. What may come by the thousand with another name each time has a limit.
 * Nothing here waits: while standard error is blocked, lines are kept, then counted and lost (log_sink.h).
 * No token, key or signed URL may be passed here. Not for signal handlers. Any thread may call it.
 */
#ifndef MR_BASE_LOG_H
#define MR_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum mr_log_level { MR_LOG_ERROR, MR_LOG_WARNING, MR_LOG_INFO, MR_LOG_DEBUG };

/* role: "supervisor", "fetch 2", ...; copied. The level starts at INFO. */
void mr_log_init(const char *role, enum mr_log_level level);
void mr_log_set_level(enum mr_log_level level);
enum mr_log_level mr_log_level_now(void);

void mr_log(enum mr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Of one kind of line: ten at once, and one in 10 s after them. Zeroed: none was written. Any thread may use it. */
struct mr_log_limit {
    int64_t spent_ns; /* when all ten may be written again */
    unsigned left_out;
};

/* Writes the line, with how many were left out before it, or counts it among those. */
void mr_log_limited(struct mr_log_limit *limit, enum mr_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A text as it is, for a terminal's progress line. */
void mr_log_show(const char *text);
/* Tries again what standard error did not take. True when nothing is left. */
bool mr_log_flush(void);

#define mr_log_error(...)   mr_log(MR_LOG_ERROR, __VA_ARGS__)
#define mr_log_warning(...) mr_log(MR_LOG_WARNING, __VA_ARGS__)
#define mr_log_info(...)    mr_log(MR_LOG_INFO, __VA_ARGS__)
#define mr_log_debug(...)   mr_log(MR_LOG_DEBUG, __VA_ARGS__)

#endif
