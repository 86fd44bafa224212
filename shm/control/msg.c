#include "shm/control/msg.h"

#include <errno.h>
#include <fcntl.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "base/unpack.h"

#define HEAD_BYTES 16 /* array of 3, version, type, head of the map */

/* ---- outgoing ---- */

struct mr_msg_out {
    enum mr_msg_type type;
    uint32_t fields;
    bool failed; /* a put did not fit */
    unsigned fd_count;
    int fds[MR_MSG_FDS_MAX];
    bool kept;            /* fds are copies of its own */
    msgpack_sbuffer body; /* the pairs of the map, without its head: their number is known at send */
    msgpack_packer packer;
};

struct mr_msg_out *mr_msg_new(enum mr_msg_type type)
{
    struct mr_msg_out *msg = calloc(1, sizeof *msg);
    if (!msg)
        return NULL; /* the puts accept NULL; send reports it */
    msg->type = type;
    msgpack_sbuffer_init(&msg->body);
    msgpack_packer_init(&msg->packer, &msg->body, msgpack_sbuffer_write);
    return msg;
}

void mr_msg_discard(struct mr_msg_out *msg)
{
    if (!msg)
        return;
    for (unsigned i = 0; msg->kept && i < msg->fd_count; i++)
        close(msg->fds[i]);
    msgpack_sbuffer_destroy(&msg->body);
    free(msg);
}

static void put_text(struct mr_msg_out *msg, const char *text)
{
    size_t length = strlen(text);
    msg->failed |= length > MR_MSG_BYTES_MAX || msgpack_pack_str_with_body(&msg->packer, text, length) != 0;
}

/* Begins a pair: false when the message is not there or too long already, so that it cannot grow without limit. */
static bool put_key(struct mr_msg_out *msg, const char *key)
{
    if (!msg || msg->failed)
        return false;
    if (msg->body.size > MR_MSG_BYTES_MAX) {
        msg->failed = true;
        return false;
    }
    put_text(msg, key);
    msg->fields++;
    return true;
}

void mr_msg_put_u64(struct mr_msg_out *msg, const char *key, uint64_t value)
{
    if (put_key(msg, key))
        msg->failed |= msgpack_pack_uint64(&msg->packer, value) != 0;
}

void mr_msg_put_bool(struct mr_msg_out *msg, const char *key, bool value)
{
    if (put_key(msg, key))
        msg->failed |= (value ? msgpack_pack_true(&msg->packer) : msgpack_pack_false(&msg->packer)) != 0;
}

void mr_msg_put_str(struct mr_msg_out *msg, const char *key, const char *value)
{
    if (put_key(msg, key))
        put_text(msg, value);
}

void mr_msg_put_strs(struct mr_msg_out *msg, const char *key, const char *const *values, size_t count)
{
    if (!put_key(msg, key))
        return;
    msg->failed |= count > MR_MSG_BYTES_MAX || msgpack_pack_array(&msg->packer, count) != 0;
    for (size_t i = 0; i < count && !msg->failed; i++) {
        put_text(msg, values[i]);
        msg->failed |= msg->body.size > MR_MSG_BYTES_MAX;
    }
}

void mr_msg_put_fd(struct mr_msg_out *msg, int fd)
{
    if (!msg)
        return;
    if (msg->fd_count == MR_MSG_FDS_MAX)
        msg->failed = true;
    else
        msg->fds[msg->fd_count++] = fd;
}

/* The bytes in front of the pairs, in a buffer of its own. 0 or -1. */
static int pack_head(const struct mr_msg_out *msg, msgpack_sbuffer *head)
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, head, msgpack_sbuffer_write);
    return msgpack_pack_array(&packer, 3) != 0 || msgpack_pack_uint32(&packer, MR_MSG_VERSION) != 0 ||
                   msgpack_pack_uint32(&packer, (uint32_t)msg->type) != 0 || msgpack_pack_map(&packer, msg->fields) != 0
               ? -1
               : 0;
}

/* MR_E_BUSY: the peer's buffer is full. MR_E_GONE: the peer is. Nothing was sent in either case. */
static int send_packet(int socket, struct msghdr *header)
{
    for (;;) {
        if (sendmsg(socket, header, MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno == EINTR)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            mr_error_set(MR_E_BUSY, "the peer reads its control messages too slowly: its socket buffer is full");
        else if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            mr_error_set(MR_E_GONE, "the peer has closed its control socket");
        else
            mr_error_set_errno(errno, "cannot send a control message");
        return -1;
    }
}

enum mr_msg_type mr_msg_type_of(const struct mr_msg_out *msg)
{
    return msg ? msg->type : (enum mr_msg_type)0;
}

int mr_msg_send(int socket, struct mr_msg_out *msg)
{
    int rc = mr_msg_try_send(socket, msg);
    if (rc != 1)
        return rc;
    mr_msg_discard(msg);
    return -1;
}

int mr_msg_keep_fds(struct mr_msg_out *msg)
{
    for (unsigned i = 0; i < msg->fd_count && !msg->kept; i++) {
        int copy = fcntl(msg->fds[i], F_DUPFD_CLOEXEC, 0);
        if (copy < 0) {
            mr_error_set_errno(errno, "no descriptor for a control message");
            while (i > 0)
                close(msg->fds[--i]);
            msg->fd_count = 0;
            return -1;
        }
        msg->fds[i] = copy;
    }
    msg->kept = true;
    return 0;
}

int mr_msg_try_send(int socket, struct mr_msg_out *msg)
{
    int rc = -1;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MR_MSG_FDS_MAX * sizeof(int))];
    } control;
    msgpack_sbuffer head;
    msgpack_sbuffer_init(&head);
    if (!msg || pack_head(msg, &head) != 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a control message");
        goto out;
    }
    if (msg->failed || head.size + msg->body.size > MR_MSG_BYTES_MAX) {
        mr_error_set(MR_E_USAGE, "a control message is limited to %u bytes and %u descriptors", MR_MSG_BYTES_MAX,
                     MR_MSG_FDS_MAX);
        goto out;
    }
    struct iovec parts[2] = {{head.data, head.size}, {msg->body.data, msg->body.size}};
    struct msghdr header = {.msg_iov = parts, .msg_iovlen = msg->body.size > 0 ? 2 : 1};
    if (msg->fd_count > 0) {
        memset(&control, 0, sizeof control);
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(msg->fd_count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(msg->fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), msg->fds, msg->fd_count * sizeof(int));
    }
    rc = send_packet(socket, &header);
    if (rc != 0 && mr_error_code() == MR_E_BUSY)
        rc = 1;
out:
    msgpack_sbuffer_destroy(&head);
    if (rc != 1)
        mr_msg_discard(msg);
    return rc;
}

/* ---- incoming ---- */

struct incoming {
    msgpack_zone zone; /* the decoded tree, and strings handed out with their NUL */
    msgpack_object root;
    char bytes[]; /* the packet; the tree points into it */
};

static const msgpack_object *fields_of(const struct mr_msg_in *msg)
{
    return &((struct incoming *)msg->impl)->root.via.array.ptr[2];
}

void mr_msg_close(struct mr_msg_in *msg)
{
    for (unsigned i = 0; i < msg->fd_count; i++)
        if (msg->fds[i] >= 0)
            close(msg->fds[i]);
    msg->fd_count = 0;
    struct incoming *in = msg->impl;
    if (in) {
        msgpack_zone_destroy(&in->zone);
        free(in);
        msg->impl = NULL;
    }
}

/* Takes over every descriptor of the packet, also of one that is refused: otherwise they would leak. */
static void collect_fds(struct msghdr *header, struct mr_msg_in *msg)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && msg->fd_count < MR_MSG_FDS_MAX; i++)
            memcpy(&msg->fds[msg->fd_count++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
}

/* Does it have the shape [version, type, {..}]? */
static int check_shape(const msgpack_object *root, enum mr_msg_type *type)
{
    if (root->type != MSGPACK_OBJECT_ARRAY || root->via.array.size != 3)
        goto bad;
    const msgpack_object *item = root->via.array.ptr;
    if (item[0].type != MSGPACK_OBJECT_POSITIVE_INTEGER || item[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER ||
        item[2].type != MSGPACK_OBJECT_MAP)
        goto bad;
    if (item[0].via.u64 != MR_MSG_VERSION) {
        mr_error_set(MR_E_PROTOCOL,
                     "the peer speaks version %llu of the control protocol, this program version %u: "
                     "use programs of the same millrace release",
                     (unsigned long long)item[0].via.u64, MR_MSG_VERSION);
        return -1;
    }
    if (item[1].via.u64 < MR_MSG_OK || item[1].via.u64 >= MR_MSG_TYPE_COUNT) {
        mr_error_set(MR_E_PROTOCOL, "a control message of unknown type %llu", (unsigned long long)item[1].via.u64);
        return -1;
    }
    *type = (enum mr_msg_type)item[1].via.u64;
    return 0;
bad:
    mr_error_set(MR_E_PROTOCOL, "a control message that is not [version, type, {fields}]");
    return -1;
}

/* On -1 too the caller closes msg, which may own the copy of the packet by then. */
static int msg_parse(struct mr_msg_in *msg, const char *bytes, size_t length)
{
    struct incoming *in = malloc(sizeof *in + length);
    if (!in || !msgpack_zone_init(&in->zone, MSGPACK_ZONE_CHUNK_SIZE)) {
        free(in);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a control message");
        return -1;
    }
    memcpy(in->bytes, bytes, length);
    msg->impl = in;
    if (mr_unpack(&in->zone, in->bytes, length, &in->root) != 0) {
        mr_error_append("control message");
        return -1;
    }
    return check_shape(&in->root, &msg->type);
}

/* An answer whose descriptors this process has no room for still says what the peer has opened for it. */
static int msg_receive(int socket, struct mr_msg_in *msg, bool is_answer)
{
    char bytes[MR_MSG_BYTES_MAX];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MR_MSG_FDS_MAX * sizeof(int))];
    } control;
    struct iovec part = {bytes, sizeof bytes};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    memset(msg, 0, sizeof *msg);

    ssize_t length;
    do
        length = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno == ECONNRESET)
            mr_error_set(MR_E_GONE, "the peer has closed its control socket");
        else
            mr_error_set_errno(errno, "cannot receive a control message");
        return -1;
    }
    collect_fds(&header, msg);
    if (length == 0 && msg->fd_count == 0) {
        mr_error_set(MR_E_GONE, "the peer has closed its control socket");
        return -1;
    }
    if (is_answer && !(header.msg_flags & MSG_TRUNC) && msg->fd_count < MR_MSG_FDS_MAX) {
        msg->lacks_fds = (header.msg_flags & MSG_CTRUNC) != 0;
        header.msg_flags &= ~MSG_CTRUNC;
    }
    if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        if (header.msg_flags & MSG_CTRUNC && mr_process_lacks_descriptors())
            goto fail;
        mr_error_set(MR_E_PROTOCOL, "a control message with more than %u bytes or %u descriptors", MR_MSG_BYTES_MAX,
                     MR_MSG_FDS_MAX);
        goto fail;
    }
    if (msg_parse(msg, bytes, (size_t)length) == 0)
        return 1;
fail:
    mr_msg_close(msg);
    return -1;
}

int mr_msg_recv(int socket, struct mr_msg_in *msg)
{
    return msg_receive(socket, msg, false);
}

int mr_msg_recv_answer(int socket, struct mr_msg_in *msg)
{
    return msg_receive(socket, msg, true);
}

/* ---- fields ---- */

static const msgpack_object *field(const struct mr_msg_in *msg, const char *key)
{
    const msgpack_object *value = mr_unpack_find(fields_of(msg), key);
    if (!value)
        mr_error_set(MR_E_PROTOCOL, "control message %d has no '%s'", (int)msg->type, key);
    return value;
}

static int wrong_type(const struct mr_msg_in *msg, const char *key, const char *wanted)
{
    mr_error_set(MR_E_PROTOCOL, "'%s' of control message %d is not %s", key, (int)msg->type, wanted);
    return -1;
}

bool mr_msg_has(const struct mr_msg_in *msg, const char *key)
{
    return mr_unpack_find(fields_of(msg), key) != NULL;
}

int mr_msg_get_u64(const struct mr_msg_in *msg, const char *key, uint64_t *value)
{
    const msgpack_object *object = field(msg, key);
    if (!object)
        return -1;
    if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return wrong_type(msg, key, "an unsigned integer");
    *value = object->via.u64;
    return 0;
}

int mr_msg_get_u32(const struct mr_msg_in *msg, const char *key, uint32_t *value)
{
    uint64_t wide;
    if (mr_msg_get_u64(msg, key, &wide) != 0)
        return -1;
    if (wide > UINT32_MAX) {
        mr_error_set(MR_E_PROTOCOL, "'%s' of control message %d is over 32 bits", key, (int)msg->type);
        return -1;
    }
    *value = (uint32_t)wide;
    return 0;
}

int mr_msg_get_bool(const struct mr_msg_in *msg, const char *key, bool *value)
{
    const msgpack_object *object = field(msg, key);
    if (!object)
        return -1;
    if (object->type != MSGPACK_OBJECT_BOOLEAN)
        return wrong_type(msg, key, "a boolean");
    *value = object->via.boolean;
    return 0;
}

/* A copy with a NUL after it, in the message's zone; NULL after an error. */
static const char *terminated(const struct mr_msg_in *msg, const char *key, const msgpack_object *object)
{
    const char *at;
    size_t length;
    if (!mr_unpack_bytes(object, &at, &length) || memchr(at, '\0', length)) {
        wrong_type(msg, key, "text");
        return NULL;
    }
    char *copy = msgpack_zone_malloc_no_align(&((struct incoming *)msg->impl)->zone, length + 1);
    if (!copy) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a control message");
        return NULL;
    }
    memcpy(copy, at, length);
    copy[length] = '\0';
    return copy;
}

int mr_msg_get_str(const struct mr_msg_in *msg, const char *key, const char **value)
{
    const msgpack_object *object = field(msg, key);
    if (!object)
        return -1;
    const char *text = terminated(msg, key, object);
    if (!text)
        return -1;
    *value = text;
    return 0;
}

int mr_msg_get_strs(const struct mr_msg_in *msg, const char *key, const char *const **values, size_t *count)
{
    const msgpack_object *object = field(msg, key);
    if (!object)
        return -1;
    if (object->type != MSGPACK_OBJECT_ARRAY)
        return wrong_type(msg, key, "an array of strings");
    uint32_t size = object->via.array.size;
    const char **texts = msgpack_zone_malloc(&((struct incoming *)msg->impl)->zone, (size + 1) * sizeof *texts);
    if (!texts) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a control message");
        return -1;
    }
    for (uint32_t i = 0; i < size; i++) {
        texts[i] = terminated(msg, key, &object->via.array.ptr[i]);
        if (!texts[i])
            return -1;
    }
    texts[size] = NULL;
    *values = texts;
    *count = size;
    return 0;
}

int mr_msg_take_fd(struct mr_msg_in *msg, unsigned i)
{
    if (msg->lacks_fds) {
        mr_error_set_errno(EMFILE, "no descriptor is left");
        return -1;
    }
    if (i >= msg->fd_count || msg->fds[i] < 0) {
        mr_error_set(MR_E_PROTOCOL, "control message %d lacks descriptor %u", (int)msg->type, i);
        return -1;
    }
    int fd = msg->fds[i];
    msg->fds[i] = -1;
    return fd;
}
