/* How a check of doctor is reported: a line, or an object of a JSON document. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json_text.h"
#include "cli/doctor_impl.h"

void mr_doctor_report(struct mr_doctor *doctor, const char *level, const char *what, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    char text[1400];
    vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    doctor->fails += strcmp(level, "fail") == 0;
    doctor->notes += strcmp(level, "note") == 0;
    if (doctor->checks) {
        json_array_append_new(doctor->checks, json_pack("{s:s, s:s, s:o}", "status", level, "check", what, "text",
                                                        mr_json_from_text(text)));
        return;
    }
    mr_error_make_printable(text);
    printf("%-5s %-14s %s\n", strcmp(level, "fail") == 0 ? "FAIL" : level, what, text);
    fflush(stdout);
}
