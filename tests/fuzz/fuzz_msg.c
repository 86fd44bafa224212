/* fuzz_msg.c - control messages: any packet is refused or read within its bounds. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "shm/control/msg.h"

static const char *const keys[] = {"dataset", "name", "uris", "text", "yes"};

/* Every getter for every key: strings end within the packet's length. */
static void read_fields(const struct mr_msg_in *in, size_t size)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t number;
        mr_msg_get_u64(in, keys[i], &number);
        bool flag;
        mr_msg_get_bool(in, keys[i], &flag);
        const char *text;
        if (mr_msg_get_str(in, keys[i], &text) == 0 && strlen(text) > size)
            abort();
        size_t length;
        const char *const *list;
        if (mr_msg_get_strs(in, keys[i], &list, &length) != 0)
            continue;
        if (length > size || list[length])
            abort();
        for (size_t j = 0; j < length; j++)
            if (strlen(list[j]) > size)
                abort();
    }
}

/* The same fields in a message of ours, by the way of a queue every other time. */
static struct mr_msg_out *copy_of(const struct mr_msg_in *in)
{
    struct mr_msg_out *out = mr_msg_new(in->type);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint64_t number;
        bool flag;
        const char *text, *const *list;
        size_t length;
        if (mr_msg_get_u64(in, keys[i], &number) == 0)
            mr_msg_put_u64(out, keys[i], number);
        else if (mr_msg_get_bool(in, keys[i], &flag) == 0)
            mr_msg_put_bool(out, keys[i], flag);
        else if (mr_msg_get_str(in, keys[i], &text) == 0)
            mr_msg_put_str(out, keys[i], text);
        else if (mr_msg_get_strs(in, keys[i], &list, &length) == 0)
            mr_msg_put_strs(out, keys[i], list, length);
    }
    return out;
}

static bool same(const struct mr_msg_in *a, const struct mr_msg_in *b, const char *key)
{
    uint64_t numbers[2];
    bool flags[2];
    const char *texts[2], *const *lists[2];
    size_t lengths[2];
    if (mr_msg_get_u64(a, key, &numbers[0]) == 0)
        return mr_msg_get_u64(b, key, &numbers[1]) == 0 && numbers[0] == numbers[1];
    if (mr_msg_get_bool(a, key, &flags[0]) == 0)
        return mr_msg_get_bool(b, key, &flags[1]) == 0 && flags[0] == flags[1];
    if (mr_msg_get_str(a, key, &texts[0]) == 0)
        return mr_msg_get_str(b, key, &texts[1]) == 0 && strcmp(texts[0], texts[1]) == 0;
    if (mr_msg_get_strs(a, key, &lists[0], &lengths[0]) != 0)
        return true;
    if (mr_msg_get_strs(b, key, &lists[1], &lengths[1]) != 0 || lengths[0] != lengths[1])
        return false;
    for (size_t i = 0; i < lengths[0]; i++)
        if (strcmp(lists[0][i], lists[1][i]) != 0)
            return false;
    return true;
}

static void send_again(const struct mr_msg_in *in, int ends[2])
{
    struct mr_msg_out *out = copy_of(in);
    bool queued = in->type % 2;
    mr_msg_put_fd(out, ends[0]);
    if (mr_msg_type_of(out) != in->type || (queued && mr_msg_keep_fds(out) != 0)) {
        mr_msg_discard(out);
        return; /* more fields than a message has room for */
    }
    if ((queued ? mr_msg_try_send(ends[0], out) : mr_msg_send(ends[0], out)) != 0)
        return; /* the same */
    struct mr_msg_in got;
    if (mr_msg_recv(ends[1], &got) != 1 || got.type != in->type)
        abort();
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!same(in, &got, keys[i]))
            abort();
    int fd = mr_msg_take_fd(&got, 0);
    if (fd < 0 || mr_msg_take_fd(&got, 0) >= 0 || mr_msg_take_fd(&got, 7) >= 0)
        abort();
    close(fd);
    mr_msg_close(&got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int ends[2] = {-1, -1};
    if (ends[0] < 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        abort();
    if (size == 0 || send(ends[0], data, size, 0) != (ssize_t)size)
        return 0; /* longer than a packet of this socket may be */
    struct mr_msg_in in;
    int got = mr_msg_recv(ends[1], &in);
    if (got == 0)
        abort();
    if (got == 1) {
        read_fields(&in, size);
        send_again(&in, ends);
        mr_msg_close(&in);
    }
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const uris[] = {"gs://a/", "file:///b"};
    int ends[2];
    struct mr_msg_out *out = n < 2 ? mr_msg_new(n == 0 ? MR_MSG_OPEN_DATASET : MR_MSG_FAILED) : NULL;
    if (!out || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        return 0;
    mr_msg_put_u64(out, "dataset", UINT64_C(1) << (n * 40));
    mr_msg_put_str(out, "name", "train");
    mr_msg_put_strs(out, "uris", uris, 2);
    mr_msg_put_str(out, "text", "ab");
    mr_msg_put_bool(out, "yes", n == 0);
    uint8_t packet[1024];
    ssize_t length = mr_msg_send(ends[0], out) == 0 ? recv(ends[1], packet, sizeof packet, 0) : 0;
    close(ends[0]);
    close(ends[1]);
    *data = length > 0 ? malloc((size_t)length) : NULL;
    if (!*data)
        return 0;
    memcpy(*data, packet, (size_t)length);
    return (size_t)length;
}
