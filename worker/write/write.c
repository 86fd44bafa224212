#include "worker/write/write.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/memory/segment.h"
#include "worker/link.h"
#include "worker/net.h"
#include "worker/write/write_lane.h"

#define STEP_MS   100
#define FINISH_MS 2000 /* for what must be taken back at the end */

/* A lane that was given to this worker. */
struct entry {
    struct mr_write_lane *lane; /* NULL until the arena is there */
    uint64_t number;
    int fd; /* until then */
    char *uri;
    bool if_absent;
    bool told;     /* PART_ENDED was said */
    bool dropping; /* DROP_LANE came before its end */
};

struct uploader {
    struct mr_link link;
    struct mr_net net;
    struct mr_write_context context;
    struct mr_upload_janitor *janitor;
    void *arena; /* NULL until ARENA */
    uint64_t arena_bytes;
    struct entry *entries;
    unsigned count, room;
    unsigned turn; /* the lane whose turn it is to begin a request */
    bool draining; /* DRAIN came */
    bool orphan;   /* the supervisor is gone */
    bool bad;      /* a message or the loop failed: leave with status 1 */
    int64_t drain_until_ns;
    int64_t last_look_ns;
    int64_t since_ns; /* start of the current busy or idle stretch */
};

static int say_lane(struct uploader *u, enum mr_msg_type type, uint64_t number)
{
    struct mr_msg_out *msg = mr_msg_new(type);
    if (!msg)
        return -1;
    mr_msg_put_u64(msg, "lane", number);
    return mr_msg_send(u->link.socket, msg);
}

/* ---- lanes and the arena ---- */

static int start_lane(struct uploader *u, struct entry *entry)
{
    struct mr_ckpt_lane part;
    int rc = mr_ckpt_part_map(&part, entry->fd, u->arena_bytes);
    close(entry->fd);
    entry->fd = -1;
    if (rc != 0)
        return -1;
    entry->lane = mr_write_lane_new(&u->context, &part, entry->uri, entry->if_absent);
    return entry->lane ? 0 : -1;
}

static int add_lane(struct uploader *u, struct mr_msg_in *msg)
{
    struct entry entry = {.fd = -1};
    const char *uri;
    if (mr_msg_get_u64(msg, "lane", &entry.number) != 0 || mr_msg_get_str(msg, "uri", &uri) != 0 ||
        mr_msg_get_bool(msg, "if_absent", &entry.if_absent) != 0)
        return -1;
    if (u->count == u->room) {
        unsigned room = u->room ? 2 * u->room : 16;
        struct entry *entries = realloc(u->entries, room * sizeof *entries);
        if (!entries) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for %u checkpoints", room);
            return -1;
        }
        u->entries = entries;
        u->room = room;
    }
    entry.uri = strdup(uri);
    entry.fd = entry.uri ? mr_msg_take_fd(msg, 0) : -1;
    if (entry.fd < 0) {
        free(entry.uri);
        return -1;
    }
    u->entries[u->count++] = entry;
    return u->arena ? start_lane(u, &u->entries[u->count - 1]) : 0;
}

static void remove_entry(struct uploader *u, struct entry *entry)
{
    mr_write_lane_destroy(entry->lane);
    if (entry->fd >= 0)
        close(entry->fd);
    free(entry->uri);
    *entry = u->entries[--u->count];
}

static void drop_lane(struct uploader *u, uint64_t number)
{
    for (unsigned i = 0; i < u->count; i++) {
        struct entry *entry = &u->entries[i];
        if (entry->number != number)
            continue;
        if (entry->lane && !mr_write_lane_is_ended(entry->lane)) {
            entry->dropping = true; /* DROPPED is said at its end */
            return;
        }
        remove_entry(u, entry);
        break;
    }
    if (say_lane(u, MR_MSG_DROPPED, number) != 0)
        u->orphan = true;
}

static int map_arena(struct uploader *u, int fd, uint64_t bytes, bool fresh)
{
    bool huge = u->link.config.memory.huge_pages == MR_HUGE_PAGES_AUTO && mr_segment_huge_possible();
    if (fresh && !huge && mr_segment_reserve(fd, "the checkpoints' memory", bytes) != 0)
        return -1;
    void *at = mr_segment_map(fd, bytes, 1, NULL);
    if (!at)
        return -1;
    if (fresh && huge && mr_segment_reserve_huge(fd, at, "the checkpoints' memory", bytes) != 0) {
        mr_segment_unmap(at, bytes);
        return -1;
    }
    u->arena = at;
    u->arena_bytes = bytes;
    u->context.arena = at;
    return 0;
}

static int open_arena(struct uploader *u, struct mr_msg_in *msg)
{
    uint64_t bytes;
    bool fresh;
    if (u->arena || mr_msg_get_u64(msg, "bytes", &bytes) != 0 || mr_msg_get_bool(msg, "fresh", &fresh) != 0) {
        mr_error_set(MR_E_PROTOCOL, "a bad ARENA message");
        return -1;
    }
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = map_arena(u, fd, bytes, fresh);
    close(fd);
    if (rc != 0 && mr_error_code() == MR_E_NO_MEMORY) {
        mr_log_error("%s", mr_error_text());
        return mr_link_say_failed(&u->link, UINT64_MAX, UINT64_MAX);
    }
    if (rc != 0)
        return -1;
    for (unsigned i = 0; i < u->count; i++) {
        if (start_lane(u, &u->entries[i]) != 0)
            return -1;
    }
    return mr_link_say(&u->link, MR_MSG_ARENA_READY);
}

/* ---- messages ---- */

static void drain(struct uploader *u)
{
    if (u->drain_until_ns == 0)
        u->drain_until_ns = mr_clock_mono_ns() + (int64_t)u->link.config.checkpoint.drain_s * MR_SECOND_NS;
    u->draining = true;
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_abort(u->entries[i].lane);
}

static int handle(struct uploader *u, struct mr_msg_in *msg)
{
    uint64_t value;
    switch (msg->type) {
    case MR_MSG_ARENA:
        return open_arena(u, msg);
    case MR_MSG_CKPT_LANE:
        return add_lane(u, msg);
    case MR_MSG_DROP_LANE:
        if (mr_msg_get_u64(msg, "lane", &value) != 0)
            return -1;
        drop_lane(u, value);
        return 0;
    case MR_MSG_DRAIN:
        drain(u);
        return 0;
    case MR_MSG_LOG_LEVEL:
        if (mr_msg_get_u64(msg, "level", &value) != 0)
            return -1;
        mr_log_set_level(value <= MR_LOG_DEBUG ? (enum mr_log_level)value : MR_LOG_INFO);
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "the supervisor sent a message of type %d to a write worker", (int)msg->type);
        return -1;
    }
}

static void read_messages(struct uploader *u)
{
    struct mr_msg_in msg;
    int rc;
    while ((rc = mr_msg_recv(u->link.socket, &msg)) == 1) {
        if (handle(u, &msg) != 0) {
            mr_log_error("%s", mr_error_text());
            u->bad = true;
        }
        mr_msg_close(&msg);
    }
    if (rc < 0 && mr_error_code() == MR_E_GONE) {
        u->orphan = true;
    } else if (rc < 0) {
        mr_log_error("%s", mr_error_text());
        u->bad = true;
    }
}

/* ---- the loop ---- */

static unsigned under_way(const struct uploader *u)
{
    unsigned count = 0;
    for (unsigned i = 0; i < u->count; i++)
        count += u->entries[i].lane && !mr_write_lane_is_ended(u->entries[i].lane);
    return count;
}

/* Tells what has ended, and forgets what nobody wants any more. */
static void tell_ends(struct uploader *u)
{
    for (unsigned i = u->count; i-- > 0;) {
        struct entry *entry = &u->entries[i];
        if (!entry->lane || !mr_write_lane_is_ended(entry->lane))
            continue;
        if (!entry->told && !u->orphan && say_lane(u, MR_MSG_CKPT_ENDED, entry->number) != 0)
            u->orphan = true;
        entry->told = true;
        if (entry->dropping)
            drop_lane(u, entry->number);
    }
}

/* As much as may be in flight, the lanes in turn. true: something was begun. */
static bool start_requests(struct uploader *u)
{
    bool any = false;
    for (unsigned idle = 0; idle < u->count && mr_transfer_free(u->net.engine) > 0;) {
        struct entry *entry = &u->entries[u->turn++ % u->count];
        bool begun = entry->lane && mr_write_lane_start(entry->lane);
        idle = begun ? 0 : idle + 1;
        any |= begun;
    }
    tell_ends(u);
    return any;
}

static void set_counter(struct uploader *u, unsigned which, uint64_t *last, uint64_t now)
{
    mr_counter_add(u->link.counters, which, now - *last);
    *last = now;
}

static void copy_counters(struct uploader *u)
{
    static struct mr_transfer_counters last;
    const struct mr_transfer_counters *now = mr_transfer_counters(u->net.engine);
    set_counter(u, MR_WC_REQUESTS, &last.requests, now->requests);
    set_counter(u, MR_WC_RETRIES, &last.retries, now->retries);
    set_counter(u, MR_WC_STALLS, &last.stalls, now->stalls);
    set_counter(u, MR_WC_CRC_FAILURES, &last.crc_errors, now->crc_errors);
    set_counter(u, MR_WC_THROTTLED, &last.busy, now->busy);
    set_counter(u, MR_WC_CLASS_A, &last.class_a, now->class_a);
    set_counter(u, MR_WC_CLASS_B, &last.class_b, now->class_b);
    set_counter(u, MR_WC_FREE_OPERATIONS, &last.deletes, now->deletes);
    mr_counter_set(u->link.counters, MR_WC_ARENA_BYTES, u->arena_bytes);
    mr_counter_set(u->link.counters, MR_WC_UPLOADS, under_way(u));
    mr_counter_set(u->link.counters, MR_WC_IN_FLIGHT, mr_transfer_in_flight(u->net.engine));
    mr_counter_set(u->link.counters, MR_WC_LIMIT, mr_transfer_limit(u->net.engine));
}

/* Time with something to upload is busy, the rest idle. */
static void account_time(struct uploader *u, bool was_busy)
{
    int64_t now = mr_http_now_ns(u->net.http);
    if (now > u->since_ns) {
        mr_counter_add(u->link.counters, was_busy ? MR_WC_BUSY_NS : MR_WC_IDLE_NS, (uint64_t)(now - u->since_ns));
        u->since_ns = now;
    }
    if (now - u->last_look_ns < STEP_MS * MR_MILLISECOND_NS)
        return;
    u->last_look_ns = now;
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_look(u->entries[i].lane, now);
    mr_temporaries_step(u->context.temporaries, now);
    mr_upload_janitor_step(u->janitor, now);
    copy_counters(u);
}

static int step(struct uploader *u)
{
    start_requests(u);
    bool was_busy = under_way(u) > 0;
    if (!u->orphan && mr_transfer_free(u->net.engine) > 0) {
        mr_wake_producer_asleep(u->link.line);
        if (start_requests(u)) { /* a part came between the look and going to sleep */
            mr_wake_producer_awake(u->link.line);
            return 0;
        }
    }
    int woken = mr_http_step(u->net.http, STEP_MS, u->orphan ? -1 : u->link.wait_fd);
    if (!u->orphan)
        mr_wake_producer_awake(u->link.line);
    if (woken < 0)
        return -1;
    if (woken > 0) {
        mr_link_drain_wakeups(&u->link);
        read_messages(u);
        u->orphan |= mr_link_is_orphan(&u->link);
    }
    if (u->orphan && !u->draining) {
        mr_log_warning("the supervisor is gone: %u uploads are finished or given up, then this worker ends",
                       under_way(u));
        drain(u);
    }
    account_time(u, was_busy);
    return 0;
}

/* ---- life ---- */

static int init(struct uploader *u)
{
    struct mr_maker maker = {.slot = MR_MAKER_WRITE + u->link.slot, .start = (uint32_t)u->link.generation};
    snprintf(maker.run, sizeof maker.run, "%s", u->link.board->run_id);
    u->context.net = &u->net;
    u->context.counters = u->link.counters;
    u->context.temporaries = mr_temporaries_new(&u->net, u->link.counters, &maker);
    u->context.uploads = mr_upload_log_new(&maker);
    if (!u->context.uploads)
        mr_log_warning(
            "%s. After a crash an unfinished upload may stay in the bucket until `millrace clean` removes it",
            mr_error_text());
    u->janitor = mr_upload_janitor_new(&u->net, MR_MARK_LATE_S);
    return u->context.temporaries && u->janitor ? 0 : -1;
}

/* What is sealed and not stored by now is lost: says so, and takes back what was begun. How many. */
static unsigned give_up(struct uploader *u, int64_t until)
{
    unsigned left = under_way(u);
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_give_up(u->entries[i].lane, "it was not stored within checkpoint.drain_s of the run's end");
    while (under_way(u) > 0 && mr_clock_mono_ns() < until && mr_http_step(u->net.http, STEP_MS, -1) >= 0) {
    }
    tell_ends(u);
    return left;
}

/* 0, or 1: something was lost. */
static int finish(struct uploader *u)
{
    int64_t until = mr_clock_mono_ns() + FINISH_MS * MR_MILLISECOND_NS;
    unsigned left = u->bad ? 0 : give_up(u, until); /* bad: a successor goes on */
    for (unsigned i = 0; i < u->count; i++) {
        mr_write_lane_destroy(u->entries[i].lane);
        u->entries[i].lane = NULL;
    }
    mr_temporaries_finish(u->context.temporaries);
    while ((mr_temporaries_busy(u->context.temporaries) || mr_upload_janitor_busy(u->janitor)) &&
           mr_clock_mono_ns() < until) {
        if (mr_http_step(u->net.http, STEP_MS, -1) < 0)
            break;
        mr_temporaries_step(u->context.temporaries, mr_clock_mono_ns());
    }
    copy_counters(u);
    mr_upload_janitor_destroy(u->janitor);
    mr_upload_log_destroy(u->context.uploads);
    mr_temporaries_destroy(u->context.temporaries);
    return left > 0;
}

int mr_write_main(unsigned slot)
{
    struct uploader *u = calloc(1, sizeof *u);
    if (!u)
        return 1;
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of that file */
    /* What a scheduler or a shell sends to all processes of a job: a promise is kept until DRAIN, or drain_s behind the
     * supervisor's end. The supervisor itself kills by SIGKILL. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (mr_link_init(&u->link, "write", slot) != 0)
        goto failed;
    if (mr_net_init(&u->net, &u->link.config) != 0) {
        mr_link_say_failed(&u->link, UINT64_MAX, UINT64_MAX);
        goto failed;
    }
    if (init(u) != 0 || mr_link_say(&u->link, MR_MSG_READY) != 0)
        goto failed;
    u->since_ns = mr_clock_mono_ns();
    while (!u->bad && !(u->draining && (under_way(u) == 0 || mr_clock_mono_ns() >= u->drain_until_ns))) {
        if (step(u) != 0)
            goto failed;
    }
    return finish(u) != 0 || u->bad ? 1 : 0; /* mappings and sockets go with the process */
failed:
    mr_log_error("%s", mr_error_text());
    return mr_error_code() == MR_E_CONFIG || mr_error_code() == MR_E_DENIED ? 2 : 1;
}
