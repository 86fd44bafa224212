#include "worker/role.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/memory/segment.h"

#define AHEAD_NICE 5 /* of pages that nothing waits for; a writer that comes meanwhile still has them soon */

int mr_role_unknown(const struct mr_role *role, const struct mr_msg_in *msg)
{
    mr_error_set(MR_E_PROTOCOL, "the supervisor sent a message of type %d to a %s worker", (int)msg->type,
                 role->ops->kind.role);
    return -1;
}

void mr_role_lost(struct mr_role *role)
{
    if (role->ops->kind.survives)
        role->orphan = true;
    else
        role->failed = true;
}

void mr_role_send(struct mr_role *role, enum mr_msg_type type, const char *key, uint64_t number)
{
    struct mr_msg_out *msg = mr_msg_new(type);
    if (msg)
        mr_msg_put_u64(msg, key, number);
    if (!msg || mr_msg_send(role->link.socket, msg) != 0)
        mr_role_lost(role);
}

/* ---- messages ---- */

static bool has_huge_pages(const struct mr_role *role)
{
    return role->link.config.memory.huge_pages == MR_HUGE_PAGES_AUTO && mr_segment_huge_possible();
}

int mr_role_back(struct mr_role *role, uint64_t offset, uint64_t bytes)
{
    const struct mr_role_ops *ops = role->ops;
    if (bytes == 0)
        return 0;
    if (has_huge_pages(role))
        return mr_segment_reserve_huge(role->arena_fd, role->arena, ops->arena_name, offset, bytes);
    if (mr_segment_reserve(role->arena_fd, ops->arena_name, offset, bytes) != 0)
        return -1;
    if (ops->arena_populated)
        mr_segment_populate((char *)role->arena + offset, bytes);
    return 0;
}

void mr_role_unback(struct mr_role *role, uint64_t offset, uint64_t bytes)
{
    mr_segment_release(role->arena_fd, offset, bytes);
}

/* Enters pages that are there into the page tables. */
static void populate(const struct mr_role *role, uint64_t offset, uint64_t bytes)
{
    if (!has_huge_pages(role) && role->ops->arena_populated && bytes > 0)
        mr_segment_populate((char *)role->arena + offset, bytes);
}

/* Of an arena that grows: room for the largest object, and a step behind the reserve. They are there where it is not
 * fresh: a worker that starts again needs no memory for them. */
static int back_first(struct mr_role *role, struct mr_msg_in *msg, bool fresh)
{
    uint64_t reserve, largest, first;
    if (mr_msg_get_u64(msg, "reserve", &reserve) != 0 || mr_msg_get_u64(msg, "largest", &largest) != 0 ||
        mr_msg_get_u64(msg, "first", &first) != 0)
        return -1;
    if (!fresh) {
        populate(role, 0, largest);
        populate(role, reserve, first);
        return 0;
    }
    return mr_role_back(role, 0, largest) == 0 && mr_role_back(role, reserve, first) == 0 ? 0 : -1;
}

/* What a thread of lower priority backs; its error is its own. */
struct ahead {
    struct mr_role *role;
    uint64_t bytes;
    int rc;
    enum mr_code code;
    char text[512];
};

static void *back_slowly(void *arg)
{
    struct ahead *ahead = arg;
    (void)!nice(AHEAD_NICE); /* on Linux the thread's, and a process could not go back */
    ahead->rc = mr_role_back(ahead->role, 0, ahead->bytes);
    if (ahead->rc != 0) {
        ahead->code = mr_error_code();
        snprintf(ahead->text, sizeof ahead->text, "%s", mr_error_text());
    }
    return NULL;
}

/* mr_role_back of the whole arena, which others than this worker have better use for the processors than. */
static int back_ahead(struct mr_role *role, uint64_t bytes)
{
    struct ahead ahead = {.role = role, .bytes = bytes};
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals are for the thread that expects them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&thread, NULL, back_slowly, &ahead);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return mr_role_back(role, 0, bytes);
    pthread_join(thread, NULL);
    if (ahead.rc != 0)
        mr_error_set(ahead.code, "%s", ahead.text);
    return ahead.rc;
}

/* Of an arena of one size: all of it. */
static int back_whole(struct mr_role *role, struct mr_msg_in *msg, bool fresh)
{
    bool ahead;
    if (mr_msg_get_bool(msg, "ahead", &ahead) != 0)
        return -1;
    if (fresh)
        return ahead ? back_ahead(role, role->arena_bytes) : mr_role_back(role, 0, role->arena_bytes);
    populate(role, 0, role->arena_bytes);
    return 0;
}

/* The descriptor is the role's, once it is mapped. */
static int map_arena(struct mr_role *role, struct mr_msg_in *msg, int fd, uint64_t bytes, bool fresh)
{
    void *at = mr_segment_map(fd, bytes, true, NULL);
    if (!at) {
        close(fd);
        return -1;
    }
    role->arena = at;
    role->arena_fd = fd;
    role->arena_bytes = bytes;
    if ((role->arena_grows ? back_first(role, msg, fresh) : back_whole(role, msg, fresh)) == 0)
        return 0;
    mr_segment_unmap(at, bytes);
    close(fd);
    role->arena = NULL;
    return -1;
}

/* Memory that cannot be had is not the worker's end: the supervisor is told, and tries another backing. */
static int open_arena(struct mr_role *role, struct mr_msg_in *msg)
{
    uint64_t bytes;
    bool fresh;
    if (role->arena || mr_msg_get_u64(msg, "bytes", &bytes) != 0 || mr_msg_get_bool(msg, "fresh", &fresh) != 0 ||
        mr_msg_get_bool(msg, "grows", &role->arena_grows) != 0) {
        mr_error_set(MR_E_PROTOCOL, "a bad ARENA message");
        return -1;
    }
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = map_arena(role, msg, fd, bytes, fresh);
    if (rc != 0 && mr_error_code() == MR_E_NO_MEMORY) {
        mr_log_error("%s", mr_error_text());
        return mr_link_send_failed(&role->link, UINT64_MAX, UINT64_MAX); /* the supervisor falls back or fails */
    }
    if (rc != 0 || role->ops->arena_mapped(role, msg) != 0)
        return -1;
    return mr_link_send(&role->link, MR_MSG_ARENA_READY);
}

static void drain(struct mr_role *role)
{
    role->draining = true;
    if (role->ops->drain)
        role->ops->drain(role);
}

static int role_handle(struct mr_role *role, struct mr_msg_in *msg)
{
    uint64_t level;
    switch (msg->type) {
    case MR_MSG_ARENA:
        return role->ops->arena_name ? open_arena(role, msg) : mr_role_unknown(role, msg);
    case MR_MSG_DRAIN:
        drain(role);
        return 0;
    case MR_MSG_LOG_LEVEL:
        if (mr_msg_get_u64(msg, "level", &level) != 0)
            return -1;
        mr_link_set_log_level(level);
        return 0;
    default:
        return role->ops->handle(role, msg);
    }
}

static void role_fail(struct mr_role *role)
{
    mr_log_error("%s", mr_error_text());
    role->failed = true;
}

static void read_messages(struct mr_role *role)
{
    struct mr_msg_in msg;
    int rc;
    while ((rc = mr_msg_recv(role->link.socket, &msg)) == 1) {
        if (role_handle(role, &msg) != 0)
            role_fail(role);
        mr_msg_close(&msg);
    }
    if (rc < 0 && mr_error_code() == MR_E_GONE)
        mr_role_lost(role);
    else if (rc < 0)
        role_fail(role);
}

/* ---- counters and time ---- */

void mr_role_count(struct mr_role *role, unsigned counter, uint64_t *last, uint64_t now)
{
    mr_counter_add(role->link.counters, counter, now - *last);
    *last = now;
}

void mr_role_count_operations(struct mr_role *role)
{
    const struct mr_transfer_counters *now = mr_transfer_counters(role->net.engine);
    mr_role_count(role, MR_WC_CLASS_A, &role->counted.class_a, now->class_a);
    mr_role_count(role, MR_WC_CLASS_B, &role->counted.class_b, now->class_b);
    mr_role_count(role, MR_WC_FREE_OPERATIONS, &role->counted.deletes, now->deletes);
}

static void role_count(struct mr_role *role)
{
    struct mr_counters *counters = role->link.counters;
    struct mr_transfer_counters *last = &role->counted;
    const struct mr_transfer_counters *now = mr_transfer_counters(role->net.engine);
    mr_role_count(role, MR_WC_REQUESTS, &last->requests, now->requests);
    mr_role_count(role, MR_WC_RETRIES, &last->retries, now->retries);
    mr_role_count(role, MR_WC_STALLS, &last->stalls, now->stalls);
    mr_role_count(role, MR_WC_CRC_FAILURES, &last->crc_errors, now->crc_errors);
    mr_role_count(role, MR_WC_THROTTLED, &last->throttled, now->throttled);
    mr_role_count_operations(role);
    mr_counter_set(counters, MR_WC_ARENA_BYTES, role->arena_bytes);
    mr_counter_set(counters, MR_WC_IN_FLIGHT, mr_transfer_in_flight(role->net.engine));
    mr_counter_set(counters, MR_WC_LIMIT, mr_transfer_limit(role->net.engine));
    mr_counter_set(counters, MR_WC_LIMIT_PHASE, mr_transfer_phase(role->net.engine));
    mr_counter_set(counters, MR_WC_REQUEST_RATE, (uint64_t)(mr_transfer_rate(role->net.engine) + 0.5));
    if (role->ops->count)
        role->ops->count(role);
}

static void account_time(struct mr_role *role, bool was_busy)
{
    int64_t now_ns = mr_http_now_ns(role->net.http);
    if (now_ns > role->since_ns) {
        mr_counter_add(role->link.counters, was_busy ? MR_WC_BUSY_NS : MR_WC_IDLE_NS,
                       (uint64_t)(now_ns - role->since_ns));
        role->since_ns = now_ns;
    }
    if (now_ns - role->ticked_ns < MR_ROLE_STEP_MS * MR_MILLISECOND_NS)
        return;
    role->ticked_ns = now_ns;
    if (role->ops->tick)
        role->ops->tick(role, now_ns);
    role_count(role);
}

/* ---- the loop ---- */

static int step(struct mr_role *role)
{
    const struct mr_role_ops *ops = role->ops;
    enum mr_role_rest rest = MR_ROLE_WAIT;
    if (ops->start)
        ops->start(role);
    bool busy = ops->is_busy && ops->is_busy(role);
    if (ops->rest && (rest = ops->rest(role)) == MR_ROLE_AGAIN)
        return 0;
    int woken = mr_http_step(role->net.http, MR_ROLE_STEP_MS, role->orphan ? -1 : role->link.wait_fd);
    if (rest == MR_ROLE_SLEEP)
        mr_wake_producer_awake(role->link.line);
    if (woken < 0)
        return -1;
    if (woken > 0) {
        mr_link_drain_wakeups(&role->link);
        read_messages(role);
        if (ops->kind.survives && mr_link_is_orphan())
            mr_role_lost(role);
    }
    if (role->orphan && !role->draining)
        drain(role);
    if (ops->is_busy)
        account_time(role, busy);
    return 0;
}

void mr_role_wait(struct mr_role *role, bool (*is_busy)(struct mr_role *role), int64_t until_ns)
{
    while (is_busy(role) && mr_clock_mono_ns() < until_ns)
        if (mr_http_step(role->net.http, MR_ROLE_STEP_MS, -1) < 0)
            return;
}

static bool is_over(struct mr_role *role)
{
    return role->failed || (role->draining && (!role->ops->is_done || role->ops->is_done(role)));
}

int mr_role_main(struct mr_role *role, const struct mr_role_ops *ops, unsigned slot)
{
    role->ops = ops;
    if (mr_link_init(&role->link, &ops->kind, slot) != 0)
        goto failed;
    if (mr_net_init(&role->net, &role->link.config) != 0) {
        mr_link_send_failed(&role->link, UINT64_MAX, UINT64_MAX);
        goto failed;
    }
    if ((ops->init && ops->init(role) != 0) || mr_link_send(&role->link, MR_MSG_READY) != 0)
        goto failed;
    role->since_ns = mr_clock_mono_ns();
    while (!is_over(role))
        if (step(role) != 0)
            goto failed;
    bool lost = ops->finish && ops->finish(role);
    if (ops->is_busy)
        role_count(role);
    return lost || role->failed ? 1 : 0; /* mappings and sockets go with the process */
failed:
    mr_log_error("%s", mr_error_text());
    return mr_error_code() == MR_E_CONFIG || mr_error_code() == MR_E_DENIED ? 2 : 1;
}
