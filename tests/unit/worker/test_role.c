/*
 * The frame of a worker's role, with the test as its supervisor and a role of its own that notes what the frame asks.
 */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/container.h"
#include "base/log.h"
#include "shm/memory/segment.h"
#include "shm/trace/trace.h"
#include "worker/role.h"

#define RUN         "0f8fad5b-d9cb-469f-a165-70867728950e"
#define SLOT        3
#define GENERATION  7
#define ARENA_BYTES (UINT64_C(1) << 20)

/* What the role has seen and what it is to do, shared by both processes. */
struct seen {
    _Atomic unsigned starts, rests, ticks, counts, drains, finishes, handled;
    _Atomic unsigned work, done; /* requests of the test, and those that start has taken */
    _Atomic bool busy, may_end, loses, was_orphan, had_failed, slept_in_start;
};

struct toy {
    struct mr_role role;
    bool unused;
};

static struct seen *seen;
static struct mr_config config;
static struct mr_board *board;
static struct mr_counters *counters;
static struct mr_producer_line *line;
static int board_fd, counters_fd, trace_fd, line_fd, wake_fd, supervisor, life;
static pid_t worker;

/* ---- the role ---- */

static int handle(struct mr_role *role, struct mr_msg_in *msg)
{
    if (msg->type != MR_MSG_DROP_LANE)
        return mr_role_unknown(role, msg);
    uint64_t lane;
    if (mr_msg_get_u64(msg, "lane", &lane) != 0)
        return -1;
    seen->handled++;
    mr_role_send(role, MR_MSG_DROPPED, "lane", lane);
    return 0;
}

static int arena_mapped(struct mr_role *role, struct mr_msg_in *msg)
{
    uint64_t mark;
    if (mr_msg_get_u64(msg, "mark", &mark) != 0)
        return -1;
    ((uint64_t *)role->arena)[role->arena_bytes / 8 - 1] = mark;
    return 0;
}

static void start(struct mr_role *role)
{
    seen->starts++;
    if (atomic_load(&role->link.line->asleep) != 0)
        seen->slept_in_start = true;
    if (seen->done < seen->work)
        seen->done++;
}

static enum mr_role_rest rest(struct mr_role *role)
{
    seen->rests++;
    mr_wake_producer_asleep(role->link.line);
    if (seen->done == seen->work)
        return MR_ROLE_SLEEP;
    mr_wake_producer_awake(role->link.line);
    return MR_ROLE_AGAIN;
}

static bool is_busy(struct mr_role *role)
{
    (void)role;
    return seen->busy;
}

static void tick(struct mr_role *role, int64_t now_ns)
{
    (void)role;
    (void)now_ns;
    seen->ticks++;
}

static void count(struct mr_role *role)
{
    (void)role;
    seen->counts++;
}

static void drain(struct mr_role *role)
{
    seen->was_orphan = role->orphan;
    seen->drains++; /* last: a test that waits for it looks at the rest then */
}

static bool is_done(struct mr_role *role)
{
    (void)role;
    return seen->may_end;
}

static bool finish(struct mr_role *role)
{
    seen->finishes++;
    seen->had_failed = role->failed;
    return seen->loses;
}

#define TOY                                                                                                    \
    .handle = handle, .arena_name = "the test's arena", .arena_populated = true, .arena_mapped = arena_mapped, \
    .start = start, .rest = rest, .is_busy = is_busy, .tick = tick, .count = count, .drain = drain,            \
    .is_done = is_done, .finish = finish

static const struct mr_role_ops mortal = {.kind = {.role = "fetch", .is_woken = true}, TOY};
static const struct mr_role_ops survivor = {.kind = {.role = "write", .is_woken = true, .survives = true}, TOY};
static const struct mr_role_ops plain = {.kind = {.role = "list"}, .handle = handle}; /* all that a role must have */

/* ---- the supervisor ---- */

static void *make_segment(const char *what, uint64_t bytes, int *fd)
{
    *fd = mr_segment_new(MR_BACKING_MEMFD, what, bytes, true);
    ck_assert_int_ge(*fd, 0);
    void *at = mr_segment_map(*fd, bytes, true, NULL);
    ck_assert_ptr_nonnull(at);
    return at;
}

static void setup(void)
{
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(seen, MAP_FAILED);
    seen->may_end = true;
    ck_assert_int_eq(mr_config_init(&config), 0);
    board = make_segment("board", sizeof *board, &board_fd);
    mr_board_format(board, (uint32_t)getpid(), RUN);
    counters = make_segment("counters", MR_COUNTERS_BYTES, &counters_fd);
    mr_trace_format(make_segment("trace", sizeof(struct mr_trace_shared), &trace_fd));
    mr_counters_init(counters, MR_ROLE_FETCH, SLOT);
    line = make_segment("line", MR_PRODUCER_LINE_BYTES, &line_fd);
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_ge(wake_fd, 0);
    worker = -1;
    supervisor = life = -1;
}

static void teardown(void)
{
    if (worker > 0) { /* a case that failed, or whose worker lives */
        kill(worker, SIGKILL);
        waitpid(worker, NULL, 0);
    }
    mr_config_close(&config);
}

/* The role's process, with its socket and life pipe at the descriptors of a worker. */
static void start_worker(const struct mr_role_ops *ops)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    int pipe_ends[2];
    ck_assert_int_eq(pipe(pipe_ends), 0);
    worker = fork();
    ck_assert_int_ge(worker, 0);
    if (worker == 0) {
        int socket = fcntl(ends[1], F_DUPFD, 100), pipe_end = fcntl(pipe_ends[0], F_DUPFD, 100);
        close(ends[0]);
        close(pipe_ends[1]);
        dup2(socket, MR_LINK_SOCKET);
        dup2(pipe_end, MR_LINK_LIFE);
        close(socket);
        struct toy toy = {.unused = false};
        _exit(mr_role_main(&toy.role, ops, SLOT));
    }
    close(ends[1]);
    close(pipe_ends[0]);
    supervisor = ends[0];
    life = pipe_ends[1];
}

static void send_setup(const char *role, unsigned slot, bool is_woken)
{
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_SETUP);
    int config_fd = mr_config_to_fd(&config);
    ck_assert_int_ge(config_fd, 0);
    mr_msg_put_str(msg, "role", role);
    mr_msg_put_u64(msg, "slot", slot);
    mr_msg_put_u64(msg, "generation", GENERATION);
    mr_msg_put_str(msg, "run_id", RUN);
    mr_msg_put_u64(msg, "log_level", MR_LOG_ERROR);
    mr_msg_put_fd(msg, config_fd);
    mr_msg_put_fd(msg, board_fd);
    mr_msg_put_fd(msg, counters_fd);
    mr_msg_put_fd(msg, trace_fd);
    if (is_woken) {
        mr_msg_put_fd(msg, line_fd);
        mr_msg_put_fd(msg, wake_fd);
    }
    ck_assert_int_eq(mr_msg_send(supervisor, msg), 0);
    close(config_fd);
}

/* Waits for a message of this type; the caller closes it. */
static struct mr_msg_in receive(enum mr_msg_type type)
{
    struct pollfd wait = {.fd = supervisor, .events = POLLIN};
    ck_assert_int_eq(poll(&wait, 1, 100000), 1);
    struct mr_msg_in msg;
    ck_assert_int_eq(mr_msg_recv(supervisor, &msg), 1);
    ck_assert_int_eq(msg.type, type);
    return msg;
}

static void expect(enum mr_msg_type type)
{
    struct mr_msg_in msg = receive(type);
    mr_msg_close(&msg);
}

static void send_plain(enum mr_msg_type type)
{
    ck_assert_int_eq(mr_msg_send(supervisor, mr_msg_new(type)), 0);
}

static void send_number(enum mr_msg_type type, const char *key, uint64_t number)
{
    struct mr_msg_out *msg = mr_msg_new(type);
    mr_msg_put_u64(msg, key, number);
    ck_assert_int_eq(mr_msg_send(supervisor, msg), 0);
}

static bool ahead; /* in the next ARENA */

/* first: of an arena that grows; 0: it does not. */
static void send_growing_arena(int fd, uint64_t bytes, uint64_t first, uint64_t mark)
{
    struct mr_msg_out *msg = mr_msg_new(MR_MSG_ARENA);
    mr_msg_put_u64(msg, "bytes", bytes);
    mr_msg_put_bool(msg, "fresh", true);
    mr_msg_put_bool(msg, "ahead", ahead);
    mr_msg_put_bool(msg, "grows", first > 0);
    mr_msg_put_u64(msg, "reserve", bytes / 4);
    mr_msg_put_u64(msg, "largest", 4096);
    mr_msg_put_u64(msg, "first", first);
    mr_msg_put_u64(msg, "mark", mark);
    mr_msg_put_fd(msg, fd);
    ck_assert_int_eq(mr_msg_send(supervisor, msg), 0);
}

static void send_arena(int fd, uint64_t bytes, uint64_t mark)
{
    send_growing_arena(fd, bytes, 0, mark);
}

/* The role answers: so it lives, and has dealt with all that was sent before. */
static void ping(uint64_t lane)
{
    send_number(MR_MSG_DROP_LANE, "lane", lane);
    struct mr_msg_in msg = receive(MR_MSG_DROPPED);
    uint64_t answer;
    ck_assert_int_eq(mr_msg_get_u64(&msg, "lane", &answer), 0);
    ck_assert_uint_eq(answer, lane);
    mr_msg_close(&msg);
}

static int exit_status(void)
{
    int status;
    ck_assert_int_eq(waitpid(worker, &status, 0), worker);
    worker = -1;
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void run(const struct mr_role_ops *ops)
{
    start_worker(ops);
    send_setup(ops->kind.role, SLOT, ops->kind.is_woken);
    expect(MR_MSG_READY);
}

#define WAIT_UNTIL(condition) \
    while (!(condition))      \
    usleep(1000)

/* ---- start ---- */

START_TEST(a_role_of_one_function_starts_and_drains)
{
    run(&plain);
    ping(4);
    ck_assert_int_eq(counters->pid, worker);
    ck_assert_uint_eq(counters->generation, GENERATION);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
    ck_assert_uint_eq(mr_counter_get(counters, MR_WC_IDLE_NS), 0); /* without is_busy nothing is counted */
}
END_TEST

START_TEST(a_setup_for_another_role_ends_it)
{
    start_worker(&mortal);
    send_setup("write", SLOT, true);
    ck_assert_int_eq(exit_status(), 1);
    start_worker(&mortal);
    send_setup("fetch", SLOT + 1, true);
    ck_assert_int_eq(exit_status(), 1);
    start_worker(&mortal);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 1);
    ck_assert_uint_eq(seen->finishes, 0);
}
END_TEST

START_TEST(a_setup_of_another_supervisor_ends_it)
{
    board->supervisor_pid++;
    start_worker(&mortal);
    send_setup("fetch", SLOT, true);
    ck_assert_int_eq(exit_status(), 1);
}
END_TEST

START_TEST(a_bad_configuration_is_reported_and_never_started_again)
{
    ck_assert_int_eq(mr_config_set_text(mr_config_key_find("http", "ca_bundle"), &config, "/no/such/file"), 0);
    start_worker(&plain);
    send_setup("list", SLOT, false);
    struct mr_msg_in msg = receive(MR_MSG_FAILED);
    uint64_t code;
    ck_assert_int_eq(mr_msg_get_u64(&msg, "code", &code), 0);
    ck_assert_uint_eq(code, MR_E_CONFIG);
    mr_msg_close(&msg);
    ck_assert_int_eq(exit_status(), 2);
}
END_TEST

/* ---- messages ---- */

START_TEST(an_unknown_message_ends_it_after_its_finish)
{
    run(&mortal);
    send_plain(MR_MSG_RANGE);
    ck_assert_int_eq(exit_status(), 1);
    ck_assert_uint_eq(seen->finishes, 1);
    ck_assert(seen->had_failed);
    run(&plain); /* a role without memory does not know ARENA */
    send_arena(board_fd, ARENA_BYTES, 0);
    ck_assert_int_eq(exit_status(), 1);
}
END_TEST

START_TEST(a_message_without_its_fields_ends_it)
{
    run(&mortal);
    send_plain(MR_MSG_LOG_LEVEL);
    ck_assert_int_eq(exit_status(), 1);
    run(&mortal);
    send_plain(MR_MSG_ARENA);
    ck_assert_int_eq(exit_status(), 1);
}
END_TEST

START_TEST(a_log_level_of_any_number_is_taken)
{
    run(&mortal);
    send_number(MR_MSG_LOG_LEVEL, "level", MR_LOG_WARNING);
    send_number(MR_MSG_LOG_LEVEL, "level", UINT64_MAX);
    ping(1);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
}
END_TEST

START_TEST(draining_goes_on_until_the_role_is_done)
{
    seen->may_end = false;
    run(&mortal);
    send_plain(MR_MSG_DRAIN);
    ping(1);
    ck_assert_uint_eq(seen->drains, 1);
    ck_assert_uint_eq(seen->finishes, 0);
    ping(2);
    seen->may_end = true;
    ck_assert_int_eq(exit_status(), 0);
    ck_assert_uint_eq(seen->finishes, 1);
    ck_assert(!seen->had_failed);
}
END_TEST

START_TEST(what_is_lost_shows_in_the_exit_status)
{
    seen->loses = true;
    run(&survivor);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 1);
}
END_TEST

/* ---- the supervisor's death ---- */

START_TEST(a_mortal_role_ends_with_the_socket)
{
    run(&mortal);
    close(supervisor);
    ck_assert_int_eq(exit_status(), 1);
    ck_assert_uint_eq(seen->drains, 0);
    ck_assert_uint_eq(seen->finishes, 1);
}
END_TEST

START_TEST(a_survivor_drains_after_the_socket)
{
    seen->may_end = false;
    run(&survivor);
    close(supervisor);
    WAIT_UNTIL(seen->drains == 1);
    ck_assert(seen->was_orphan);
    unsigned starts = seen->starts;
    WAIT_UNTIL(seen->starts > starts + 2); /* it goes on, without wake-ups */
    ck_assert_uint_eq(seen->drains, 1);
    seen->may_end = true;
    ck_assert_int_eq(exit_status(), 0);
}
END_TEST

START_TEST(a_survivor_drains_after_the_life_pipe)
{
    run(&survivor);
    close(life);
    ck_assert_int_eq(exit_status(), 0);
    ck_assert(seen->was_orphan);
    ck_assert_uint_eq(seen->drains, 1);
}
END_TEST

/* ---- memory ---- */

START_TEST(the_arena_is_mapped_and_reported)
{
    int fd;
    uint64_t *arena = make_segment("arena", ARENA_BYTES, &fd);
    run(&mortal);
    send_arena(fd, ARENA_BYTES, 4711);
    expect(MR_MSG_ARENA_READY);
    ck_assert_uint_eq(arena[ARENA_BYTES / 8 - 1], 4711);
    WAIT_UNTIL(mr_counter_get(counters, MR_WC_ARENA_BYTES) == ARENA_BYTES);
    send_arena(fd, ARENA_BYTES, 4712); /* a second one is an error of the supervisor's */
    ck_assert_int_eq(exit_status(), 1);
    ck_assert_uint_eq(arena[ARENA_BYTES / 8 - 1], 4711);
}
END_TEST

static uint64_t backed_bytes(int fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    return (uint64_t)status.st_blocks * 512;
}

START_TEST(an_arena_that_grows_has_its_first_pages)
{
    int fd = mr_segment_new(MR_BACKING_MEMFD, "arena", 64 * ARENA_BYTES, false);
    ck_assert_int_ge(fd, 0);
    config.memory.huge_pages = MR_HUGE_PAGES_NEVER;
    run(&mortal);
    send_growing_arena(fd, 64 * ARENA_BYTES, ARENA_BYTES, 4711);
    expect(MR_MSG_ARENA_READY);
    uint64_t written = 4096; /* by the role's mark, at the end */
    ck_assert_uint_eq(backed_bytes(fd), 4096 + ARENA_BYTES + written);
}
END_TEST

/* More than there can be is refused with FAILED; then this arena is taken. */
static void refuse_much_and_take(int fd)
{
    uint64_t code, much = UINT64_C(1) << 46;
    int large = memfd_create("much", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(large, (off_t)much), 0);
    config.memory.huge_pages = MR_HUGE_PAGES_NEVER;
    run(&mortal);
    send_arena(large, much, 1);
    struct mr_msg_in msg = receive(MR_MSG_FAILED);
    ck_assert_int_eq(mr_msg_get_u64(&msg, "code", &code), 0);
    ck_assert_uint_eq(code, MR_E_NO_MEMORY);
    mr_msg_close(&msg);
    send_arena(fd, ARENA_BYTES, 2);
    expect(MR_MSG_ARENA_READY);
}

START_TEST(too_little_memory_is_reported_and_another_arena_taken)
{
    int small;
    make_segment("arena", ARENA_BYTES, &small);
    refuse_much_and_take(small);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
}
END_TEST

START_TEST(pages_that_nobody_waits_for_are_reserved_at_low_priority)
{
    int small = mr_segment_new(MR_BACKING_MEMFD, "arena", ARENA_BYTES, false);
    ahead = true;
    refuse_much_and_take(small);
    ck_assert_uint_eq(backed_bytes(small), ARENA_BYTES);
    ck_assert_int_eq(getpriority(PRIO_PROCESS, (id_t)worker), getpriority(PRIO_PROCESS, 0));
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
}
END_TEST

/* ---- the loop ---- */

START_TEST(it_sleeps_and_is_woken)
{
    run(&mortal);
    for (unsigned i = 1; i <= 20; i++) {
        WAIT_UNTIL(atomic_load(&line->asleep) == 1);
        seen->work = i;
        mr_wake_producer(line, wake_fd);
        WAIT_UNTIL(seen->done == i);
    }
    ck_assert(!seen->slept_in_start); /* nobody needs to wake what is awake */
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
    ck_assert_uint_eq(atomic_load(&line->asleep), 0);
}
END_TEST

START_TEST(what_came_before_the_sleep_is_not_waited_for)
{
    seen->work = 1000; /* one a start: a wait between two of them would take minutes */
    run(&mortal);
    WAIT_UNTIL(seen->done == 1000);
    ck_assert_uint_ge(seen->rests, 999);
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
}
END_TEST

START_TEST(time_is_busy_or_idle)
{
    run(&mortal);
    WAIT_UNTIL(mr_counter_get(counters, MR_WC_IDLE_NS) > 0);
    ck_assert_uint_eq(mr_counter_get(counters, MR_WC_BUSY_NS), 0);
    seen->busy = true;
    ping(1);
    WAIT_UNTIL(mr_counter_get(counters, MR_WC_BUSY_NS) > 0);
    WAIT_UNTIL(seen->ticks > 0);
    unsigned counts = seen->counts;
    send_plain(MR_MSG_DRAIN);
    ck_assert_int_eq(exit_status(), 0);
    ck_assert_uint_gt(seen->counts, counts); /* the last ones, after finish */
    ck_assert_uint_gt(seen->counts, seen->ticks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("role");
    TCase *all = tcase_create("role");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, a_role_of_one_function_starts_and_drains);
    tcase_add_test(all, a_setup_for_another_role_ends_it);
    tcase_add_test(all, a_setup_of_another_supervisor_ends_it);
    tcase_add_test(all, a_bad_configuration_is_reported_and_never_started_again);
    tcase_add_test(all, an_unknown_message_ends_it_after_its_finish);
    tcase_add_test(all, a_message_without_its_fields_ends_it);
    tcase_add_test(all, a_log_level_of_any_number_is_taken);
    tcase_add_test(all, draining_goes_on_until_the_role_is_done);
    tcase_add_test(all, what_is_lost_shows_in_the_exit_status);
    tcase_add_test(all, a_mortal_role_ends_with_the_socket);
    tcase_add_test(all, a_survivor_drains_after_the_socket);
    tcase_add_test(all, a_survivor_drains_after_the_life_pipe);
    tcase_add_test(all, the_arena_is_mapped_and_reported);
    tcase_add_test(all, an_arena_that_grows_has_its_first_pages);
    tcase_add_test(all, too_little_memory_is_reported_and_another_arena_taken);
    tcase_add_test(all, pages_that_nobody_waits_for_are_reserved_at_low_priority);
    tcase_add_test(all, it_sleeps_and_is_woken);
    tcase_add_test(all, what_came_before_the_sleep_is_not_waited_for);
    tcase_add_test(all, time_is_busy_or_idle);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
