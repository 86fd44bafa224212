/*
 * supervisor.h - the supervisor: one thread, one loop, no network, no shared lock; nothing in here waits.
 *
 *     STARTING --(socket listens)--> RUNNING --(command ended, TERM, SHUTDOWN)--> DRAINING --> STOPPING --> gone
 *
 * DRAINING ends when nothing promised is left to do (drain.h: checkpoints), STOPPING when no child is left: the
 * workers are asked to finish, after STOP_MS they are killed. mr_supervisor_enter is the one transition function.
 * The modules beside this one each own their part of the structure; this header is for them and main.c alone.
 */
#ifndef MR_SUPERVISOR_SUPERVISOR_H
#define MR_SUPERVISOR_SUPERVISOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/control/config.h"
#include "shm/ring/board.h"
#include "supervisor/ckpt_lanes.h"
#include "supervisor/clients.h"
#include "supervisor/command.h"
#include "supervisor/dataset.h"
#include "supervisor/drain.h"
#include "supervisor/events.h"
#include "supervisor/fetch_workers.h"
#include "supervisor/lanes.h"
#include "supervisor/listing.h"
#include "supervisor/run_folder.h"
#include "supervisor/write_workers.h"

/* What the last line of metrics.interval_s has counted. */
struct mr_metrics_line {
    int64_t logged_ns;
    uint64_t objects, bytes, uploaded;
};

struct mr_supervisor {
    struct mr_events events;
    enum mr_supervisor_state state;
    struct mr_config config;
    const char *config_path; /* NULL: no file, defaults */
    int verbosity;           /* -v and -q: steps that the file's log level is moved */
    bool is_private;         /* started by the Python package: ends with its last client */
    bool indexing;           /* `millrace index`: ends with its one data set, which nobody reads */
    int index_status;        /* its exit status */
    struct mr_run_folder folder;
    char worker_path[PATH_MAX];
    char run_id[40];

    struct mr_board *board; /* written here alone */
    int board_fd;           /* read-only: what others get */
    int config_fd;          /* for workers */
    int life[2];            /* workers hold the read end: it ends with us */
    uint64_t arena_bytes;   /* of all fetch workers */
    int64_t started_ns;

    struct mr_dataset *datasets[MR_DATASETS_MAX];
    struct mr_listing listing;
    struct mr_fetch_workers fetch_workers;
    struct mr_lanes lanes;
    struct mr_write_workers write_workers;
    struct mr_ckpt_lanes ckpt_lanes;
    struct mr_drain drain;
    struct mr_clients clients;
    struct mr_command command;

    int signals; /* signalfd */
    struct mr_watch signal_watch;
    struct mr_timer stop_timer;
    struct mr_timer metrics_timer;
    struct mr_metrics_line metrics;
};

struct mr_supervisor_options {
    const char *config_path; /* NULL: defaults */
    const char *socket_path; /* NULL: in a run folder of its own */
    const char *folder_path; /* private: the run folder, removed at the end; NULL */
    bool is_private;
    char *const *command;                /* run; NULL: serve */
    const char *index_uri, *index_place; /* index: what to list, and where to save it; NULL */
    int verbosity;                       /* steps of log.level: -v is 1, -q is -1 */
};

/* Runs until the end; returns the exit status of the program. */
int mr_supervisor_main(const struct mr_supervisor_options *options);

/* The data set of `millrace index` is saved (OK), or has failed. */
void mr_supervisor_index_ended(struct mr_supervisor *s, enum mr_code code);
/* Begins the end; harmless when it has begun. */
void mr_supervisor_drain(struct mr_supervisor *s, const char *why);
/* Nothing that was promised is left to do, or it was given up: DRAINING ends. */
void mr_supervisor_drained(struct mr_supervisor *s);
/* The process of a child is gone and it will not be started again. */
void mr_supervisor_child_ended(struct mr_supervisor *s);
/* The command of `run` has ended. */
void mr_supervisor_command_ended(struct mr_supervisor *s);
/* Rereads the file and applies what can be applied; text: what has changed and what needs a restart. 0 or -1. */
int mr_supervisor_reload(struct mr_supervisor *s, char *text, size_t size);

#endif
