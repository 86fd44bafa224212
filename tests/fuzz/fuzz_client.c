/*
 * fuzz_client.c - the client's side of the control socket against a supervisor whose answers the input spoils: keys left
 * out or with other values, other descriptors, errors, other messages, bytes, two answers, none, an end.
 *
 * Each call returns, with mr_error set where it failed; nothing that it was handed is read beyond its end, and no
 * descriptor is left open. Waits cost no time: the target's clock goes on instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "fuzz.h"
#include "input.h"
#include "shm/control/client.h"
#include "shm/control/msg.h"
#include "shm/memory/prefault.h"
#include "shm/memory/segment.h"
#include "tests/unit/descriptors.h"

#define CALLS_MAX   24
#define ARENA_BYTES (UINT64_C(64) << 10)
#define PART_BYTES  8192u
#define STAT_TEXT   "{\"a\": 1}"

/* Sizes out of an answer are refused by malloc, not by the sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* What answers may hold. The first ones are right somewhere. */
enum thing {
    BOARD,
    INDEX,
    ARENA,
    LINE,
    EVENTFD,
    LANE,
    CKPT_LANE,
    CKPT_ARENA,
    CONFIG,
    STAT,
    TINY,
    NOTHING, /* /dev/null */
    THINGS
};

static struct {
    struct input in;
    int socket; /* the supervisor's end; -1 */
    int fds[THINGS];
    struct mr_board *board;
    int64_t now_ns;
} scene;

/* ---- what the client calls ---- */

int64_t __wrap_mr_clock_mono_ns(void);
int64_t __wrap_mr_clock_mono_ns(void)
{
    return scene.now_ns += 1000;
}

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int ready = __real_poll(fds, count, 0);
    if (ready == 0 && timeout_ms < 0)
        abort(); /* for ever */
    if (ready == 0)
        scene.now_ns += timeout_ms * MR_MILLISECOND_NS;
    return ready;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    scene.now_ns += time->tv_sec * MR_SECOND_NS + time->tv_nsec;
    return 0;
}

int __wrap_connect(int socket, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int socket, const struct sockaddr *address, socklen_t length)
{
    int ends[2];
    (void)address;
    (void)length;
    if (scene.socket >= 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        abort();
    if (dup3(ends[0], socket, O_CLOEXEC) != socket || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0)
        abort();
    close(ends[0]);
    scene.socket = ends[1];
    return 0;
}

/* ---- the supervisor ---- */

static const struct {
    const char *name;
    uint64_t value;
} numbers[] = {{"pid", 1},
               {"dataset", 1},
               {"tail", 0},
               {"on_error", 0},
               {"size", sizeof STAT_TEXT - 1},
               {"producers", 1},
               {"division", 0},
               {"arena_bytes", ARENA_BYTES},
               {"lane", 0},
               {"owner", 0},
               {"window", 8},
               {"epoch", 3},
               {"cursor", 64},
               {"seed", 7},
               {"batch", 32},
               {"world", 2},
               {"rank", 1},
               {"block", 0},
               {"mix", 0},
               {"worker", 0},
               {"part_bytes", PART_BYTES},
               {"drain_s", 60},
               {"code", MR_E_BUSY}};
#define NUMBERS (sizeof numbers / sizeof *numbers)

/* Each answer has every key: those that a call does not ask for are ignored. */
static void put_keys(struct mr_msg_out *out, unsigned spoiled)
{
    struct input *in = &scene.in;
    for (unsigned i = 0; i < NUMBERS; i++) {
        unsigned how = i == spoiled ? 1 + input_below(in, 6) : 0;
        if (how == 0 || how > 3)
            mr_msg_put_u64(out, numbers[i].name, how ? input_number(in) : numbers[i].value);
        else if (how == 1)
            mr_msg_put_str(out, numbers[i].name, "words");
        else if (how == 2)
            mr_msg_put_bool(out, numbers[i].name, true);
    }
    if (spoiled != NUMBERS)
        mr_msg_put_bool(out, "has_loop", true);
    mr_msg_put_str(out, "run_id", "run");
    if (spoiled != NUMBERS + 1)
        mr_msg_put_str(out, "text", "as the supervisor says");
}

static void put_fds(struct mr_msg_out *out, enum mr_msg_type type, unsigned spoiled)
{
    static const struct {
        enum mr_msg_type type;
        enum thing things[4];
        unsigned count;
    } wanted[] = {
        {MR_MSG_HELLO, {BOARD}, 1},
        {MR_MSG_INDEX, {INDEX}, 1},
        {MR_MSG_PRODUCER, {ARENA, LINE, EVENTFD}, 3},
        {MR_MSG_OPEN_LANE, {LANE}, 1},
        {MR_MSG_OPEN_WRITER, {CKPT_LANE, CKPT_ARENA, LINE, EVENTFD}, 4},
        {MR_MSG_CONFIG, {CONFIG}, 1},
        {MR_MSG_STAT, {STAT}, 1},
    };
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        for (unsigned k = 0; wanted[i].type == type && k < wanted[i].count; k++) {
            unsigned how = spoiled == k ? input_below(&scene.in, THINGS + 1) : wanted[i].things[k];
            if (how < THINGS)
                mr_msg_put_fd(out, scene.fds[how]);
        }
    }
}

int __real_mr_msg_send(int socket, struct mr_msg_out *msg);

static void answer(enum mr_msg_type type)
{
    struct input *in = &scene.in;
    unsigned how = input_byte(in), key = UINT32_MAX, fd = UINT32_MAX;
    enum mr_msg_type as = MR_MSG_OK;
    const uint8_t *raw;
    size_t length;
    switch (how % 16) {
    case 9:
        key = input_below(in, NUMBERS + 2);
        break;
    case 10:
        fd = input_below(in, 4);
        break;
    case 11:
        as = MR_MSG_ERROR;
        key = how & 0x80 ? NUMBERS - 1 : how & 0x40 ? NUMBERS + 1 : UINT32_MAX;
        break;
    case 12:
        as = (enum mr_msg_type)input_below(in, MR_MSG_TYPE_COUNT + 2);
        break;
    case 13:
        length = input_bytes(in, input_byte(in), &raw);
        if (length > 0)
            send(scene.socket, raw, length, MSG_NOSIGNAL);
        return;
    case 14:
        if (how & 0x80) {
            close(scene.socket);
            scene.socket = -1;
        }
        return; /* no answer */
    default:
        break;
    }
    for (unsigned i = how % 16 == 15 ? 2 : 1; i > 0; i--) {
        struct mr_msg_out *out = mr_msg_new(as);
        put_keys(out, key);
        put_fds(out, type, fd);
        __real_mr_msg_send(scene.socket, out);
    }
}

/* The client has sent something: the supervisor's turn. */
int __wrap_mr_msg_send(int socket, struct mr_msg_out *msg);
int __wrap_mr_msg_send(int socket, struct mr_msg_out *msg)
{
    struct mr_msg_in in;
    int rc = __real_mr_msg_send(socket, msg);
    while (scene.socket >= 0 && mr_msg_recv(scene.socket, &in) == 1) {
        enum mr_msg_type type = in.type;
        mr_msg_close(&in);
        answer(type);
    }
    return rc;
}

/* ---- the things ---- */

static int segment(const char *what, uint64_t size)
{
    int fd = mr_segment_new(MR_BACKING_MEMFD, what, size, false);
    if (fd < 0)
        abort();
    return fd;
}

/* A segment with this content, of which one word may be another. */
static int filled(const char *what, const void *data, size_t size, struct input *in, unsigned spoil)
{
    int fd = segment(what, size);
    uint64_t word = spoil ? input_number(in) : 0;
    size_t at = spoil ? input_byte(in) * 4u % 320 : 0;
    if (pwrite(fd, data, size, 0) != (ssize_t)size || (spoil && pwrite(fd, &word, spoil, (off_t)at) != (ssize_t)spoil))
        abort();
    return fd;
}

static void make_things(struct input *in)
{
    static _Alignas(64) unsigned char lane[16384], ckpt[2 << 20];
    static const struct mr_ckpt_part_format format = {.slots = 4, .part_bytes = PART_BYTES};
    unsigned how = input_byte(in);
    int board = segment("board", sizeof *scene.board);
    scene.board = mr_segment_map(board, sizeof *scene.board, true, NULL);
    if (!scene.board || mr_lane_size(8) > sizeof lane || mr_ckpt_part_size(4) > sizeof ckpt)
        abort();
    mr_board_format(scene.board, 1, "run");
    scene.board->silence_ms = 1000;
    atomic_store(&scene.board->dataset[1].state, MR_DATASET_READY);
    if (how & 1)
        ((unsigned char *)scene.board)[input_16(in) % 200] = input_byte(in);
    memset(lane, 0, sizeof lane);
    mr_lane_format(lane, 8, 0, 0, 1, 1 << 20, 0, how & 2 ? 1 : 0);
    memset(ckpt, 0, 4096);
    mr_ckpt_part_format(ckpt, &format);
    scene.fds[BOARD] = mr_segment_reopen_readonly(board);
    close(board);
    scene.fds[INDEX] = segment("index", 4096);
    scene.fds[ARENA] = segment("arena", ARENA_BYTES);
    scene.fds[LINE] = segment("line", MR_PRODUCER_LINE_BYTES);
    scene.fds[EVENTFD] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    scene.fds[LANE] = filled("lane", lane, mr_lane_size(8), in, how & 4 ? how & 8 ? 4 : 8 : 0);
    scene.fds[CKPT_LANE] = filled("checkpoint lane", ckpt, mr_ckpt_part_size(4), in, how & 16 ? how & 32 ? 4 : 8 : 0);
    scene.fds[CKPT_ARENA] = segment("checkpoint arena", ARENA_BYTES);
    scene.fds[CONFIG] = segment("configuration", 1);
    scene.fds[STAT] = filled("statistics", STAT_TEXT, sizeof STAT_TEXT - 1, in, 0);
    scene.fds[TINY] = segment("tiny", 1);
    scene.fds[NOTHING] = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (unsigned i = 0; i < THINGS; i++)
        if (scene.fds[i] < 0)
            abort();
}

/* ---- the client ---- */

static void check(int rc)
{
    if (rc != 0 && (mr_error_code() == MR_OK || mr_error_text()[0] == 0))
        abort();
    mr_error_clear();
}

static void touch(const void *at, uint64_t bytes)
{
    const volatile unsigned char *byte = at;
    if (bytes > 0)
        (void)(byte[0] + byte[bytes - 1]);
}

static void try_lane(struct mr_client *client, struct input *in)
{
    struct mr_lane lane;
    struct mr_loop loop;
    bool has_loop;
    int rc = mr_client_open_lane(client, input_below(in, 3), 8, 4, "key", &lane, &loop, &has_loop);
    check(rc);
    if (rc != 0)
        return;
    touch(lane.shared, lane.size);
    for (uint32_t slot = 0; slot < lane.window && slot < 100; slot++)
        mr_lane_load(&lane, slot);
    mr_lane_unmap(&lane);
}

static void try_writer(struct mr_client *client, struct input *in)
{
    struct mr_ckpt_writer writer;
    int rc = mr_client_open_writer(client, "gs://b/o", input_byte(in) & 1, 1, &writer);
    check(rc);
    if (rc != 0)
        return;
    for (uint32_t slot = 0; slot < writer.lane.slots; slot++) {
        uint64_t offset = mr_ckpt_part_offset(&writer.lane, slot), end = offset + writer.lane.part_bytes - 1;
        writer.arena[end] = 1;
        touch(writer.arena + offset, writer.lane.part_bytes);
        atomic_store(&writer.touched[end / MR_PREFAULT_CHUNK], 1);
    }
    mr_wake_producer(writer.line, writer.eventfd);
    check(mr_client_close_writer(client, &writer));
}

static void try_index(struct mr_client *client, struct input *in)
{
    int fd = -1;
    uint64_t size;
    int rc = mr_client_index(client, input_below(in, 3), &fd, &size);
    check(rc);
    if (rc == 0)
        close(fd);
}

static void try_text(char *text)
{
    check(text ? 0 : -1);
    if (text)
        touch(text, strlen(text) + 1);
    free(text);
}

/* Somebody changes the board, as the supervisor does. */
static void change_board(struct input *in)
{
    struct mr_board *board = scene.board;
    unsigned what = input_byte(in);
    unsigned number = what / 8 % 3;
    struct mr_board_dataset *dataset = &board->dataset[number];
    if (what & 1) {
        atomic_store(&dataset->id, number + MR_DATASETS_MAX * (uint64_t)input_below(in, 2));
        atomic_store(&dataset->state, input_below(in, 6));
    }
    if (what & 2)
        memset(dataset->text, 'x', sizeof dataset->text);
    if (what & 4)
        atomic_store(&board->division, (uint32_t)input_number(in));
    dataset->code = (uint32_t)input_number(in);
    atomic_fetch_add(&board->beat, what & 0x80 ? 1 : 0);
    scene.now_ns += what & 0x40 ? 600 * MR_MILLISECOND_NS : 0;
}

static void call(struct mr_client *client, struct input *in)
{
    static const char *const uris[] = {"gs://a/", "gs://b/"};
    static const struct mr_loop loop = {1, 2, 3, 4, 5, 6, 7, 8};
    struct mr_opened opened;
    struct mr_silence silence = {0};
    uint64_t known;
    int fd;
    switch (input_below(in, 19)) {
    case 0:
        check(mr_client_open_dataset(client, &(struct mr_to_open){.name = "train", .names_fd = -1}, &opened));
        break;
    case 1:
        check(mr_client_open_dataset(
            client, &(struct mr_to_open){.uris = uris, .uri_count = 2, .nth = 1, .names_fd = -1}, &opened));
        break;
    case 2:
        check(mr_client_open_dataset(client, &(struct mr_to_open){.names_fd = scene.fds[INDEX]}, &opened));
        break;
    case 3:
        check(mr_client_open_dataset(client, &(struct mr_to_open){.like = 1, .digest = "digest"}, &opened));
        break;
    case 4:
        check(mr_client_open_ranged(client, scene.fds[INDEX], 4096, &opened));
        break;
    case 5:
        check(mr_client_close_dataset(client, 1));
        break;
    case 6:
        if (mr_client_dataset_state(client, input_below(in, 70)) == MR_DATASET_FAILED)
            check(-1);
        mr_client_dataset_block(client, input_below(in, 70));
        break;
    case 7:
        try_index(client, in);
        break;
    case 8:
        check(mr_client_views(client) ? 0 : -1);
        break;
    case 9:
        check(mr_client_put_loop(client, "key", &loop));
        break;
    case 10:
        try_lane(client, in);
        break;
    case 11:
        check(mr_client_close_lane(client, 0));
        break;
    case 12:
        try_writer(client, in);
        break;
    case 13:
        fd = mr_client_config(client);
        check(fd < 0 ? -1 : 0);
        if (fd >= 0)
            close(fd);
        break;
    case 14:
        try_text(mr_client_stat(client));
        break;
    case 15:
        try_text(mr_client_reload(client));
        break;
    case 16:
        check(mr_client_check(client));
        check(mr_client_check_wait(client, &silence));
        touch(mr_client_warning(client), 1);
        break;
    case 17:
        known = input_below(in, 70);
        check(mr_client_open_dataset(client, &(struct mr_to_open){.known = &known}, &opened));
        break;
    default:
        change_board(in);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned before = mr_count_descriptors();
    scene.in = (struct input){data, size, 0};
    scene.socket = -1;
    scene.now_ns = MR_SECOND_NS;
    make_things(&scene.in);
    struct mr_client *client = mr_client_connect("/nowhere", "job", 100);
    check(client ? 0 : -1);
    for (unsigned i = 0; client && i < CALLS_MAX && scene.in.at < size; i++)
        call(client, &scene.in);
    mr_client_destroy(client);
    if (scene.socket >= 0)
        close(scene.socket);
    for (unsigned i = 0; i < THINGS; i++)
        close(scene.fds[i]);
    mr_segment_unmap(scene.board, sizeof *scene.board);
    if (mr_count_descriptors() != before)
        abort(); /* one is left open */
    return 0;
}

/* One call of each kind, answered well; then each spoiled in its own way. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const uint8_t calls[] = {0, 0, 8, 0, 0, 10, 1, 0, 12, 0, 0, 0, 7, 1, 0, 14, 0, 15, 0, 13, 0, 16, 6, 1, 1};
    if (n >= 24)
        return 0;
    size_t size = 2 + sizeof calls;
    uint8_t *seed = malloc(size + 12);
    if (!seed)
        abort();
    seed[0] = n % 2 && n > 16 ? (uint8_t)(n * 2) : 0;
    seed[1] = 0;
    memcpy(seed + 2, calls, sizeof calls);
    for (unsigned i = 0; n > 0 && i < 8; i++) /* from the n-th byte on, something else */
        seed[2 + (n + i * 3) % sizeof calls] = (uint8_t)(mr_mix64(n * 8 + i));
    *data = seed;
    return size;
}
