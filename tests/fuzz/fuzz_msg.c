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
