#include "base/bar.h"

#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH  20     /* characters */
#define MOST_S 360000 /* more is not an estimate */

unsigned mr_bar_columns(void)
{
    struct winsize window = {.ws_col = 0};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 80;
}

void mr_bar_put(char *out, size_t size, double share)
{
    static const char full[WIDTH + 1] = "====================";
    snprintf(out, size, "[%-*.*s] %3.0f%%", WIDTH, (int)(share * WIDTH + 0.5), full, share * 100);
}

void mr_bar_left(char *out, size_t size, double seconds)
{
    unsigned whole = seconds < MOST_S ? (unsigned)seconds : 0;
    out[0] = '\0';
    if (whole > 0)
        snprintf(out, size, "%u:%02u left", whole / 60, whole % 60);
}
