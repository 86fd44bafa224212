#include "worker/fetch/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/store/text.h"

#define SOURCES_MIN 4                   /* fewer are faster by themselves: a compose is one more round trip */
#define PATIENCE_NS (10 * MR_SECOND_NS) /* for a compose: then the objects are downloaded one by one */

enum piece_state {
    PIECE_SLICE, /* comes in the composed object or the window */
    PIECE_WRONG, /* its slice was wrong: alone, once the rest is here */
    PIECE_ALONE, /* has a transfer of its own */
    PIECE_ENDED,
};

/* A ticket of a job. */
struct piece {
    struct job *job;
    struct mr_claim claim;
    struct mr_transfer *transfer;
    struct mr_index_entry entry;
    enum piece_state state;
    uint64_t begin, end; /* of its slice, in what is read */
    uint32_t crc;
};

/* What a job has that is not of one ticket: a composed object, or a window of neighbours in one object. */
enum stage { NONE, COMPOSING, READING, WINDOW };

struct job {
    struct mr_jobs *jobs;
    struct job *next, *previous;
    struct mr_open_dataset *dataset;
    bool composes; /* the data set composed when it was claimed */
    enum stage stage;
    struct mr_transfer *transfer; /* compose or GET of all */
    uint64_t number, generation;  /* of the temporary object */
    int64_t begun_ns;
    unsigned at;   /* the piece that the next byte belongs to */
    unsigned left; /* pieces that have not ended */
    unsigned slices;
    unsigned count;
    struct piece pieces[];
};

struct mr_jobs {
    struct mr_producer *producer;
    struct mr_datasets *datasets;
    struct mr_net *net;
    struct mr_counters *counters;
    struct job *first;
    struct job *spare; /* of one piece */
    unsigned in_flight;
    uint64_t more_objects;
    struct mr_log_limit failed; /* samples of no data set that is open */
    char name[MR_INDEX_NAME_SIZE];
    char names[MR_LANE_BLOCK][MR_INDEX_NAME_SIZE]; /* of a compose's sources */
};

/* ---- the life of a job ---- */

/* A job with `count` pieces that the caller fills, linked and counted as in flight. A job of one piece is kept for the
 * next one. */
static struct job *job_new(struct mr_jobs *jobs, unsigned count)
{
    struct job *job = jobs->spare;
    if (count == 1 && job)
        jobs->spare = job->next;
    else
        job = malloc(sizeof *job + count * sizeof job->pieces[0]);
    if (!job)
        return NULL;
    *job = (struct job){.jobs = jobs, .next = jobs->first, .count = count, .left = count};
    if (job->next)
        job->next->previous = job;
    jobs->first = job;
    jobs->in_flight += count;
    return job;
}

/* Called wherever a piece or a request of the job ends. The job may not be used afterwards. */
static void job_free_if_ended(struct job *job)
{
    struct mr_jobs *jobs = job->jobs;
    if (job->left > 0 || job->stage != NONE)
        return;
    if (job->dataset)
        job->dataset->jobs--;
    if (job->dataset && job->dataset->choice)
        mr_compose_choice_job_ended(job->dataset->choice, job->composes, job->count);
    *(job->previous ? &job->previous->next : &jobs->first) = job->next;
    if (job->next)
        job->next->previous = job->previous;
    if (job->count == 1) {
        job->next = jobs->spare;
        jobs->spare = job;
    } else {
        free(job);
    }
}

/* Its claim has been ended by the caller. The job stays. */
static void piece_ended(struct piece *piece)
{
    piece->state = PIECE_ENDED;
    piece->transfer = NULL;
    piece->job->left--;
    piece->job->jobs->in_flight--;
}

/* What a reader cannot know by itself: ": reason", after the object's URI as mr_store_uri has it, of which a long one is
 * cut by "...". NULL: the text does not begin with that. */
static const char *reason_in(const char *why, const char *unquoted)
{
    char uri[1200];
    mr_text_quote(uri, sizeof uri, unquoted, strlen(unquoted));
    size_t length = 0;
    while (why[length] != '\0' && why[length] == uri[length])
        length++;
    if (uri[length] != '\0' && strncmp(why + length, "...", 3) == 0)
        why += 3;
    else if (uri[length] != '\0')
        return NULL;
    return strncmp(why + length, ": ", 2) == 0 ? why + length : NULL;
}

static void end_failed(struct piece *piece, enum mr_code code, const char *text)
{
    struct mr_jobs *jobs = piece->job->jobs;
    mr_counter_add(jobs->counters, MR_WC_FAILED, 1);
    mr_producer_fail(jobs->producer, &piece->claim, code, text);
    piece_ended(piece);
}

static void piece_failed(struct piece *piece, enum mr_code code, const char *why)
{
    struct mr_jobs *jobs = piece->job->jobs;
    struct mr_open_dataset *ds = piece->job->dataset;
    char text[1200]; /* which may be mr_error_text(), and looking up what has failed may fail */
    snprintf(text, sizeof text, "%s", why);
    const char *uri = "";
    char *described = ds ? mr_index_describe(&ds->index, piece->claim.request.object, &uri) : NULL;
    const char *reason = described ? reason_in(text, uri) : NULL;
    mr_log_limited(ds ? &ds->failed[code] : &jobs->failed, MR_LOG_WARNING, "%s%s", reason ? described : "",
                   reason ? reason : text);
    end_failed(piece, code, reason ? reason : text);
    free(described);
}

/* The rest of a damaged shard: the listing has warned of it, so that each epoch need not. */
static void piece_is_damaged(struct piece *piece)
{
    const struct mr_index *index = &piece->job->dataset->index;
    char what[MR_INDEX_NAME_SIZE], text[MR_INDEX_NAME_SIZE + 2];
    struct mr_index_entry entry;
    if (mr_index_get(index, piece->claim.request.object, &entry, what) != 0)
        snprintf(what, sizeof what, "%s", mr_error_text());
    snprintf(text, sizeof text, ": %s", what); /* after the shard's URI */
    end_failed(piece, MR_E_CORRUPT, text);
}

/* ---- alone ---- */

static bool is_whole(const struct mr_request *request)
{
    return request->offset == 0 && request->length == 0;
}

/* A reader of ranges combines and compares their crc32c, also where a store's checksum of another kind was compared. */
static uint32_t crc32c_of(const struct piece *piece, const struct mr_transfer_result *result)
{
    const struct mr_claim *claim = &piece->claim;
    return result->crc32c != 0 || is_whole(&claim->request) ? result->crc32c : mr_crc32c(0, claim->dest, claim->bytes);
}

static void arrived(void *arg, const struct mr_transfer_result *result)
{
    struct piece *piece = arg;
    struct job *job = piece->job;
    if (result->code == MR_OK) {
        if (!result->verified && mr_index_shard_count(&job->dataset->index) > 0) /* the engine counts whole objects */
            mr_counter_add(job->jobs->counters, MR_WC_UNVERIFIED, 1);
        mr_producer_publish(job->jobs->producer, &piece->claim, piece->claim.bytes, result->generation,
                            crc32c_of(piece, result),
                            (result->verified ? 0 : MR_DESC_UNVERIFIED) | (result->gzip ? MR_DESC_GZIP : 0));
        piece_ended(piece);
    } else {
        piece_failed(piece, result->code, result->text);
    }
    job_free_if_ended(job);
}

static const char changed_request[] = "the request was changed after it was posted"; /* by a wild consumer */

static void start_empty(struct piece *piece, const struct mr_located *at)
{
    struct mr_jobs *jobs = piece->job->jobs;
    if (at->range.damaged) {
        piece_is_damaged(piece);
        return;
    }
    mr_producer_publish(jobs->producer, &piece->claim, 0, at->entry.version, 0, 0);
    mr_counter_add(jobs->counters, MR_WC_OBJECTS, 1);
    piece_ended(piece);
}

static void start_alone(struct piece *piece)
{
    struct mr_jobs *jobs = piece->job->jobs;
    struct mr_located at;
    if (mr_datasets_locate(jobs->datasets, &piece->claim.request, jobs->name, &at) != 0) {
        piece_failed(piece, mr_error_code(), mr_error_text());
        return;
    }
    if (at.bytes != piece->claim.bytes) {
        piece_failed(piece, MR_E_PROTOCOL, changed_request);
        return;
    }
    if (at.bytes == 0) { /* nothing to ask the store for */
        start_empty(piece, &at);
        return;
    }
    piece->entry = at.entry;
    struct mr_transfer_request request = {
        .store = piece->job->dataset->store,
        .name = jobs->name,
        .name_length = at.entry.name_length,
        .generation = at.entry.version,
        .size = at.range.object_size,
        .offset = at.offset,
        .length = at.bytes,
        .crc32c = at.entry.crc32c,
        .has_crc32c = at.bytes == at.entry.size && at.entry.has_crc32c,
        .dest = piece->claim.dest,
    };
    piece->state = PIECE_ALONE;
    piece->transfer = mr_transfer_fetch(jobs->net->engine, &request, arrived, piece);
    if (!piece->transfer)
        piece_failed(piece, mr_error_code(), mr_error_text());
}

/* All that the composed object did not or will not bring. */
static void start_rest(struct job *job)
{
    for (unsigned i = 0; i < job->count; i++)
        if (job->pieces[i].state == PIECE_SLICE || job->pieces[i].state == PIECE_WRONG)
            start_alone(&job->pieces[i]);
}

static void fall_back(struct job *job, const char *why)
{
    mr_log_debug("%u objects are downloaded one by one: %s", job->left, why);
    mr_counter_add(job->jobs->counters, MR_WC_COMPOSE_FALLBACKS, 1);
    job->stage = NONE;
    start_rest(job);
}

/* ---- composed ---- */

static struct mr_temporary_bucket *bucket_of(const struct job *job)
{
    return mr_compose_choice_bucket(job->dataset->choice);
}

/* The piece's part of the composite is complete. A wrong checksum is not published: the object is downloaded alone
 * later. */
static void slice_is_there(struct piece *piece)
{
    struct mr_jobs *jobs = piece->job->jobs;
    if (piece->entry.has_crc32c && piece->crc != piece->entry.crc32c) {
        piece->state = PIECE_WRONG;
        mr_counter_add(jobs->counters, MR_WC_CRC_FAILURES, 1);
        mr_counter_add(jobs->counters, MR_WC_SLICES_REPEATED, 1);
        return;
    }
    if (!piece->entry.has_crc32c)
        mr_counter_add(jobs->counters, MR_WC_UNVERIFIED, 1);
    mr_producer_publish(jobs->producer, &piece->claim, piece->claim.bytes, piece->entry.version, piece->crc,
                        piece->entry.has_crc32c ? 0 : MR_DESC_UNVERIFIED);
    piece->job->slices++;
    piece_ended(piece);
}

/* Bytes of all slices, still in cache. They are published as they become whole: nothing writes there again. */
static void bytes_came(void *arg, uint64_t at, uint64_t got)
{
    struct job *job = arg;
    while (got > 0) {
        struct piece *piece = &job->pieces[job->at];
        if (piece->end <= at) { /* empty, or whole */
            job->at++;
            continue;
        }
        if (at < piece->begin) { /* between two samples */
            uint64_t gap = piece->begin - at < got ? piece->begin - at : got;
            at += gap;
            got -= gap;
            continue;
        }
        uint64_t left = piece->end - at, take = got < left ? got : left;
        const unsigned char *data = (const unsigned char *)piece->claim.dest + (piece->claim.bytes - left);
        piece->crc = mr_crc32c(piece->crc, data, take);
        at += take;
        got -= take;
        if (take == left)
            slice_is_there(piece);
    }
}

/* What came in a request of several. well: the engine has counted it as one object. */
static void count_slices(struct job *job, bool well)
{
    job->jobs->more_objects += (uint64_t)job->slices - well;
}

static void composite_arrived(void *arg, const struct mr_transfer_result *result)
{
    struct job *job = arg;
    struct mr_jobs *jobs = job->jobs;
    job->transfer = NULL;
    job->stage = NONE;
    mr_temporary_remove(bucket_of(job), job->number, job->generation);
    mr_counter_add(jobs->counters, MR_WC_COMPOSED_OBJECTS, job->slices);
    count_slices(job, result->code == MR_OK);
    if (result->code == MR_OK)
        start_rest(job); /* wrong slices */
    else
        fall_back(job, result->text);
    job_free_if_ended(job);
}

/* The composed object exists. */
static void read_composite(struct job *job, uint64_t size)
{
    struct mr_jobs *jobs = job->jobs;
    void *dest = NULL;
    for (unsigned i = 0; i < job->count && !dest; i++)
        dest = job->pieces[i].claim.dest;
    char name[MR_TEMPORARY_NAME_SIZE];
    mr_temporary_name_of(bucket_of(job), job->number, name);
    struct mr_transfer_request request = {
        .store = job->dataset->store,
        .name = name,
        .name_length = strlen(name),
        .generation = job->generation,
        .size = size,
        .length = size,
        .dest = dest,
        .arrived = bytes_came,
    };
    job->stage = READING;
    job->transfer = mr_transfer_fetch(jobs->net->engine, &request, composite_arrived, job);
    if (job->transfer)
        return;
    mr_temporary_remove(bucket_of(job), job->number, job->generation);
    fall_back(job, mr_error_text());
}

/* The compose has been answered. Where its outcome is unknown, the composite may exist all the same, and is looked for
 * later. */
static void composed(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct job *job = arg;
    bool refused = result->code == MR_E_DENIED || result->code == MR_E_USAGE;
    job->transfer = NULL;
    mr_compose_choice_answered(job->dataset->choice, result);
    if (result->code != MR_OK) {
        if (refused && !result->maybe_done)
            mr_temporary_not_made(bucket_of(job), job->number);
        else
            mr_temporary_lost(bucket_of(job), job->number);
        fall_back(job, result->text);
        job_free_if_ended(job);
        return;
    }
    mr_counter_add(job->jobs->counters, MR_WC_COMPOSITES, 1);
    job->generation = item->generation;
    if (job->left > 0) {
        read_composite(job, item->size);
    } else { /* nothing waits for it any more */
        job->stage = NONE;
        mr_temporary_remove(bucket_of(job), job->number, job->generation);
    }
    job_free_if_ended(job);
}

/* Fills the sources of a composite and where each piece begins and ends in it. 0: a name cannot be found, and no
 * composite is made. */
static unsigned gather_sources(struct job *job, struct mr_store_name sources[MR_LANE_BLOCK], uint64_t *total)
{
    struct mr_jobs *jobs = job->jobs;
    unsigned count = 0;
    *total = 0;
    for (unsigned i = 0; i < job->count; i++) {
        struct piece *piece = &job->pieces[i];
        if (piece->state == PIECE_SLICE) {
            struct mr_located at;
            if (mr_datasets_locate(jobs->datasets, &piece->claim.request, jobs->names[count], &at) != 0)
                return 0; /* alone, each gets its own error */
            piece->entry = at.entry;
            piece->begin = *total;
            sources[count] = (struct mr_store_name){.name = jobs->names[count],
                                                    .name_length = piece->entry.name_length,
                                                    .generation = piece->entry.version};
            count++;
            *total += at.bytes;
        }
        piece->end = *total;
    }
    return count;
}

/* false: the objects are to be downloaded one by one. */
static bool start_compose(struct job *job)
{
    struct mr_jobs *jobs = job->jobs;
    struct mr_store_name sources[MR_LANE_BLOCK];
    uint64_t total;
    unsigned count = gather_sources(job, sources, &total);
    unsigned most = (unsigned)jobs->net->config->fetch.compose_max_objects;
    if (count < (most < SOURCES_MIN ? most : SOURCES_MIN))
        return false;
    char name[MR_TEMPORARY_NAME_SIZE];
    if (mr_temporary_begin(bucket_of(job), name, &job->number) != 0) {
        mr_log_limited(&job->dataset->failed[mr_error_code()], MR_LOG_WARNING, "%s", mr_error_text());
        return false;
    }
    struct mr_store_compose_request request = {
        .name = name,
        .name_length = strlen(name),
        .sources = sources,
        .count = count,
        .generation_match = 0,
        .has_size = true,
        .size = total,
    };
    job->transfer = mr_transfer_compose(jobs->net->engine, job->dataset->store, &request, composed, job);
    if (!job->transfer) {
        mr_temporary_not_made(bucket_of(job), job->number);
        return false;
    }
    job->stage = COMPOSING;
    job->begun_ns = mr_http_now_ns(jobs->net->http);
    return true;
}

/* ---- a window: neighbours in one object ---- */

static void window_arrived(void *arg, const struct mr_transfer_result *result)
{
    struct job *job = arg;
    job->transfer = NULL;
    job->stage = NONE;
    count_slices(job, result->code == MR_OK);
    if (result->code != MR_OK)
        mr_log_debug("%u samples are downloaded one by one: %s", job->left, result->text);
    start_rest(job);
    job_free_if_ended(job);
}

/* Where each piece lies in what is read. false: a request was changed after it was posted, or cannot be read. */
static bool place_pieces(struct job *job, struct mr_located *first)
{
    struct mr_jobs *jobs = job->jobs;
    for (unsigned i = 0; i < job->count; i++) {
        struct piece *piece = &job->pieces[i];
        struct mr_located at;
        if (mr_datasets_locate(jobs->datasets, &piece->claim.request, i == 0 ? jobs->name : NULL, &at) != 0)
            return false;
        if (i == 0)
            *first = at;
        uint64_t begin = at.offset - first->offset;
        if (at.range.first != first->range.first || at.bytes != piece->claim.bytes || at.offset < first->offset ||
            (const char *)job->pieces[0].claim.dest + begin != piece->claim.dest)
            return false;
        piece->entry = at.entry;
        piece->begin = begin;
        piece->end = begin + at.bytes;
    }
    return true;
}

/* false: the samples are to be downloaded one by one. */
static bool start_window(struct job *job)
{
    struct mr_jobs *jobs = job->jobs;
    struct mr_located first = {0};
    if (!place_pieces(job, &first))
        return false;
    struct mr_transfer_request request = {
        .store = job->dataset->store,
        .name = jobs->name,
        .name_length = first.entry.name_length,
        .generation = first.entry.version,
        .size = first.range.object_size,
        .offset = first.offset,
        .length = job->pieces[job->count - 1].end,
        .dest = job->pieces[0].claim.dest,
        .arrived = bytes_came,
    };
    job->transfer = mr_transfer_fetch(jobs->net->engine, &request, window_arrived, job);
    if (job->transfer)
        job->stage = WINDOW;
    return job->transfer != NULL;
}

/* ---- for the loop ---- */

static void give_back_claims(struct mr_jobs *jobs, const struct mr_job *from)
{
    for (unsigned i = 0; i < from->count; i++) {
        struct mr_claim claim = from->claims[i];
        mr_producer_give_back(jobs->producer, &claim);
    }
}

bool mr_jobs_start(struct mr_jobs *jobs, const struct mr_job *from)
{
    struct job *job = job_new(jobs, from->count);
    if (!job) {
        give_back_claims(jobs, from);
        mr_log_limited(&jobs->failed, MR_LOG_WARNING, "no memory to download %u samples: trying again", from->count);
        return false;
    }
    job->dataset = mr_datasets_find(jobs->datasets, from->claims[0].request.dataset);
    job->composes = job->dataset && job->dataset->choice && mr_compose_choice_composes(job->dataset->choice);
    bool same = job->dataset != NULL, whole = true;
    for (unsigned i = 0; i < job->count; i++) {
        struct piece *piece = &job->pieces[i];
        *piece = (struct piece){.job = job, .claim = from->claims[i], .state = PIECE_SLICE};
        same = same && mr_datasets_find(jobs->datasets, piece->claim.request.dataset) == job->dataset;
        whole = whole && is_whole(&piece->claim.request);
        job->composes = job->composes && !(piece->claim.request.flags & MR_REQUEST_ALONE);
    }
    if (job->dataset)
        job->dataset->jobs++;
    if (job->dataset && job->dataset->choice)
        mr_compose_choice_job_started(job->dataset->choice, job->composes);
    for (unsigned i = 0; i < job->count; i++) {
        struct piece *piece = &job->pieces[i];
        if (!same)
            piece_failed(piece, MR_E_PROTOCOL, changed_request);
        else if (piece->claim.bytes == 0)
            start_alone(piece);
    }
    bool samples = same && job->left == job->count && job->count > 1 && mr_index_shard_count(&job->dataset->index) > 0;
    bool started =
        samples ? start_window(job)
                : same && whole && job->left > 1 && job->count <= MR_LANE_BLOCK && job->composes && start_compose(job);
    if (!started)
        start_rest(job);
    job_free_if_ended(job);
    return true;
}

/* The transfer ends without its callback. A compose continues: what it makes must be deleted. */
static void stop_reading(struct job *job)
{
    if (job->stage != READING && job->stage != WINDOW)
        return;
    mr_transfer_cancel(job->jobs->net->engine, job->transfer);
    job->transfer = NULL;
    count_slices(job, false);
    if (job->stage == READING) {
        mr_temporary_remove(bucket_of(job), job->number, job->generation);
        mr_counter_add(job->jobs->counters, MR_WC_COMPOSED_OBJECTS, job->slices);
    }
    job->stage = NONE;
}

/* Cancels what is in flight and returns the tickets, unfilled, to the ring. The job may not be used afterwards. */
static void give_back(struct job *job)
{
    struct mr_jobs *jobs = job->jobs;
    stop_reading(job); /* before the memory goes */
    for (unsigned i = 0; i < job->count; i++) {
        struct piece *piece = &job->pieces[i];
        if (piece->state == PIECE_ENDED)
            continue;
        if (piece->transfer)
            mr_transfer_cancel(jobs->net->engine, piece->transfer);
        mr_producer_give_back(jobs->producer, &piece->claim);
        piece_ended(piece);
    }
    job_free_if_ended(job);
}

/* Nothing waits for the rest of it. A window of several lanes continues for those that are open: what is read into its
 * memory cannot be cut short for one of them. */
static bool is_stale(const struct job *job)
{
    for (unsigned i = 0; i < job->count; i++)
        if (job->pieces[i].state != PIECE_ENDED && !mr_producer_claim_is_stale(&job->pieces[i].claim))
            return false;
    return true;
}

void mr_jobs_give_back(struct mr_jobs *jobs, bool all)
{
    for (struct job *job = jobs->first, *next; job; job = next) {
        next = job->next;
        if (job->left > 0 && (all || is_stale(job)))
            give_back(job);
    }
}

void mr_jobs_step(struct mr_jobs *jobs, int64_t now_ns)
{
    static const struct mr_store_result too_slow = {.code = MR_E_TIMEOUT, .text = "no answer to a compose within 10 s"};
    for (struct job *job = jobs->first, *next; job; job = next) {
        next = job->next;
        if (job->stage == COMPOSING && now_ns - job->begun_ns > PATIENCE_NS) {
            mr_transfer_cancel(jobs->net->engine, job->transfer);
            job->transfer = NULL;
            mr_temporary_lost(bucket_of(job), job->number);
            mr_compose_choice_answered(job->dataset->choice, &too_slow);
            fall_back(job, too_slow.text);
        } else if (job->stage == READING && mr_temporary_too_old(job->begun_ns, now_ns)) {
            stop_reading(job);
            fall_back(job, "the download of the composed object takes too long");
        }
        job_free_if_ended(job);
    }
}

bool mr_jobs_composing(const struct mr_jobs *jobs)
{
    for (const struct job *job = jobs->first; job; job = job->next)
        if (job->stage == COMPOSING || job->stage == READING)
            return true;
    return false;
}

unsigned mr_jobs_in_flight(const struct mr_jobs *jobs)
{
    return jobs->in_flight;
}

uint64_t mr_jobs_more_objects(const struct mr_jobs *jobs)
{
    return jobs->more_objects;
}

struct mr_jobs *mr_jobs_new(struct mr_producer *producer, struct mr_datasets *datasets)
{
    struct mr_jobs *jobs = calloc(1, sizeof *jobs);
    if (!jobs) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the jobs");
        return NULL;
    }
    jobs->producer = producer;
    jobs->datasets = datasets;
    jobs->net = datasets->net;
    jobs->counters = datasets->link->counters;
    return jobs;
}
