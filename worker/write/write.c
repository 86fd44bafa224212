#include "worker/write/write.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/control/run_lock.h"
#include "worker/role.h"
#include "worker/write/write_lane.h"

#define FINISH_MS 2000 /* for what must be taken back at the end */

/* A lane that was given to this worker. */
struct entry {
    struct mr_write_lane *lane; /* NULL until the arena is there */
    uint64_t number;
    int fd; /* until then */
    char *uri;
    bool if_absent;
    bool reported; /* CKPT_ENDED was sent */
    bool dropping; /* DROP_LANE came before its end */
};

struct uploader {
    struct mr_role role;
    struct mr_write_context context;
    struct mr_upload_janitor *janitor;
    int run_lock; /* held for life: others leave alone what this run has begun */
    struct entry *entries;
    unsigned count, room;
    unsigned turn; /* the lane whose turn it is to begin a request */
    int64_t drain_until_ns;
};

static struct uploader *uploader_of(struct mr_role *role)
{
    return MR_CONTAINER_OF(role, uploader, role);
}

/* ---- lanes and the arena ---- */

static int start_lane(struct uploader *u, struct entry *entry)
{
    struct mr_ckpt_lane ckpt;
    int rc = mr_ckpt_part_map(&ckpt, entry->fd, u->role.arena_bytes);
    close(entry->fd);
    entry->fd = -1;
    if (rc != 0)
        return -1;
    entry->lane = mr_write_lane_new(&u->context, &ckpt, entry->uri, entry->if_absent);
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
    return u->role.arena ? start_lane(u, &u->entries[u->count - 1]) : 0;
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
            entry->dropping = true; /* DROPPED is sent at its end */
            return;
        }
        remove_entry(u, entry);
        break;
    }
    mr_role_send(&u->role, MR_MSG_DROPPED, "lane", number);
}

static int arena_mapped(struct mr_role *role, struct mr_msg_in *msg)
{
    struct uploader *u = uploader_of(role);
    (void)msg;
    u->context.arena = role->arena;
    for (unsigned i = 0; i < u->count; i++) {
        if (start_lane(u, &u->entries[i]) != 0)
            return -1;
    }
    return 0;
}

static int write_handle(struct mr_role *role, struct mr_msg_in *msg)
{
    struct uploader *u = uploader_of(role);
    uint64_t lane;
    switch (msg->type) {
    case MR_MSG_CKPT_LANE:
        return add_lane(u, msg);
    case MR_MSG_DROP_LANE:
        if (mr_msg_get_u64(msg, "lane", &lane) != 0)
            return -1;
        drop_lane(u, lane);
        return 0;
    default:
        return mr_role_unknown(role, msg);
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

/* Reports what has ended, and forgets what is not needed any more. */
static void report_ends(struct uploader *u)
{
    for (unsigned i = u->count; i-- > 0;) {
        struct entry *entry = &u->entries[i];
        if (!entry->lane || !mr_write_lane_is_ended(entry->lane))
            continue;
        if (!entry->reported && !u->role.orphan)
            mr_role_send(&u->role, MR_MSG_CKPT_ENDED, "lane", entry->number);
        entry->reported = true;
        if (entry->dropping)
            drop_lane(u, entry->number);
    }
}

/* As much as may be in flight, the lanes in turn. true: something was begun. */
static bool start_requests(struct uploader *u)
{
    bool any = false;
    for (unsigned idle = 0; idle < u->count && mr_transfer_free(u->role.net.engine) > 0;) {
        struct entry *entry = &u->entries[u->turn++ % u->count];
        bool begun = entry->lane && mr_write_lane_start(entry->lane);
        idle = begun ? 0 : idle + 1;
        any |= begun;
    }
    report_ends(u);
    return any;
}

static void write_start(struct mr_role *role)
{
    (void)start_requests(uploader_of(role));
}

static bool is_busy(struct mr_role *role)
{
    return under_way(uploader_of(role)) > 0;
}

static enum mr_role_rest rest(struct mr_role *role)
{
    if (role->orphan || mr_transfer_free(role->net.engine) == 0)
        return MR_ROLE_WAIT;
    mr_wake_producer_asleep(role->link.line);
    if (!start_requests(uploader_of(role)))
        return MR_ROLE_SLEEP;
    mr_wake_producer_awake(role->link.line); /* a part came between the scan and going to sleep */
    return MR_ROLE_AGAIN;
}

static void tick(struct mr_role *role, int64_t now_ns)
{
    struct uploader *u = uploader_of(role);
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_step(u->entries[i].lane, now_ns);
    mr_temporaries_step(u->context.temporaries, now_ns);
    mr_upload_janitor_step(u->janitor, now_ns);
    mr_write_again_step(&u->context.again, u->context.net, u->context.uploads);
}

static void write_count(struct mr_role *role)
{
    mr_counter_set(role->link.counters, MR_WC_UPLOADS, under_way(uploader_of(role)));
}

/* ---- life ---- */

static int write_init(struct mr_role *role)
{
    struct uploader *u = uploader_of(role);
    struct mr_maker maker =
        mr_maker_of(role->link.board->run_id, MR_MAKER_WRITE + role->link.slot, role->link.generation);
    u->run_lock = mr_run_lock_hold(role->link.board->run_id);
    if (u->run_lock < 0 && mr_error_code() != MR_E_NOT_FOUND) {
        if (mr_error_code() != MR_E_GONE)
            mr_error_set(MR_E_IO, "%s", mr_error_text()); /* whatever it is, it may work the next time */
        return -1;
    }
    u->context.net = &role->net;
    u->context.counters = role->link.counters;
    u->context.temporaries = mr_temporaries_new(&role->net, role->link.counters, &maker);
    u->context.late_s = MR_LATE_S;
    u->context.uploads = mr_upload_log_new(&maker);
    if (!u->context.uploads)
        mr_log_warning(
            "%s. After a crash an unfinished upload may stay in the bucket until `millrace clean` removes it",
            mr_error_text());
    u->janitor = mr_upload_janitor_new(&role->net, MR_LATE_S);
    return u->context.temporaries && u->janitor ? 0 : -1;
}

/* Open lanes are given up, sealed ones get until drain_until_ns. */
static void drain(struct mr_role *role)
{
    struct uploader *u = uploader_of(role);
    if (role->orphan)
        mr_log_warning("the supervisor has ended: %u uploads are finished or given up, then this worker ends",
                       under_way(u));
    if (u->drain_until_ns == 0)
        u->drain_until_ns = mr_clock_mono_ns() + (int64_t)role->link.config.checkpoint.drain_s * MR_SECOND_NS;
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_abort(u->entries[i].lane);
}

static bool is_done(struct mr_role *role)
{
    struct uploader *u = uploader_of(role);
    return under_way(u) == 0 || mr_clock_mono_ns() >= u->drain_until_ns;
}

/* What is sealed and not stored by now is lost: reports it, and takes back what was begun. How many. */
static unsigned give_up(struct uploader *u, int64_t until_ns)
{
    unsigned left = under_way(u);
    for (unsigned i = 0; i < u->count; i++)
        if (u->entries[i].lane)
            mr_write_lane_give_up(u->entries[i].lane, "it was not stored within checkpoint.drain_s of the run's end");
    mr_role_wait(&u->role, is_busy, until_ns);
    report_ends(u);
    return left;
}

static bool is_cleaning_up(struct mr_role *role)
{
    struct uploader *u = uploader_of(role);
    mr_temporaries_step(u->context.temporaries, mr_clock_mono_ns());
    return mr_temporaries_busy(u->context.temporaries) || mr_upload_janitor_busy(u->janitor);
}

static bool write_finish(struct mr_role *role)
{
    struct uploader *u = uploader_of(role);
    int64_t until_ns = mr_clock_mono_ns() + FINISH_MS * MR_MILLISECOND_NS;
    unsigned left = role->failed ? 0 : give_up(u, until_ns); /* failed: a successor continues */
    for (unsigned i = 0; i < u->count; i++) {
        mr_write_lane_destroy(u->entries[i].lane);
        u->entries[i].lane = NULL;
    }
    mr_temporaries_finish(u->context.temporaries);
    mr_role_wait(role, is_cleaning_up, until_ns);
    mr_write_again_close(&u->context.again, u->context.net);
    mr_upload_janitor_destroy(u->janitor);
    mr_upload_log_destroy(u->context.uploads);
    mr_temporaries_destroy(u->context.temporaries);
    return left > 0;
}

static const struct mr_role_ops ops = {
    .kind = {.role = "write", .is_woken = true, .survives = true},
    .init = write_init,
    .handle = write_handle,
    .arena_name = "the checkpoints' memory",
    .arena_mapped = arena_mapped,
    .start = write_start,
    .rest = rest,
    .is_busy = is_busy,
    .tick = tick,
    .count = write_count,
    .drain = drain,
    .is_done = is_done,
    .finish = write_finish,
};

int mr_write_main(unsigned slot)
{
    struct uploader *u = calloc(1, sizeof *u);
    if (!u)
        return 1;
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of that file */
    /* What a scheduler or a shell sends to all processes of a job: a promise is kept until DRAIN, or for drain_s after
     * the supervisor's end. The supervisor itself kills by SIGKILL. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    return mr_role_main(&u->role, &ops, slot);
}
