/* requests.c - see requests.h. An answer promises only what is done when it is sent (README.md). */
#include "supervisor/requests.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "shm/control/msg.h"
#include "shm/memory/segment.h"
#include "shm/ring/ahead.h"
#include "supervisor/run_impl.h"
#include "supervisor/stat.h"

bool mr_requests_has_open(const struct mr_client_peer *client, const struct mr_dataset *dataset)
{
    return client->ids[dataset->number] == dataset->id && client->opens[dataset->number] > 0;
}

/* ---- answers ---- */

static struct mr_msg_out *ok(void)
{
    return mr_msg_new(MR_MSG_OK);
}

static int reply(struct mr_client_peer *client, struct mr_msg_out *out)
{
    return mr_msg_send(client->socket, out);
}

int mr_requests_reply_error(struct mr_client_peer *client)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_ERROR);
    char text[2000]; /* cut, so that it fits a packet whatever a name from a client holds */
    snprintf(text, sizeof text, "%s", mr_error_text());
    mr_msg_put_u64(out, "code", mr_error_code());
    mr_msg_put_str(out, "text", text);
    return reply(client, out);
}

/* ---- requests: 0 when an answer was sent, -1 with mr_error when ERROR is to be sent ---- */

static int hello(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_supervisor *s = client->supervisor;
    const char *role;
    uint64_t pid;
    if (mr_msg_get_str(in, "role", &role) != 0 || mr_msg_get_u64(in, "pid", &pid) != 0 ||
        (mr_msg_has(in, "image") && mr_msg_get_u64(in, "image", &client->image) != 0))
        return -1;
    bool of_job = strcmp(role, "tool") != 0;
    if (of_job && s->is_private && s->state != MR_SUP_RUNNING) {
        mr_error_set(MR_E_GONE, "this private millrace supervisor is ending: another one is needed");
        return -1;
    }
    client->greeted = true;
    client->of_job = of_job;
    s->clients.any_yet |= client->of_job;
    struct mr_msg_out *out = ok();
    mr_msg_put_str(out, "run_id", s->run_id);
    mr_msg_put_u64(out, "pid", (uint64_t)getpid());
    mr_msg_put_fd(out, s->board_fd);
    mr_msg_put_fd(out, s->tracing.fd);
    return reply(client, out);
}

/* What the configuration has about reading the data set of that name; the defaults where it was opened by URIs. */
static void put_choices(const struct mr_supervisor *s, const char *name, struct mr_msg_out *out)
{
    const struct mr_config_dataset *entry = name ? mr_config_find_dataset(&s->config, name) : NULL;
    mr_msg_put_u64(out, "tail", entry ? entry->tail : MR_TAIL_SHORT);
    mr_msg_put_u64(out, "on_error", entry ? entry->on_error : MR_ON_ERROR_RAISE);
}

/* The client has the data set open once more; each open needs a close of its own. */
static void remember(struct mr_client_peer *client, struct mr_dataset *dataset)
{
    uint32_t number = dataset->number;
    if (!mr_requests_has_open(client, dataset)) {
        dataset->clients++;
        client->opens[number] = 0;
    }
    client->ids[number] = dataset->id;
    client->opens[number]++;
}

/* The data set of the request's id, or NULL with the error: it has gone, or is another process's reader. */
static struct mr_dataset *dataset_of_id(struct mr_client_peer *client, struct mr_msg_in *in)
{
    uint64_t id;
    if (mr_msg_get_u64(in, "dataset", &id) != 0)
        return NULL;
    struct mr_dataset *dataset = mr_dataset_find(client->supervisor, id);
    if (!dataset)
        return NULL;
    if (dataset->closing)
        mr_error_set(MR_E_USAGE, MR_DATASET_IS_GONE, dataset->number);
    else if (dataset->ranged && dataset->owner != client)
        mr_error_set(MR_E_USAGE, "data set %u is another process's reader", dataset->number);
    else
        return dataset;
    return NULL;
}

/* The same for what the client reads: what it has opened and closed again has gone for it. */
static struct mr_dataset *named_dataset(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_dataset *dataset = dataset_of_id(client, in);
    if (!dataset || client->ids[dataset->number] != dataset->id || client->opens[dataset->number] > 0)
        return dataset;
    mr_error_set(MR_E_USAGE, MR_DATASET_IS_GONE, dataset->number);
    return NULL;
}

/* By a file of names, for this client alone if it is read by ranges. */
static struct mr_dataset *open_objects(struct mr_client_peer *client, struct mr_msg_in *in, enum mr_format format,
                                       uint64_t block_bytes)
{
    int fd = mr_msg_take_fd(in, 0);
    if (fd < 0)
        return NULL;
    struct mr_dataset *dataset;
    if (!mr_msg_has(in, "block_bytes"))
        dataset = mr_dataset_open_names(client->supervisor, fd, format);
    else
        dataset = mr_dataset_open_ranged(client->supervisor, fd, block_bytes, client);
    if (!dataset)
        close(fd);
    return dataset;
}

/* The forms of the request: msg.h. *name: that of the configuration, or NULL. */
static struct mr_dataset *open_what_is_named(struct mr_client_peer *client, struct mr_msg_in *in, const char **name)
{
    struct mr_supervisor *s = client->supervisor;
    const char *digest, *format_text, *const *uris;
    size_t count;
    uint64_t like, nth = 0, block_bytes = 0;
    enum mr_format format = MR_FORMAT_BY_NAME;
    if (mr_msg_has(in, "block_bytes") && mr_msg_get_u64(in, "block_bytes", &block_bytes) != 0)
        return NULL;
    if (mr_msg_has(in, "format") &&
        (mr_msg_get_str(in, "format", &format_text) != 0 || mr_format_parse(format_text, &format) != 0))
        return NULL;
    struct mr_dataset *dataset = NULL;
    if (mr_msg_has(in, "dataset")) {
        dataset = dataset_of_id(client, in);
    } else if (mr_msg_has(in, "objects")) {
        return open_objects(client, in, format, block_bytes);
    } else if (mr_msg_has(in, "like")) {
        if (mr_msg_get_u64(in, "like", &like) == 0 && mr_msg_get_str(in, "digest", &digest) == 0)
            dataset = mr_dataset_open_like(s, like, digest);
    } else if (mr_msg_has(in, "uris")) {
        if (mr_msg_get_strs(in, "uris", &uris, &count) != 0 ||
            (mr_msg_has(in, "nth") && mr_msg_get_u64(in, "nth", &nth) != 0))
            return NULL;
        return mr_dataset_open_uris(s, uris, count, format, nth, block_bytes);
    } else {
        return mr_msg_get_str(in, "name", name) != 0 ? NULL : mr_dataset_open_named(s, *name, format);
    }
    *name = dataset && !dataset->ranged ? dataset->name : NULL;
    return dataset;
}

/* Answers at once: what the data set becomes is told by the board. */
static int open_dataset(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_supervisor *s = client->supervisor;
    const char *name = NULL;
    if (s->state != MR_SUP_RUNNING) {
        mr_error_set(MR_E_GONE, "the millrace supervisor is ending: no more data sets are opened");
        return -1;
    }
    struct mr_dataset *dataset = open_what_is_named(client, in, &name);
    if (!dataset) {
        if (mr_error_code() == MR_E_NO_MEMORY)
            (void)mr_dataset_end_make_room(s);
        return -1;
    }
    remember(client, dataset);
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "dataset", dataset->id);
    put_choices(s, name, out);
    return reply(client, out);
}

static int close_dataset(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_dataset *dataset = named_dataset(client, in);
    if (!dataset)
        return -1;
    if (!mr_requests_has_open(client, dataset)) {
        mr_error_set(MR_E_USAGE, "data set %u was not opened by this process", dataset->number);
        return -1;
    }
    if (dataset->ranged)
        mr_dataset_end_begin(dataset);
    else if (--client->opens[dataset->number] == 0)
        mr_dataset_left(dataset); /* settle ends a counted listing where that was the last one */
    return reply(client, ok());
}

static int send_index(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_dataset *dataset = named_dataset(client, in);
    if (!dataset)
        return -1;
    if (dataset->state == MR_DATASET_FAILED) {
        mr_dataset_explain(dataset);
        return -1;
    }
    if (dataset->state != MR_DATASET_READY) {
        mr_error_set(MR_E_BUSY, "data set %u (%s) is being listed", dataset->number, mr_dataset_label(dataset));
        return -1;
    }
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "size", dataset->index_bytes);
    mr_msg_put_fd(out, dataset->index);
    return reply(client, out);
}

/* True with the error BUSY, also for a client that was told of the arenas before and finds them being divided anew. */
static bool arenas_are_not_there(const struct mr_fetch_workers *f)
{
    if (f->state == MR_ARENAS_READY)
        return false;
    mr_error_set(MR_E_BUSY, "the arenas are not there yet: they are made when the first data set has been listed");
    return true;
}

static int send_producers(struct mr_client_peer *client)
{
    struct mr_fetch_workers *f = &client->supervisor->fetch_workers;
    if (arenas_are_not_there(f))
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "producers", f->count);
    mr_msg_put_u64(out, "division", f->division);
    return reply(client, out);
}

static int send_producer(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_fetch_workers *f = &client->supervisor->fetch_workers;
    uint64_t slot;
    if (mr_msg_get_u64(in, "slot", &slot) != 0)
        return -1;
    if (arenas_are_not_there(f))
        return -1;
    if (slot >= f->count) { /* there were more when the client asked how many: it asks again */
        mr_error_set(slot < MR_PRODUCERS_MAX ? MR_E_BUSY : MR_E_USAGE, "there is no fetch worker %llu",
                     (unsigned long long)slot);
        return -1;
    }
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "arena_bytes", f->arena_bytes);
    mr_msg_put_u64(out, "division", f->division);
    mr_msg_put_fd(out, f->slots[slot].arena.readonly);
    mr_msg_put_fd(out, f->slots[slot].line.readonly);
    mr_msg_put_fd(out, f->slots[slot].line.eventfd);
    return reply(client, out);
}

static struct mr_kept_loop *find_loop(struct mr_clients *clients, const char *key)
{
    for (unsigned i = 0; i < clients->loop_count; i++)
        if (strcmp(clients->loops[i].key, key) == 0)
            return &clients->loops[i];
    return NULL;
}

/* Keeps the loop under its key, for the OPEN_LANE of another process. If there are too many, the least recently used
 * one makes room. */
static int put_loop(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_clients *clients = &client->supervisor->clients;
    struct mr_loop loop;
    const char *key;
    if (mr_msg_get_str(in, "loop", &key) != 0 || mr_loop_get(in, &loop) != 0)
        return -1;
    if (key[0] == '\0' || strlen(key) > MR_LOOP_KEY_MAX) {
        mr_error_set(MR_E_USAGE, "a loop's key has 1 to %d characters", MR_LOOP_KEY_MAX);
        return -1;
    }
    struct mr_kept_loop *at = find_loop(clients, key);
    if (!at && clients->loop_count < MR_LOOPS_MAX)
        at = &clients->loops[clients->loop_count++];
    if (!at) { /* the least recently used one */
        at = &clients->loops[0];
        for (unsigned i = 1; i < clients->loop_count; i++)
            if (clients->loops[i].used < at->used)
                at = &clients->loops[i];
    }
    *at = (struct mr_kept_loop){.loop = loop, .used = clients->loop_clock++};
    strcpy(at->key, key);
    return reply(client, ok());
}

/* A lane whose answer cannot be sent is closed again, since its client does not know of it. */
static int requests_open_lane(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_clients *clients = &client->supervisor->clients;
    uint64_t window, least = 0;
    const char *key;
    struct mr_dataset *dataset = named_dataset(client, in);
    if (!dataset || mr_msg_get_u64(in, "window", &window) != 0 || mr_msg_get_str(in, "loop", &key) != 0 ||
        (mr_msg_has(in, "least") && mr_msg_get_u64(in, "least", &least) != 0))
        return -1;
    if (window == 0)
        window = client->supervisor->config.lanes.window;
    uint64_t ahead = 0;
    if (window == 0) { /* auto */
        ahead = MR_AHEAD_FIRST > least ? MR_AHEAD_FIRST : least;
        window = MR_AHEAD_MOST;
    }
    struct mr_registered_lane *entry =
        mr_lanes_open(client->supervisor, client, dataset->number, window > least ? window : least);
    if (!entry)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "lane", entry->lane.lane);
    mr_msg_put_u64(out, "owner", entry->lane.owner);
    mr_msg_put_u64(out, "window", entry->lane.window);
    mr_msg_put_u64(out, "ahead", ahead);
    struct mr_kept_loop *loop = key[0] != '\0' ? find_loop(clients, key) : NULL;
    mr_msg_put_bool(out, "has_loop", loop != NULL);
    if (loop) {
        loop->used = clients->loop_clock++;
        mr_loop_put(out, &loop->loop);
    }
    mr_msg_put_fd(out, entry->fd);
    uint32_t number = entry->lane.lane;
    if (reply(client, out) != 0) {
        mr_lanes_close_one(client->supervisor, client, number); /* no other process can */
        return -1;
    }
    return 0;
}

static int close_lane(struct mr_client_peer *client, struct mr_msg_in *in)
{
    uint64_t number;
    if (mr_msg_get_u64(in, "lane", &number) != 0 || mr_lanes_close_one(client->supervisor, client, number) != 0)
        return -1;
    return reply(client, ok());
}

/* MR_E_BUSY while there is no memory or no worker for it: the client asks again, and is counted as waiting until
 * then. */
static int open_writer(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_supervisor *s = client->supervisor;
    const char *uri;
    bool if_absent;
    uint64_t sharers;
    if (mr_msg_get_str(in, "uri", &uri) != 0 || mr_msg_get_bool(in, "if_absent", &if_absent) != 0 ||
        mr_msg_get_u64(in, "sharers", &sharers) != 0)
        return -1;
    struct mr_ckpt_entry *entry = NULL;
    unsigned worker;
    if (mr_ckpt_lanes_check(s, uri) == 0 && mr_write_workers_choose(s, &worker) == 0)
        entry = mr_ckpt_lanes_open(s, client, uri, if_absent, sharers, worker);
    client->refused_ns = !entry && mr_error_code() == MR_E_BUSY ? mr_clock_mono_ns() : 0;
    if (!entry)
        return -1;
    uint32_t number = entry->lane.lane;
    const struct mr_worker_line *line = &s->write_workers.slots[worker].line;
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "lane", number);
    mr_msg_put_u64(out, "worker", entry->lane.worker);
    mr_msg_put_u64(out, "part_bytes", entry->lane.part_bytes);
    mr_msg_put_u64(out, "arena_bytes", s->write_workers.arena_bytes);
    mr_msg_put_u64(out, "drain_s", s->config.checkpoint.drain_s);
    mr_msg_put_fd(out, entry->fd);
    mr_msg_put_fd(out, s->write_workers.arena.fd);
    mr_msg_put_fd(out, line->readonly);
    mr_msg_put_fd(out, line->eventfd);
    if (reply(client, out) != 0) {
        mr_ckpt_lanes_close_one(s, client, number); /* no other process can */
        return -1;
    }
    return 0;
}

static int close_writer(struct mr_client_peer *client, struct mr_msg_in *in)
{
    uint64_t number;
    if (mr_msg_get_u64(in, "lane", &number) != 0 || mr_ckpt_lanes_close_one(client->supervisor, client, number) != 0)
        return -1;
    return reply(client, ok());
}

static int send_stat(struct mr_client_peer *client)
{
    char *text = mr_stat_json(client->supervisor);
    if (!text)
        return -1;
    size_t length = strlen(text);
    int fd = memfd_create("millrace-stat", MFD_CLOEXEC);
    int rc = -1;
    if (fd < 0 || pwrite(fd, text, length, 0) != (ssize_t)length) {
        mr_error_set_errno(errno, "cannot write the statistics");
    } else {
        struct mr_msg_out *out = ok();
        mr_msg_put_u64(out, "size", length);
        mr_msg_put_fd(out, fd);
        rc = reply(client, out);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return rc;
}

static int batches(struct mr_client_peer *client, struct mr_msg_in *in)
{
    struct mr_supervisor *s = client->supervisor;
    if (in->fd_count > 0 && mr_batches_add(s, client, in->fds[0]) != 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "bytes", mr_config_batch_bytes(&s->config, mr_memory_limit_bytes()));
    return reply(client, out);
}

static int meter(struct mr_client_peer *client, struct mr_msg_in *in)
{
    if (in->fd_count == 0) {
        mr_error_set(MR_E_PROTOCOL, "METER comes with a descriptor");
        return -1;
    }
    if (mr_meters_add(client->supervisor, client, in->fds[0]) != 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_str(out, "epochs", client->supervisor->config.log.epochs);
    return reply(client, out);
}

static int trace(struct mr_client_peer *client)
{
    if (mr_tracing_begin(client->supervisor, client) != 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_fd(out, client->supervisor->tracing.fd);
    return reply(client, out);
}

static int prepare(struct mr_client_peer *client)
{
    struct mr_supervisor *s = client->supervisor;
    bool there;
    if (mr_write_workers_prepare(s, &there) != 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_u64(out, "arena_bytes", there ? s->write_workers.arena_bytes : 0);
    if (there)
        mr_msg_put_fd(out, s->write_workers.arena.fd);
    return reply(client, out);
}

static int send_config(struct mr_client_peer *client)
{
    int fd = mr_segment_reopen_readonly(client->supervisor->config_fd);
    if (fd < 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_fd(out, fd);
    int rc = reply(client, out);
    close(fd);
    return rc;
}

static int reload(struct mr_client_peer *client)
{
    char text[2000];
    if (mr_reload(client->supervisor, text, sizeof text) != 0)
        return -1;
    struct mr_msg_out *out = ok();
    mr_msg_put_str(out, "text", text);
    return reply(client, out);
}

static int shut_down(struct mr_client_peer *client)
{
    int rc = reply(client, ok());
    mr_run_end(client->supervisor, "asked to by a client");
    return rc;
}

int mr_requests_handle(struct mr_client_peer *client, struct mr_msg_in *in)
{
    if (in->type == MR_MSG_HELLO)
        return hello(client, in);
    if (!client->greeted) {
        mr_error_set(MR_E_PROTOCOL, "a connection begins with HELLO");
        return -1;
    }
    switch (in->type) {
    case MR_MSG_OPEN_DATASET:
        return open_dataset(client, in);
    case MR_MSG_CLOSE_DATASET:
        return close_dataset(client, in);
    case MR_MSG_INDEX:
        return send_index(client, in);
    case MR_MSG_PRODUCERS:
        return send_producers(client);
    case MR_MSG_PRODUCER:
        return send_producer(client, in);
    case MR_MSG_OPEN_LANE:
        return requests_open_lane(client, in);
    case MR_MSG_CLOSE_LANE:
        return close_lane(client, in);
    case MR_MSG_OPEN_WRITER:
        return open_writer(client, in);
    case MR_MSG_CLOSE_WRITER:
        return close_writer(client, in);
    case MR_MSG_PUT_LOOP:
        return put_loop(client, in);
    case MR_MSG_BATCHES:
        return batches(client, in);
    case MR_MSG_METER:
        return meter(client, in);
    case MR_MSG_TRACE:
        return trace(client);
    case MR_MSG_PREPARE:
        return prepare(client);
    case MR_MSG_CONFIG:
        return send_config(client);
    case MR_MSG_STAT:
        return send_stat(client);
    case MR_MSG_RELOAD:
        return reload(client);
    case MR_MSG_SHUTDOWN:
        return shut_down(client);
    default:
        mr_error_set(MR_E_PROTOCOL, "a client does not send messages of type %d", (int)in->type);
        return -1;
    }
}
