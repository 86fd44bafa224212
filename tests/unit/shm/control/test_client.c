/* The client's side of the socket, against a process that plays the supervisor: rightly, wrongly, and dying. */
#include "shm/control/client.h"

#include <check.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/msg.h"
#include "shm/memory/arena.h"
#include "shm/memory/prefault.h"
#include "shm/memory/segment.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/suite.h"

static char path[64];
static pid_t server;
static int board_fd;
static struct mr_board *board;

/* ---- the other side ---- */

static int recv_request(int socket, enum mr_msg_type *type)
{
    struct mr_msg_in in;
    if (mr_msg_recv(socket, &in) != 1)
        return -1;
    *type = in.type;
    mr_msg_close(&in);
    return 0;
}

static void answer_hello(int socket)
{
    enum mr_msg_type type;
    if (recv_request(socket, &type) != 0 || type != MR_MSG_HELLO)
        _exit(1);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_str(out, "run_id", "run");
    mr_msg_put_u64(out, "pid", (uint64_t)getpid());
    mr_msg_put_fd(out, board_fd);
    mr_msg_send(socket, out);
}

/* Listens at path, serves one connection with `play`, and exits: with 0 when play was content. */
static void start_server(int (*play)(int socket))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    server = fork();
    if (server == 0) {
        /* Listening here makes this process the one that SO_PEERCRED names. */
        if (listen(listener, 1) != 0)
            _exit(1);
        _exit(play(accept(listener, NULL, NULL)));
    }
    close(listener);
}

static void expect_server_content(void)
{
    int status;
    ck_assert_int_eq(waitpid(server, &status, 0), server);
    server = 0;
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/millrace-test-client-%d", (int)getpid());
    unlink(path);
    board_fd = mr_segment_new(MR_BACKING_MEMFD, "board", sizeof *board, true);
    ck_assert_int_ge(board_fd, 0);
    board = mr_segment_map(board_fd, sizeof *board, true, NULL);
    ck_assert_ptr_nonnull(board);
    mr_board_format(board, (uint32_t)getpid(), "run");
}

static void teardown(void)
{
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        server = 0;
    }
    mr_segment_unmap(board, sizeof *board);
    close(board_fd);
    unlink(path);
}

static void expect_error(enum mr_code code, const char *part)
{
    ck_assert_msg(mr_error_code() == code, "code %d: %s", mr_error_code(), mr_error_text());
    ck_assert_msg(strstr(mr_error_text(), part) != NULL, "'%s' lacks '%s'", mr_error_text(), part);
    mr_error_clear();
}

/* ---- connecting ---- */

START_TEST(test_nobody_there)
{
    ck_assert_ptr_null(mr_client_connect(path, "job", 0));
    expect_error(MR_E_GONE, path);
    ck_assert_ptr_null(mr_client_connect(path, "job", 50));
    expect_error(MR_E_GONE, path);
    ck_assert_ptr_null(mr_client_connect("", "job", 0));
    expect_error(MR_E_USAGE, "1 to 107");
    ck_assert_ptr_null(mr_client_connect(NULL, "job", 0));
    expect_error(MR_E_USAGE, "1 to 107");
    char longer[200];
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    ck_assert_ptr_null(mr_client_connect(longer, "job", 0));
    expect_error(MR_E_USAGE, "1 to 107");
    ck_assert_ptr_null(mr_client_connect("/tmp", "job", 0));
    expect_error(MR_E_GONE, "/tmp");
}
END_TEST

static int play_hello_only(int socket)
{
    answer_hello(socket);
    enum mr_msg_type type;
    return recv_request(socket, &type) == -1 ? 0 : 1;
}

START_TEST(test_connect_and_close)
{
    unsigned before = mr_count_descriptors();
    start_server(play_hello_only);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_msg(client != NULL, "%s", mr_error_text());
    ck_assert_int_eq(mr_client_check(client), 0);
    ck_assert_str_eq(mr_client_board(client)->run_id, "run");
    mr_client_destroy(client);
    expect_server_content();
    ck_assert_uint_eq(mr_count_descriptors(), before);
    mr_client_destroy(NULL);
}
END_TEST

static int play_no_board(int socket)
{
    enum mr_msg_type type;
    recv_request(socket, &type);
    mr_msg_send(socket, mr_msg_new(MR_MSG_OK));
    return recv_request(socket, &type) == -1 ? 0 : 1;
}

static int play_bad_board(int socket)
{
    enum mr_msg_type type;
    recv_request(socket, &type);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_fd(out, memfd_create("short", MFD_CLOEXEC));
    mr_msg_send(socket, out);
    return recv_request(socket, &type) == -1 ? 0 : 1;
}

static int play_refuse(int socket)
{
    enum mr_msg_type type;
    recv_request(socket, &type);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_ERROR);
    mr_msg_put_u64(out, "code", MR_E_DENIED);
    mr_msg_put_str(out, "text", "not you");
    mr_msg_send(socket, out);
    return 0;
}

START_TEST(test_bad_hello)
{
    static const struct {
        int (*play)(int socket);
        enum mr_code code;
        const char *part;
    } cases[] = {{play_no_board, MR_E_PROTOCOL, "descriptor"},
                 {play_bad_board, MR_E_CORRUPT, ""},
                 {play_refuse, MR_E_DENIED, "not you"}};
    unsigned before = mr_count_descriptors();
    start_server(cases[_i].play);
    ck_assert_ptr_null(mr_client_connect(path, "job", 50000));
    expect_error(cases[_i].code, cases[_i].part);
    expect_server_content();
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

/* ---- answers ---- */

/* Each wrong answer to an INDEX, in order. */
static int play_wrong_answers(int socket)
{
    answer_hello(socket);
    enum mr_msg_type type;
    for (unsigned i = 0; i < 7; i++) {
        if (recv_request(socket, &type) != 0 || type != MR_MSG_INDEX)
            return 1;
        struct mr_msg_out *out = mr_msg_new(i < 3 ? MR_MSG_ERROR : i == 3 ? MR_MSG_HELLO : MR_MSG_OK);
        if (i < 2)
            mr_msg_put_u64(out, "code", i == 0 ? MR_E_BUSY : 12345);
        if (i < 3)
            mr_msg_put_str(out, "text", "because");
        if (i == 5)
            mr_msg_put_str(out, "size", "many");
        if (i == 6)
            mr_msg_put_u64(out, "size", 1);
        if (i == 4 || i == 5)
            mr_msg_put_fd(out, 0);
        mr_msg_send(socket, out);
    }
    if (recv_request(socket, &type) != 0)
        return 1;
    send(socket, "garbage", 7, 0);
    return recv_request(socket, &type) == -1 ? 0 : 1;
}

START_TEST(test_wrong_answers)
{
    static const struct {
        enum mr_code code;
        const char *part;
    } expected[] = {{MR_E_BUSY, "because"},
                    {MR_E_INTERNAL, "because"},
                    {MR_E_PROTOCOL, "neither OK nor ERROR"},
                    {MR_E_PROTOCOL, "neither"},
                    {MR_E_PROTOCOL, "'size'"},
                    {MR_E_PROTOCOL, "'size'"},
                    {MR_E_PROTOCOL, "lacks descriptor"},
                    {MR_E_PROTOCOL, ""}};
    start_server(play_wrong_answers);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    unsigned before = mr_count_descriptors();
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        int fd;
        uint64_t size;
        ck_assert_int_eq(mr_client_index(client, 0, &fd, &size), -1);
        expect_error(expected[i].code, expected[i].part);
        ck_assert_uint_eq(mr_count_descriptors(), before);
    }
    mr_client_destroy(client);
    expect_server_content();
}
END_TEST

/* Room for this many descriptors more. */
static void leave_descriptors(int count)
{
    int next = dup(board_fd);
    close(next);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)(next + count);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static bool ends_at_close;

static int play_lane_that_is_none(int socket)
{
    answer_hello(socket);
    enum mr_msg_type type;
    if (recv_request(socket, &type) != 0 || type != MR_MSG_OPEN_LANE)
        return 1;
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_u64(out, "lane", 3);
    mr_msg_put_fd(out, board_fd);
    mr_msg_send(socket, out);
    /* It tells us that it does not have the lane. */
    if (recv_request(socket, &type) != 0 || type != MR_MSG_CLOSE_LANE)
        return 1;
    if (ends_at_close)
        return 0;
    mr_msg_send(socket, mr_msg_new(MR_MSG_OK));
    return recv_request(socket, &type) == -1 ? 0 : 1;
}

START_TEST(test_lane_that_is_none)
{
    ends_at_close = _i == 1; /* the error is still what was wrong with the lane */
    start_server(play_lane_that_is_none);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    struct mr_lane lane;
    struct mr_loop loop;
    bool has_loop = true;
    if (_i == 2) /* what is opened for us cannot even reach us */
        leave_descriptors(0);
    ck_assert_int_eq(mr_client_open_lane(client, 0, 4, 4, "key", &lane, &loop, &has_loop), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "lane 3"));
    expect_error(_i == 2 ? MR_E_NO_MEMORY : MR_E_CORRUPT, _i == 2 ? "no descriptor is left" : "lane 3");
    ck_assert(!has_loop);
    mr_client_destroy(client);
    expect_server_content();
}
END_TEST

START_TEST(test_states_come_from_the_board)
{
    start_server(play_hello_only);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    ck_assert_int_eq(mr_client_dataset_state(client, 5), MR_DATASET_FAILED);
    expect_error(MR_E_USAGE, "data set 5 has failed or was closed");
    atomic_store(&board->dataset[5].id, 5);
    atomic_store(&board->dataset[5].state, MR_DATASET_LISTING);
    ck_assert_int_eq(mr_client_dataset_state(client, 5), MR_DATASET_LISTING);
    board->dataset[5].code = MR_E_NOT_FOUND;
    memset(board->dataset[5].text, 'x', sizeof board->dataset[5].text); /* no NUL: read to its end and no further */
    atomic_store(&board->dataset[5].state, MR_DATASET_FAILED);
    ck_assert_int_eq(mr_client_dataset_state(client, 5), MR_DATASET_FAILED);
    expect_error(MR_E_NOT_FOUND, "xxx");
    board->dataset[5].text[0] = '\0'; /* a damaged board: an error has a text nevertheless */
    ck_assert_int_eq(mr_client_dataset_state(client, 5), MR_DATASET_FAILED);
    expect_error(MR_E_NOT_FOUND, "the data set failed");
    ck_assert_int_eq(mr_client_dataset_state(client, MR_DATASETS_MAX + 5), MR_DATASET_FAILED);
    expect_error(MR_E_USAGE, "data set 5 has failed or was closed");
    mr_client_destroy(client);
}
END_TEST

/* ---- death ---- */

static int play_die(int socket)
{
    answer_hello(socket);
    enum mr_msg_type type;
    recv_request(socket, &type);
    _exit(0); /* without an answer */
}

START_TEST(test_supervisor_dies)
{
    start_server(play_die);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    ck_assert_ptr_null(mr_client_stat(client));
    expect_error(MR_E_GONE, "has ended");
    expect_server_content();
    ck_assert_int_eq(mr_client_check(client), -1);
    expect_error(MR_E_GONE, "has ended");
    ck_assert_ptr_null(mr_client_views(client));
    expect_error(MR_E_GONE, "has ended");
    ck_assert_int_eq(mr_client_close_lane(client, 0), -1);
    expect_error(MR_E_GONE, "has ended");
    mr_client_destroy(client);
}
END_TEST

/* ---- silence ---- */

static int gate[2]; /* what the server waits for before it answers */

/* Answers the first request late, and all others. */
static int play_late(int socket)
{
    char byte;
    enum mr_msg_type first, second;
    answer_hello(socket);
    if (recv_request(socket, &first) != 0 || read(gate[0], &byte, 1) != 1)
        return 1;
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_str(out, "text", "late");
    mr_msg_send(socket, out);
    unsigned later = 0;
    for (; recv_request(socket, &second) == 0; later++) {
        out = mr_msg_new(MR_MSG_OK);
        mr_msg_put_str(out, "text", "in time");
        mr_msg_send(socket, out);
    }
    return later > 0 ? 0 : 2; /* 2: the connection was given up */
}

START_TEST(test_late_answers_are_dropped)
{
    board->silence_ms = 100;
    ck_assert_int_eq(pipe(gate), 0);
    start_server(play_late);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    ck_assert_int_eq(mr_client_close_lane(client, 0), -1);
    expect_error(MR_E_GONE, "has not answered for 0.1 s");
    ck_assert_int_eq(mr_client_close_lane(client, 0), -1); /* not even asked: an answer is owed */
    expect_error(MR_E_GONE, "has not answered for 0.1 s");
    ck_assert_int_eq(write(gate[1], "x", 1), 1);
    char *text = NULL; /* under load it may not be in time for the first call */
    for (int i = 0; !text && i < 1000; i++)
        text = mr_client_reload(client);
    ck_assert_str_eq(text, "in time");
    free(text);
    mr_client_destroy(client);
    expect_server_content();
    close(gate[0]);
    close(gate[1]);
}
END_TEST

START_TEST(test_what_came_too_late_ends_the_connection)
{
    board->silence_ms = 100;
    ck_assert_int_eq(pipe(gate), 0);
    start_server(play_late);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    struct mr_lane lane;
    ck_assert_int_eq(mr_client_open_lane(client, 0, 4, 4, NULL, &lane, NULL, NULL), -1);
    expect_error(MR_E_GONE, "has not answered");
    ck_assert_ptr_null(mr_client_reload(client));
    expect_error(MR_E_GONE, "open the data set again");
    ck_assert_int_eq(mr_client_check(client), -1);
    expect_error(MR_E_GONE, "open the data set again");
    ck_assert(!mr_client_has_ended(client));
    ck_assert_int_eq(write(gate[1], "x", 1), 1);
    int status;
    ck_assert_int_eq(waitpid(server, &status, 0), server);
    server = 0;
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 2);
    ck_assert_int_eq(mr_client_check(client), -1);
    expect_error(MR_E_GONE, "has ended");
    mr_client_destroy(client);
    close(gate[0]);
    close(gate[1]);
}
END_TEST

START_TEST(test_heartbeat)
{
    board->silence_ms = 100;
    start_server(play_hello_only);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    unsigned warnings = 0;
    for (int i = 0; i < 500; i++) { /* it beats: nothing is said however long we wait */
        atomic_fetch_add(&board->beat, 1);
        ck_assert_int_eq(mr_client_check(client), 0);
    }
    ck_assert_str_eq(mr_client_warning(client), "");
    while (mr_client_check(client) == 0) {
        const char *warning = mr_client_warning(client);
        if (warning[0] == '\0')
            continue;
        warnings++;
        ck_assert_ptr_nonnull(strstr(warning, "kill -CONT"));
    }
    expect_error(MR_E_GONE, "no sign of life");
    ck_assert_uint_eq(warnings, 1);
    struct mr_silence wait = {0};
    ck_assert_int_eq(mr_client_check_wait(client, &wait), 0); /* another wait has its own time */
    atomic_fetch_add(&board->beat, 1);
    ck_assert_int_eq(mr_client_check(client), 0);
    mr_client_destroy(client);
    expect_server_content();
}
END_TEST

START_TEST(test_forked_child)
{
    start_server(play_hello_only);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    pid_t child = fork();
    if (child == 0) {
        bool refused = !mr_client_stat(client) && mr_error_code() == MR_E_USAGE && !mr_client_views(client) &&
                       mr_error_code() == MR_E_USAGE && mr_client_close_lane(client, 0) == -1 &&
                       mr_error_code() == MR_E_USAGE;
        _exit(refused ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(mr_client_check(client), 0);
    mr_client_destroy(client);
    expect_server_content(); /* it saw no message of the child's */
}
END_TEST

#define LARGE_ARENA (UINT64_C(64) << 20)

/* A writer with a checkpoint arena of one size that cannot be mapped; when that is given back, one of another size. */
static int play_two_ckpt_arenas(int socket)
{
    static const struct mr_ckpt_part_format format = {.slots = 2, .part_bytes = MR_ARENA_PAGE};
    uint64_t lane_bytes = mr_ckpt_part_size(format.slots);
    int lane = mr_segment_new(MR_BACKING_MEMFD, "checkpoint lane", lane_bytes, false);
    void *at = mr_segment_map(lane, lane_bytes, true, NULL);
    mr_ckpt_part_format(at, &format);
    answer_hello(socket);
    for (unsigned i = 0; i < 3; i++) {
        enum mr_msg_type type, wanted = i == 1 ? MR_MSG_CLOSE_WRITER : MR_MSG_OPEN_WRITER;
        if (recv_request(socket, &type) != 0 || type != wanted)
            return 1;
        struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
        mr_msg_put_u64(out, "lane", 0);
        mr_msg_put_u64(out, "worker", 0);
        mr_msg_put_u64(out, "drain_s", 60);
        mr_msg_put_u64(out, "arena_bytes", i == 0 ? MR_ARENA_PAGE : LARGE_ARENA);
        mr_msg_put_fd(out, lane);
        mr_msg_put_fd(out, mr_segment_new(MR_BACKING_MEMFD, "checkpoint arena", i == 0 ? 1 : LARGE_ARENA, false));
        mr_msg_put_fd(out, mr_segment_new(MR_BACKING_MEMFD, "line", MR_PRODUCER_LINE_BYTES, false));
        mr_msg_put_fd(out, eventfd(0, EFD_NONBLOCK));
        mr_msg_send(socket, out);
    }
    return 0;
}

/* The table of touched chunks had the size of the first arena: what is marked in it lay beyond its end. */
START_TEST(test_another_ckpt_arena)
{
    struct mr_ckpt_writer writer;
    start_server(play_two_ckpt_arenas);
    struct mr_client *client = mr_client_connect(path, "job", 50000);
    ck_assert_ptr_nonnull(client);
    struct rlimit all;
    getrlimit(RLIMIT_NOFILE, &all);
    if (_i == 1) /* of the answer's four */
        leave_descriptors(2);
    ck_assert_int_eq(mr_client_open_writer(client, "gs://b/o", false, 1, &writer), -1);
    expect_error(_i == 1 ? MR_E_NO_MEMORY : MR_E_CORRUPT, "checkpoint writer 0");
    setrlimit(RLIMIT_NOFILE, &all);
    ck_assert_msg(mr_client_open_writer(client, "gs://b/o", false, 1, &writer) == 0, "%s", mr_error_text());
    ck_assert_uint_ge(malloc_usable_size((void *)(uintptr_t)writer.touched), LARGE_ARENA / MR_PREFAULT_CHUNK);
    mr_ckpt_part_unmap(&writer.lane);
    mr_client_destroy(client);
    expect_server_content();
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("client");
    tcase_set_timeout(tcase, 20);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_nobody_there);
    tcase_add_test(tcase, test_connect_and_close);
    tcase_add_loop_test(tcase, test_bad_hello, 0, 3);
    tcase_add_test(tcase, test_wrong_answers);
    tcase_add_loop_test(tcase, test_lane_that_is_none, 0, 3);
    tcase_add_test(tcase, test_states_come_from_the_board);
    tcase_add_test(tcase, test_supervisor_dies);
    tcase_add_test(tcase, test_late_answers_are_dropped);
    tcase_add_test(tcase, test_what_came_too_late_ends_the_connection);
    tcase_add_test(tcase, test_heartbeat);
    tcase_add_test(tcase, test_forked_child);
    tcase_add_loop_test(tcase, test_another_ckpt_arena, 0, 2);
    return mr_suite_run("client", tcase);
}
