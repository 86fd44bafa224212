/* report.h - where fail() writes. */
#ifndef MR_CRASH_REPORT_H
#define MR_CRASH_REPORT_H

#include "tests/crash/whole/stage.h"

extern struct result *report_result; /* of the stage that this process belongs to; shared */
extern char report_where[400];       /* what this process is doing */

#endif
