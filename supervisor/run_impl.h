/*
 * run_impl.h - the whole state of a run, for the modules of this folder alone.
 *
 * Each module owns the member that has its name. It may read anything, and call what comes before it in the order of
 * supervisor/README.md. What it leaves for those after it, it records in its own member, in fields that name them ("for
 * fetch_workers.c"), or in one of the marks below; mr_supervisor_settle brings it there.
 */
#ifndef MR_SUPERVISOR_RUN_IMPL_H
#define MR_SUPERVISOR_RUN_IMPL_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/control/config.h"
#include "shm/ring/board.h"
#include "supervisor/batches.h"
#include "supervisor/ckpt_lanes.h"
#include "supervisor/clients.h"
#include "supervisor/command.h"
#include "supervisor/dataset.h"
#include "supervisor/dataset_end.h"
#include "supervisor/drain.h"
#include "supervisor/events.h"
#include "supervisor/fetch_workers.h"
#include "supervisor/heartbeat.h"
#include "supervisor/lanes.h"
#include "supervisor/limit.h"
#include "supervisor/listing.h"
#include "supervisor/machine.h"
#include "supervisor/meters.h"
#include "supervisor/oom.h"
#include "supervisor/reload.h"
#include "supervisor/run_folder.h"
#include "supervisor/tracing.h"
#include "supervisor/write_workers.h"

/* What the last line of metrics.interval_s has counted. */
struct mr_metrics_line {
    uint64_t interval_s; /* that the timer was set by */
    int64_t logged_ns;
    uint64_t objects, bytes, uploaded;
};

struct mr_supervisor {
    struct mr_events events;
    enum mr_supervisor_state state; /* supervisor.c, `enter` */
    struct mr_config config;
    const char *config_path; /* NULL: no file, defaults */
    int verbosity;           /* -v and -q: steps that the file's log level is moved */
    bool is_private;         /* started by the Python package: ends with its last client */
    bool orphans;            /* SIGCHLD came, and not all that may have ended is reaped */
    bool indexing;           /* `millrace index`: ends with its one data set, which has no readers */
    int index_status;        /* its exit status */
    char end_why[80];        /* why the end has been asked for; "": it has not. The first reason counts */
    struct mr_run_folder folder;
    char worker_path[PATH_MAX];
    char run_id[40];
    int run_lock; /* shm/control/run_lock.h; -1 */

    struct mr_board *board; /* written here alone */
    int board_fd;           /* read-only: what others get */
    int config_fd;          /* for workers */
    bool renewal_due;       /* a changed configuration has not been sent to the workers */
    int life[2];            /* workers hold the read end: it ends with us */
    uint64_t arena_bytes;   /* of all fetch workers */
    int64_t started_ns;

    struct mr_dataset *datasets[MR_DATASETS_MAX];
    uint64_t dataset_uses[MR_DATASETS_MAX]; /* how many data sets have had each number */
    struct mr_log_limit failures_logged;    /* of data sets */
    struct mr_listing listing;
    struct mr_lanes lanes;
    struct mr_fetch_workers fetch_workers;
    struct mr_ckpt_lanes ckpt_lanes;
    struct mr_write_workers write_workers;
    struct mr_heartbeat heartbeat;
    struct mr_oom oom;
    struct mr_clients clients;
    struct mr_batches batches;
    struct mr_meters meters;
    struct mr_tracing tracing;
    struct mr_machine machine;
    struct mr_limit limit;
    struct mr_command command;
    struct mr_drain drain;

    int signals; /* signalfd */
    struct mr_watch signal_watch;
    struct mr_timer stop_timer;
    struct mr_timer log_timer; /* standard error is blocked */
    struct mr_timer metrics_timer;
    struct mr_metrics_line metrics;
};

/* Asks for the end of the run; harmless when it has been asked for. */
static inline void mr_run_end(struct mr_supervisor *s, const char *why)
{
    if (s->end_why[0] == '\0')
        snprintf(s->end_why, sizeof s->end_why, "%s", why);
}

#endif
