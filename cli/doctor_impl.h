/* doctor_impl.h - private to doctor.c, doctor_local.c (the checks of this machine) and doctor_report.c. */
#ifndef MR_CLI_DOCTOR_IMPL_H
#define MR_CLI_DOCTOR_IMPL_H

#include <jansson.h>

#include "shm/control/config.h"

struct mr_doctor {
    json_t *checks; /* NULL: text is printed */
    unsigned fails, notes;
};

/* level: "ok", "note" (nothing fails, but read it) or "fail"; text: what was found, and unless ok what to do. */
void mr_doctor_report(struct mr_doctor *doctor, const char *level, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* All checks that need no network. */
void mr_doctor_local(struct mr_doctor *doctor, const struct mr_config *config);

#endif
