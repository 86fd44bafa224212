#include "worker/fetch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "shm/index.h"
#include "shm/producer.h"
#include "shm/segment.h"
#include "worker/link.h"
#include "worker/net.h"

#define STEP_MS 100

struct dataset {
    bool open;
    struct mr_index index;
    struct mr_store *store;
};

/* A claim with its transfer. */
struct flight {
    struct fetcher *fetcher;
    struct flight *next, *previous;
    struct mr_claim claim;
    struct mr_transfer *transfer;
    struct mr_index_entry entry;
};

struct fetcher {
    struct mr_link link;
    struct mr_net net;
    struct mr_producer *producer; /* NULL until ARENA */
    void *arena;
    uint64_t arena_bytes;
    struct dataset datasets[MR_DATASETS_MAX];
    struct mr_lane *early; /* lanes that came before ARENA: after a restart, all that are open */
    unsigned early_count;
    struct flight flights; /* list head */
    struct flight *spare;
    unsigned in_flight;
    bool solo;     /* a job that must be alone is running */
    bool draining; /* DRAIN came */
    bool bad;      /* a message or the loop failed: leave with status 1 */
    int64_t last_sweep_ns;
    int64_t since_ns; /* start of the current busy or idle stretch */
    char name[MR_INDEX_NAME_SIZE];
};

/* ---- data sets ---- */

static struct dataset *find_dataset(struct fetcher *f, uint64_t id)
{
    return id < MR_DATASETS_MAX && f->datasets[id].open ? &f->datasets[id] : NULL;
}

/* The bytes that a request stands for, checked against the index. */
static int request_bytes(struct fetcher *f, const struct mr_request *request, struct mr_index_entry *entry, char *name,
                         uint64_t *bytes)
{
    struct dataset *ds = find_dataset(f, request->dataset);
    if (!ds) {
        mr_error_set(MR_E_PROTOCOL, "a ticket asks for data set %" PRIu32 ", which this worker was never given",
                     request->dataset);
        return -1;
    }
    if (mr_index_get(&ds->index, request->object, entry, name) != 0)
        return -1;
    if (request->offset > entry->size || request->length > entry->size - request->offset) {
        mr_error_set(MR_E_USAGE, "bytes %" PRIu64 " to %" PRIu64 " are not within an object of %" PRIu64 " bytes",
                     request->offset, request->offset + request->length, entry->size);
        return -1;
    }
    *bytes = request->length ? request->length : entry->size - request->offset;
    return 0;
}

static int size_of_request(void *arg, const struct mr_request *request, uint64_t *bytes)
{
    struct mr_index_entry entry;
    return request_bytes(arg, request, &entry, NULL, bytes);
}

static int add_dataset(struct fetcher *f, struct mr_msg_in *msg)
{
    uint64_t id;
    const char *text;
    struct mr_uri uri;
    if (mr_msg_get_u64(msg, "dataset", &id) != 0 || mr_msg_get_str(msg, "uri", &text) != 0)
        return -1;
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    if (id >= MR_DATASETS_MAX || f->datasets[id].open || mr_uri_init(&uri, text) != 0) {
        close(fd);
        mr_error_set(MR_E_PROTOCOL, "a bad DATASET message for data set %" PRIu64, id);
        return -1;
    }
    struct dataset *ds = &f->datasets[id];
    int rc = mr_index_map(&ds->index, fd);
    close(fd);
    if (rc == 0) {
        ds->store = mr_net_store(&f->net, uri.scheme, uri.bucket);
        if (!ds->store) { /* bad configuration or credentials: this data set fails, the others go on */
            mr_index_close(&ds->index);
            rc = mr_link_say_failed(&f->link, id, UINT64_MAX);
        } else {
            ds->open = true;
        }
    }
    mr_uri_close(&uri);
    return rc;
}

/* ---- lanes and the arena ---- */

static int add_lane(struct fetcher *f, struct mr_msg_in *msg)
{
    struct mr_lane lane;
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    int rc = mr_lane_map(&lane, fd);
    close(fd);
    if (rc != 0)
        return -1;
    if (f->producer)
        return mr_producer_add_lane(f->producer, &lane);
    struct mr_lane *early = realloc(f->early, (f->early_count + 1) * sizeof *early);
    if (!early) {
        mr_lane_unmap(&lane);
        mr_error_set(MR_E_NO_MEMORY, "no memory for %u lanes", f->early_count + 1);
        return -1;
    }
    f->early = early;
    f->early[f->early_count++] = lane;
    return 0;
}

static int open_arena(struct fetcher *f, struct mr_msg_in *msg)
{
    uint64_t bytes, reserve;
    bool fresh;
    if (f->producer || mr_msg_get_u64(msg, "bytes", &bytes) != 0 || mr_msg_get_u64(msg, "reserve", &reserve) != 0 ||
        mr_msg_get_bool(msg, "fresh", &fresh) != 0) {
        mr_error_set(MR_E_PROTOCOL, "a bad ARENA message");
        return -1;
    }
    int fd = mr_msg_take_fd(msg, 0);
    if (fd < 0)
        return -1;
    if (fresh && mr_segment_reserve(fd, "the arena", bytes) != 0) {
        close(fd);
        mr_log_error("%s", mr_error_text());
        return mr_link_say_failed(&f->link, UINT64_MAX, UINT64_MAX); /* the supervisor falls back or gives up */
    }
    f->arena = mr_segment_map(fd, bytes, 1, NULL);
    close(fd);
    if (!f->arena)
        return -1;
    f->arena_bytes = bytes;
    struct mr_producer_options options = {
        .slot = f->link.slot,
        .board = f->link.board,
        .line = f->link.line,
        .arena = f->arena,
        .arena_bytes = bytes,
        .reserve_bytes = reserve,
        .size = size_of_request,
        .size_arg = f,
    };
    f->producer = mr_producer_new(&options);
    if (!f->producer)
        return -1;
    for (unsigned i = 0; i < f->early_count; i++) {
        if (mr_producer_add_lane(f->producer, &f->early[i]) != 0)
            return -1;
    }
    f->early_count = 0;
    free(f->early);
    f->early = NULL;
    return mr_link_say(&f->link, MR_MSG_ARENA_READY);
}

/* ---- flights ---- */

static struct flight *flight_new(struct fetcher *f)
{
    struct flight *flight = f->spare;
    if (flight) {
        f->spare = flight->next;
    } else {
        flight = malloc(sizeof *flight);
        if (!flight)
            return NULL;
    }
    flight->fetcher = f;
    flight->transfer = NULL;
    flight->next = f->flights.next;
    flight->previous = &f->flights;
    flight->next->previous = flight;
    f->flights.next = flight;
    f->in_flight++;
    return flight;
}

static void flight_end(struct flight *flight)
{
    struct fetcher *f = flight->fetcher;
    flight->next->previous = flight->previous;
    flight->previous->next = flight->next;
    flight->next = f->spare;
    f->spare = flight;
    f->in_flight--;
    if (f->in_flight == 0)
        f->solo = false;
}

static void arrived(void *arg, const struct mr_transfer_result *result)
{
    struct flight *flight = arg;
    struct mr_producer *producer = flight->fetcher->producer;
    if (result->code == MR_OK) {
        mr_producer_publish(producer, &flight->claim, flight->claim.bytes, result->generation, result->crc32c,
                            result->verified ? 0 : MR_DESC_UNVERIFIED);
    } else {
        mr_log_warning("%s", result->text);
        mr_counter_add(flight->fetcher->link.counters, MR_WC_FAILED, 1);
        mr_producer_fail(producer, &flight->claim, result->code, result->text);
    }
    flight_end(flight);
}

/* Starts the transfer of one claim, or ends the claim where there is nothing to transfer. */
static void launch(struct fetcher *f, const struct mr_claim *claim)
{
    struct flight *flight = flight_new(f);
    if (!flight) {
        struct mr_claim copy = *claim;
        mr_producer_give_back(f->producer, &copy);
        return;
    }
    flight->claim = *claim;
    uint64_t bytes;
    if (request_bytes(f, &claim->request, &flight->entry, f->name, &bytes) != 0 || bytes != claim->bytes) {
        mr_producer_fail(f->producer, &flight->claim, mr_error_code(), mr_error_text());
        flight_end(flight);
        return;
    }
    if (bytes == 0) { /* nothing to ask the store for */
        mr_producer_publish(f->producer, &flight->claim, 0, flight->entry.version, 0, 0);
        mr_counter_add(f->link.counters, MR_WC_OBJECTS, 1);
        flight_end(flight);
        return;
    }
    bool whole = bytes == flight->entry.size;
    struct mr_transfer_request request = {
        .store = f->datasets[claim->request.dataset].store,
        .name = f->name,
        .name_length = flight->entry.name_length,
        .generation = flight->entry.version,
        .size = flight->entry.size,
        .offset = claim->request.offset,
        .length = bytes,
        .crc32c = flight->entry.crc32c,
        .has_crc32c = whole && flight->entry.has_crc32c,
        .dest = claim->dest,
    };
    flight->transfer = mr_transfer_fetch(f->net.engine, &request, arrived, flight);
    if (!flight->transfer) {
        mr_producer_fail(f->producer, &flight->claim, mr_error_code(), mr_error_text());
        flight_end(flight);
    }
}

static void give_back(struct flight *flight)
{
    mr_transfer_cancel(flight->fetcher->net.engine, flight->transfer);
    mr_producer_give_back(flight->fetcher->producer, &flight->claim);
    flight_end(flight);
}

/* Gives back what is in flight: all of it, or only what no consumer waits for any more (its lane was closed). */
static void give_back_flights(struct fetcher *f, bool all)
{
    for (struct flight *at = f->flights.next, *next; at != &f->flights; at = next) {
        next = at->next;
        if (all || mr_producer_claim_is_stale(&at->claim))
            give_back(at);
    }
}

/* Claims and starts as much as may be in flight. */
static void start_jobs(struct fetcher *f)
{
    struct mr_job job;
    if (!f->producer || f->draining)
        return;
    while (!f->solo && mr_transfer_free(f->net.engine) > 0 &&
           mr_producer_next_job(f->producer, 1, f->arena_bytes / 4, f->in_flight, &job) > 0) {
        f->solo = job.solo;
        for (unsigned i = 0; i < job.count; i++)
            launch(f, &job.claims[i]);
        if (f->in_flight == 0)
            f->solo = false;
    }
}

/* ---- the loop ---- */

static void drop_lane(struct fetcher *f, uint64_t lane)
{
    struct mr_msg_out *msg;
    if (f->producer && !mr_producer_drop_lane(f->producer, (uint32_t)lane))
        return; /* a claim of ours is still in it: the supervisor repeats DROP_LANE */
    if ((msg = mr_msg_new(MR_MSG_DROPPED))) {
        mr_msg_put_u64(msg, "lane", lane);
        if (mr_msg_send(f->link.socket, msg) != 0)
            f->bad = true;
    }
}

static int handle(struct fetcher *f, struct mr_msg_in *msg)
{
    uint64_t value;
    switch (msg->type) {
    case MR_MSG_ARENA:
        return open_arena(f, msg);
    case MR_MSG_DATASET:
        return add_dataset(f, msg);
    case MR_MSG_LANE:
        return add_lane(f, msg);
    case MR_MSG_DROP_LANE:
        if (mr_msg_get_u64(msg, "lane", &value) != 0)
            return -1;
        give_back_flights(f, false);
        drop_lane(f, value);
        return 0;
    case MR_MSG_DRAIN:
        f->draining = true;
        return 0;
    case MR_MSG_LOG_LEVEL:
        if (mr_msg_get_u64(msg, "level", &value) != 0)
            return -1;
        mr_log_set_level(value <= MR_LOG_DEBUG ? (enum mr_log_level)value : MR_LOG_INFO);
        return 0;
    default:
        mr_error_set(MR_E_PROTOCOL, "the supervisor sent a message of type %d to a fetch worker", (int)msg->type);
        return -1;
    }
}

static void read_messages(struct fetcher *f)
{
    struct mr_msg_in msg;
    int rc;
    while ((rc = mr_msg_recv(f->link.socket, &msg)) == 1) {
        if (handle(f, &msg) != 0) {
            mr_log_error("%s", mr_error_text());
            f->bad = true;
        }
        mr_msg_close(&msg);
    }
    if (rc < 0) {
        if (mr_error_code() != MR_E_GONE)
            mr_log_error("%s", mr_error_text());
        f->bad = true;
    }
}

static void set_counter(struct fetcher *f, unsigned which, uint64_t *last, uint64_t now)
{
    mr_counter_add(f->link.counters, which, now - *last);
    *last = now;
}

/* Of any bucket: the limits are learnt from all of them, and their configuration is one. */
static void set_stalls(struct fetcher *f)
{
    unsigned ms[2];
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        if (!f->datasets[i].open)
            continue;
        mr_transfer_stall_ms(f->net.engine, f->datasets[i].store, ms);
        mr_counter_set(f->link.counters, MR_WC_FIRST_MS, ms[0]);
        mr_counter_set(f->link.counters, MR_WC_STALL_MS, ms[1]);
        return;
    }
}

static void copy_counters(struct fetcher *f)
{
    static struct mr_transfer_counters last;
    static struct mr_producer_stats before;
    const struct mr_transfer_counters *now = mr_transfer_counters(f->net.engine);
    set_counter(f, MR_WC_REQUESTS, &last.requests, now->requests);
    set_counter(f, MR_WC_BYTES, &last.bytes, now->bytes);
    set_counter(f, MR_WC_OBJECTS, &last.objects, now->objects);
    set_counter(f, MR_WC_RETRIES, &last.retries, now->retries);
    set_counter(f, MR_WC_RESUMES, &last.resumes, now->resumes);
    set_counter(f, MR_WC_STALLS, &last.stalls, now->stalls);
    set_counter(f, MR_WC_CRC_FAILURES, &last.crc_errors, now->crc_errors);
    set_counter(f, MR_WC_UNVERIFIED, &last.unverified, now->unverified);
    set_counter(f, MR_WC_THROTTLED, &last.busy, now->busy);
    set_counter(f, MR_WC_EGRESS_LIMITED, &last.egress, now->egress);
    set_stalls(f);
    if (f->producer) {
        struct mr_producer_stats stats;
        mr_producer_stats(f->producer, &stats);
        set_counter(f, MR_WC_JOBS, &before.jobs, stats.jobs);
        set_counter(f, MR_WC_JOB_TICKETS, &before.tickets, stats.tickets);
        set_counter(f, MR_WC_STOLEN, &before.stolen_blocks, stats.stolen_blocks);
        set_counter(f, MR_WC_TAKE_BACKS, &before.take_backs, stats.take_backs);
        set_counter(f, MR_WC_RESERVE_USES, &before.reserve_uses, stats.reserve_uses);
        set_counter(f, MR_WC_GIVE_BACKS, &before.give_backs, stats.give_backs);
        set_counter(f, MR_WC_NO_ROOM, &before.no_room, stats.no_room);
        mr_counter_set(f->link.counters, MR_WC_ARENA_BYTES, f->arena_bytes);
        mr_counter_set(f->link.counters, MR_WC_ARENA_FREE_BYTES, mr_producer_free_bytes(f->producer));
    }
    mr_counter_set(f->link.counters, MR_WC_IN_FLIGHT, mr_transfer_in_flight(f->net.engine));
    mr_counter_set(f->link.counters, MR_WC_LIMIT, mr_transfer_limit(f->net.engine));
}

/* Time with something in flight is busy, the rest idle. */
static void account_time(struct fetcher *f, bool was_busy)
{
    int64_t now = mr_http_now_ns(f->net.http);
    if (now > f->since_ns) {
        mr_counter_add(f->link.counters, was_busy ? MR_WC_BUSY_NS : MR_WC_IDLE_NS, (uint64_t)(now - f->since_ns));
        f->since_ns = now;
    }
    if (now - f->last_sweep_ns >= STEP_MS * MR_MILLISECOND_NS) {
        f->last_sweep_ns = now;
        copy_counters(f);
        give_back_flights(f, false);
    }
}

static int step(struct fetcher *f)
{
    start_jobs(f);
    bool was_busy = f->in_flight > 0;
    bool slept = false;
    if (f->producer && !f->draining && !f->solo && mr_transfer_free(f->net.engine) > 0) {
        if (mr_producer_sleep(f->producer) != 0)
            return 0; /* a ticket came between the scan and going to sleep */
        slept = true;
    }
    int woken = mr_http_step(f->net.http, STEP_MS, f->link.wait_fd);
    if (slept)
        mr_producer_awake(f->producer);
    if (woken < 0)
        return -1;
    if (woken > 0) {
        mr_link_drain_wakeups(&f->link);
        read_messages(f);
    }
    account_time(f, was_busy);
    return 0;
}

int mr_fetch_main(unsigned slot)
{
    struct fetcher *f = calloc(1, sizeof *f);
    if (!f)
        return 1;
    f->flights.next = f->flights.previous = &f->flights;
    if (mr_link_init(&f->link, "fetch", slot) != 0)
        goto failed;
    if (mr_net_init(&f->net, &f->link.config) != 0) {
        mr_link_say_failed(&f->link, UINT64_MAX, UINT64_MAX);
        goto failed;
    }
    if (mr_link_say(&f->link, MR_MSG_READY) != 0)
        goto failed;
    f->since_ns = mr_clock_mono_ns();
    while (!f->bad && !f->draining) {
        if (step(f) != 0)
            goto failed;
    }
    give_back_flights(f, true);
    copy_counters(f);
    return f->bad ? 1 : 0; /* mappings and sockets go with the process */
failed:
    mr_log_error("%s", mr_error_text());
    return mr_error_code() == MR_E_CONFIG || mr_error_code() == MR_E_DENIED ? 2 : 1;
}
