#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/client_impl.h"
#include "shm/memory/prefault.h"
#include "shm/memory/segment.h"
#include "shm/ring/board.h"

/* Descriptor i of the answer, mapped. */
static void *map_fd(struct mr_msg_in *in, unsigned i, uint64_t bytes, int writable)
{
    int fd = mr_msg_take_fd(in, i);
    if (fd < 0)
        return NULL;
    void *at = mr_segment_map(fd, bytes, writable, NULL);
    close(fd);
    return at;
}

/* Maps the arena behind descriptor i, unless this process has done it. */
static int take_arena(struct mr_client *client, struct mr_msg_in *in, unsigned i, uint64_t arena_bytes)
{
    if (!client->parts)
        client->parts = calloc(1, sizeof *client->parts);
    struct mr_ckpt_part_memory *memory = client->parts;
    if (!memory) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checkpoint writer");
        return -1;
    }
    if (arena_bytes == 0 || (memory->arena && memory->arena_bytes != arena_bytes)) {
        mr_error_set(MR_E_PROTOCOL, "the supervisor answered with a checkpoint arena of %llu bytes",
                     (unsigned long long)arena_bytes);
        return -1;
    }
    if (!memory->arena) {
        memory->arena = map_fd(in, i, arena_bytes, 1);
        memory->arena_bytes = arena_bytes;
    }
    if (!memory->arena)
        return -1;
    if (!memory->touched) /* now that the arena has that size: another answer may say another one until it has */
        memory->touched = calloc(arena_bytes / MR_PREFAULT_CHUNK + 1, sizeof *memory->touched);
    if (!memory->touched) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checkpoint writer");
        return -1;
    }
    return 0;
}

/* Maps what this process has not mapped yet. */
static int take_memory(struct mr_client *client, struct mr_msg_in *in, uint64_t arena_bytes, uint32_t worker)
{
    if (worker >= MR_PRODUCERS_MAX) {
        mr_error_set(MR_E_PROTOCOL, "the supervisor answered with write worker %u", worker);
        return -1;
    }
    if (take_arena(client, in, 1, arena_bytes) != 0)
        return -1;
    struct mr_ckpt_part_memory *memory = client->parts;
    if (memory->workers[worker].line)
        return 0;
    const struct mr_producer_line *line = map_fd(in, 2, MR_PRODUCER_LINE_BYTES, 0);
    int eventfd = mr_msg_take_fd(in, 3);
    if (line && eventfd >= 0) {
        memory->workers[worker].line = line;
        memory->workers[worker].eventfd = eventfd;
        return 0;
    }
    if (line)
        mr_segment_unmap((void *)(uintptr_t)line, MR_PRODUCER_LINE_BYTES);
    if (eventfd >= 0)
        close(eventfd);
    return -1;
}

static int close_one(struct mr_client *client, uint32_t lane)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_CLOSE_WRITER);
    mr_msg_put_u64(out, "lane", lane);
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    mr_msg_close(&in);
    return 0;
}

int mr_client_open_writer(struct mr_client *client, const char *uri, bool if_absent, uint32_t sharers,
                          struct mr_ckpt_writer *writer)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_OPEN_WRITER);
    mr_msg_put_str(out, "uri", uri);
    mr_msg_put_bool(out, "if_absent", if_absent);
    mr_msg_put_u64(out, "sharers", sharers);
    struct mr_msg_in in;
    if (mr_client_call(client, out, &in) != 0)
        return -1;
    uint32_t number = 0, worker = 0;
    uint64_t arena_bytes = 0;
    int rc = mr_msg_get_u32(&in, "lane", &number);
    bool opened = rc == 0;
    if (rc == 0 && mr_msg_get_u32(&in, "worker", &worker) == 0 && mr_msg_get_u64(&in, "arena_bytes", &arena_bytes) == 0)
        rc = mr_msg_get_u32(&in, "drain_s", &writer->drain_s);
    else
        rc = -1;
    if (rc == 0)
        rc = take_memory(client, &in, arena_bytes, worker);
    int fd = rc == 0 ? mr_msg_take_fd(&in, 0) : -1;
    mr_msg_close(&in);
    rc = fd >= 0 ? mr_ckpt_part_map(&writer->lane, fd, arena_bytes) : -1;
    if (fd >= 0)
        close(fd);
    if (rc != 0) {
        struct mr_error why;
        mr_error_keep(&why);
        if (opened)
            close_one(client, number); /* no other process will: the supervisor believes that we have it */
        mr_error_restore(&why);
        mr_error_append("checkpoint writer %u", number);
        return -1;
    }
    writer->arena = client->parts->arena;
    writer->line = client->parts->workers[worker].line;
    writer->eventfd = client->parts->workers[worker].eventfd;
    writer->touched = client->parts->touched;
    return 0;
}

int mr_client_prepare(struct mr_client *client, bool *done)
{
    *done = false;
    if (!client->parts || !client->parts->touched) {
        struct mr_msg_in in;
        if (mr_client_call(client, mr_msg_new(MR_MSG_PREPARE), &in) != 0)
            return -1;
        uint64_t arena_bytes;
        int rc = mr_msg_get_u64(&in, "arena_bytes", &arena_bytes);
        *done = rc == 0 && arena_bytes == 0;
        if (rc == 0 && !*done)
            rc = take_arena(client, &in, 0, arena_bytes);
        mr_msg_close(&in);
        return rc;
    }
    *done = mr_prefault_step(client->parts->arena, client->parts->arena_bytes, client->parts->touched);
    return 0;
}

int mr_client_close_writer(struct mr_client *client, struct mr_ckpt_writer *writer)
{
    uint32_t number = writer->lane.lane;
    mr_ckpt_part_unmap(&writer->lane);
    return close_one(client, number);
}
