/*
 * fuzz_supervisor.c - a whole supervisor without processes: clients and workers are this target's, and the input says
 * what they send, in which order, and who dies when.
 *
 * By default a worker does what it is asked; the input lets it send something else: any message, with keys left out or
 * changed, with other descriptors, bytes, or its end with any status. Clients send any request the same way, write into
 * the lanes that they are given, and leave. Each request is answered once or its connection ends; the supervisor comes
 * to rest after each event; and at the end, when everybody has gone, no descriptor and no memory is left.
 *
 * Processes are numbers: fork, pidfd_open, waitid and kill are the target's, and so are the clock and the waits.
 */
#include "../../supervisor/supervisor.c" // NOLINT(bugprone-suspicious-include): settle, states and end are its own

#include <poll.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "fuzz.h"
#include "input.h"
#include "shm/control/msg.h"
#include "shm/index/index_build.h"
#include "tests/unit/descriptors.h"

#define CLIENTS     3
#define WORKERS     24
#define LANES       8
#define STEPS_MAX   200
#define FIRST_PID   9000000 /* above every process there can be */
#define ARENA_BYTES (UINT64_C(1) << 20)

struct worker {
    pid_t pid; /* 0: none */
    int pidfd, socket;
    int status, signal;
    bool ended;
    uint64_t range, dataset, lane; /* of the last message that named one */
    enum mr_msg_type asked;        /* what it has to answer; 0 */
};

static struct {
    struct input in;
    struct mr_supervisor *s;
    int64_t now_ns;
    uint64_t draws;
    pid_t last_pid;
    int accepting; /* the end of a connection that accept4 is about to give; -1 */
    int listener;  /* an eventfd: somebody connects */
    struct worker workers[WORKERS];
    int next_socket; /* a worker's end of the socket pair that was just made */
    struct {
        int socket, pidfd; /* -1 */
        unsigned owed;     /* answers */
    } clients[CLIENTS];
    int identified; /* the client that connects now */
    struct {
        struct mr_lane lane;
        bool used;
    } lanes[LANES];
    int index, names, empty; /* descriptors to send */
} scene;

/* ---- processes, time, waits ---- */

int64_t __wrap_mr_clock_mono_ns(void);
int64_t __wrap_mr_clock_mono_ns(void)
{
    return scene.now_ns += 1000;
}

uint64_t __wrap_mr_random64(void);
uint64_t __wrap_mr_random64(void)
{
    return mr_mix64(scene.draws++);
}

/* Never a wait: where nothing is ready, the next timer is due. */
int __real_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms);
int __wrap_epoll_wait(int epoll, struct epoll_event *events, int count, int timeout_ms)
{
    int ready = __real_epoll_wait(epoll, events, count, 0);
    if (ready == 0 && timeout_ms > 0)
        scene.now_ns += timeout_ms * MR_MILLISECOND_NS;
    return ready;
}

static void note_line(enum mr_log_level level, const char *fmt, va_list ap)
{
    char text[4096];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0 || strstr(text, "does not come to rest"))
        abort();
    if (getenv("MR_FUZZ_LOG"))
        fprintf(stderr, "%d %s\n", (int)level, text);
}

void __wrap_mr_log(enum mr_log_level level, const char *fmt, ...);
void __wrap_mr_log(enum mr_log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    note_line(level, fmt, ap);
    va_end(ap);
}

void __wrap_mr_log_limited(struct mr_log_limit *limit, enum mr_log_level level, const char *fmt, ...);
void __wrap_mr_log_limited(struct mr_log_limit *limit, enum mr_log_level level, const char *fmt, ...)
{
    (void)limit;
    va_list ap;
    va_start(ap, fmt);
    note_line(level, fmt, ap);
    va_end(ap);
}

int __real_socketpair(int domain, int type, int protocol, int ends[2]);
int __wrap_socketpair(int domain, int type, int protocol, int ends[2]);
int __wrap_socketpair(int domain, int type, int protocol, int ends[2])
{
    int rc = __real_socketpair(domain, type, protocol, ends);
    if (rc == 0) {
        if (scene.next_socket >= 0)
            close(scene.next_socket); /* the process was not started */
        scene.next_socket = fcntl(ends[1], F_DUPFD_CLOEXEC, 0);
    }
    return rc;
}

static struct worker *worker_of(pid_t pid)
{
    for (unsigned i = 0; i < WORKERS; i++)
        if (scene.workers[i].pid == pid)
            return &scene.workers[i];
    return NULL;
}

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void)
{
    if (!scene.s)
        return __real_fork(); /* the driver's child */
    struct worker *worker = worker_of(0);
    if (!worker) {
        errno = EAGAIN;
        return -1;
    }
    *worker = (struct worker){.pid = ++scene.last_pid,
                              .pidfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                              .socket = scene.next_socket,
                              .asked = MR_MSG_SETUP};
    scene.next_socket = -1;
    return worker->pid;
}

static void end_worker(struct worker *worker, int status, int signal)
{
    if (worker->pid == 0 || worker->ended)
        return;
    worker->ended = true;
    worker->status = status;
    worker->signal = signal;
    eventfd_write(worker->pidfd, 1);
}

/* A copy: the supervisor closes its own. */
static int copy_fd(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static struct worker *worker_of_pidfd(int pidfd)
{
    const struct mr_supervisor *s = scene.s;
    if (!s)
        return NULL;
    const struct mr_child *const rows[] = {s->listing.workers, s->fetch_workers.workers, s->write_workers.workers};
    const unsigned counts[] = {MR_LIST_WORKERS_MAX, MR_PRODUCERS_MAX, MR_PRODUCERS_MAX};
    for (unsigned row = 0; row < 3; row++)
        for (unsigned i = 0; i < counts[row]; i++)
            if (rows[row][i].pidfd == pidfd && rows[row][i].pid != 0)
                return worker_of(rows[row][i].pid);
    return NULL;
}

long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    va_list ap;
    va_start(ap, number);
    long first = va_arg(ap, long), second = va_arg(ap, long);
    va_end(ap);
    struct worker *worker;
    switch (number) {
    case SYS_pidfd_open:
        worker = worker_of((pid_t)first);
        return worker ? copy_fd(worker->pidfd) : copy_fd(scene.clients[scene.identified].pidfd);
    case SYS_pidfd_send_signal:
        worker = worker_of_pidfd((int)first);
        if (worker)
            end_worker(worker, -1, (int)second);
        return 0;
    case SYS_futex: /* a wake-up */
        return 0;
    default:
        abort(); /* the supervisor uses no other */
    }
}

int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int options);
int __wrap_waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    (void)options;
    struct worker *worker = type == P_PIDFD ? worker_of_pidfd((int)id) : NULL;
    if (!worker || !worker->ended)
        abort(); /* it would wait */
    info->si_code = worker->signal ? CLD_KILLED : CLD_EXITED;
    info->si_status = worker->signal ? worker->signal : worker->status;
    close(worker->pidfd);
    close(worker->socket);
    *worker = (struct worker){0};
    return 0;
}

int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *length, int flags);
int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
    (void)address;
    (void)length;
    (void)flags;
    eventfd_t count;
    eventfd_read(listener, &count);
    int socket = scene.accepting;
    scene.accepting = -1;
    errno = EAGAIN;
    return socket;
}

/* ---- messages: every key, of which one may be another ---- */

static const struct {
    const char *name;
    uint64_t value;
} numbers[] = {
    // clang-format off
    {"pid", 1}, {"dataset", 0}, {"range", 0}, {"lane", 0}, {"slot", 0}, {"window", 8}, {"least", 4}, {"epoch", 1},
    {"cursor", 64}, {"seed", 7}, {"batch", 32}, {"world", 2}, {"rank", 1}, {"block", 0}, {"mix", 0}, {"sharers", 1},
    {"like", 0}, {"objects", 3}, {"pages", 1}, {"shards", 2}, {"shards_done", 1}, {"shard_bytes", 9}, {"passed", 4},
    {"last", 1}, {"level", 2}, {"deepest", 3}, {"bytes", 300}, {"largest", 100}, {"requests", 1}, {"stale", 0},
    {"code", 5}, {"dropped_folder", 0}, {"dropped_temporary", 0}, {"dropped_class", 0}, {"dropped_special", 0},
    {"dropped_no_shard", 0}, {"dropped_damaged", 0}, {"image", 1},
    // clang-format on
};
#define NUMBERS (sizeof numbers / sizeof *numbers)

static const struct {
    const char *name, *value;
} words[] = {
    {"role", "job"},
    {"loop", "key"},
    {"uri", "gs://bucket/state.pt"},
    {"text", "so it is"},
    {"mid", "b"},
    {"from", ""},
    {"digest", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
};
#define WORDS (sizeof words / sizeof *words)

struct about {
    const struct worker *worker; /* whose range, data set, lane; NULL */
    bool objects_is_bool;        /* OPEN_DATASET */
};

static uint64_t good_number(const struct about *about, unsigned i)
{
    const struct worker *worker = about->worker;
    if (worker && strcmp(numbers[i].name, "range") == 0)
        return worker->range;
    if (worker && strcmp(numbers[i].name, "dataset") == 0)
        return worker->dataset;
    if (worker && strcmp(numbers[i].name, "lane") == 0)
        return worker->lane;
    return numbers[i].value;
}

static void put_keys(struct mr_msg_out *out, const struct about *about, bool spoil)
{
    struct input *in = &scene.in;
    unsigned spoiled = spoil ? input_below(in, NUMBERS + WORDS) : UINT32_MAX;
    for (unsigned i = 0; i < NUMBERS; i++) {
        if (about->objects_is_bool && (strcmp(numbers[i].name, "objects") == 0 ||
                                       strcmp(numbers[i].name, "like") == 0 || strcmp(numbers[i].name, "dataset") == 0))
            continue;
        unsigned how = i == spoiled ? 1 + input_below(in, 6) : 0;
        if (how == 0)
            mr_msg_put_u64(out, numbers[i].name, good_number(about, i));
        else if (how == 1)
            mr_msg_put_str(out, numbers[i].name, "words");
        else if (how == 2)
            mr_msg_put_bool(out, numbers[i].name, true);
        else if (how > 3)
            mr_msg_put_u64(out, numbers[i].name, input_number(in));
    }
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned how = i + NUMBERS == spoiled ? 1 + input_below(in, 5) : 0;
        char text[300];
        const uint8_t *raw;
        size_t length = how > 2 ? input_bytes(in, input_byte(in), &raw) : 0;
        snprintf(text, sizeof text, "%.*s", (int)length, length ? (const char *)raw : "");
        if (how != 1)
            mr_msg_put_str(out, words[i].name, how > 2 ? text : how == 2 ? "" : words[i].value);
    }
    mr_msg_put_bool(out, "none", spoil && (input_byte(in) & 1));
    mr_msg_put_bool(out, "if_absent", false);
}

static void send_raw(int socket)
{
    const uint8_t *raw;
    size_t length = input_bytes(&scene.in, input_byte(&scene.in), &raw);
    if (length > 0)
        send(socket, raw, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void put_some_fd(struct mr_msg_out *out, unsigned which)
{
    const int fds[] = {scene.index, scene.names, scene.empty};
    if (which % 4 < 3)
        mr_msg_put_fd(out, fds[which % 4]);
}

/* ---- workers ---- */

static void worker_sends(struct worker *worker, enum mr_msg_type type, bool spoil)
{
    struct mr_msg_out *out = mr_msg_new(type);
    put_keys(out, &(struct about){.worker = worker}, spoil);
    put_some_fd(out, spoil ? input_byte(&scene.in) : 0);
    mr_msg_send(worker->socket, out);
}

/* Takes what it was sent; what it has to answer is in `asked`. */
static void worker_reads(struct worker *worker)
{
    struct mr_msg_in in;
    while (worker->pid && !worker->ended && mr_msg_recv(worker->socket, &in) == 1) {
        uint64_t number;
        if (mr_msg_get_u64(&in, "range", &number) == 0)
            worker->range = number;
        if (mr_msg_get_u64(&in, "dataset", &number) == 0)
            worker->dataset = number;
        if (mr_msg_get_u64(&in, "lane", &number) == 0)
            worker->lane = number;
        bool more = false;
        if (in.type == MR_MSG_CONCAT && mr_msg_get_bool(&in, "more", &more) != 0)
            abort();
        if (!more && in.type != MR_MSG_DATASET && in.type != MR_MSG_LANE && in.type != MR_MSG_LOG_LEVEL)
            worker->asked = in.type;
        mr_msg_close(&in);
        if (worker->asked != 0)
            return;
    }
}

static void worker_obeys(struct worker *worker)
{
    enum mr_msg_type asked = worker->asked;
    worker->asked = 0;
    switch (asked) {
    case MR_MSG_SETUP:
        worker_sends(worker, MR_MSG_READY, false);
        break;
    case MR_MSG_RANGE:
        worker_sends(worker, MR_MSG_RANGE_PAGE, false);
        worker_sends(worker, MR_MSG_RANGE_DONE, false);
        break;
    case MR_MSG_SPLIT:
        worker_sends(worker, MR_MSG_RANGE_SPLIT, false);
        break;
    case MR_MSG_CONCAT:
        if (input_below(&scene.in, 8) == 0) /* it has failed, and answers all the same */
            worker_sends(worker, MR_MSG_FAILED, false);
        worker_sends(worker, MR_MSG_INDEX_DONE, false);
        break;
    case MR_MSG_INDEX_LOAD:
        worker_sends(worker, MR_MSG_INDEX_MISSING, false);
        break;
    case MR_MSG_ARENA:
        worker_sends(worker, MR_MSG_ARENA_READY, false);
        break;
    case MR_MSG_DROP_LANE:
        worker_sends(worker, MR_MSG_DROPPED, false);
        break;
    case MR_MSG_DROP_DATASET:
        worker_sends(worker, MR_MSG_DATASET_DROPPED, false);
        break;
    case MR_MSG_DRAIN:
        end_worker(worker, 0, 0);
        break;
    default:
        break;
    }
}

/* All of them do what they are asked, once. */
static bool workers_obey(void)
{
    bool any = false;
    for (unsigned i = 0; i < WORKERS; i++) {
        struct worker *worker = &scene.workers[i];
        if (worker->pid == 0 || worker->ended)
            continue;
        if (worker->asked == 0)
            worker_reads(worker);
        any |= worker->asked != 0;
        worker_obeys(worker);
    }
    return any;
}

static void worker_strays(struct worker *worker, unsigned how)
{
    static const int signals[] = {SIGKILL, SIGSEGV, SIGABRT, SIGTERM};
    struct input *in = &scene.in;
    if (worker->pid == 0 || worker->ended)
        return;
    switch (how % 4) {
    case 0:
        worker_reads(worker);
        worker_sends(worker, (enum mr_msg_type)input_below(in, MR_MSG_TYPE_COUNT + 1), how & 4);
        break;
    case 1:
        if (how & 4)
            end_worker(worker, -1, signals[input_below(in, 4)]);
        else
            end_worker(worker, input_below(in, 4), 0);
        break;
    case 2:
        send_raw(worker->socket);
        break;
    default: /* its end of the socket */
        shutdown(worker->socket, SHUT_RDWR);
        break;
    }
}

/* ---- clients ---- */

static void take_lane(struct mr_msg_in *in)
{
    struct mr_lane lane;
    int fd = mr_msg_take_fd(in, 0);
    if (fd < 0)
        abort();
    bool mapped = mr_lane_map(&lane, fd) == 0;
    close(fd);
    for (unsigned i = 0; mapped && i < LANES; i++) {
        if (scene.lanes[i].used)
            continue;
        scene.lanes[i].lane = lane;
        scene.lanes[i].used = true;
        return;
    }
    if (mapped)
        mr_lane_unmap(&lane);
}

static void client_reads(unsigned i)
{
    struct mr_msg_in in;
    while (scene.clients[i].socket >= 0) {
        int got = mr_msg_recv(scene.clients[i].socket, &in);
        if (got == 0)
            return;
        if (got < 0) { /* whatever it had asked */
            close(scene.clients[i].socket);
            scene.clients[i].socket = -1;
            scene.clients[i].owed = 0;
            return;
        }
        if (in.type != MR_MSG_OK && in.type != MR_MSG_ERROR)
            abort();
        if (scene.clients[i].owed-- == 0)
            abort(); /* nobody had asked */
        if (in.type == MR_MSG_ERROR) {
            uint64_t code;
            const char *text;
            if (mr_msg_get_u64(&in, "code", &code) != 0 || mr_msg_get_str(&in, "text", &text) != 0 || !text[0])
                abort();
        } else if (mr_msg_has(&in, "owner")) {
            take_lane(&in);
        }
        mr_msg_close(&in);
    }
}

static void connect_client(unsigned i)
{
    int ends[2];
    if (scene.clients[i].socket >= 0 || scene.clients[i].pidfd >= 0 || scene.accepting >= 0)
        return; /* is connected, or nobody accepts any more: the supervisor has ended */
    if (__real_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    scene.clients[i].socket = ends[0];
    scene.clients[i].owed = 0;
    scene.clients[i].pidfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    scene.accepting = ends[1];
    scene.identified = (int)i;
    eventfd_write(scene.listener, 1);
}

/* The process ends; with its socket. */
static void end_client(unsigned i)
{
    if (scene.clients[i].pidfd < 0)
        return;
    eventfd_write(scene.clients[i].pidfd, 1);
    close(scene.clients[i].pidfd);
    close(scene.clients[i].socket); /* or -1: it was closed already */
    scene.clients[i].pidfd = scene.clients[i].socket = -1;
}

static void client_asks(unsigned i, unsigned kind, bool spoil)
{
    static const enum mr_msg_type types[] = {
        MR_MSG_HELLO,        MR_MSG_OPEN_DATASET, MR_MSG_CLOSE_DATASET, MR_MSG_INDEX,    MR_MSG_PRODUCERS,
        MR_MSG_PRODUCER,     MR_MSG_OPEN_LANE,    MR_MSG_CLOSE_LANE,    MR_MSG_PUT_LOOP, MR_MSG_OPEN_WRITER,
        MR_MSG_CLOSE_WRITER, MR_MSG_CONFIG,       MR_MSG_STAT,          MR_MSG_RELOAD,   MR_MSG_SHUTDOWN,
        MR_MSG_LANE,         MR_MSG_BATCHES,      MR_MSG_PREPARE,       MR_MSG_METER,    MR_MSG_TRACE};
    static const char *const uris[] = {"gs://bucket/a/", "gs://bucket/b/"};
    struct input *in = &scene.in;
    if (scene.clients[i].socket < 0)
        return;
    enum mr_msg_type type = types[kind % (sizeof types / sizeof *types)];
    struct mr_msg_out *out = mr_msg_new(type);
    unsigned variant = type == MR_MSG_OPEN_DATASET ? input_below(in, 7) : 0;
    put_keys(out, &(struct about){.objects_is_bool = type == MR_MSG_OPEN_DATASET}, spoil);
    if (variant == 0 || variant == 5)
        mr_msg_put_strs(out, "uris", uris, 1 + (spoil && (input_byte(in) & 1)));
    if (variant == 1)
        mr_msg_put_str(out, "name", "train");
    if (variant == 2 || variant == 3)
        mr_msg_put_bool(out, "objects", true);
    if (variant == 3)
        mr_msg_put_u64(out, "block_bytes", spoil ? input_number(in) : 4096);
    if (variant == 4)
        mr_msg_put_u64(out, "like", spoil ? input_number(in) : 0);
    if (variant == 6)
        mr_msg_put_u64(out, "dataset", spoil ? input_number(in) : input_below(in, 3));
    if (variant == 5)
        mr_msg_put_u64(out, "nth", spoil ? input_number(in) : 1 + input_below(in, 3));
    put_some_fd(out, spoil ? input_byte(in) : 1);
    scene.clients[i].owed++;
    if (mr_msg_send(scene.clients[i].socket, out) != 0)
        scene.clients[i].owed--;
}

static void client_babbles(unsigned i)
{
    if (scene.clients[i].socket < 0)
        return;
    scene.clients[i].owed++; /* an error, at least */
    send_raw(scene.clients[i].socket);
}

/* What a client writes into its lane. */
static void use_lane(unsigned i, unsigned how)
{
    static const struct mr_request request = {.dataset = 0, .object = 1};
    struct input *in = &scene.in;
    struct mr_lane *lane = &scene.lanes[i].lane;
    if (!scene.lanes[i].used)
        return;
    uint32_t slot = input_byte(in) & lane->mask;
    switch (how % 5) {
    case 0:
        mr_lane_post(lane, slot, &request);
        break;
    case 1:
        mr_lane_close(lane, how & 8);
        break;
    case 2:
        atomic_store(&lane->tickets[slot].word,
                     mr_word((enum mr_state)input_below(in, 8), input_below(in, 5), input_below(in, 4), 0));
        break;
    case 3:
        ((unsigned char *)lane->shared)[input_16(in) % lane->size] = input_byte(in);
        break;
    default:
        mr_lane_unmap(lane);
        scene.lanes[i].used = false;
        break;
    }
}

/* ---- the whole ---- */

static void turn(void)
{
    if (scene.s->state < MR_SUP_STOPPING || any_process(scene.s)) {
        if (mr_events_step(&scene.s->events) != 0)
            abort();
        mr_supervisor_settle(scene.s);
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        client_reads(i);
}

static void step(struct input *in)
{
    unsigned op = input_byte(in), who = op / 8;
    switch (op % 8) {
    case 0:
        connect_client(who % CLIENTS);
        turn();
        client_asks(who % CLIENTS, 0, false); /* HELLO */
        break;
    case 1:
        client_asks(who % CLIENTS, input_byte(in), false);
        break;
    case 2:
        client_asks(who % CLIENTS, input_byte(in), true);
        break;
    case 3:
        workers_obey();
        turn();
        workers_obey();
        break;
    case 4:
        worker_strays(&scene.workers[who % 8], input_byte(in));
        break;
    case 5:
        use_lane(who % LANES, input_byte(in));
        break;
    case 6:
        if (who % 4 == 0)
            end_client(who / 4 % CLIENTS);
        else if (who % 4 == 1)
            client_babbles(who / 4 % CLIENTS);
        else if (who % 4 == 2)
            scene.now_ns += (who / 4 + 1) * MR_SECOND_NS;
        break;
    default:
        for (unsigned i = 0; i < 6 && workers_obey(); i++)
            turn();
        break;
    }
    turn();
}

/* What `init` does, but for what belongs to a process: signals, folders, names. */
static void open_supervisor(unsigned how)
{
    struct mr_supervisor *s = scene.s = calloc(1, sizeof *s);
    if (!s || mr_config_init(&s->config) != 0)
        abort();
    s->board_fd = s->config_fd = s->tracing.fd = s->life[0] = s->life[1] = s->signals = s->clients.listener =
        s->clients.spare = -1;
    s->folder.lock = s->folder.pid_lock = s->run_lock = s->command.pidfd = -1;
    s->is_private = how & 1;
    s->arena_bytes = how & 32 ? 64 * ARENA_BYTES : how & 2 ? 2 * ARENA_BYTES : ARENA_BYTES;
    s->config.memory.arena_bytes = how & 32 ? 0 : s->arena_bytes; /* or one that grows */
    s->config.memory.backing = MR_BACKING_MEMFD;
    s->config.memory.huge_pages = MR_HUGE_PAGES_NEVER;
    s->config.fetch.workers = 1 + how / 4 % 3;
    s->config.list.workers = 1 + how / 16 % 2;
    s->config.checkpoint.workers = 2;
    s->config.checkpoint.arena_bytes = UINT64_C(24) << 20;
    s->config.lanes.max = 4;
    s->config.list.cache_bytes = 0;
    s->config.metrics.interval_s = 0;
    strcpy(s->worker_path, "/bin/true"); /* it is asked whether it is there */
    mr_write_workers_init(s);
    s->started_ns = mr_clock_mono_ns();
    if (mr_events_init(&s->events) != 0 || pipe2(s->life, O_CLOEXEC) != 0)
        abort();
    s->config_fd = mr_config_to_fd(&s->config);
    s->stop_timer.run = stop_due;
    s->log_timer.run = log_due;
    s->metrics_timer.run = metrics_due;
    mr_lanes_init(s);
    mr_ckpt_lanes_init(s);
    mr_drain_init(s);
    scene.listener = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->config_fd < 0 || init_board(s) != 0 || mr_tracing_init(s) != 0 || mr_listing_init(s) != 0 ||
        mr_fetch_workers_init(s) != 0 || mr_clients_init(s, scene.listener) != 0)
        abort();
    supervisor_enter(s, MR_SUP_RUNNING);
    mr_heartbeat_init(s);
    mr_supervisor_settle(s);
}

/* Everybody goes. */
static void close_supervisor(void)
{
    struct mr_supervisor *s = scene.s;
    for (unsigned i = 0; i < CLIENTS; i++)
        end_client(i);
    mr_run_end(s, "the end of the input");
    for (unsigned i = 0; s->state < MR_SUP_STOPPING || any_process(s); i++) {
        if (i > 5000)
            abort(); /* it does not end */
        workers_obey();
        turn();
    }
    mr_ckpt_lanes_close(s);
    close_all(s);
    free(s);
    scene.s = NULL;
    for (unsigned i = 0; i < LANES; i++)
        if (scene.lanes[i].used)
            mr_lane_unmap(&scene.lanes[i].lane);
    close(scene.next_socket); /* or -1, as the next */
    close(scene.accepting);
}

static int make_index(void)
{
    static const struct mr_index_source source = {.scheme = MR_SCHEME_GS, .bucket = "bucket", .endpoint = "http://x"};
    struct mr_index_builder *builder = mr_index_builder_new(&source, -1);
    for (unsigned i = 0; i < 3; i++)
        if (mr_index_builder_add(builder, (const char *const[]){"a/1", "a/2", "a/3"}[i], 3, 100, 7, 0, false) != 0)
            abort();
    void *image = NULL;
    size_t length = 0;
    int fd = memfd_create("index", MFD_CLOEXEC);
    if (mr_index_builder_finish(builder, &image, &length) != 0 || pwrite(fd, image, length, 0) != (ssize_t)length)
        abort();
    mr_index_builder_destroy(builder);
    free(image);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char names[] = "gs://bucket/a/1\ngs://bucket/a/2\n";
    memset(&scene, 0, sizeof scene);
    scene.in = (struct input){data, size, 0};
    scene.now_ns = MR_SECOND_NS;
    scene.last_pid = FIRST_PID;
    scene.accepting = scene.next_socket = -1;
    for (unsigned i = 0; i < CLIENTS; i++)
        scene.clients[i].socket = scene.clients[i].pidfd = -1;
    unsigned before = mr_count_descriptors();
    scene.index = make_index();
    scene.names = memfd_create("names", MFD_CLOEXEC);
    scene.empty = memfd_create("empty", MFD_CLOEXEC);
    if (pwrite(scene.names, names, sizeof names - 1, 0) != sizeof names - 1)
        abort();
    open_supervisor(input_byte(&scene.in));
    for (unsigned i = 0; i < STEPS_MAX && scene.in.at < size; i++)
        step(&scene.in);
    close_supervisor();
    close(scene.index);
    close(scene.names);
    close(scene.empty);
    if (mr_count_descriptors() != before)
        abort(); /* one is left open */
    return 0;
}

/* A client that opens a data set, lanes and a writer while its workers obey; then with strays among them. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const uint8_t steps[] = {0, 1,  1, 0,  7, 7, 1,  3, 1, 4, 1, 5, 1, 8, 1,  6, 5,  0, 0,
                                    7, 5,  1, 0,  7, 1, 17, 7, 7, 1, 9, 7, 7, 1, 11, 1, 12, 1, 7,
                                    1, 10, 1, 16, 1, 1, 3,  7, 7, 1, 2, 7, 1, 1, 4,  7, 1,  13};
    if (n >= 24)
        return 0;
    uint8_t *seed = malloc(1 + sizeof steps * 4);
    if (!seed)
        abort();
    size_t size = 0;
    seed[size++] = (uint8_t)(n * 5);
    for (unsigned i = 0; i < sizeof steps; i++) {
        seed[size++] = steps[i];
        uint64_t random = mr_mix64(n * 1000 + i);
        if (n > 0 && random % 8 == 0) { /* here or there a stray, or a request that is spoiled */
            seed[size++] = (uint8_t)((random >> 8 & 1 ? 4 : 2) | (random >> 9 & 0x18));
            seed[size++] = (uint8_t)(random >> 16);
            seed[size++] = (uint8_t)(random >> 24);
        }
    }
    *data = seed;
    return size;
}
