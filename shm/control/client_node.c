/* client_node.c - what a process asks and tells its node besides data: the configuration, counters, statistics. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/client_impl.h"

/* The descriptor that comes with the answer to a message without keys. The caller's, or -1. */
static int ask_for_fd(struct mr_client *client, enum mr_msg_type type)
{
    struct mr_msg_in in;
    if (mr_client_call(client, mr_msg_new(type), &in) != 0)
        return -1;
    int fd = mr_msg_take_fd(&in, 0);
    mr_msg_close(&in);
    return fd;
}

int mr_client_config(struct mr_client *client)
{
    return ask_for_fd(client, MR_MSG_CONFIG);
}

int mr_client_batches(struct mr_client *client, int fd, uint64_t *bytes)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_BATCHES);
    if (fd >= 0)
        mr_msg_put_fd(out, fd);
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    int rc = mr_msg_get_u64(&in, "bytes", bytes);
    mr_msg_close(&in);
    return rc;
}

char *mr_client_meter(struct mr_client *client, int fd)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_METER);
    struct mr_msg_in in;
    mr_msg_put_fd(out, fd);
    if (mr_client_call(client, out, &in) != 0)
        return NULL;
    const char *epochs;
    char *copy = mr_msg_get_str(&in, "epochs", &epochs) == 0 ? strdup(epochs) : NULL;
    mr_msg_close(&in);
    return copy;
}

int mr_client_trace(struct mr_client *client)
{
    return ask_for_fd(client, MR_MSG_TRACE);
}

void mr_client_node(const struct mr_client *client, struct mr_node *node)
{
    mr_node_read(&client->board->node, node);
}

char *mr_client_stat(struct mr_client *client)
{
    struct mr_msg_in in;
    if (mr_client_call(client, mr_msg_new(MR_MSG_STAT), &in) != 0)
        return NULL;
    uint64_t size = 0;
    int fd = -1;
    char *text = NULL;
    if (mr_msg_get_u64(&in, "size", &size) == 0)
        fd = mr_msg_take_fd(&in, 0);
    mr_msg_close(&in);
    if (fd < 0)
        return NULL;
    if (size > SIZE_MAX - 1 || !(text = malloc(size + 1))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %llu bytes of statistics", (unsigned long long)size);
        goto out;
    }
    ssize_t got = pread(fd, text, size, 0);
    if (got < 0 || (uint64_t)got != size) {
        mr_error_set(MR_E_PROTOCOL, "the supervisor's statistics are cut short");
        free(text);
        text = NULL;
        goto out;
    }
    text[size] = '\0';
out:
    close(fd);
    return text;
}

char *mr_client_reload(struct mr_client *client)
{
    struct mr_msg_in in;
    if (mr_client_call(client, mr_msg_new(MR_MSG_RELOAD), &in) != 0)
        return NULL;
    const char *text;
    char *copy = mr_msg_get_str(&in, "text", &text) == 0 ? strdup(text) : NULL;
    mr_msg_close(&in);
    return copy;
}
