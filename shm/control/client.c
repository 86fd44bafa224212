#include "shm/control/client_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "shm/control/msg.h"
#include "shm/memory/segment.h"
#include "shm/trace/trace.h"

#define BUSY_MS          10000 /* that something is asked for while memory is divided or data sets are being closed */
#define CONNECT_RETRY_MS 20
#define END_MS           1000 /* between the end of a process's socket and of its pidfd */

/* ---- connecting ---- */

static int connect_once(int socket, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || path[0] == '\0' || strlen(path) >= sizeof address.sun_path) {
        mr_error_set(MR_E_USAGE, "'%s' is not a socket path: it must have 1 to %zu bytes", path ? path : "",
                     sizeof address.sun_path - 1);
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(socket, (struct sockaddr *)&address, sizeof address) == 0)
        return 0;
    if (errno == EAGAIN || errno == EINTR) /* its queue of connections is full, and stayed so or was, at a signal */
        mr_error_set(MR_E_GONE,
                     "the millrace supervisor at %s takes no connection: is it stopped (SIGSTOP, a debugger)?", path);
    else if (errno == ENOENT || errno == ECONNREFUSED)
        mr_error_set(MR_E_GONE, "no millrace supervisor listens at %s: %s", path, strerror(errno));
    else
        mr_error_set_errno(errno, "cannot connect to the millrace supervisor at %s", path);
    return -1;
}

/* How long connect(2) may wait; 0: forever. */
static void limit_connect(int socket, unsigned ms)
{
    struct timeval limit = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static int connect_retrying(int socket, const char *path, unsigned timeout_ms)
{
    int64_t deadline_ns = mr_clock_mono_ns() + (int64_t)timeout_ms * MR_MILLISECOND_NS;
    for (;;) {
        if (connect_once(socket, path) == 0)
            return 0;
        if (mr_error_code() != MR_E_GONE || mr_clock_mono_ns() >= deadline_ns)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = CONNECT_RETRY_MS * MR_MILLISECOND_NS}, NULL);
    }
}

/* Who listens there: only ourselves or root may hand us descriptors. */
static int identify(struct mr_client *client, const char *path)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(client->socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        mr_error_set_errno(errno, "cannot find who listens at %s", path);
        return -1;
    }
    if (peer.uid != geteuid() && peer.uid != 0) {
        mr_error_set(MR_E_DENIED, "the process at %s belongs to user %u, not to %u", path, peer.uid, geteuid());
        return -1;
    }
    client->supervisor_pid = peer.pid;
    if (peer.pid > 0)
        client->supervisor = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    return 0;
}

/* ---- is it there? ---- */

static int64_t silence_limit_ns(const struct mr_client *client)
{
    uint64_t ms = client->board ? client->board->silence_ms : 0;
    return (int64_t)(ms > 0 ? ms : MR_SILENCE_MS) * MR_MILLISECOND_NS;
}

/* Waits up to timeout_ms for the supervisor's death: by its pidfd, or by its closed socket where there is none. */
static bool has_ended(const struct mr_client *client, int timeout_ms)
{
    struct pollfd wait = {.fd = client->supervisor, .events = POLLIN};
    if (client->supervisor < 0) {
        wait.fd = client->socket;
        wait.events = POLLRDHUP;
    }
    int ready;
    do
        ready = poll(&wait, 1, timeout_ms);
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

/* Sets GONE; always -1. */
static int ended(const struct mr_client *client)
{
    mr_error_set(MR_E_GONE,
                 "the millrace supervisor (pid %d) has ended: its standard error and the kernel log (dmesg: out of "
                 "memory?) may say why",
                 (int)client->supervisor_pid);
    return -1;
}

/* Sets GONE; always -1. */
static int given_up(const struct mr_client *client)
{
    mr_error_set(MR_E_GONE,
                 "the millrace supervisor (pid %d) lives, but did not answer this process for %.3g s (was it stopped, "
                 "by SIGSTOP or a debugger?), which has given its connection up: open the data set again",
                 (int)client->supervisor_pid, (double)silence_limit_ns(client) / 1e9);
    return -1;
}

/* Our connection has come to its end. A process closes its sockets a little before its pidfd is readable. */
static int gone(const struct mr_client *client)
{
    if (client->given_up)
        return given_up(client);
    if (client->supervisor < 0 || has_ended(client, END_MS))
        return ended(client);
    mr_error_set(MR_E_GONE,
                 "the millrace supervisor (pid %d) lives, but has closed the connection of this process: its standard "
                 "error may say why",
                 (int)client->supervisor_pid);
    return -1;
}

int mr_client_check_wait(struct mr_client *client, struct mr_silence *wait)
{
    if (has_ended(client, 0))
        return client->given_up && client->supervisor < 0 ? given_up(client) : ended(client);
    if (client->given_up)
        return given_up(client);
    int64_t limit_ns = silence_limit_ns(client);
    uint64_t beat = atomic_load_explicit(&client->board->beat, memory_order_relaxed);
    int64_t silent_ns = mr_silence_look(wait, beat, mr_clock_mono_ns(), limit_ns);
    int pid = (int)client->supervisor_pid;
    if (silent_ns >= limit_ns) {
        mr_error_set(
            MR_E_GONE,
            "the millrace supervisor (pid %d) has given no sign of life for %.3g s (supervisor.silence_ms): if "
            "it is stopped (SIGSTOP, a debugger), kill -CONT %d continues it; else the machine has no CPU left "
            "for it",
            pid, (double)limit_ns / 1e9, pid);
        return -1;
    }
    if (silent_ns < limit_ns / 2 || client->warned == beat + 1)
        return 0;
    client->warned = beat + 1;
    snprintf(client->warning, sizeof client->warning,
             "the millrace supervisor (pid %d) has given no sign of life for %.3g s: if it is stopped (SIGSTOP, a "
             "debugger), continue it with kill -CONT %d; waits end with SupervisorGone after %.3g s "
             "(supervisor.silence_ms)",
             pid, (double)limit_ns / 2e9, pid, (double)limit_ns / 1e9);
    return 0;
}

bool mr_client_has_ended(const struct mr_client *client)
{
    return has_ended(client, 0);
}

int mr_client_check(struct mr_client *client)
{
    return mr_client_check_wait(client, &client->silence);
}

const char *mr_client_warning(struct mr_client *client)
{
    static _Thread_local char text[MR_CLIENT_WARNING];
    memcpy(text, client->warning, sizeof text);
    client->warning[0] = '\0';
    return text;
}

/* ---- calls ---- */

/* Not in the process that connected: -1 (USAGE). */
static int check_process(const struct mr_client *client)
{
    if (client->made_by == getpid())
        return 0;
    mr_error_set(MR_E_USAGE, "this connection to the supervisor was opened before a fork: connect again in the child");
    return -1;
}

void mr_client_set_interrupt(struct mr_client *client, bool (*is_interrupted)(void))
{
    client->is_interrupted = is_interrupted;
}

static void set_unanswered(struct mr_client *client)
{
    mr_error_set(
        MR_E_GONE,
        "the millrace supervisor (pid %d) has not answered for %.3g s: if it is stopped (SIGSTOP, a debugger), "
        "kill -CONT %d continues it; else the machine has no CPU left for it",
        (int)client->supervisor_pid, (double)silence_limit_ns(client) / 1e9, (int)client->supervisor_pid);
}

/* 0: there is something to read. -1: not within supervisor.silence_ms of our own time, it has ended, or the wait was
 * interrupted. */
static int await_answer(struct mr_client *client)
{
    int64_t limit_ns = silence_limit_ns(client);
    int64_t slice_ms = limit_ns / MR_MILLISECOND_NS / 8 < 250 ? limit_ns / MR_MILLISECOND_NS / 8 : 250;
    struct mr_silence wait = {0};
    mr_silence_look(&wait, 0, mr_clock_mono_ns(), limit_ns);
    for (;;) {
        struct pollfd waits[2] = {{.fd = client->socket, .events = POLLIN},
                                  {.fd = client->supervisor, .events = POLLIN}};
        int ready = poll(waits, 2, (int)slice_ms);
        if (ready < 0 && errno != EINTR) {
            mr_error_set_errno(errno, "cannot wait for the supervisor");
            return -1;
        }
        if (ready > 0) /* the socket first: an answer given before its death still counts */
            return waits[0].revents != 0 ? 0 : gone(client);
        bool interrupted = client->is_interrupted && client->is_interrupted();
        if (!interrupted && mr_silence_look(&wait, 0, mr_clock_mono_ns(), limit_ns) < limit_ns)
            continue;
        client->owed = true;
        if (interrupted)
            mr_error_set(MR_E_GONE, "the wait for the supervisor (pid %d) was interrupted",
                         (int)client->supervisor_pid);
        else
            set_unanswered(client);
        return -1;
    }
}

/* Receives and drops an answer that came too late for its call. */
static int drop_owed(struct mr_client *client)
{
    struct mr_msg_in late;
    if (!client->owed)
        return 0;
    client->owed = false;
    if (await_answer(client) != 0)
        return -1;
    int got = mr_msg_recv_answer(client->socket, &late);
    if (got == 1)
        mr_msg_close(&late);
    return got >= 0 ? 0 : mr_error_code() == MR_E_GONE ? gone(client) : -1;
}

/* Its late answer could not just be dropped: the supervisor would keep what it has opened for us. */
static bool opens_something(enum mr_msg_type type)
{
    return type == MR_MSG_OPEN_LANE || type == MR_MSG_OPEN_WRITER || type == MR_MSG_OPEN_DATASET;
}

/* Sends `out` and waits for the answer. On success *in is an OK that the caller closes. */
int mr_client_call(struct mr_client *client, struct mr_msg_out *out, struct mr_msg_in *in)
{
    if (check_process(client) != 0) {
        mr_msg_discard(out);
        return -1;
    }
    if (drop_owed(client) != 0) {
        mr_msg_discard(out);
        return -1;
    }
    enum mr_msg_type type = mr_msg_type_of(out);
    if (mr_msg_send(client->socket, out) != 0)
        return mr_error_code() == MR_E_GONE ? gone(client) : -1;
    if (await_answer(client) != 0) {
        if (client->owed && opens_something(type)) {
            shutdown(client->socket, SHUT_RDWR);
            client->given_up = true;
        }
        return -1;
    }
    int got = mr_msg_recv_answer(client->socket, in);
    if (got < 0)
        return mr_error_code() == MR_E_GONE ? gone(client) : -1;
    if (got == 1 && in->type == MR_MSG_OK)
        return 0;
    uint64_t code = 0;
    const char *text = "";
    if (got != 1 || in->type != MR_MSG_ERROR || mr_msg_get_u64(in, "code", &code) != 0 ||
        mr_msg_get_str(in, "text", &text) != 0)
        mr_error_set(MR_E_PROTOCOL, "the supervisor gave an answer that is neither OK nor ERROR");
    else
        mr_error_set(code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_INTERNAL, "%s", text);
    if (got == 1)
        mr_msg_close(in);
    return -1;
}

/* A call whose answer holds nothing. */
static int call_plain(struct mr_client *client, struct mr_msg_out *out)
{
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    mr_msg_close(&in);
    return 0;
}

/* Introduces the process and maps the board. Tracing that cannot be attached is not an error. */
static int hello(struct mr_client *client, const char *role)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_HELLO);
    mr_msg_put_u64(out, "pid", (uint64_t)getpid());
    mr_msg_put_str(out, "role", role);
    mr_msg_put_u64(out, "image", mr_process_image());
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    int fd = mr_msg_take_fd(&in, 0), trace = in.fd_count > 1 ? in.fds[1] : -1;
    if (trace >= 0 && mr_trace_attach(trace) != 0) /* no data depends on it */
        mr_log_debug("no spans of this process in traces: %s", mr_error_text());
    mr_msg_close(&in);
    if (fd < 0)
        return -1;
    client->board = mr_board_map(fd);
    close(fd);
    return client->board ? 0 : -1;
}

struct mr_client *mr_client_connect(const char *path, const char *role, unsigned timeout_ms)
{
    struct mr_client *client = calloc(1, sizeof *client);
    if (!client) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a connection to the supervisor");
        return NULL;
    }
    client->supervisor = -1;
    client->made_by = getpid();
    client->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (client->socket < 0) {
        mr_error_set_errno(errno, "cannot make a socket");
        goto fail;
    }
    limit_connect(client->socket, MR_SILENCE_MS);
    int rc = connect_retrying(client->socket, path, timeout_ms);
    limit_connect(client->socket, 0);
    if (rc != 0 || identify(client, path) != 0 || hello(client, role) != 0)
        goto fail;
    return client;
fail:
    mr_client_destroy(client);
    return NULL;
}

static void free_memory(struct mr_ckpt_part_memory *memory)
{
    if (!memory)
        return;
    for (unsigned i = 0; i < MR_PRODUCERS_MAX; i++) {
        if (!memory->workers[i].line)
            continue;
        mr_segment_unmap((void *)(uintptr_t)memory->workers[i].line, MR_PRODUCER_LINE_BYTES);
        close(memory->workers[i].eventfd);
    }
    if (memory->arena)
        mr_segment_unmap(memory->arena, memory->arena_bytes);
    free(memory->touched);
    free(memory);
}

void mr_client_destroy(struct mr_client *client)
{
    if (!client)
        return;
    if (client->views)
        mr_views_unref(client->views);
    free_memory(client->parts);
    if (client->board)
        mr_segment_unmap((void *)(uintptr_t)client->board, sizeof *client->board);
    if (client->supervisor >= 0)
        close(client->supervisor);
    if (client->socket >= 0)
        close(client->socket);
    free(client);
}

const struct mr_board *mr_client_board(const struct mr_client *client)
{
    return client->board;
}

/* ---- data sets ---- */

static int open_with(struct mr_client *client, struct mr_msg_out *out, struct mr_opened *opened)
{
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    int rc = mr_msg_get_u64(&in, "dataset", &opened->dataset) == 0 && mr_msg_get_u32(&in, "tail", &opened->tail) == 0 &&
                     mr_msg_get_u32(&in, "on_error", &opened->on_error) == 0
                 ? 0
                 : -1;
    mr_msg_close(&in);
    return rc;
}

static int check_uris(const char *const *uris, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(uris[i]) + 5;
    if (bytes <= MR_MSG_URIS_BYTES_MAX)
        return 0;
    mr_error_set(MR_E_USAGE,
                 "%zu URIs of %zu bytes are too many for one data set, which takes %u bytes: name prefixes, or give "
                 "single objects with from_objects",
                 count, bytes, MR_MSG_URIS_BYTES_MAX);
    return -1;
}

int mr_client_open_dataset(struct mr_client *client, const struct mr_to_open *what, struct mr_opened *opened)
{
    if (check_uris(what->uris, what->uri_count) != 0)
        return -1;
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OPEN_DATASET);
    if (what->known) {
        mr_msg_put_u64(out, "dataset", *what->known);
        return open_with(client, out, opened);
    }
    if (what->digest) {
        mr_msg_put_u64(out, "like", what->like);
        mr_msg_put_str(out, "digest", what->digest);
        return open_with(client, out, opened);
    }
    if (what->names_fd >= 0) {
        mr_msg_put_bool(out, "objects", true);
        mr_msg_put_fd(out, what->names_fd);
    } else if (what->uri_count > 0) {
        mr_msg_put_strs(out, "uris", what->uris, what->uri_count);
    } else {
        mr_msg_put_str(out, "name", what->name ? what->name : "");
    }
    mr_msg_put_str(out, "format", what->format ? what->format : "");
    if (what->nth > 0) {
        mr_msg_put_u64(out, "nth", what->nth);
        mr_msg_put_u64(out, "block_bytes", what->block_bytes);
    }
    return open_with(client, out, opened);
}

int mr_client_open_ranged(struct mr_client *client, int names_fd, uint64_t block_bytes, struct mr_opened *opened)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OPEN_DATASET);
    mr_msg_put_bool(out, "objects", true);
    mr_msg_put_u64(out, "block_bytes", block_bytes);
    mr_msg_put_fd(out, names_fd);
    return open_with(client, out, opened);
}

static const struct mr_board_dataset *entry_of(const struct mr_client *client, uint64_t dataset)
{
    return &client->board->dataset[mr_dataset_number(dataset)];
}

uint64_t mr_client_dataset_block(const struct mr_client *client, uint64_t dataset)
{
    const struct mr_board_dataset *entry = entry_of(client, dataset);
    /* B0: both were stored before READY, which the caller has seen. While it has the data set open they stay. */
    if (atomic_load_explicit(&entry->id, memory_order_relaxed) != dataset)
        return 0;
    return atomic_load_explicit(&entry->block_bytes, memory_order_relaxed);
}

int mr_client_close_dataset(struct mr_client *client, uint64_t dataset)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_CLOSE_DATASET);
    mr_msg_put_u64(out, "dataset", dataset);
    return call_plain(client, out);
}

enum mr_dataset_state mr_client_dataset_state(struct mr_client *client, uint64_t dataset)
{
    const struct mr_board_dataset *entry = entry_of(client, dataset);
    /* B0: code and text were written before this state, and so was the id: one that comes later has another. */
    uint32_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
    if (state == MR_DATASET_FREE || atomic_load_explicit(&entry->id, memory_order_relaxed) != dataset) {
        mr_error_set(MR_E_USAGE, MR_DATASET_IS_GONE, mr_dataset_number(dataset));
        return MR_DATASET_FAILED;
    }
    if (state == MR_DATASET_FAILED) {
        uint32_t code = entry->code;
        const char *text = entry->text[0] ? entry->text : "the data set failed for a reason that is not known";
        mr_error_set(code > MR_OK && code < MR_E_COUNT ? (enum mr_code)code : MR_E_INTERNAL, "%.*s",
                     (int)sizeof entry->text, text);
    }
    return (enum mr_dataset_state)state;
}

int mr_client_index(struct mr_client *client, uint64_t dataset, int *fd, uint64_t *size)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_INDEX);
    mr_msg_put_u64(out, "dataset", dataset);
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    *fd = -1;
    if (mr_msg_get_u64(&in, "size", size) == 0)
        *fd = mr_msg_take_fd(&in, 0);
    mr_msg_close(&in);
    return *fd >= 0 ? 0 : -1;
}

/* ---- producers ---- */

static void close_view(struct mr_producer_view *view)
{
    if (view->arena)
        mr_segment_unmap((void *)(uintptr_t)view->arena, view->arena_bytes);
    if (view->line)
        mr_segment_unmap((void *)(uintptr_t)view->line, MR_PRODUCER_LINE_BYTES);
    if (view->eventfd >= 0)
        close(view->eventfd);
}

/* Whether the answer is of the division `wanted`. -1 (BUSY): another one has begun meanwhile. */
static int check_division(const struct mr_msg_in *in, uint32_t wanted)
{
    uint32_t division;
    if (mr_msg_get_u32(in, "division", &division) != 0)
        return -1;
    if (division == wanted)
        return 0;
    mr_error_set(MR_E_BUSY, "the memory is being divided: ask again");
    return -1;
}

/* Maps one fetch worker's arena and line, both read-only. An error if the memory has been divided anew since: the
 * caller begins again with the new division. */
static int open_view(struct mr_client *client, uint32_t division, unsigned slot, struct mr_producer_view *view)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_PRODUCER);
    int arena = -1;
    int line = -1;
    *view = (struct mr_producer_view){.eventfd = -1};
    mr_msg_put_u64(out, "slot", slot);
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    if (check_division(&in, division) == 0 && mr_msg_get_u64(&in, "arena_bytes", &view->arena_bytes) == 0 &&
        (arena = mr_msg_take_fd(&in, 0)) >= 0 && (line = mr_msg_take_fd(&in, 1)) >= 0)
        view->eventfd = mr_msg_take_fd(&in, 2);
    mr_msg_close(&in);
    if (view->eventfd >= 0) {
        view->arena = mr_segment_map(arena, view->arena_bytes, false, NULL);
        view->line = mr_segment_map(line, MR_PRODUCER_LINE_BYTES, false, NULL);
    }
    if (arena >= 0)
        close(arena);
    if (line >= 0)
        close(line);
    if (view->arena && view->line)
        return 0;
    mr_error_append("memory of fetch worker %u", slot);
    close_view(view);
    return -1;
}

/* All fetch workers' memory under one division, or NULL. The caller owns it. */
static struct mr_views *map_views(struct mr_client *client)
{
    struct mr_msg_in in;
    if (mr_client_call(client, mr_msg_new(MR_MSG_PRODUCERS), &in) != 0)
        return NULL;
    uint64_t producers = 0;
    uint32_t division = 0;
    int rc = mr_msg_get_u64(&in, "producers", &producers);
    if (rc == 0)
        rc = mr_msg_get_u32(&in, "division", &division);
    mr_msg_close(&in);
    if (rc == 0 && (producers == 0 || producers > MR_PRODUCERS_MAX)) {
        mr_error_set(MR_E_PROTOCOL, "the supervisor answered with %llu fetch workers", (unsigned long long)producers);
        rc = -1;
    }
    if (rc != 0)
        return NULL;
    struct mr_producer_view views[MR_PRODUCERS_MAX];
    unsigned opened = 0;
    while (opened < producers && open_view(client, division, opened, &views[opened]) == 0)
        opened++;
    struct mr_views *made = opened == producers ? mr_views_new(client->board, division, opened, views) : NULL;
    while (!made && opened > 0)
        close_view(&views[--opened]);
    return made;
}

/* B1: a hint, so that the arenas of the last division are released early; open_lane compares with the lane itself. */
static bool views_are_old(const struct mr_client *client)
{
    return mr_views_division(client->views) != atomic_load_explicit(&client->board->division, memory_order_relaxed);
}

struct mr_views *mr_client_views(struct mr_client *client)
{
    if (check_process(client) != 0)
        return NULL;
    if (client->views && views_are_old(client)) {
        mr_views_unref(client->views); /* its lanes and leases have references of their own */
        client->views = NULL;
    }
    if (!client->views)
        client->views = map_views(client);
    return client->views;
}

/* ---- lanes ---- */

int mr_client_put_loop(struct mr_client *client, const char *key, const struct mr_loop *loop)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_PUT_LOOP);
    mr_msg_put_str(out, "loop", key);
    mr_loop_put(out, loop);
    return call_plain(client, out);
}

/* While fetch workers start again for a larger reserve the answer is BUSY, for a moment, once or twice in a run: asks
 * again. */
static int ask_lane(struct mr_client *client, uint64_t dataset, uint32_t window, uint32_t least, const char *key,
                    struct mr_msg_in *in)
{
    int64_t deadline_ns = mr_clock_mono_ns() + BUSY_MS * MR_MILLISECOND_NS;
    for (;;) {
        struct mr_msg_out *out = mr_msg_new(MR_MSG_OPEN_LANE);
        mr_msg_put_u64(out, "dataset", dataset);
        mr_msg_put_u64(out, "window", window);
        mr_msg_put_u64(out, "least", least);
        mr_msg_put_str(out, "loop", key ? key : "");
        if (mr_client_call(client, out, in) == 0)
            return 0;
        if (mr_error_code() != MR_E_BUSY || mr_clock_mono_ns() >= deadline_ns ||
            atomic_load_explicit(&entry_of(client, dataset)->state, memory_order_relaxed) != MR_DATASET_READY)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = CONNECT_RETRY_MS * MR_MILLISECOND_NS}, NULL);
    }
}

/* Closes a lane that only the supervisor believes to be open. mr_error, which says why, stays as it is: a connection
 * that is lost meanwhile fails the next call as well. */
static void give_up_lane(struct mr_client *client, uint32_t number)
{
    struct mr_error why;
    mr_error_keep(&why);
    (void)mr_client_close_lane(client, number);
    mr_error_restore(&why);
}

/* The arenas that this process has mapped must be those of the lane: the memory may have been divided anew since. */
static int fit_views(struct mr_client *client, struct mr_lane *lane)
{
    if (!client->views || mr_views_division(client->views) == lane->division)
        return 0;
    mr_views_unref(client->views);
    client->views = map_views(client);
    if (client->views && mr_views_division(client->views) == lane->division)
        return 0;
    if (client->views)
        mr_error_set(MR_E_BUSY, "the memory is being divided: ask again");
    uint32_t number = lane->lane;
    mr_lane_unmap(lane);
    give_up_lane(client, number);
    return -1;
}

int mr_client_open_lane(struct mr_client *client, uint64_t dataset, uint32_t window, uint32_t least, const char *key,
                        struct mr_lane *lane, struct mr_loop *loop, bool *has_loop)
{
    struct mr_msg_in in;
    if (ask_lane(client, dataset, window, least, key, &in) != 0)
        return -1;
    bool has = false;
    uint32_t number = 0, ahead = 0;
    int fd = -1;
    int rc = mr_msg_get_u32(&in, "lane", &number);
    bool opened = rc == 0;
    if (rc == 0 && mr_msg_has(&in, "ahead"))
        rc = mr_msg_get_u32(&in, "ahead", &ahead);
    if (rc == 0 && mr_msg_has(&in, "has_loop"))
        rc = mr_msg_get_bool(&in, "has_loop", &has);
    if (rc == 0 && has) {
        struct mr_loop ignored;
        rc = mr_loop_get(&in, loop ? loop : &ignored);
    }
    if (rc == 0)
        rc = (fd = mr_msg_take_fd(&in, 0)) >= 0 ? 0 : -1;
    mr_msg_close(&in);
    if (rc == 0) {
        rc = mr_lane_map(lane, fd);
        close(fd);
    }
    if (rc == 0) {
        lane->ahead = ahead < lane->window ? ahead : 0;
        rc = fit_views(client, lane);
    } else if (opened) {
        mr_error_append("lane %u", number);
        give_up_lane(client, number);
    }
    if (has_loop)
        *has_loop = rc == 0 && has;
    return rc;
}

int mr_client_close_lane(struct mr_client *client, uint32_t lane)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_CLOSE_LANE);
    mr_msg_put_u64(out, "lane", lane);
    return call_plain(client, out);
}
