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

#include "shm/base/clock.h"
#include "shm/base/container.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/memory/segment.h"
#include "supervisor/config_toml.h"
#include "supervisor/stat.h"

#define STOP_MS             3000 /* for workers to finish what is in flight */
#define PRIVATE_ARENA_BYTES (UINT64_C(256) << 20)
#define WORKER_NAME         "millrace-worker"

/* ---- states ---- */

static bool any_process(const struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        if (mr_child_has_process(&s->listing.workers[i]))
            return true;
    return mr_fetch_workers_mask(s) != 0 || mr_write_workers_any(s);
}

static bool is_ours(const struct mr_supervisor *s, pid_t pid)
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

/* Those that read. */
static void end_readers(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        mr_child_drain(&s->listing.workers[i], false);
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_drain(&s->fetch_workers.workers[i], false);
}

static void end_children(struct mr_supervisor *s)
{
    end_readers(s);
    for (unsigned i = 0; i < s->write_workers.count; i++)
        mr_child_drain(&s->write_workers.workers[i], false);
}

static void kill_children(struct mr_supervisor *s)
{
    for (unsigned i = 0; i < s->listing.worker_count; i++)
        mr_child_kill(&s->listing.workers[i]);
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_kill(&s->fetch_workers.workers[i]);
    for (unsigned i = 0; i < s->write_workers.count; i++)
        mr_child_kill(&s->write_workers.workers[i]);
}

/*
 * The one place where the state changes, forwards only:
 *   STARTING -> RUNNING   the socket listens
 *   any      -> DRAINING  the end has begun: no new data sets or lanes; what was promised is still done
 *   DRAINING -> STOPPING  nothing promised is left: the workers end, and the loop with the last of them
 */
static void enter(struct mr_supervisor *s, enum mr_supervisor_state state)
{
    if (state <= s->state)
        return;
    s->state = state;
    atomic_store_explicit(&s->board->state, state, memory_order_release);
    if (state == MR_SUP_DRAINING) {
        if (s->command.ended || s->is_private)
            end_readers(s); /* nobody reads any more: their memory may be needed elsewhere */
        mr_drain_begin(s);
    }
    if (state == MR_SUP_STOPPING) {
        end_children(s);
        mr_lanes_wake_all(s); /* readers look at the state */
        mr_events_start(&s->events, &s->stop_timer, STOP_MS);
    }
}

void mr_supervisor_drain(struct mr_supervisor *s, const char *why)
{
    if (s->state >= MR_SUP_DRAINING)
        return;
    mr_log_info("ending: %s", why);
    enter(s, MR_SUP_DRAINING);
}

void mr_supervisor_drained(struct mr_supervisor *s)
{
    enter(s, MR_SUP_STOPPING);
}

void mr_supervisor_index_ended(struct mr_supervisor *s, enum mr_code code)
{
    if (s->state >= MR_SUP_DRAINING)
        return;
    s->index_status = code == MR_OK ? 0 : mr_code_exit_status(code);
    enter(s, MR_SUP_DRAINING);
}

void mr_supervisor_child_ended(struct mr_supervisor *s)
{
    (void)s; /* the loop looks after each step */
}

void mr_supervisor_command_ended(struct mr_supervisor *s)
{
    mr_log_debug("the command has ended with status %d", s->command.exit_status);
    mr_supervisor_drain(s, "the command has ended");
}

static void stop_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, stop_timer);
    mr_log_warning("workers did not end within %d s and are killed", STOP_MS / 1000);
    kill_children(s);
}

static void metrics_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, metrics_timer);
    mr_stat_log(s);
    mr_events_start(&s->events, timer, (unsigned)s->config.metrics.interval_s * 1000);
}

static void set_metrics(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->metrics_timer);
    if (s->config.metrics.interval_s > 0)
        mr_events_start(&s->events, &s->metrics_timer, (unsigned)s->config.metrics.interval_s * 1000);
}

/* ---- signals ---- */

/* As process 1 of a container we inherit orphans: nobody else would reap them. Our own children are left to their
 * pidfds. */
static void reap_orphans(const struct mr_supervisor *s)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 || is_ours(s, info.si_pid))
            return;
        waitpid(info.si_pid, NULL, 0);
    }
}

static void on_signal(struct mr_supervisor *s, const struct signalfd_siginfo *info)
{
    char why[64];
    char text[2000];
    if (info->ssi_signo == SIGCHLD) {
        reap_orphans(s);
        return;
    }
    if (s->command.pid != 0) {
        s->drain.term |= info->ssi_signo == SIGTERM;
        mr_command_signal(s, info);
        return;
    }
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
        snprintf(why, sizeof why, "signal %s", sigabbrev_np((int)info->ssi_signo));
        mr_supervisor_drain(s, why);
        return;
    case SIGHUP:
        if (!s->config_path)
            mr_supervisor_drain(s, "the terminal has gone");
        else if (mr_supervisor_reload(s, text, sizeof text) != 0)
            mr_log_error("the configuration was not reread: %s", mr_error_text());
        return;
    case SIGTSTP:
        raise(SIGSTOP);
        return;
    default:
        return;
    }
}

static void signals_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(watch, mr_supervisor, signal_watch);
    struct signalfd_siginfo info;
    (void)epoll_events;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(s, &info);
}

static int init_signals(struct mr_supervisor *s)
{
    static const int wanted[] = {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        struct sigaction now;
        /* Under nohup the end of the terminal stays ignored, by us and by the command. */
        if (wanted[i] != SIGHUP || sigaction(SIGHUP, NULL, &now) != 0 || now.sa_handler != SIG_IGN)
            sigaddset(&set, wanted[i]);
    }
    if (getpid() == 1)
        sigaddset(&set, SIGCHLD);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0) {
        mr_error_set_errno(errno, "no signal descriptor");
        return -1;
    }
    s->signal_watch.ready = signals_ready;
    return mr_events_watch(&s->events, &s->signal_watch, s->signals, EPOLLIN);
}

/* ---- reload ---- */

/* -v and -q move the level that the file names. */
static uint64_t level_with(const struct mr_config *config, int verbosity)
{
    int level = (int)config->log.level + verbosity;
    return (uint64_t)(level < MR_LOG_ERROR ? MR_LOG_ERROR : level > MR_LOG_DEBUG ? MR_LOG_DEBUG : level);
}

/* One live key to the running configuration; 1 when it has changed, 0, or -1. */
static int apply_key(const struct mr_config_key *key, struct mr_config *to, const struct mr_config *from)
{
    uint64_t *now = (uint64_t *)(void *)((char *)to + key->offset);
    const uint64_t *then = (const uint64_t *)(const void *)((const char *)from + key->offset);
    if (key->type == MR_KEY_BOOL || key->type >= MR_KEY_STRING || *now == *then)
        return 0;
    if (key->live)
        *now = *then;
    return 1;
}

static void note(char *text, size_t size, const struct mr_config_key *key)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s.%s", used > 0 ? ", " : "", key->section, key->name);
}

int mr_supervisor_reload(struct mr_supervisor *s, char *text, size_t size)
{
    struct mr_config config;
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    char applied[900] = "", later[900] = "";
    if (!s->config_path) {
        mr_error_set(MR_E_USAGE, "this supervisor was started without a configuration file");
        return -1;
    }
    if (mr_config_load(&config, s->config_path) != 0)
        return -1;
    config.log.level = level_with(&config, s->verbosity);
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(keys[i].section, "dataset") == 0 || apply_key(&keys[i], &s->config, &config) == 0)
            continue;
        note(keys[i].live ? applied : later, keys[i].live ? sizeof applied : sizeof later, &keys[i]);
    }
    mr_config_close(&config);
    snprintf(text, size, "%s%s%s%s", applied[0] != '\0' ? "applied: " : "nothing to apply", applied,
             later[0] != '\0' ? "; needs a new start: " : "", later);
    mr_log_info("configuration reread: %s", text);
    if (applied[0] == '\0')
        return 0;
    int fd = mr_config_to_fd(&s->config);
    if (fd < 0)
        return -1;
    close(s->config_fd);
    s->config_fd = fd;
    mr_log_set_level((enum mr_log_level)s->config.log.level);
    set_metrics(s);
    for (unsigned i = 0; i < s->fetch_workers.count; i++)
        mr_child_drain(&s->fetch_workers.workers[i],
                       true); /* what they have in flight goes back and is claimed again */
    mr_write_workers_renew(s);
    return 0;
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
        mr_error_set(MR_E_INTERNAL, "cannot tell where this program lies");
        return -1;
    }
    memcpy(slash + 1, WORKER_NAME, sizeof WORKER_NAME);
    return 0;
}

/* As many descriptors as the system allows: each lane, client and part of a listing takes one or two. */
static void raise_descriptors(struct mr_supervisor *s)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &s->command.descriptors) != 0)
        return;
    limit = s->command.descriptors; /* the command gets the limit that we were given */
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
        s->board_fd = mr_segment_reopen_readonly(fd);
    }
    close(fd);
    return s->board_fd < 0 ? -1 : 0;
}

static int init(struct mr_supervisor *s, const struct mr_supervisor_options *options)
{
    if (find_worker(s) != 0 || mr_events_init(&s->events) != 0 || init_signals(s) != 0)
        return -1;
    raise_descriptors(s);
    mr_segment_sweep();
    if (pipe2(s->life, O_CLOEXEC) != 0) {
        mr_error_set_errno(errno, "no pipe");
        return -1;
    }
    s->config_fd = mr_config_to_fd(&s->config);
    s->arena_bytes = mr_config_arena_bytes(&s->config, mr_memory_limit_bytes());
    if (s->is_private && s->config.memory.arena_bytes == 0)
        s->arena_bytes = PRIVATE_ARENA_BYTES;
    s->stop_timer.run = stop_due;
    s->metrics_timer.run = metrics_due;
    s->metrics.logged_ns = s->started_ns;
    set_metrics(s);
    mr_lanes_init(s);
    mr_ckpt_lanes_init(s);
    mr_drain_init(s);
    if (s->config_fd < 0 || init_board(s) != 0 || mr_listing_init(s) != 0 || mr_fetch_workers_init(s) != 0)
        return -1;
    int listener = mr_run_folder_init(&s->folder, options->folder_path, options->socket_path);
    if (listener < 0)
        return -1;
    return mr_clients_init(s, listener);
}

/* The data sets of the file begin at once: the listing is done before the first reader asks. */
static void open_configured(struct mr_supervisor *s)
{
    for (size_t i = 0; i < s->config.dataset_count; i++)
        if (!mr_dataset_open_named(s, s->config.datasets[i].name))
            mr_log_error("data set %s: %s", s->config.datasets[i].name, mr_error_text());
}

static void close_all(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->stop_timer);
    mr_events_stop(&s->events, &s->metrics_timer);
    mr_drain_close(s);
    mr_lanes_close(s);
    mr_ckpt_lanes_close(s);
    mr_clients_close(s);
    mr_listing_close(s);
    mr_fetch_workers_close(s);
    mr_write_workers_close(s);
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        mr_dataset_close(s->datasets[i]);
        s->datasets[i] = NULL;
    }
    mr_run_folder_close(&s->folder);
    if (s->board)
        mr_segment_unmap(s->board, sizeof *s->board);
    const int fds[] = {s->board_fd, s->config_fd, s->life[0], s->life[1], s->signals};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    mr_events_close(&s->events);
    mr_config_close(&s->config);
}

static int run(struct mr_supervisor *s, const struct mr_supervisor_options *options)
{
    int status = 0;
    enter(s, MR_SUP_RUNNING);
    if (!s->indexing) {
        open_configured(s);
    } else if (!mr_dataset_open_to_save(s, options->index_uri, options->index_place)) {
        mr_log_error("%s", mr_error_text());
        mr_supervisor_index_ended(s, mr_error_code());
    }
    if (options->command && mr_command_start(s, options->command, &status) != 0) {
        mr_log_error("%s", mr_error_text());
        s->command.ended = true;
        s->command.exit_status = status;
        mr_supervisor_drain(s, "the command did not start");
    }
    if (!options->command && !s->is_private && !s->indexing) {
        printf("MILLRACE_SOCKET=%s\n", s->folder.socket_path);
        fflush(stdout);
    }
    while (s->state < MR_SUP_STOPPING || any_process(s))
        if (mr_events_step(&s->events) != 0) {
            mr_log_error("%s", mr_error_text());
            kill_children(s);
            return 1;
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
    int status;
    if (!s)
        return 1;
    s->board_fd = s->config_fd = s->life[0] = s->life[1] = s->signals = s->clients.listener = s->clients.spare = -1;
    s->events.epoll = -1;
    s->folder.lock = s->command.pidfd = -1;
    s->config_path = options->config_path;
    s->is_private = options->is_private;
    s->indexing = options->index_uri != NULL;
    s->index_status = s->indexing ? 1 : 0; /* until it is saved */
    s->started_ns = mr_clock_mono_ns();
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++)
        s->fetch_workers.slots[i] = (struct mr_producer_slot){
            .arena = -1, .arena_readonly = -1, .line = -1, .line_readonly = -1, .eventfd = -1};
    mr_write_workers_init(s);
    if (mr_config_load(&s->config, options->config_path) != 0) {
        mr_log_error("%s", mr_error_text());
        status = mr_code_exit_status(mr_error_code());
        free(s);
        return status;
    }
    s->verbosity = options->verbosity;
    s->config.log.level = level_with(&s->config, s->verbosity);
    mr_log_set_level((enum mr_log_level)s->config.log.level);
    if (init(s, options) == 0) {
        status = run(s, options);
    } else {
        mr_log_error("%s", mr_error_text());
        status = mr_code_exit_status(mr_error_code());
    }
    close_all(s);
    free(s);
    return status;
}
