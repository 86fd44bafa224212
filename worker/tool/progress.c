#include "worker/tool/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bar.h"
#include "base/clock.h"
#include "base/size.h"

#define EVERY_NS (100 * MR_MILLISECOND_NS)
#define FIRST_NS (300 * MR_MILLISECOND_NS) /* a command that ends before is not shown at all */

void mr_progress_begin(struct mr_progress *progress, const char *what, uint64_t total, bool bytes)
{
    *progress = (struct mr_progress){.shown = isatty(STDERR_FILENO) == 1,
                                     .what = what,
                                     .bytes = bytes,
                                     .total = total,
                                     .began_ns = mr_clock_mono_ns()};
}

static const char *amount(const struct mr_progress *progress, double value, char out[32])
{
    if (progress->bytes)
        return mr_size_text(value, out);
    snprintf(out, 32, "%.0f", value);
    return out;
}

void mr_progress_update(struct mr_progress *progress, uint64_t done)
{
    int64_t now_ns = mr_clock_mono_ns();
    if (!progress->shown || now_ns - progress->began_ns < FIRST_NS || now_ns - progress->drawn_ns < EVERY_NS)
        return;
    progress->drawn_ns = now_ns;
    double rate = (double)done / ((double)(now_ns - progress->began_ns) / 1e9);
    unsigned columns = mr_bar_columns();
    char so_far[32];
    amount(progress, (double)done, so_far);
    char speed[32];
    amount(progress, rate, speed);
    char line[300];
    if (progress->total > 0 && done <= progress->total) {
        char left[32], filled[48], of[32];
        mr_bar_left(left, sizeof left, rate > 0 ? (double)(progress->total - done) / rate : 0);
        mr_bar_put(filled, sizeof filled, (double)done / (double)progress->total);
        snprintf(line, sizeof line, "%s  %s of %s  %s/s%s%s  ", filled, so_far,
                 amount(progress, (double)progress->total, of), speed, left[0] ? "  " : "", left);
    } else {
        snprintf(line, sizeof line, "%s  %s/s  ", so_far, speed);
    }
    unsigned used = (unsigned)strlen(line);
    if (used < columns) /* the name fills what is left of the line */
        snprintf(line + used, sizeof line - used, "%.*s", (int)(columns - used - 1), progress->what);
    fprintf(stderr, "\r%.*s\033[K", (int)columns - 1, line);
}

void mr_progress_end(struct mr_progress *progress)
{
    if (progress->shown && progress->drawn_ns > 0)
        fputs("\r\033[K", stderr);
    progress->shown = false;
}
