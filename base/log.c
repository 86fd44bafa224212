#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log_sink.h"

#define LOG_LINE        1400
#define LOG_COLLAPSE_NS (10 * MR_SECOND_NS)
#define LIMIT_EVERY_NS  (10 * MR_SECOND_NS)
#define LIMIT_AT_ONCE   10

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static enum mr_log_level log_level = MR_LOG_INFO;
static char log_role[32] = "millrace";
static char last_line[LOG_LINE];
static unsigned last_repeats;
static int64_t last_ns;

static const char *const level_names[] = {"error", "warning", "info", "debug"};

void mr_log_init(const char *role, enum mr_log_level level)
{
    snprintf(log_role, sizeof log_role, "%s", role);
    log_level = level;
}

void mr_log_set_level(enum mr_log_level level)
{
    log_level = level;
}

enum mr_log_level mr_log_level_now(void)
{
    return log_level;
}

/* The caller holds log_lock. */
static void flush_repeats(void)
{
    if (last_repeats == 0)
        return;
    char line[96];
    int n = snprintf(line, sizeof line, "millrace[%s] the last line came %u more times\n", log_role, last_repeats);
    mr_log_sink_put(line, (size_t)n);
    last_repeats = 0;
}

/* left_out: lines of its kind before it. */
static void put(enum mr_log_level level, unsigned left_out, const char *fmt, va_list ap)
{
    char line[LOG_LINE], more[64] = "";
    if (left_out > 0)
        snprintf(more, sizeof more, " (before it, %u more of the kind)", left_out);
    size_t most = sizeof line - 2 - strlen(more);
    int n = snprintf(line, sizeof line, "millrace[%s] %s: ", log_role, level_names[level]);
    int m = vsnprintf(line + n, most + 1 - (size_t)n, fmt, ap);
    size_t length = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (length > most)
        length = most;
    memcpy(line + length, more, strlen(more) + 1);
    length += strlen(more);
    mr_error_make_printable(line);
    line[length] = '\n';
    line[length + 1] = 0;

    pthread_mutex_lock(&log_lock);
    int64_t now = mr_clock_mono_ns();
    if (strcmp(line, last_line) == 0 && now - last_ns < LOG_COLLAPSE_NS) {
        last_repeats++;
    } else {
        flush_repeats();
        memcpy(last_line, line, length + 2);
        last_ns = now;
        mr_log_sink_put(line, length + 1);
    }
    pthread_mutex_unlock(&log_lock);
}

void mr_log(enum mr_log_level level, const char *fmt, ...)
{
    if (level > log_level)
        return;
    va_list ap;
    va_start(ap, fmt);
    put(level, 0, fmt, ap);
    va_end(ap);
}

/* Whether a line may be written. Each that is spends 10 s of the 100 that there are. */
static bool limit_allows(struct mr_log_limit *limit, unsigned *left_out)
{
    pthread_mutex_lock(&log_lock);
    int64_t now = mr_clock_mono_ns();
    int64_t spent = (limit->spent_ns > now ? limit->spent_ns : now) + LIMIT_EVERY_NS;
    bool allowed = spent - now <= LIMIT_AT_ONCE * LIMIT_EVERY_NS;
    if (allowed) {
        limit->spent_ns = spent;
        *left_out = limit->left_out;
    }
    limit->left_out = allowed ? 0 : limit->left_out + 1;
    pthread_mutex_unlock(&log_lock);
    return allowed;
}

void mr_log_limited(struct mr_log_limit *limit, enum mr_log_level level, const char *fmt, ...)
{
    unsigned left_out;
    if (level > log_level || !limit_allows(limit, &left_out))
        return;
    va_list ap;
    va_start(ap, fmt);
    put(level, left_out, fmt, ap);
    va_end(ap);
}

void mr_log_show(const char *text)
{
    pthread_mutex_lock(&log_lock);
    mr_log_sink_put(text, strlen(text));
    pthread_mutex_unlock(&log_lock);
}

bool mr_log_flush(void)
{
    pthread_mutex_lock(&log_lock);
    bool done = mr_log_sink_flush();
    pthread_mutex_unlock(&log_lock);
    return done;
}
