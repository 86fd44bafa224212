/* Control messages: what goes in comes out, and nothing that a peer may send does harm or leaks a descriptor. */
#include "shm/control/msg.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/suite.h"

static int ends[2];

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
}

static void teardown(void)
{
    close(ends[0]);
    close(ends[1]);
}

static void send_raw(const void *bytes, size_t length)
{
    ck_assert_int_eq(send(ends[0], bytes, length, 0), (ssize_t)length);
}

static void expect_bad(const void *bytes, size_t length)
{
    send_raw(bytes, length);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
}

START_TEST(test_round_trip)
{
    const char *uris[] = {"gs://a/b", "", "file:///x y/\xc3\xa9"};
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OPEN_DATASET);
    mr_msg_put_u64(out, "small", 0);
    mr_msg_put_u64(out, "large", UINT64_MAX);
    mr_msg_put_bool(out, "yes", true);
    mr_msg_put_bool(out, "no", false);
    mr_msg_put_str(out, "text", "hello");
    mr_msg_put_str(out, "empty", "");
    mr_msg_put_strs(out, "uris", uris, 3);
    mr_msg_put_strs(out, "none", NULL, 0);
    ck_assert_int_eq(mr_msg_send(ends[0], out), 0);

    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    ck_assert_int_eq(in.type, MR_MSG_OPEN_DATASET);
    uint64_t number;
    ck_assert_int_eq(mr_msg_get_u64(&in, "small", &number), 0);
    ck_assert_uint_eq(number, 0);
    ck_assert_int_eq(mr_msg_get_u64(&in, "large", &number), 0);
    ck_assert(number == UINT64_MAX);
    bool flag;
    ck_assert_int_eq(mr_msg_get_bool(&in, "yes", &flag), 0);
    ck_assert(flag);
    ck_assert_int_eq(mr_msg_get_bool(&in, "no", &flag), 0);
    ck_assert(!flag);
    const char *text;
    ck_assert_int_eq(mr_msg_get_str(&in, "text", &text), 0);
    ck_assert_str_eq(text, "hello");
    ck_assert_int_eq(mr_msg_get_str(&in, "empty", &text), 0);
    ck_assert_str_eq(text, "");
    size_t length;
    const char *const *list;
    ck_assert_int_eq(mr_msg_get_strs(&in, "uris", &list, &length), 0);
    ck_assert_uint_eq(length, 3);
    for (size_t i = 0; i < 3; i++)
        ck_assert_str_eq(list[i], uris[i]);
    ck_assert_ptr_null(list[3]);
    ck_assert_int_eq(mr_msg_get_strs(&in, "none", &list, &length), 0);
    ck_assert_uint_eq(length, 0);
    ck_assert(mr_msg_has(&in, "text") && !mr_msg_has(&in, "tex") && !mr_msg_has(&in, "texts"));
    mr_msg_close(&in);
}
END_TEST

START_TEST(test_wrong_type_and_missing_key)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_u64(out, "number", 5);
    mr_msg_put_str(out, "text", "five");
    ck_assert_int_eq(mr_msg_send(ends[0], out), 0);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    uint64_t number;
    ck_assert_int_eq(mr_msg_get_u64(&in, "text", &number), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "'text'"));
    bool flag;
    ck_assert_int_eq(mr_msg_get_bool(&in, "number", &flag), -1);
    const char *text;
    ck_assert_int_eq(mr_msg_get_str(&in, "number", &text), -1);
    size_t length;
    const char *const *list;
    ck_assert_int_eq(mr_msg_get_strs(&in, "text", &list, &length), -1);
    mr_error_clear();
    ck_assert_int_eq(mr_msg_get_u64(&in, "absent", &number), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "'absent'"));
    ck_assert_int_eq(mr_msg_take_fd(&in, 0), -1);
    mr_msg_close(&in);
}
END_TEST

/* A text may come as msgpack's str or bin; with a NUL in it, it is neither cut nor delivered. */
START_TEST(test_text_as_bytes)
{
    static const char packet[] = "\x93\x01\x01\x82\xa3"
                                 "bin\xc4\x02"
                                 "ab\xa3"
                                 "nul\xc4\x03"
                                 "a\0b";
    send_raw(packet, sizeof packet - 1);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    const char *text;
    ck_assert_int_eq(mr_msg_get_str(&in, "bin", &text), 0);
    ck_assert_str_eq(text, "ab");
    ck_assert_int_eq(mr_msg_get_str(&in, "nul", &text), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    mr_msg_close(&in);
}
END_TEST

START_TEST(test_descriptors)
{
    unsigned before = mr_count_descriptors();
    int pipe_ends[2];
    ck_assert_int_eq(pipe2(pipe_ends, O_CLOEXEC), 0);
    struct mr_msg_out *out = mr_msg_new(MR_MSG_LANE);
    mr_msg_put_fd(out, pipe_ends[0]);
    mr_msg_put_fd(out, pipe_ends[1]);
    ck_assert_int_eq(mr_msg_send(ends[0], out), 0);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    ck_assert_uint_eq(in.fd_count, 2);
    int writer = mr_msg_take_fd(&in, 1);
    ck_assert_int_ge(writer, 0);
    ck_assert_int_eq(mr_msg_take_fd(&in, 1), -1);
    ck_assert_int_eq(mr_msg_take_fd(&in, 2), -1);
    ck_assert_int_eq(fcntl(writer, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(write(writer, "x", 1), 1);
    close(writer);
    mr_msg_close(&in); /* closes the one that nobody took */
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

/* A message that waits in a queue holds its descriptors open itself. */
START_TEST(test_kept_descriptors)
{
    unsigned before = mr_count_descriptors();
    int sockets[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    int pipe_ends[2];
    struct mr_msg_in in;
    for (unsigned round = 0; round < 2; round++) {
        ck_assert_int_eq(pipe(pipe_ends), 0);
        struct mr_msg_out *out = mr_msg_new(MR_MSG_CONCAT);
        mr_msg_put_fd(out, pipe_ends[1]);
        ck_assert_int_eq(mr_msg_keep_fds(out), 0);
        ck_assert_int_eq(mr_msg_keep_fds(out), 0);
        close(pipe_ends[1]);
        if (round == 0) {
            mr_msg_discard(out);
        } else {
            ck_assert_int_eq(mr_msg_send(sockets[0], out), 0);
            ck_assert_int_eq(mr_msg_recv(sockets[1], &in), 1);
            int writer = mr_msg_take_fd(&in, 0);
            ck_assert_int_eq(write(writer, "x", 1), 1);
            close(writer);
            mr_msg_close(&in);
        }
        char byte; /* all copies are closed: the pipe ends behind what was written */
        ck_assert_int_eq(read(pipe_ends[0], &byte, 1), (ssize_t)round);
        ck_assert_int_eq(read(pipe_ends[0], &byte, 1), 0);
        close(pipe_ends[0]);
    }
    close(sockets[0]);
    close(sockets[1]);
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

START_TEST(test_limits_of_a_sender)
{
    char *big = malloc(MR_MSG_BYTES_MAX + 1);
    memset(big, 'x', MR_MSG_BYTES_MAX);
    big[MR_MSG_BYTES_MAX] = '\0';
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OK);
    mr_msg_put_str(out, "big", big);
    ck_assert_int_eq(mr_msg_send(ends[0], out), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);

    out = mr_msg_new(MR_MSG_OK);
    for (unsigned i = 0; i < 40000; i++)
        mr_msg_put_u64(out, "key", i);
    ck_assert_int_eq(mr_msg_send(ends[0], out), -1);

    out = mr_msg_new(MR_MSG_OK);
    for (unsigned i = 0; i <= MR_MSG_FDS_MAX; i++)
        mr_msg_put_fd(out, ends[0]);
    ck_assert_int_eq(mr_msg_send(ends[0], out), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);

    ck_assert_int_eq(mr_msg_send(ends[0], NULL), -1); /* as after a failed mr_msg_new */
    ck_assert_int_eq(mr_error_code(), MR_E_NO_MEMORY);

    /* The largest that fits: 65536 bytes less the head and the key's. */
    out = mr_msg_new(MR_MSG_OK);
    big[MR_MSG_BYTES_MAX - 16] = '\0';
    mr_msg_put_str(out, "big", big);
    ck_assert_int_eq(mr_msg_send(ends[0], out), 0);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    const char *text;
    ck_assert_int_eq(mr_msg_get_str(&in, "big", &text), 0);
    ck_assert_uint_eq(strlen(text), MR_MSG_BYTES_MAX - 16);
    mr_msg_close(&in);
    free(big);
}
END_TEST

START_TEST(test_refused_packets)
{
    expect_bad("\xc1", 1);             /* never used in msgpack */
    expect_bad("garbage", 7);          /* several values */
    expect_bad("\x93\x01\x01", 3);     /* cut */
    expect_bad("\x92\x01\x01", 3);     /* two items */
    expect_bad("\x93\x01\x01\x90", 4); /* an array for the fields */
    expect_bad("\x93\x02\x01\x80", 4); /* another version */
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "version 2"));
    expect_bad("\x93\x01\x00\x80", 4);     /* type 0 */
    expect_bad("\x93\x01\xcc\xff\x80", 5); /* type 255 */
    expect_bad("\x93\x01\xff\x80", 4);     /* type -1 */
    expect_bad("\x93\x01\x01\x80\x00", 5); /* a byte too many */
    expect_bad("\xdd\xff\xff\xff\xff", 5); /* claims 4 G items */
    expect_bad("\x93\x01\x01\xdf\x7f\xff\xff\xff", 8);
    expect_bad("\x93\x01\x01\x81\xa1k\xdb\xff\xff\xff\xff", 11);
    char deep[4096];
    memset(deep, 0x91, sizeof deep);
    expect_bad(deep, sizeof deep);
    deep[sizeof deep - 1] = 1; /* whole, but nested 4095 deep */
    expect_bad(deep, sizeof deep);

    char *big = calloc(1, MR_MSG_BYTES_MAX + 1);
    expect_bad(big, MR_MSG_BYTES_MAX + 1);
    free(big);

    send_raw("\x93\x01\x01\x80", 4); /* the socket still works: the next whole message is read */
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    mr_msg_close(&in);
}
END_TEST

/* More descriptors than allowed: refused, and all that arrived are closed. */
START_TEST(test_refused_packets_leak_nothing)
{
    enum { MANY = 40 };
    unsigned before = mr_count_descriptors();
    for (unsigned round = 0; round < 2; round++) {
        unsigned count = round == 0 ? MANY : 3;
        char control[CMSG_SPACE(MANY * sizeof(int))] = {0};
        char body[] = "\x93\x09\x01\x80"; /* a version that is refused */
        struct iovec part = {body, 4};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = control,
                                .msg_controllen = CMSG_SPACE(count * sizeof(int))};
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (unsigned i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &ends[0], sizeof(int));
        ck_assert_int_eq(sendmsg(ends[0], &header, 0), 4);
        struct mr_msg_in in;
        ck_assert_int_eq(mr_msg_recv(ends[1], &in), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    }
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

START_TEST(test_ends_of_a_socket)
{
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    unsigned sent = 0;
    while (sent < 100000 && mr_msg_send(ends[0], mr_msg_new(MR_MSG_READY)) == 0)
        sent++;
    ck_assert_int_eq(mr_error_code(), MR_E_BUSY);
    for (unsigned i = 0; i < sent; i++) {
        ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
        mr_msg_close(&in);
    }
    close(ends[0]);
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_GONE);
    ck_assert_int_eq(mr_msg_send(ends[1], mr_msg_new(MR_MSG_READY)), -1); /* and no SIGPIPE */
    ck_assert_int_eq(mr_error_code(), MR_E_GONE);
    ends[0] = -1;
}
END_TEST

/* Valid messages with bytes changed, and noise: each is refused or read, and every field may be asked for. */
START_TEST(test_noise)
{
    static const unsigned char seed_packet[] =
        "\x93\x01\x08\x84\xa3key\x05\xa4name\xa3\x61\x62\x63\xa4list\x92\xa1x\xa1y"
        "\xa4yes\x31\xc3";
    unsigned before = mr_count_descriptors();
    for (unsigned round = 0; round < 20000; round++) {
        unsigned char packet[64];
        size_t length = 1 + mr_random64() % (sizeof seed_packet - 1);
        if (round % 4 == 0) {
            for (size_t i = 0; i < length; i++)
                packet[i] = (unsigned char)mr_random64();
        } else {
            length = round % 4 == 1 ? length : sizeof seed_packet - 1;
            memcpy(packet, seed_packet, length);
            for (unsigned i = 0; i < round % 4; i++)
                packet[mr_random64() % length] = (unsigned char)mr_random64();
        }
        send_raw(packet, length);
        struct mr_msg_in in;
        if (mr_msg_recv(ends[1], &in) != 1)
            continue;
        uint64_t number;
        mr_msg_get_u64(&in, "key", &number);
        bool flag;
        mr_msg_get_bool(&in, "yes1", &flag);
        const char *text;
        mr_msg_get_str(&in, "name", &text);
        size_t size;
        const char *const *list;
        if (mr_msg_get_strs(&in, "list", &list, &size) == 0)
            for (size_t i = 0; i < size; i++)
                ck_assert_uint_le(strlen(list[i]), length);
        mr_msg_close(&in);
    }
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("msg");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_round_trip);
    tcase_add_test(tcase, test_wrong_type_and_missing_key);
    tcase_add_test(tcase, test_text_as_bytes);
    tcase_add_test(tcase, test_descriptors);
    tcase_add_test(tcase, test_limits_of_a_sender);
    tcase_add_test(tcase, test_kept_descriptors);
    tcase_add_test(tcase, test_refused_packets);
    tcase_add_test(tcase, test_refused_packets_leak_nothing);
    tcase_add_test(tcase, test_ends_of_a_socket);
    tcase_add_test(tcase, test_noise);
    return mr_suite_run("msg", tcase);
}
