#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/bench_reader.h"
#include "shm/index/plan.h"
#include "shm/index/shards.h"
#include "shm/ring/consumer.h"

#define SLICE_MS       100 /* between two checks that the supervisor is alive */
#define FEED_AT_A_TIME 32
#define KEPT_MAX       (UINT64_C(256) << 20)

struct kept {
    void *data;
    uint64_t length;
};

struct mr_bench_reader {
    struct mr_client *client;
    struct mr_consumer *consumer;
    uint32_t lane;
    struct mr_index index;
    struct mr_bench_plan plan;
    uint64_t epoch_steps;
    struct mr_plan feeding; /* the plan of the epoch that is being fed */
    uint64_t epoch, feed_step, position;
    uint32_t left; /* of the step that is being fed */
    uint64_t step; /* what is taken next */
    unsigned char *into;
    uint64_t into_bytes, wait_ns;
    struct kept *kept;
    uint32_t kept_count;
};

int mr_bench_index(struct mr_client *client, uint64_t dataset, struct mr_index *index)
{
    int fd;
    uint64_t size;
    if (mr_client_index(client, dataset, &fd, &size) != 0)
        return -1;
    int rc = mr_index_map(index, fd);
    close(fd);
    return rc;
}

static int plan_epoch(struct mr_bench_reader *r, uint64_t epoch, struct mr_plan *plan)
{
    struct mr_plan_params params = {.size = r->index.info.count,
                                    .epoch = epoch,
                                    .world = 1,
                                    .batch = r->plan.batch,
                                    .shuffle = true,
                                    .tail = MR_TAIL_DROP};
    memcpy(params.digest, r->index.info.digest, sizeof params.digest);
    return mr_plan_init(plan, &params);
}

struct mr_bench_reader *mr_bench_reader_new(struct mr_client *client, const struct mr_bench_plan *plan)
{
    struct mr_bench_reader *r = mr_client_views(client) ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    r->client = client;
    r->plan = *plan;
    r->step = r->feed_step = plan->worker;
    if (mr_bench_index(client, plan->dataset, &r->index) != 0 || plan_epoch(r, 0, &r->feeding) != 0)
        goto fail;
    r->epoch_steps = mr_plan_steps(&r->feeding);
    r->into_bytes = r->index.info.max_size;
    r->into = malloc(r->into_bytes + 1);
    if (!r->into || r->epoch_steps == 0) {
        if (!r->into)
            mr_error_set(MR_E_NO_MEMORY, "no memory for the largest object, of %" PRIu64 " bytes", r->into_bytes);
        else
            mr_error_set(MR_E_USAGE, "the data set has no objects: there is nothing to measure");
        goto fail;
    }
    struct mr_lane lane;
    if (mr_client_open_lane(client, plan->dataset, 0, 2 * plan->batch, NULL, &lane, NULL, NULL) != 0)
        goto fail;
    r->lane = lane.lane;
    struct mr_views *views = mr_client_views(client); /* those of the lane */
    r->consumer = views ? mr_consumer_new(&lane, views) : NULL;
    if (r->consumer)
        return r;
    mr_lane_unmap(&lane);
    mr_client_close_lane(client, r->lane);
fail:
    mr_bench_reader_destroy(r);
    return NULL;
}

void mr_bench_reader_destroy(struct mr_bench_reader *r)
{
    if (!r)
        return;
    if (r->consumer) {
        mr_consumer_destroy(r->consumer);
        mr_client_close_lane(r->client, r->lane);
    }
    for (uint32_t i = 0; i < r->kept_count; i++)
        free(r->kept[i].data);
    free(r->kept);
    free(r->into);
    mr_index_close(&r->index);
    free(r);
}

/* The next sample of this worker's steps: 1, 0 after the last one, -1. */
static int next_sample(struct mr_bench_reader *r, struct mr_sample *sample)
{
    while (r->left == 0) {
        if (r->feed_step >= r->plan.steps)
            return 0;
        uint64_t epoch = r->feed_step / r->epoch_steps;
        if (epoch != r->epoch && plan_epoch(r, epoch, &r->feeding) != 0)
            return -1;
        r->epoch = epoch;
        mr_plan_share(&r->feeding, r->feed_step % r->epoch_steps, &r->position, &r->left);
        r->feed_step += r->plan.workers;
    }
    uint64_t object = mr_plan_object(&r->feeding, r->position);
    struct mr_index_entry entry;
    if (mr_index_get(&r->index, object, &entry, NULL) != 0)
        return -1;
    *sample = (struct mr_sample){.request = {.dataset = mr_dataset_number(r->plan.dataset), .object = object},
                                 .bytes = entry.size};
    r->position++;
    r->left--;
    return 1;
}

/* Keeps one window's worth of samples queued behind the window. 0 or -1. */
static int feed(struct mr_bench_reader *r)
{
    size_t backlog = mr_consumer_backlog(r->consumer), wanted = mr_consumer_window(r->consumer);
    int rc = 1;
    while (rc > 0 && backlog < wanted) {
        struct mr_sample samples[FEED_AT_A_TIME];
        size_t count = 0;
        while (count < FEED_AT_A_TIME && (rc = next_sample(r, &samples[count])) > 0)
            count++;
        if (count > 0 && mr_consumer_feed(r->consumer, samples, count) != 0)
            return -1;
        backlog += count;
    }
    return rc < 0 ? -1 : 0;
}

static void set_failure(const struct mr_bench_reader *r, const struct mr_delivery *delivery)
{
    char *described = NULL;
    if (delivery->text[0] == ':')
        described = mr_index_describe(&r->index, delivery->sample.request.object, NULL);
    mr_error_set((enum mr_code)delivery->code, "%s%s", described ? described : "", delivery->text);
    free(described);
}

/* Blocks for the next sample; end_delivery must follow. 0, or -1 with mr_error, also where the supervisor has
 * failed. */
static int bench_reader_take(struct mr_bench_reader *r, struct mr_delivery *delivery)
{
    struct mr_silence wait = {0};
    for (;;) {
        if (feed(r) != 0)
            return -1;
        switch (mr_consumer_next(r->consumer, SLICE_MS, delivery)) {
        case MR_NEXT_OK:
            return 0;
        case MR_NEXT_FAILED:
            set_failure(r, delivery);
            return -1;
        case MR_NEXT_END:
            mr_error_set(MR_E_INTERNAL, "the lane ended before its steps");
            return -1;
        case MR_NEXT_TIMEOUT:
        case MR_NEXT_SIGNAL:
            if (mr_client_check_wait(r->client, &wait) != 0 ||
                mr_client_dataset_state(r->client, r->plan.dataset) == MR_DATASET_FAILED)
                return -1;
        }
    }
}

static void bench_reader_copy(struct mr_bench_reader *r, const void *data, uint64_t length)
{
    if (length > 0)
        memcpy(r->into, data, length < r->into_bytes ? length : r->into_bytes);
    __asm__ volatile("" : : "r"(r->into) : "memory"); /* the copy is never read, but must be made */
}

static void end_delivery(struct mr_bench_reader *r, struct mr_delivery *delivery)
{
    if (delivery->copied)
        free((void *)(uintptr_t)delivery->data);
    else
        mr_lease_release(r->consumer, delivery->slot, delivery->word, delivery->length);
}

static void set_failed(struct mr_bench_step *step)
{
    step->code = mr_error_code();
    snprintf(step->text, sizeof step->text, "%s", mr_error_text());
}

/* Takes the samples of the next step and passes each to `use`. 0, or -1 with mr_error: the step is incomplete. */
static int each_sample(struct mr_bench_reader *r, struct mr_bench_step *step,
                       int (*use)(struct mr_bench_reader *r, const void *data, uint64_t length))
{
    struct mr_plan plan;
    if (plan_epoch(r, r->step / r->epoch_steps, &plan) != 0)
        return -1;
    uint64_t first;
    uint32_t count;
    mr_plan_share(&plan, r->step % r->epoch_steps, &first, &count);
    for (uint32_t i = 0; i < count; i++) {
        struct mr_delivery delivery;
        if (bench_reader_take(r, &delivery) != 0)
            return -1;
        int rc = use(r, delivery.data, delivery.length);
        step->samples++;
        step->bytes += delivery.length;
        end_delivery(r, &delivery);
        if (rc != 0)
            return -1;
    }
    r->step += r->plan.workers;
    struct mr_consumer_stats stats;
    mr_consumer_stats(r->consumer, &stats);
    step->wait_ns = stats.wait_ns - r->wait_ns;
    r->wait_ns = stats.wait_ns;
    return 0;
}

static int use_copy(struct mr_bench_reader *r, const void *data, uint64_t length)
{
    bench_reader_copy(r, data, length);
    return 0;
}

void mr_bench_reader_step(struct mr_bench_reader *r, struct mr_bench_step *step)
{
    *step = (struct mr_bench_step){.code = MR_OK};
    if (each_sample(r, step, use_copy) != 0)
        set_failed(step);
}

/* Keeps a copy of the sample, unless that goes beyond KEPT_MAX; the first one is always kept. */
static int use_keep(struct mr_bench_reader *r, const void *data, uint64_t length)
{
    uint64_t bytes = length;
    for (uint32_t i = 0; i < r->kept_count; i++)
        bytes += r->kept[i].length;
    if (r->kept_count > 0 && bytes > KEPT_MAX)
        return 0;
    struct kept *kept = &r->kept[r->kept_count];
    kept->data = malloc(length + 1);
    if (!kept->data) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a batch of its own");
        return -1;
    }
    memcpy(kept->data, data, length);
    kept->length = length;
    r->kept_count++;
    return 0;
}

int mr_bench_reader_keep(struct mr_bench_reader *r)
{
    struct mr_bench_step step = {0};
    r->kept = calloc(r->plan.batch, sizeof *r->kept);
    if (!r->kept) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a batch of its own");
        return -1;
    }
    return each_sample(r, &step, use_keep);
}

void mr_bench_reader_cached(struct mr_bench_reader *r, struct mr_bench_step *step)
{
    *step = (struct mr_bench_step){.samples = r->plan.batch};
    for (uint32_t i = 0; i < r->plan.batch; i++) {
        const struct kept *kept = &r->kept[i % r->kept_count];
        bench_reader_copy(r, kept->data, kept->length);
        step->bytes += kept->length;
    }
}
