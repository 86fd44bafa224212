/* meter.c - see meter.h. */
#include "shm/meter/meter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/trace/trace.h"

_Static_assert(sizeof(struct mr_meter_shared) == 64, "blocks begin at 64-byte borders");
_Static_assert(offsetof(struct mr_meter_sums, save) == 8 * MR_LC_SAVE_NS &&
                   offsetof(struct mr_meter_sums, queue) - offsetof(struct mr_meter_sums, made) == 8 * MR_DC_QUEUE_NS,
               "the order of the counters");

_Static_assert(MR_SPAN_EXTENT == MR_SPAN_SAMPLES + 1 && MR_SPAN_COLLATE == MR_SPAN_SAMPLES + 2 &&
                   MR_SPAN_PACK == MR_SPAN_SAMPLES + 3,
               "the order of a batch's spans");

static uint64_t size_of(uint32_t blocks)
{
    return sizeof(struct mr_meter_shared) + (uint64_t)MR_COUNTERS_BYTES * (1 + blocks);
}

static void attach(struct mr_meter *meter, void *at, uint32_t blocks)
{
    meter->shared = at;
    meter->loop = (struct mr_counters *)(meter->shared + 1);
    meter->loaders = meter->loop + 1;
    meter->blocks = blocks;
    meter->size = size_of(blocks);
}

int mr_meter_new(struct mr_meter *meter, uint32_t workers, uint32_t rank, uint32_t world)
{
    uint32_t blocks = workers > 0 ? workers : 1;

    *meter = (struct mr_meter){.fd = -1};
    if (workers > MR_METER_WORKERS_MAX) {
        mr_error_set(MR_E_USAGE, "%u DataLoader workers: at most %u are measured", workers, MR_METER_WORKERS_MAX);
        return -1;
    }
    meter->packed = calloc(blocks, sizeof *meter->packed);
    if (!meter->packed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the counters of a loader");
        return -1;
    }
    meter->fd = memfd_create("millrace-meter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at = MAP_FAILED;
    if (meter->fd >= 0 && ftruncate(meter->fd, (off_t)size_of(blocks)) == 0 &&
        fcntl(meter->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
        at = mmap(NULL, size_of(blocks), PROT_READ | PROT_WRITE, MAP_SHARED, meter->fd, 0);
    if (at == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot make memory for the counters of a loader");
        mr_meter_close(meter);
        return -1;
    }
    attach(meter, at, blocks);
    mr_counters_init(meter->loop, MR_ROLE_LOOP, rank);
    mr_counters_adopt(meter->loop, 1, (int32_t)getpid(), mr_clock_mono_ns());
    for (uint32_t i = 0; i < blocks; i++)
        mr_counters_init(&meter->loaders[i], MR_ROLE_LOADER, i);
    mr_counter_set(meter->loop, MR_LC_RANK, rank);
    mr_counter_set(meter->loop, MR_LC_WORLD, world);
    mr_counter_set(meter->loop, MR_LC_WORKERS, workers);
    meter->shared->version = MR_METER_VERSION;
    meter->shared->blocks = blocks;
    /* M0: all of the above is visible to a process that sees the magic. Pairs with M1 in mr_meter_map. */
    atomic_store_explicit(&meter->shared->magic, MR_METER_MAGIC, memory_order_release);
    return 0;
}

int mr_meter_map(struct mr_meter *meter, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    *meter = (struct mr_meter){.fd = -1};
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)size_of(1) ||
        st.st_size > (off_t)size_of(MR_METER_WORKERS_MAX)) {
        mr_error_set(MR_E_USAGE, "a descriptor of a loader's counters is of no memory that keeps its size");
        return -1;
    }
    uint64_t size = (uint64_t)st.st_size;
    struct mr_meter_shared *shared = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map the counters of a loader");
        return -1;
    }
    /* M1: pairs with M0 in mr_meter_new. Then `blocks`, once: its maker may change it. */
    bool ours = atomic_load_explicit(&shared->magic, memory_order_acquire) == MR_METER_MAGIC;
    uint32_t blocks = __atomic_load_n(&shared->blocks, __ATOMIC_RELAXED);
    if (!ours || shared->version != MR_METER_VERSION || blocks < 1 || size_of(blocks) != size) {
        mr_error_set(ours ? MR_E_USAGE : MR_E_CORRUPT,
                     "%llu bytes are not the counters of a loader of this version: was millrace upgraded while it ran?",
                     (unsigned long long)size);
        munmap(shared, size);
        return -1;
    }
    attach(meter, shared, blocks);
    return 0;
}

void mr_meter_close_in_child(struct mr_meter *meter)
{
    if (meter->shared)
        munmap(meter->shared, meter->size);
    if (meter->fd >= 0)
        close(meter->fd);
    free(meter->packed);
    *meter = (struct mr_meter){.fd = -1};
}

void mr_meter_close(struct mr_meter *meter)
{
    if (meter->shared && meter->fd >= 0)
        atomic_store_explicit(&meter->shared->ended, 1, memory_order_relaxed);
    mr_meter_close_in_child(meter);
}

void mr_meter_begin(struct mr_meter *meter, uint32_t epoch, uint32_t cores, uint32_t sharers)
{
    meter->given = 0;
    memset(meter->packed, 0, meter->blocks * sizeof *meter->packed);
    mr_counter_set(meter->loop, MR_LC_EPOCH, epoch);
    mr_counter_set(meter->loop, MR_LC_CORES, cores);
    mr_counter_set(meter->loop, MR_LC_SHARERS, sharers);
    mr_counter_set(meter->loop, MR_LC_ASKED, 0);
    mr_counter_set(meter->loop, MR_LC_GIVEN, 0);
}

void mr_meter_ask(struct mr_meter *meter, int64_t now_ns)
{
    mr_counter_set(meter->loop, MR_LC_ASKED, (uint64_t)now_ns);
}

static uint64_t between(int64_t from, int64_t to)
{
    return to > from ? (uint64_t)(to - from) : 0;
}

/* What the worker was busy with. The wait of the transform's own reads is the store's. */
static void add_made(struct mr_counters *loader, const struct mr_meter_times *made, int64_t before, int64_t taken_ns)
{
    uint64_t fetching = between(made->began, made->fetched);
    uint64_t waited = made->waited < fetching ? made->waited : fetching;

    mr_counter_add(loader, MR_DC_BATCHES, 1);
    mr_counter_add(loader, MR_DC_STORE_NS, waited);
    mr_counter_add(loader, MR_DC_TRANSFORM_NS, fetching - waited);
    mr_counter_add(loader, MR_DC_EXTENT_NS, between(made->fetched, made->reserved));
    mr_counter_add(loader, MR_DC_COLLATE_NS, between(made->reserved, made->collated));
    mr_counter_add(loader, MR_DC_PACK_NS, between(made->collated, made->packed));
    mr_counter_add(loader, MR_DC_CPU_NS, made->cpu);
    mr_counter_add(loader, MR_DC_THREAD_NS, made->thread);
    mr_counter_add(loader, MR_DC_DELAY_NS, made->delay);
    mr_counter_add(loader, MR_DC_IDLE_NS, before ? between(before, made->began) : 0);
    mr_counter_add(loader, MR_DC_QUEUE_NS, between(made->packed, taken_ns));
}

/* The loop's side of a batch; its device copy is on the thread that copies. */
static void trace_loop(const struct mr_meter *meter, int64_t given, int64_t asked_ns, int64_t taken_ns, uint32_t worker)
{
    if (!mr_trace_is_on())
        return;
    struct mr_trace_record span = {.kind = MR_SPAN_STEP,
                                   .begin_ns = given,
                                   .end_ns = asked_ns,
                                   .object = mr_counter_get(meter->loop, MR_LC_EPOCH),
                                   .number = (uint32_t)mr_counter_get(meter->loop, MR_LC_RANK),
                                   .code = worker};
    if (given != 0)
        mr_trace_emit(&span, NULL);
    span.kind = MR_SPAN_WAIT;
    span.begin_ns = asked_ns;
    span.end_ns = taken_ns;
    mr_trace_emit(&span, NULL);
}

void mr_meter_trace_made(const struct mr_meter_times *made)
{
    const int64_t at[] = {made->began, made->fetched, made->reserved, made->collated, made->packed};

    for (unsigned i = 0; i + 1 < sizeof at / sizeof at[0] && mr_trace_is_on(); i++)
        if (at[i + 1] > at[i])
            mr_trace_emit(
                &(struct mr_trace_record){
                    .kind = MR_SPAN_SAMPLES + i, .begin_ns = at[i], .end_ns = at[i + 1], .number = made->worker},
                NULL);
}

void mr_meter_take(struct mr_meter *meter, int64_t asked_ns, int64_t taken_ns, int64_t arrived_ns, uint64_t saved_ns,
                   const struct mr_meter_times *made)
{
    struct mr_counters *loop = meter->loop;
    uint32_t worker = made->worker < meter->blocks ? made->worker : 0;
    int64_t given = meter->given, before = meter->packed[worker];

    meter->given = taken_ns;
    meter->packed[worker] = made->packed;
    mr_meter_ask(meter, 0);
    mr_counter_add(loop, MR_LC_GIVEN, 1);
    trace_loop(meter, given, asked_ns, taken_ns, made->worker);
    if (given == 0) {
        mr_counter_add(loop, MR_LC_FIRST_NS, between(asked_ns, taken_ns));
        return;
    }
    uint64_t wait = between(asked_ns, taken_ns), late = between(asked_ns, made->sent), device = 0;
    late = late < wait ? late : wait;
    if (arrived_ns != 0)
        device = between(arrived_ns > asked_ns ? arrived_ns : asked_ns, taken_ns);
    device = device < wait - late ? device : wait - late;
    mr_counter_add(loop, MR_LC_STEP_NS, between(given, asked_ns));
    mr_counter_add(loop, MR_LC_WAIT_NS, wait);
    mr_counter_add(loop, MR_LC_LATE_NS, late);
    mr_counter_add(loop, MR_LC_DEVICE_NS, device);
    mr_counter_add(loop, MR_LC_TRANSPORT_NS, wait - late - device);
    mr_counter_add(loop, MR_LC_SAVE_NS, saved_ns);
    add_made(&meter->loaders[worker], made, before, taken_ns);
    mr_counter_add(loop, MR_LC_BATCHES, 1);
}

void mr_meter_read(const struct mr_meter *meter, struct mr_meter_sums *sums)
{
    const struct mr_counters *loop = meter->loop;

    *sums = (struct mr_meter_sums){
        .epoch = (uint32_t)mr_counter_get(loop, MR_LC_EPOCH),
        .rank = (uint32_t)mr_counter_get(loop, MR_LC_RANK),
        .world = (uint32_t)mr_counter_get(loop, MR_LC_WORLD),
        .workers = (uint32_t)mr_counter_get(loop, MR_LC_WORKERS),
        .cores = (uint32_t)mr_counter_get(loop, MR_LC_CORES),
        .sharers = (uint32_t)mr_counter_get(loop, MR_LC_SHARERS),
        .given = mr_counter_get(loop, MR_LC_GIVEN),
        .asked = (int64_t)mr_counter_get(loop, MR_LC_ASKED),
    };
    for (unsigned which = 0; which < MR_LC_EPOCH; which++)
        sums->loop[which] = mr_counter_get(loop, which);
    for (uint32_t i = 0; i < meter->blocks; i++)
        for (unsigned which = 0; which < MR_DC_COUNT; which++)
            sums->loaders[which] += mr_counter_get(&meter->loaders[i], which);
}

void mr_meter_since(struct mr_meter_sums *sums, const struct mr_meter_sums *before)
{
    for (unsigned which = 0; which < MR_LC_EPOCH; which++)
        sums->loop[which] = mr_counter_grown(sums->loop[which], before->loop[which]);
    for (unsigned which = 0; which < MR_DC_COUNT; which++)
        sums->loaders[which] = mr_counter_grown(sums->loaders[which], before->loaders[which]);
}
