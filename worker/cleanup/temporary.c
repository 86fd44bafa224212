#include "worker/cleanup/temporary.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker/cleanup/remove.h"
#include "worker/cleanup/sweep.h"

#define FLUSH_MS  1000
#define AGAIN_S   5    /* after a listing that did not end well */
#define MARKS_MAX 1000 /* of the dead, dealt with at a time */

#define NUMBER_BITS 40 /* of a handle, below the start of its maker */

struct mr_temporary_bucket {
    struct mr_temporaries *owner;
    struct mr_temporary_bucket *next;
    struct mr_store *store;
    char *endpoint, *name;
    struct mr_remover *remover;
    int64_t waiting_since_ns; /* the oldest name that waits for its batch; 0: none */
    uint64_t *used;           /* numbers in use */
    unsigned used_count, used_room;
    int64_t list_ns;       /* list the bucket then; 0: no need */
    int64_t lost_until_ns; /* a request of ours may take effect until then; 0: none */
    bool unclean;          /* a delete failed: our mark stays */
    bool target, listed;   /* of the round under way: to be listed; listed to its end without a failure */
};

struct mr_temporaries {
    struct mr_net *net;
    struct mr_counters *counters;
    struct mr_maker maker;
    struct mr_run_mark *mark; /* NULL until the first begin */
    bool unmarked;            /* there can be no mark: age alone */
    bool warned;
    bool finishing;
    uint64_t next;
    struct mr_temporary_bucket *buckets;
    /* A round: the marks of the dead, and a sweep of each bucket that they name or that is due. */
    struct mr_dead_mark *marks;
    struct mr_sweep *sweep;
    bool round;
    int64_t marks_ns; /* take the marks of the dead then; 0: not */
    struct mr_run_life life;
};

/* ---- which are whose ---- */

bool mr_temporary_has_name(const char *name)
{
    return strncmp(name, MR_TEMPORARY_PREFIX, strlen(MR_TEMPORARY_PREFIX)) == 0;
}

/* A handle: which of the slot's processes made it, and its number there. */
static uint64_t handle_of(uint32_t start, uint64_t number)
{
    return (uint64_t)start << NUMBER_BITS | number;
}

void mr_temporary_name_of(const struct mr_temporary_bucket *bucket, uint64_t number, char name[MR_TEMPORARY_NAME_SIZE])
{
    const struct mr_maker *maker = &bucket->owner->maker;
    snprintf(name, MR_TEMPORARY_NAME_SIZE, MR_TEMPORARY_PREFIX "%s/%u-%" PRIu64 "-%" PRIu64, maker->run, maker->slot,
             number >> NUMBER_BITS, number & ((UINT64_C(1) << NUMBER_BITS) - 1));
}

/* Made by us, or by a predecessor whose work we continue. */
static bool temporary_is_ours(const struct mr_temporaries *t, const struct mr_maker *maker)
{
    return mr_maker_equal(maker, &t->maker) || (mr_maker_is_write(maker) && maker->slot == t->maker.slot &&
                                                maker->start < t->maker.start && strcmp(maker->run, t->maker.run) == 0);
}

bool mr_temporary_is_dead(const struct mr_maker *maker, int64_t age_s, int64_t limit_s,
                          const struct mr_dead_mark *marks, bool run_lives)
{
    bool part = maker && mr_maker_is_write(maker);
    const struct mr_dead_mark *mark = maker ? mr_dead_marks_find(marks, maker) : NULL;
    if (mark && (!part || ((mark->late || mark->gone) && !run_lives)))
        return true;
    if (limit_s < 0)
        limit_s = part ? MR_TEMPORARY_PART_AGE_S : MR_TEMPORARY_AGE_S;
    return age_s >= limit_s && !run_lives;
}

static bool in_use(const struct mr_temporary_bucket *bucket, uint64_t number)
{
    for (unsigned i = 0; i < bucket->used_count; i++)
        if (bucket->used[i] == number)
            return true;
    return false;
}

static bool verdict(void *arg, const struct mr_store_item *item, int64_t age_s)
{
    struct mr_temporary_bucket *bucket = arg;
    struct mr_temporaries *t = bucket->owner;
    struct mr_maker maker;
    uint64_t number;
    bool known = mr_maker_parse(item->name + strlen(MR_TEMPORARY_PREFIX), &maker, &number);
    if (known && temporary_is_ours(t, &maker))
        return !in_use(bucket, handle_of(maker.start, number));
    return mr_temporary_is_dead(known ? &maker : NULL, age_s, -1, t->marks,
                                known && mr_run_lives(&t->life, maker.run, t->marks));
}

/* ---- rounds ---- */

static void next_sweep(struct mr_temporaries *t);

static void swept(void *arg, const struct mr_sweep_result *result)
{
    struct mr_temporary_bucket *bucket = arg;
    struct mr_temporaries *t = bucket->owner;
    t->sweep = NULL;
    mr_counter_add(t->counters, MR_WC_ORPHANS_REMOVED, result->removed);
    bucket->listed = result->code == MR_OK && result->failed == 0;
    if (bucket->listed)
        bucket->unclean = false;
    else /* the marks too: they name the dead */
        t->marks_ns = bucket->list_ns = mr_clock_mono_ns() + AGAIN_S * MR_SECOND_NS;
    if (result->code != MR_OK)
        mr_log_warning("temporary objects in %s could not be listed: %s", bucket->name, result->text);
    else if (result->failed > 0)
        mr_log_warning("%" PRIu64 " temporary objects of dead runs in %s could not be deleted: %s", result->failed,
                       bucket->name, result->failure);
    if (result->removed > 0)
        mr_log_info("%" PRIu64 " temporary objects no longer in use were deleted from %s", result->removed,
                    bucket->name);
    next_sweep(t);
}

/* Marks of the dead are removed once every bucket that they name has been listed without a failure; the others are kept
 * for another round. */
static void end_round(struct mr_temporaries *t)
{
    bool fresh = false;
    for (struct mr_dead_mark *mark = t->marks; mark; mark = mark->next) {
        for (struct mr_temporary_bucket *b = t->buckets; b; b = b->next)
            if (b->listed && mark->late &&
                !(mr_maker_is_write(&mark->maker) && mr_run_lives(&t->life, mark->maker.run, t->marks)))
                mr_dead_mark_cleaned(mark, b->endpoint, b->name);
        fresh |= !mark->late;
    }
    mr_dead_marks_free(t->marks);
    t->marks = NULL;
    t->round = false;
    if (fresh)
        t->marks_ns = mr_clock_mono_ns() + (MR_LATE_S + 1) * MR_SECOND_NS;
}

/* Begins the next bucket's sweep, or ends the round: one sweep at a time. */
static void next_sweep(struct mr_temporaries *t)
{
    for (struct mr_temporary_bucket *b = t->buckets; b; b = b->next) {
        if (!b->target)
            continue;
        b->target = false;
        b->list_ns = 0;
        struct mr_sweep_options options = {
            .engine = t->net->engine,
            .store = b->store,
            .prefix = MR_TEMPORARY_PREFIX,
            .verdict = verdict,
            .done = swept,
            .arg = b,
        };
        t->sweep = mr_sweep_new(&options);
        if (t->sweep)
            return;
        mr_log_warning("temporary objects in %s could not be listed: %s", b->name, mr_error_text());
    }
    end_round(t);
}

static struct mr_temporary_bucket *bucket_new(struct mr_temporaries *t, struct mr_store *store, const char *endpoint,
                                              const char *name);

/* Buckets that only the dead have used are opened for their sake, if they are of the endpoint that we speak to. */
static void find_targets(struct mr_temporaries *t, const char *endpoint)
{
    for (struct mr_dead_mark *mark = t->marks; mark; mark = mark->next) {
        size_t length = strlen(endpoint);
        for (const char *line = mark->text, *end; (end = strchr(line, '\n')); line = end + 1) {
            char name[256];
            if (strncmp(line, endpoint, length) != 0 || line[length] != ' ' ||
                (size_t)(end - line) - length - 1 >= sizeof name)
                continue;
            snprintf(name, sizeof name, "%.*s", (int)((size_t)(end - line) - length - 1), line + length + 1);
            struct mr_temporary_bucket *b = t->buckets;
            while (b && (strcmp(b->name, name) != 0 || strcmp(b->endpoint, endpoint) != 0))
                b = b->next;
            struct mr_store *store = b ? b->store : mr_net_store(t->net, MR_SCHEME_GS, name);
            if (!b && store)
                b = bucket_new(t, store, endpoint, name);
            if (b)
                b->target = true;
        }
    }
}

/* Decides which buckets to list: those that are due, and with `marks` those that dead processes have named. */
static void start_round(struct mr_temporaries *t, int64_t now_ns, bool marks)
{
    unsigned count = 0;
    if (marks) {
        t->marks_ns = 0;
        t->marks = mr_dead_marks_take(MARKS_MAX);
    }
    char endpoints[4][256]; /* of one configuration there is one; of an emulator that moved, a second */
    for (struct mr_temporary_bucket *b = t->buckets; b; b = b->next) {
        bool known = false;
        b->listed = false;
        b->target = b->list_ns != 0 && b->list_ns <= now_ns;
        for (unsigned i = 0; i < count; i++)
            known |= strcmp(endpoints[i], b->endpoint) == 0;
        if (!known && count < 4 && strlen(b->endpoint) < sizeof endpoints[0])
            strcpy(endpoints[count++], b->endpoint);
    }
    for (unsigned i = 0; t->marks && i < count; i++)
        find_targets(t, endpoints[i]);
    t->life.run[0] = '\0';
    t->round = true;
    next_sweep(t);
}

/* ---- one's own ---- */

static void show_left(struct mr_temporaries *t)
{
    uint64_t left = 0;
    for (const struct mr_temporary_bucket *b = t->buckets; b; b = b->next)
        left += b->used_count + mr_remover_waiting(b->remover) + mr_remover_under_way(b->remover);
    mr_counter_set(t->counters, MR_WC_TEMPORARY_OBJECTS, left);
}

static void removed(void *arg, const char *name, uint64_t bytes, enum mr_code code, const char *text)
{
    (void)bytes;
    struct mr_temporary_bucket *bucket = arg;
    struct mr_temporaries *t = bucket->owner;
    if (code == MR_OK) {
        mr_counter_add(t->counters, MR_WC_COMPOSITES_REMOVED, 1);
        return;
    }
    bucket->unclean = true;
    if (t->finishing)
        bucket->list_ns = mr_clock_mono_ns(); /* once more */
    if (!t->warned)
        mr_log_warning("the temporary object %s could not be deleted: %s. millrace clean gs://%s removes it later",
                       name, text, bucket->name);
    t->warned = true;
}

bool mr_temporary_too_old(int64_t begun_ns, int64_t now_ns)
{
    return now_ns - begun_ns > MR_TEMPORARY_AGE_S / 2 * MR_SECOND_NS;
}

/* Where there can be none, the age of the objects decides after a crash. */
static void make_mark(struct mr_temporary_bucket *bucket)
{
    struct mr_temporaries *t = bucket->owner;
    if (t->unmarked)
        return;
    if (!t->mark)
        t->mark = mr_run_mark_new(&t->maker);
    if (t->mark && mr_run_mark_note(t->mark, bucket->endpoint, bucket->name) == 0)
        return;
    t->unmarked = true;
    mr_log_warning(
        "%s. After a crash the temporary objects of this run in %s will be removed by their age (%d minutes)",
        mr_error_text(), bucket->name, MR_TEMPORARY_AGE_S / 60);
}

/* Recorded, and in use. 0 or -1 with mr_error. */
static int use(struct mr_temporary_bucket *bucket, uint64_t number)
{
    if (bucket->used_count == bucket->used_room) {
        unsigned room = bucket->used_room ? 2 * bucket->used_room : 64;
        uint64_t *used = realloc(bucket->used, room * sizeof *used);
        if (!used) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a temporary object");
            return -1;
        }
        bucket->used = used;
        bucket->used_room = room;
    }
    make_mark(bucket);
    bucket->used[bucket->used_count++] = number;
    return 0;
}

int mr_temporary_begin(struct mr_temporary_bucket *bucket, char name[MR_TEMPORARY_NAME_SIZE], uint64_t *number)
{
    if (use(bucket, bucket->owner->next) != 0)
        return -1;
    *number = bucket->owner->next++;
    mr_temporary_name_of(bucket, *number, name);
    return 0;
}

/* A request may still take effect: what it makes is found by a listing afterwards. */
static void list_when_late(struct mr_temporary_bucket *bucket)
{
    bucket->unclean = true;
    bucket->lost_until_ns = bucket->list_ns = mr_clock_mono_ns() + MR_LATE_S * MR_SECOND_NS;
}

void mr_temporary_inherit(struct mr_temporary_bucket *bucket)
{
    list_when_late(bucket);
}

int mr_temporary_adopt(struct mr_temporary_bucket *bucket, uint64_t number)
{
    return use(bucket, number);
}

void mr_temporary_not_made(struct mr_temporary_bucket *bucket, uint64_t number)
{
    for (unsigned i = 0; i < bucket->used_count; i++)
        if (bucket->used[i] == number) {
            bucket->used[i] = bucket->used[--bucket->used_count];
            return;
        }
}

void mr_temporary_remove(struct mr_temporary_bucket *bucket, uint64_t number, uint64_t generation)
{
    struct mr_temporaries *t = bucket->owner;
    mr_temporary_not_made(bucket, number);
    char name[MR_TEMPORARY_NAME_SIZE];
    mr_temporary_name_of(bucket, number, name);
    if (mr_remover_waiting(bucket->remover) == 0)
        bucket->waiting_since_ns = mr_http_now_ns(t->net->http);
    if (mr_remover_add(bucket->remover, name, generation, 0) != 0)
        mr_temporary_lost(bucket, number);
}

void mr_temporary_lost(struct mr_temporary_bucket *bucket, uint64_t number)
{
    mr_temporary_not_made(bucket, number);
    list_when_late(bucket);
}

/* ---- life ---- */

void mr_temporaries_step(struct mr_temporaries *t, int64_t now_ns)
{
    bool due = t->marks_ns != 0 && t->marks_ns <= now_ns, any = due;
    for (struct mr_temporary_bucket *b = t->buckets; b; b = b->next) {
        if (mr_remover_waiting(b->remover) > 0 &&
            (t->finishing || now_ns - b->waiting_since_ns >= FLUSH_MS * MR_MILLISECOND_NS))
            (void)mr_remover_flush(b->remover); /* names that could not be sent have gone to `removed` */
        any |= b->list_ns != 0 && b->list_ns <= now_ns;
    }
    if (any && !t->round && t->buckets)
        start_round(t, now_ns, due);
    show_left(t);
}

void mr_temporaries_finish(struct mr_temporaries *t)
{
    int64_t now_ns = mr_clock_mono_ns();
    t->finishing = true;
    if (t->marks_ns != 0)
        t->marks_ns = now_ns;
    for (struct mr_temporary_bucket *b = t->buckets; b; b = b->next)
        if (b->unclean || b->list_ns != 0)
            b->list_ns = now_ns;
    mr_temporaries_step(t, now_ns);
}

bool mr_temporaries_busy(const struct mr_temporaries *t)
{
    for (const struct mr_temporary_bucket *b = t->buckets; b; b = b->next)
        if (mr_remover_waiting(b->remover) > 0 || mr_remover_under_way(b->remover) > 0)
            return true;
    return t->round;
}

static struct mr_temporary_bucket *bucket_new(struct mr_temporaries *t, struct mr_store *store, const char *endpoint,
                                              const char *name)
{
    struct mr_temporary_bucket *b = calloc(1, sizeof *b);
    if (b) {
        b->owner = t;
        b->store = store;
        b->endpoint = strdup(endpoint);
        b->name = strdup(name);
        b->remover = mr_remover_new(t->net->engine, store, removed, NULL, b);
    }
    if (!b || !b->endpoint || !b->name || !b->remover) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a bucket");
        if (b) {
            mr_remover_destroy(b->remover);
            free(b->endpoint);
            free(b->name);
        }
        free(b);
        return NULL;
    }
    b->next = t->buckets;
    t->buckets = b;
    return b;
}

struct mr_temporary_bucket *mr_temporaries_bucket(struct mr_temporaries *t, struct mr_store *store,
                                                  const char *endpoint, const char *name, bool list_soon)
{
    struct mr_temporary_bucket *b = t->buckets;
    while (b && b->store != store)
        b = b->next;
    if (b)
        return b;
    b = bucket_new(t, store, endpoint, name);
    if (!b)
        return NULL;
    t->marks_ns = 1; /* in the next step: a process may have died while it used this bucket */
    if (list_soon)
        b->list_ns = 1;
    return b;
}

struct mr_temporaries *mr_temporaries_new(struct mr_net *net, struct mr_counters *counters,
                                          const struct mr_maker *maker)
{
    struct mr_temporaries *t = calloc(1, sizeof *t);
    if (!t) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for temporary objects");
        return NULL;
    }
    t->net = net;
    t->counters = counters;
    t->maker = *maker;
    t->next = handle_of(maker->start, 0);
    return t;
}

void mr_temporaries_destroy(struct mr_temporaries *t)
{
    bool keep = false;
    if (!t)
        return;
    mr_sweep_destroy(t->sweep);
    mr_dead_marks_free(t->marks);
    for (struct mr_temporary_bucket *b = t->buckets, *next; b; b = next) {
        next = b->next;
        keep |= b->unclean || b->used_count > 0 || mr_remover_waiting(b->remover) > 0 ||
                mr_remover_under_way(b->remover) > 0 || b->lost_until_ns > mr_clock_mono_ns();
        mr_remover_destroy(b->remover);
        free(b->used);
        free(b->endpoint);
        free(b->name);
        free(b);
    }
    mr_run_mark_destroy(t->mark, keep);
    free(t);
}
