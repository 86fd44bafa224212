/* report.c - how a failure in one of the harness' processes reaches the table. */
#include "tests/crash/whole/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/crash/whole/cast.h"

struct result *report_result;
char report_where[400];

void fail(const char *fmt, ...)
{
    va_list args;

    if (report_result && !report_result->failed) {
        size_t at = (size_t)snprintf(report_result->text, sizeof report_result->text, "%s: ", report_where);
        report_result->failed = 1;
        va_start(args, fmt);
        vsnprintf(report_result->text + at, sizeof report_result->text - at, fmt, args);
        va_end(args);
    } else if (!report_result) {
        va_start(args, fmt);
        vfprintf(stderr, fmt, args);
        va_end(args);
        fputc('\n', stderr);
    }
    _exit(3);
}
