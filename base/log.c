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

void mr_log(enum mr_log_level level, const char *fmt, ...)
{
    if (level > log_level)
        return;
    char line[LOG_LINE];
    int n = snprintf(line, sizeof line, "millrace[%s] %s: ", log_role, level_names[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    size_t length = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length] = 0;
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
