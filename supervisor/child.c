/*
 * child.c - see child.h. A slot has at most one process. An event may end its RUNNING or STARTING, but only
 * mr_child_settle leaves ENDED, after the role has recovered what the process held; so a new process never meets the
 * words of its predecessor. Between fork and exec the child calls only async-signal-safe functions.
 */
#include "supervisor/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/log.h"
#include "base/process.h"
#include "shm/memory/segment.h"
#include "supervisor/run_impl.h"

#define BACKOFF_FIRST_MS 50
#define BACKOFF_LAST_MS  5000
#define IDLE_STARTS_MAX  8
#define LIVED_LONG_MS    10000 /* a worker that has published something and lived so long is started again at once */
#define DEATHS_FREE      4u    /* and so often in a row one that died sooner */
#define DEATHS_LAST_MS   400
#define MESSAGES_AT_ONCE 64
#define WORKER_SOCKET    3 /* descriptors that a worker inherits */
#define WORKER_LIFE      4

struct mr_child_message {
    struct mr_child_message *next;
    struct mr_msg_out *msg;
};

static void process_ready(struct mr_watch *watch, uint32_t epoll_events);
static void messages_ready(struct mr_watch *watch, uint32_t epoll_events);
static void restart_due(struct mr_timer *timer);

#define OWNER(member, field) MR_CONTAINER_OF(member, mr_child, field)

int mr_child_init(struct mr_child *child, struct mr_supervisor *supervisor, const struct mr_child_role *role,
                  unsigned slot)
{
    *child = (struct mr_child){.supervisor = supervisor,
                               .role = role,
                               .slot = slot,
                               .pidfd = -1,
                               .socket = -1,
                               .counters_fd = -1,
                               .process.ready = process_ready,
                               .messages.ready = messages_ready,
                               .restart.run = restart_due};
    child->counters_fd = mr_segment_new(MR_BACKING_MEMFD, "counters", MR_COUNTERS_BYTES, 1);
    if (child->counters_fd < 0)
        return -1;
    child->counters = mr_segment_map(child->counters_fd, MR_COUNTERS_BYTES, 1, NULL);
    if (!child->counters)
        return -1;
    mr_counters_init(child->counters, role->counters, slot);
    return 0;
}

static void drop_queue(struct mr_child *child)
{
    while (child->queue) {
        struct mr_child_message *first = child->queue;
        child->queue = first->next;
        mr_msg_discard(first->msg);
        free(first);
    }
}

void mr_child_close(struct mr_child *child)
{
    mr_events_stop(&child->supervisor->events, &child->restart);
    drop_queue(child);
    if (child->counters)
        mr_segment_unmap(child->counters, MR_COUNTERS_BYTES);
    if (child->counters_fd >= 0)
        close(child->counters_fd);
    child->counters = NULL;
    child->counters_fd = -1;
}

bool mr_child_has_process(const struct mr_child *child)
{
    return child->pid != 0;
}

static uint64_t published(const struct mr_child *child)
{
    uint64_t sum = 0;
    for (unsigned i = child->role->first_counter; i <= child->role->last_counter; i++)
        sum += mr_counter_get(child->counters, i);
    return sum;
}

/* ---- messages ---- */

/* Sends what is queued for as long as the socket takes it, and watches for its becoming writable only while something
 * is left. A worker to which a message cannot be sent is killed: it would wait for it forever. */
static void flush(struct mr_child *child)
{
    while (child->queue) {
        struct mr_child_message *first = child->queue;
        int rc = mr_msg_try_send(child->socket, first->msg);
        if (rc == 1)
            break;
        child->queue = first->next;
        free(first);
        if (rc != 0 && mr_error_code() != MR_E_GONE) { /* GONE: its pidfd will be readable */
            mr_log_error("message for %s worker %u: %s", child->role->name, child->slot, mr_error_text());
            mr_child_kill(child);
            drop_queue(child);
        }
    }
    bool writing = child->queue != NULL;
    if (writing != child->writing && child->messages.active) {
        mr_events_change(&child->supervisor->events, &child->messages, writing ? EPOLLIN | EPOLLOUT : EPOLLIN);
        child->writing = writing;
    }
}

void mr_child_send(struct mr_child *child, struct mr_msg_out *msg)
{
    struct mr_child_message *last = child->pid != 0 ? malloc(sizeof *last) : NULL;
    if (!last) {
        mr_msg_discard(msg);
        if (child->pid != 0) {
            mr_log_error("no memory for a message to %s worker %u", child->role->name, child->slot);
            mr_child_kill(child);
        }
        return;
    }
    *last = (struct mr_child_message){.msg = msg};
    struct mr_child_message **at = &child->queue;
    while (*at)
        at = &(*at)->next;
    *at = last;
    if (child->queue == last)
        flush(child);
    /* A queued message outlives this call: a data set may fail and close its indexes before they are sent. */
    if (child->queue && mr_msg_keep_fds(msg) != 0) {
        mr_log_error("message for %s worker %u: %s", child->role->name, child->slot, mr_error_text());
        mr_child_kill(child);
        drop_queue(child);
    }
}

/* FAILED without a data set: why the worker will exit with 2. */
static void note_failure(struct mr_child *child, const struct mr_msg_in *in)
{
    uint64_t code;
    const char *text;
    if (mr_msg_get_u64(in, "code", &code) != 0 || mr_msg_get_str(in, "text", &text) != 0)
        return;
    child->fail_code = code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_INTERNAL;
    snprintf(child->fail_text, sizeof child->fail_text, "%s", text);
}

static int child_handle(struct mr_child *child, struct mr_msg_in *in)
{
    if (in->type == MR_MSG_READY) {
        if (child->state == MR_CHILD_STARTING)
            child->state = MR_CHILD_RUNNING;
        return 0;
    }
    if (in->type == MR_MSG_FAILED && !mr_msg_has(in, "dataset"))
        note_failure(child, in);
    return child->role->message(child, in);
}

/* True when there may be more: bounded, so that one busy worker does not keep the others waiting. */
static bool read_messages(struct mr_child *child)
{
    struct mr_msg_in in;
    int got = 0;
    for (unsigned i = 0; i < MESSAGES_AT_ONCE; i++) {
        got = mr_msg_recv(child->socket, &in);
        if (got != 1)
            break;
        int rc = child_handle(child, &in);
        mr_msg_close(&in);
        if (rc != 0) {
            got = -1;
            break;
        }
    }
    if (got >= 0)
        return got == 1;
    if (mr_error_code() != MR_E_GONE) {
        mr_log_error("%s worker %u %s: %s", child->role->name, child->slot,
                     mr_error_code() == MR_E_PROTOCOL ? "breaks the protocol and is killed"
                                                      : "is killed, since its message could not be handled",
                     mr_error_text());
        mr_child_kill(child);
    }
    /* A worker that lives on with a lost socket sees its end and exits: nothing would be heard from it any more. */
    shutdown(child->socket, SHUT_RDWR);
    mr_events_unwatch(&child->supervisor->events, &child->messages);
    return false;
}

static void messages_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_child *child = OWNER(watch, messages);
    if (epoll_events & EPOLLOUT)
        flush(child);
    if (epoll_events & ~(uint32_t)EPOLLOUT)
        read_messages(child);
}

/* ---- start ---- */

/* dup2 for a descriptor that exec must keep: dup2 onto itself would leave it close-on-exec. */
static bool keep_as(int fd, int number)
{
    return fd == number ? fcntl(fd, F_SETFD, 0) == 0 : dup2(fd, number) == number;
}

/* In the child, between fork and exec: only async-signal-safe calls. */
__attribute__((noreturn)) static void become_worker(const char *path, char *const argv[], int socket, int life,
                                                    bool session)
{
    /* Not in the terminal's foreground group: Ctrl-C is for the training command. A session of its own does not get
     * the terminal's SIGHUP either. */
    if (session)
        setsid();
    else
        setpgid(0, 0);
    int null = open("/dev/null", O_RDWR);                /* its signals: mr_process_begin in its main */
    if (null < 0 || dup2(null, 0) < 0 || dup2(2, 1) < 0) /* standard output belongs to the command */
        _exit(1);
    if (!keep_as(life, WORKER_LIFE) || !keep_as(socket, WORKER_SOCKET))
        _exit(1);
    execv(path, argv);
    _exit(errno == ENOMEM || errno == EAGAIN ? 1 : 2);
}

/* Starts the program with ends[1] as its socket. On success child->pid is set; both ends stay the caller's to close. */
static int fork_worker(struct mr_child *child, int ends[2])
{
    struct mr_supervisor *s = child->supervisor;
    char slot[16];
    snprintf(slot, sizeof slot, "%u", child->slot);
    char role[16];
    snprintf(role, sizeof role, "%s", child->role->name);
    char *const argv[] = {s->worker_path, role, (char[]){"--slot"}, slot, NULL};
    if (access(s->worker_path, X_OK) != 0) {
        mr_error_set_errno(errno, "cannot run %s, which belongs beside millrace", s->worker_path);
        return -1;
    }
    if (mr_process_lacks_descriptors()) /* the child has them all until its exec, and could not say it */
        return -1;
    /* Away from the numbers that dup2 is going to use in the child. */
    int high = fcntl(ends[1], F_DUPFD_CLOEXEC, 10);
    if (high < 0) {
        mr_error_set_errno(errno, "cannot make a descriptor for a worker");
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become_worker(s->worker_path, argv, high, s->life[0], child->role->session);
    close(high);
    if (pid < 0) {
        mr_error_set_errno(errno, "cannot start a worker process%s", mr_process_limit(errno));
        return -1;
    }
    child->pid = pid;
    return 0;
}

static void send_setup(struct mr_child *child)
{
    struct mr_supervisor *s = child->supervisor;
    struct mr_msg_out *out = mr_msg_new(MR_MSG_SETUP);
    mr_msg_put_str(out, "role", child->role->name);
    mr_msg_put_u64(out, "slot", child->slot);
    mr_msg_put_u64(out, "generation", child->generation);
    mr_msg_put_str(out, "run_id", s->run_id);
    mr_msg_put_u64(out, "log_level", s->config.log.level);
    mr_msg_put_fd(out, s->config_fd);
    mr_msg_put_fd(out, s->board_fd);
    mr_msg_put_fd(out, child->counters_fd);
    mr_msg_put_fd(out, s->tracing.fd);
    child->role->setup(child, out);
    mr_child_send(child, out);
}

/* 0 once the process exists; if its socket cannot be watched it is killed, and its end is handled like any other death.
 * -1: there is no process, and nothing is left open. */
static int start_process(struct mr_child *child)
{
    struct mr_events *events = &child->supervisor->events;
    int ends[2] = {-1, -1};
    child->generation++;
    mr_counters_adopt(child->counters, child->generation, 0, mr_clock_mono_ns());
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        mr_error_set_errno(errno, "cannot make a socket for a worker");
        return -1;
    }
    if (fork_worker(child, ends) != 0)
        goto fail;
    child->socket = ends[0];
    close(ends[1]);
    /* The process exists. Without a pidfd its end could not be noticed: it is killed and reaped here. */
    child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    if (child->pidfd < 0)
        mr_error_set_errno(errno, "cannot open a descriptor of its process");
    if (child->pidfd < 0 || mr_events_watch(events, &child->process, child->pidfd, EPOLLIN) != 0) {
        kill(child->pid, SIGKILL);
        waitpid(child->pid, NULL, 0);
        mr_error_append("worker");
        if (child->pidfd >= 0)
            close(child->pidfd);
        close(child->socket);
        child->pidfd = child->socket = -1;
        child->pid = 0;
        return -1;
    }
    if (mr_events_watch(events, &child->messages, child->socket, EPOLLIN) != 0)
        mr_child_kill(child);
    return 0;
fail:
    close(ends[0]);
    close(ends[1]);
    return -1;
}

/* The slot is not started again. Its fail_text is what clients are told. */
static void child_fail(struct mr_child *child)
{
    child->state = MR_CHILD_FAILED;
    if (child->fail_text[0] == '\0') {
        child->fail_code = MR_E_INTERNAL;
        snprintf(child->fail_text, sizeof child->fail_text,
                 "%s worker %u cannot work; the lines that it wrote to standard error say why", child->role->name,
                 child->slot);
    }
    mr_log_error("%s worker %u is not started again: %s", child->role->name, child->slot, child->fail_text);
    child->at_rest = true;
}

static void wait_for_restart(struct mr_child *child, unsigned waits, unsigned most_ms)
{
    unsigned delay_ms = BACKOFF_FIRST_MS << (waits < 8 ? waits : 7);
    child->state = MR_CHILD_WAITING;
    child->restart_due = false;
    mr_events_start(&child->supervisor->events, &child->restart, delay_ms < most_ms ? delay_ms : most_ms);
}

/* Schedules the next start, with backoff, or fails the slot for good after too many starts without progress. `counts`:
 * this start counts as one of those. */
static void start_later(struct mr_child *child, bool counts)
{
    child->backoff++;
    child->idle_starts += counts;
    if (child->idle_starts >= IDLE_STARTS_MAX) {
        if (child->fail_text[0] == '\0') {
            child->fail_code = MR_E_INTERNAL;
            snprintf(child->fail_text, sizeof child->fail_text,
                     "%s worker %u was started %u times and ended each time before it had done anything; its lines on "
                     "standard error say more",
                     child->role->name, child->slot, IDLE_STARTS_MAX);
        }
        child_fail(child);
        return;
    }
    wait_for_restart(child, child->backoff - 1, BACKOFF_LAST_MS);
}

void mr_child_start(struct mr_child *child)
{
    child->draining = child->renew = child->writing = child->restart_due = child->at_rest = child->is_stopped = false;
    child->silence = (struct mr_silence){0};
    child->fail_text[0] = '\0';
    child->fail_code = MR_OK;
    child->published = published(child);
    child->started_ns = mr_clock_mono_ns();
    child->state = MR_CHILD_STARTING;
    if (start_process(child) != 0) {
        mr_log_error("%s worker %u: %s", child->role->name, child->slot, mr_error_text());
        child->fail_code = mr_error_code();
        snprintf(child->fail_text, sizeof child->fail_text, "%s", mr_error_text());
        if (child->fail_code == MR_E_NOT_FOUND || child->fail_code == MR_E_DENIED)
            child_fail(child); /* the program itself cannot be run: waiting does not help */
        else
            start_later(child, true);
        return;
    }
    mr_log_debug("%s worker %u: process %d, start %u", child->role->name, child->slot, (int)child->pid,
                 child->generation);
    send_setup(child);
    if (child->role->started)
        child->role->started(child);
}

static void restart_due(struct mr_timer *timer)
{
    OWNER(timer, restart)->restart_due = true;
}

/* ---- end ---- */

void mr_child_kill(struct mr_child *child)
{
    if (child->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, child->pidfd, SIGKILL, NULL, 0);
}

void mr_child_drain(struct mr_child *child, bool renew)
{
    if (child->state == MR_CHILD_WAITING) {
        mr_events_stop(&child->supervisor->events, &child->restart);
        child->state = MR_CHILD_FREE;
        child->idle_starts = 0; /* what it could not do, nobody asks for any more */
        if (renew)
            mr_child_start(child);
        else
            child->at_rest = true;
        return;
    }
    if (child->pid == 0)
        return;
    child->renew = renew && (child->renew || !child->draining); /* who was told to end for good does */
    if (!child->draining)
        mr_child_send(child, mr_msg_new(MR_MSG_DRAIN));
    child->draining = true;
}

/* The pidfd says that the process has ended. Takes its status and closes everything that belonged to it; unsent
 * messages are dropped. */
static struct mr_child_end reap(struct mr_child *child)
{
    siginfo_t info = {0};
    struct mr_child_end end = {.status = -1};
    while (waitid(P_PIDFD, (id_t)child->pidfd, &info, WEXITED) != 0 && errno == EINTR)
        ;
    if (info.si_code == CLD_EXITED)
        end.status = info.si_status;
    else
        end.signal = info.si_status;
    mr_events_unwatch(&child->supervisor->events, &child->process);
    mr_events_unwatch(&child->supervisor->events, &child->messages);
    close(child->pidfd);
    close(child->socket);
    child->pidfd = child->socket = -1;
    child->pid = 0;
    drop_queue(child);
    return end;
}

static void log_end(struct mr_child *child)
{
    const struct mr_child_end *end = &child->end;
    if (child->draining && end->status == 0)
        mr_log_debug("%s worker %u has ended", child->role->name, child->slot);
    else if (end->signal != 0)
        mr_log_limited(&child->deaths_logged, MR_LOG_WARNING, "%s worker %u was killed by signal %d (%s)",
                       child->role->name, child->slot, end->signal, strsignal(end->signal));
    else
        mr_log_limited(&child->deaths_logged, MR_LOG_WARNING, "%s worker %u ended with status %d", child->role->name,
                       child->slot, end->status);
}

static void process_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_child *child = OWNER(watch, process);
    (void)epoll_events;
    while (child->messages.active && read_messages(child))
        ; /* its last messages first */
    child->end = reap(child);
    child->state = MR_CHILD_ENDED;
    log_end(child);
}

/* Restarts a slot that has published something: at once, unless it dies repeatedly soon after its start, since what it
 * published may be all that it can. */
static void start_again(struct mr_child *child)
{
    bool lived_long = mr_clock_mono_ns() - child->started_ns >= LIVED_LONG_MS * MR_MILLISECOND_NS;
    child->deaths = lived_long ? 0 : child->deaths + 1;
    if (child->deaths <= DEATHS_FREE)
        mr_child_start(child);
    else
        wait_for_restart(child, child->deaths - DEATHS_FREE - 1, DEATHS_LAST_MS);
}

/* Decides what follows the end of a process. Unless it was asked to end, exit status 2 fails the slot for good. */
static void settle_ended(struct mr_child *child)
{
    bool progressed = published(child) > child->published;
    if (progressed)
        child->idle_starts = child->backoff = 0;
    if (child->supervisor->state >= MR_SUP_STOPPING || (child->draining && !child->renew)) {
        child->state = MR_CHILD_FREE;
        child->at_rest = true;
    } else if (child->end.status == 2) {
        child_fail(child);
    } else if (child->draining && child->end.status == 0) {
        mr_child_start(child);
    } else if (progressed) {
        start_again(child);
    } else {
        start_later(child, child->end.signal != SIGKILL);
    }
}

bool mr_child_settle(struct mr_child *child)
{
    if (child->state == MR_CHILD_ENDED)
        settle_ended(child);
    else if (child->state == MR_CHILD_WAITING && child->restart_due)
        mr_child_start(child);
    else
        return false;
    return true;
}

bool mr_child_has_rested(struct mr_child *child)
{
    bool rested = child->at_rest;
    child->at_rest = false;
    return rested;
}
