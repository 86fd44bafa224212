/*
 * supervisor.h - the supervisor of a run, for the command line: one thread, one loop, no network, no shared lock;
 * nothing in it waits.
 *
 *     STARTING --(socket listens)--> RUNNING --(command ended, TERM, SHUTDOWN)--> DRAINING --> STOPPING --> gone
 *
 * DRAINING ends when nothing promised is left to do (drain.h: checkpoints), STOPPING when no child is left: the workers
 * are asked to finish, after STOP_MS they are killed. The state of a run is in run_impl.h, for this folder alone.
 */
#ifndef MR_SUPERVISOR_SUPERVISOR_H
#define MR_SUPERVISOR_SUPERVISOR_H

#include <stdbool.h>

struct mr_supervisor_options {
    const char *config_path; /* NULL: defaults */
    const char *socket_path; /* NULL: in a run folder of its own */
    const char *folder_path; /* private: the run folder, removed at the end; NULL */
    bool is_private;
    char *const *command;                /* run; NULL: serve */
    const char *index_uri, *index_place; /* index: what to list, and where to save it; NULL */
    bool index_checksums;                /* index: of all samples of tar shards */
    int verbosity;                       /* steps of log.level: -v is 1, -q is -1 */
};

/* Runs until the end; returns the exit status of the program. */
int mr_supervisor_main(const struct mr_supervisor_options *options);

/* Runs until the end; returns the exit status of the program. */
int mr_supervisor_main(const struct mr_supervisor_options *options);

#endif
