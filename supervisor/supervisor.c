/*
 * supervisor.c - see supervisor.h. mr_supervisor_settle is the only place where decisions follow from events, and
 * supervisor_enter() the only one that changes the state of the run, which moves forward only. The loop ends when no
 * child is left.
 */
#include "supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "shm/control/run_lock.h"
#include "shm/memory/segment.h"
#include "supervisor/config_toml.h"
#include "supervisor/run_impl.h"
#include "supervisor/stat.h"

#define STOP_MS      3000 /* for workers to finish what is in flight */
#define LOG_RETRY_MS 200  /* lines that standard error did not take */
#define ROUNDS_MAX   1000 /* of settle; far more than there are things that can wait for one another */
#define WORKER_NAME  "millrace-worker"

/* ---- metrics ---- */

static void metrics_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, metrics_timer);
    mr_stat_log(s);
    mr_events_start(&s->events, timer, (unsigned)s->config.metrics.interval_s * 1000);
}

/* At the start, and after a reload that has changed the interval. */
static void set_metrics(struct mr_supervisor *s)
{
    if (s->metrics.interval_s == s->config.metrics.interval_s)
        return;
    s->metrics.interval_s = s->config.metrics.interval_s;
    mr_events_stop(&s->events, &s->metrics_timer);
    if (s->metrics.interval_s > 0)
        mr_events_start(&s->events, &s->metrics_timer, (unsigned)s->metrics.interval_s * 1000);
}

/* ---- states ---- */

static bool any_process(const struct mr_supervisor *s)
{
    return mr_listing_any(s) || mr_fetch_workers_mask(s) != 0 || mr_write_workers_any(s);
}

static bool supervisor_is_ours(const struct mr_supervisor *s, pid_t pid)
{
    bool ours = pid == s->command.pid;
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        ours |= pid == s->listing.workers[i].pid;
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        ours |= pid == s->fetch_workers.workers[i].pid;
    for (unsigned i = 0; i < s->write_workers.count; i++)
        ours |= pid == s->write_workers.workers[i].pid;
    return ours;
}

static void kill_children(struct mr_supervisor *s)
{
    mr_listing_kill(s);
    mr_fetch_workers_kill(s);
    mr_write_workers_kill(s);
}

/* The one place where the state changes, forwards only; mr_supervisor_settle decides when. */
static void supervisor_enter(struct mr_supervisor *s, enum mr_supervisor_state state)
{
    s->state = state;
    atomic_store_explicit(&s->board->state, state, memory_order_release);
    if (state == MR_SUP_DRAINING) {
        if (s->command.ended || s->is_private) { /* no reader is left: their memory may be needed elsewhere */
            mr_listing_drain(s);
            mr_fetch_workers_drain(s);
        }
        if (s->is_private)
            mr_run_folder_make_way(&s->folder); /* a job that is started again need not wait for our saves */
        mr_drain_begin(s);
    }
    if (state == MR_SUP_STOPPING) {
        mr_listing_drain(s);
        mr_fetch_workers_drain(s);
        mr_write_workers_drain(s);
        mr_lanes_wake_all(s); /* readers check the state */
        mr_events_start(&s->events, &s->stop_timer, STOP_MS);
    }
}

/* `millrace index`: its data set is saved, or has failed. */
static void settle_indexing(struct mr_supervisor *s)
{
    const struct mr_dataset *dataset = s->datasets[0];
    if (!s->indexing || s->end_why[0] != '\0' || !dataset || (!dataset->indexed && dataset->state != MR_DATASET_FAILED))
        return;
    bool failed = dataset->state == MR_DATASET_FAILED;
    s->index_status = failed ? mr_code_exit_status((enum mr_code)s->board->dataset[0].code) : 0;
    mr_run_end(s, "the index is made");
}

/*
 *   STARTING -> RUNNING   the socket listens (run)
 *   RUNNING  -> DRAINING  the end was asked for: no new data sets or lanes; what was promised is still done
 *   DRAINING -> STOPPING  nothing promised is left: the workers end, and the loop with the last of them
 */
static bool settle_state(struct mr_supervisor *s)
{
    settle_indexing(s);
    if (s->state == MR_SUP_RUNNING && s->end_why[0] != '\0') {
        if (!s->indexing)
            mr_log_info("ending: %s", s->end_why);
        supervisor_enter(s, MR_SUP_DRAINING);
        return true;
    }
    bool changed = mr_drain_settle(s);
    if (s->state == MR_SUP_DRAINING && s->drain.over) {
        supervisor_enter(s, MR_SUP_STOPPING);
        return true;
    }
    return changed;
}

/*
 * As process 1 of a container or as a subreaper we inherit orphans, and as what a shell became its children: no other
 * process would reap them. Our own children are left to their pidfds. True: one of those stands in front of others, and
 * its pidfd is readable, so the loop comes back.
 */
static bool reap_orphans(const struct mr_supervisor *s)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return false;
        if (supervisor_is_ours(s, info.si_pid))
            return true;
        waitpid(info.si_pid, NULL, 0);
    }
}

/*
 * After each batch of events, which have only recorded what has happened: brings everything to rest, in the order of
 * the modules (README.md), and repeats until nothing changes. What a later step leaves for an earlier one is done in
 * the next round. Each change is a step forward of some state machine (a slot, a data set, a lane, a client, the run),
 * and none of them has a way back without another event, so the rounds end; the bound is for a mistake.
 */
static void mr_supervisor_settle(struct mr_supervisor *s)
{
    bool changed = true;
    if (s->orphans)
        s->orphans = reap_orphans(s);
    for (unsigned round = 0; changed && round < ROUNDS_MAX; round++) {
        changed = mr_listing_settle(s);
        changed |= mr_lanes_settle(s);
        changed |= mr_fetch_workers_settle(s);
        changed |= mr_dataset_end_settle(s);
        changed |= mr_ckpt_lanes_settle(s);
        changed |= mr_write_workers_settle(s);
        changed |= mr_clients_settle(s);
        changed |= settle_state(s);
    }
    if (changed)
        mr_log_error("the supervisor does not come to rest: please report it");
    set_metrics(s);
    if (!mr_log_flush() && !s->log_timer.active)
        mr_events_start(&s->events, &s->log_timer, LOG_RETRY_MS);
}

/* The settle after it tries the log again. */
static void log_due(struct mr_timer *timer)
{
    (void)timer;
}

static void stop_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, stop_timer);
    mr_log_warning("workers did not end within %d s and are killed", STOP_MS / 1000);
    kill_children(s);
}

/* ---- signals ---- */

/* While a command runs, it decides what a signal means: all are passed on to it. Otherwise the first SIGINT, SIGTERM or
 * SIGQUIT drains and the second stops at once. */
static void supervisor_on_signal(struct mr_supervisor *s, const struct signalfd_siginfo *info)
{
    if (info->ssi_signo == SIGCHLD) {
        s->orphans = true; /* for settle: after our own children, which stand in their way, are reaped */
        return;
    }
    if (s->command.pid != 0) {
        s->drain.term |= info->ssi_signo == SIGTERM;
        mr_command_signal(s, info);
        return;
    }
    char why[64], text[2000];
    switch (info->ssi_signo) {
    case SIGINT:
    case SIGTERM:
    case SIGQUIT:
        if (s->state == MR_SUP_DRAINING && !mr_drain_signal(s, (int)info->ssi_signo))
            return;
        if (s->state >= MR_SUP_DRAINING) {
            mr_log_warning("a second signal: stopping at once");
            mr_drain_stop(s, "a second signal stopped the run");
            kill_children(s);
            return;
        }
        s->drain.warned = true;
        if (s->index_status != 0)
            s->index_status = 128 + (int)info->ssi_signo;
        snprintf(why, sizeof why, "signal %s", sigabbrev_np((int)info->ssi_signo));
        mr_run_end(s, why);
        return;
    case SIGHUP:
        if (!s->config_path)
            mr_run_end(s, "the terminal has gone");
        else if (mr_reload(s, text, sizeof text) != 0)
            mr_log_error("the configuration was not reread: %s", mr_error_text());
        return;
    case SIGTSTP:
        mr_process_stop();
        return;
    default:
        return;
    }
}

static void signals_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(watch, mr_supervisor, signal_watch);
    (void)epoll_events;
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        supervisor_on_signal(s, &info);
}

/* All signals that we handle are blocked and read from a descriptor, so no handler interrupts the loop. */
static int init_signals(struct mr_supervisor *s)
{
    static const int wanted[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        struct sigaction now;
        bool may_stay = wanted[i] == SIGHUP || wanted[i] == SIGINT || wanted[i] == SIGQUIT || wanted[i] == SIGTSTP;
        /* Under nohup, and in the background of a script, they stay ignored, by us and by the command. */
        if (!may_stay || sigaction(wanted[i], NULL, &now) != 0 || now.sa_handler != SIG_IGN)
            sigaddset(&set, wanted[i]);
    }
    sigaddset(&set, SIGCHLD);
    s->orphans = true; /* those that ended before, under the program that became us */
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0) {
        mr_error_set_errno(errno, "cannot make a descriptor for signals");
        return -1;
    }
    s->signal_watch.ready = signals_ready;
    return mr_events_watch(&s->events, &s->signal_watch, s->signals, EPOLLIN);
}

/* ---- start and end ---- */

static int find_worker(struct mr_supervisor *s)
{
    ssize_t n = readlink("/proc/self/exe", s->worker_path, sizeof s->worker_path - 1);
    char *slash = NULL;
    if (n > 0) {
        s->worker_path[n] = '\0';
        slash = strrchr(s->worker_path, '/');
    }
    if (!slash || (size_t)(slash + 1 - s->worker_path) + sizeof WORKER_NAME > sizeof s->worker_path) {
        mr_error_set(MR_E_INTERNAL, "the path of this program is unknown: is /proc mounted?");
        return -1;
    }
    memcpy(slash + 1, WORKER_NAME, sizeof WORKER_NAME);
    return 0;
}

/* As many descriptors as the system allows: each lane, client and range of a listing takes one or two. */
static void raise_descriptors(struct mr_supervisor *s)
{
    if (getrlimit(RLIMIT_NOFILE, &s->command.descriptors) != 0)
        return;
    struct rlimit limit = s->command.descriptors; /* the command gets the limit that we were given */
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int init_board(struct mr_supervisor *s)
{
    uuid_t id;
    uuid_generate(id);
    uuid_unparse_lower(id, s->run_id);
    int fd = mr_segment_new(MR_BACKING_MEMFD, "board", sizeof *s->board, 1);
    if (fd < 0)
        return -1;
    s->board = mr_segment_map(fd, sizeof *s->board, 1, NULL);
    if (s->board) {
        mr_board_format(s->board, (uint32_t)getpid(), s->run_id);
        s->board->silence_ms = (uint32_t)s->config.supervisor.silence_ms; /* before any process maps it */
        s->board_fd = mr_segment_reopen_readonly(fd);
    }
    close(fd);
    return s->board_fd < 0 ? -1 : 0;
}

/* After -1 close_all() releases what had been made. */
static int supervisor_init(struct mr_supervisor *s, const struct mr_supervisor_options *options)
{
    if (find_worker(s) != 0 || mr_events_init(&s->events) != 0 || init_signals(s) != 0)
        return -1;
    raise_descriptors(s);
    mr_segment_sweep();
    if (pipe2(s->life, O_CLOEXEC) != 0) {
        mr_error_set_errno(errno, "cannot make a pipe to the workers");
        return -1;
    }
    s->config_fd = mr_config_to_fd(&s->config);
    s->arena_bytes = mr_config_arena_bytes(&s->config, mr_memory_limit_bytes(), mr_memory_available_bytes());
    s->stop_timer.run = stop_due;
    s->log_timer.run = log_due;
    s->metrics_timer.run = metrics_due;
    s->metrics.logged_ns = s->started_ns;
    mr_lanes_init(s);
    mr_ckpt_lanes_init(s);
    mr_drain_init(s);
    if (s->config_fd < 0 || init_board(s) != 0 || mr_tracing_init(s) != 0 || mr_listing_init(s) != 0 ||
        mr_fetch_workers_init(s) != 0)
        return -1;
    /* After the life pipe: a process's descriptors are closed in their order, and the lock has to be the last sign. */
    s->run_lock = mr_run_lock_new(s->run_id);
    if (s->run_lock < 0)
        mr_log_debug("%s: what this run leaves in a store at a crash is removed later than it could be",
                     mr_error_text());
    int listener = mr_run_folder_init(&s->folder, options->folder_path, options->socket_path);
    if (listener < 0)
        return -1;
    return mr_clients_init(s, listener);
}

/* The data sets of the file begin at once: the listing is done before the first reader asks. */
static void open_configured(struct mr_supervisor *s)
{
    for (size_t i = 0; i < s->config.dataset_count; i++)
        if (!mr_dataset_open_named(s, s->config.datasets[i].name, MR_FORMAT_BY_NAME))
            mr_log_error("data set %s: %s", s->config.datasets[i].name, mr_error_text());
}

/* In the order in which modules use each other, users first; safe after an init that failed half-way. */
static void close_all(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->stop_timer);
    mr_events_stop(&s->events, &s->log_timer);
    mr_events_stop(&s->events, &s->metrics_timer);
    mr_heartbeat_close(s);
    mr_drain_close(s);
    mr_lanes_close(s);
    mr_ckpt_lanes_close(s);
    mr_clients_close(s);
    mr_batches_close(s);
    mr_meters_close(s);
    mr_tracing_close(s);
    mr_listing_close(s);
    mr_fetch_workers_close(s);
    mr_write_workers_close(s);
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        mr_dataset_close(s->datasets[i]);
        s->datasets[i] = NULL;
    }
    mr_run_folder_close(&s->folder);
    mr_run_lock_end(s->run_lock, s->run_id);
    if (s->board)
        mr_segment_unmap(s->board, sizeof *s->board);
    const int fds[] = {s->board_fd, s->config_fd, s->life[0], s->life[1], s->signals};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    mr_events_close(&s->events);
    mr_config_close(&s->config);
}

/* Runs until no process of ours is left, and returns the exit status of the run. */
static int supervisor_run(struct mr_supervisor *s, const struct mr_supervisor_options *options)
{
    int status = 0;
    supervisor_enter(s, MR_SUP_RUNNING);
    mr_heartbeat_init(s);
    if (!s->indexing) {
        open_configured(s);
        bool there;
        if (s->config.checkpoint.prepare == MR_PREPARE_ALWAYS)
            mr_write_workers_prepare(s, &there);
    } else if (!mr_dataset_open_to_save(s, options->index_uri, options->index_place, options->index_checksums)) {
        mr_log_error("%s", mr_error_text());
        s->index_status = mr_code_exit_status(mr_error_code());
        mr_run_end(s, "there is nothing to list");
    }
    if (options->command && mr_command_start(s, options->command, &status) != 0) {
        mr_log_error("%s", mr_error_text());
        s->command.ended = true;
        s->command.exit_status = status;
        mr_run_end(s, "the command did not start");
    }
    if (!options->command && !s->is_private && !s->indexing) {
        printf("MILLRACE_SOCKET=%s\n", s->folder.socket_path);
        if (mr_process_flush() != 0)
            mr_log_warning("%s, which was to have MILLRACE_SOCKET=%s", mr_error_text(), s->folder.socket_path);
    }
    mr_supervisor_settle(s);
    while (s->state < MR_SUP_STOPPING || any_process(s)) {
        if (mr_events_step(&s->events) != 0) {
            mr_log_error("%s", mr_error_text());
            mr_listing_kill(s);
            mr_fetch_workers_kill(s); /* write workers finish what is promised, as after any death of ours */
            return 1;
        }
        mr_supervisor_settle(s);
    }
    mr_ckpt_lanes_close(s); /* what is left of them is settled */
    status = s->command.ended ? s->command.exit_status : s->index_status;
    if (s->ckpt_lanes.lost > 0 && status == 0)
        status = 1;
    return status;
}

int mr_supervisor_main(const struct mr_supervisor_options *options)
{
    struct mr_supervisor *s = calloc(1, sizeof *s);
    if (!s) {
        mr_log_error("no memory for the supervisor");
        return 1;
    }
    s->board_fd = s->config_fd = s->tracing.fd = s->life[0] = s->life[1] = s->signals = s->clients.listener =
        s->clients.spare = -1;
    s->events.epoll = -1;
    s->folder.lock = s->folder.pid_lock = s->run_lock = s->command.pidfd = -1;
    s->config_path = options->config_path;
    s->is_private = options->is_private;
    s->indexing = options->index_uri != NULL;
    s->index_status = s->indexing ? 1 : 0; /* until it is saved */
    s->started_ns = mr_clock_mono_ns();
    mr_write_workers_init(s);
    int status;
    if (mr_config_load(&s->config, options->config_path) != 0) {
        mr_log_error("%s", mr_error_text());
        status = mr_code_exit_status(mr_error_code());
        free(s);
        return status;
    }
    s->verbosity = options->verbosity;
    s->config.log.level = mr_reload_log_level(&s->config, s->verbosity);
    mr_log_set_level((enum mr_log_level)s->config.log.level);
    if (supervisor_init(s, options) == 0) {
        status = supervisor_run(s, options);
    } else {
        mr_log_error("%s", mr_error_text());
        status = mr_code_exit_status(mr_error_code());
    }
    close_all(s);
    free(s);
    return status;
}
