#include "devstore/faults.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devstore/s3.h"
#include "devstore/s3_error.h"

#include "base/clock.h"
#include "base/error.h"

#define FAULTS_MAX 32
#define OVER_MOST  1000000
#define BURST_NS   (100 * MR_MILLISECOND_NS)

static const char *const kind_names[MR_FAULT_KINDS] = {
    [MR_FAULT_STATUS] = "status", [MR_FAULT_RESET] = "reset", [MR_FAULT_STALL] = "stall",
    [MR_FAULT_SHORT] = "short",   [MR_FAULT_WRONG] = "wrong", [MR_FAULT_CHANGED] = "changed",
    [MR_FAULT_EGRESS] = "egress", [MR_FAULT_RATE] = "rate",   [MR_FAULT_KEEP_LESS] = "keep-less",
    [MR_FAULT_EXPIRE] = "expire", [MR_FAULT_CODE] = "code",   [MR_FAULT_LATE] = "late-error",
};

/* How many requests a fault has counted for an object. key 0: a free place. */
struct count {
    uint64_t key, count;
};

struct ds_faults {
    uint64_t seed;
    int n;
    struct ds_fault faults[FAULTS_MAX];
    atomic_uint_fast64_t hits[MR_FAULT_KINDS];
    pthread_mutex_t lock;        /* the table, and what follows */
    int64_t next_ns[FAULTS_MAX]; /* of a fault above a rate: when the next request is due */
    struct count *table;
    size_t used, capacity; /* a power of two, at most half full */
};

static int parse_kind(const char *text)
{
    for (int i = 0; i < MR_FAULT_KINDS; i++) {
        if (strcmp(text, kind_names[i]) == 0)
            return i;
    }
    mr_error_set(
        MR_E_USAGE,
        "unknown kind of fault \"%.50s\": status, reset, stall, short, wrong, changed, egress, rate, keep-less, "
        "expire, code or late-error",
        text);
    return -1;
}

/* A probability, first=N or over=N. 0 or -1 (USAGE). */
static int parse_rate(const char *text, struct ds_fault *fault)
{
    if (strncmp(text, "first=", 6) == 0 && ds_parse_u64(text + 6, &fault->first) == 0 && fault->first > 0)
        return 0;
    if (strncmp(text, "over=", 5) == 0 && ds_parse_u64(text + 5, &fault->over) == 0 && fault->over > 0 &&
        fault->over <= OVER_MOST)
        return 0;
    if (ds_parse_real(text, &fault->rate) == 0 && fault->rate <= 1)
        return 0;
    mr_error_set(MR_E_USAGE, "rate \"%.50s\" is neither a number from 0 to 1 nor first=N nor over=N", text);
    return -1;
}

/* CODE[/RETRY_AFTER_S] */
static int parse_status(char *text, struct ds_fault *fault)
{
    char *slash = strchr(text, '/');
    if (slash) {
        *slash = 0;
        fault->has_retry_after = true;
        if (ds_parse_u64(slash + 1, &fault->retry_after_s) < 0)
            goto bad;
    }
    uint64_t status;
    if (ds_parse_u64(text, &status) < 0 || status < 300 || status > 599)
        goto bad;
    fault->status = (unsigned)status;
    return 0;
bad:
    mr_error_set(MR_E_USAGE, "the argument of status is CODE[/RETRY_AFTER_S] with a code from 300 to 599");
    return -1;
}

static int parse_code(const char *text, struct ds_fault *fault)
{
    if (!ds_s3_error_status(text))
        return -1;
    snprintf(fault->code, sizeof fault->code, "%s", text);
    return 0;
}

static int parse_argument(char *text, struct ds_fault *fault)
{
    fault->has_arg = true;
    if (fault->kind == MR_FAULT_STATUS)
        return parse_status(text, fault);
    int rc = 0;
    if (fault->kind == MR_FAULT_CODE || fault->kind == MR_FAULT_LATE)
        rc = parse_code(text, fault);
    else if (fault->kind == MR_FAULT_STALL)
        rc = ds_parse_real(text, &fault->seconds);
    else if (fault->kind == MR_FAULT_EGRESS || fault->kind == MR_FAULT_RATE)
        fault->has_retry_after = (rc = ds_parse_u64(text, &fault->retry_after_s)) == 0;
    else if (fault->kind == MR_FAULT_CHANGED || fault->kind == MR_FAULT_EXPIRE)
        rc = -1;
    else
        rc = ds_parse_u64(text, &fault->bytes);
    if (rc < 0)
        mr_error_set(MR_E_USAGE, "\"%.50s\" is not an argument of a %s fault", text, kind_names[fault->kind]);
    return rc;
}

/* [OP:]GLOB */
static int parse_pattern(const char *text, struct ds_fault *fault)
{
    const char *colon = strchr(text, ':');
    if (strncmp(text, "insert:", 7) == 0) { /* what the JSON API calls it */
        fault->op = MR_OP_UPLOAD;
        text = colon + 1;
        colon = NULL;
    }
    for (int i = 0; colon && i < MR_OP_COUNT; i++) {
        if (strlen(ds_op_names[i]) == (size_t)(colon - text) &&
            memcmp(ds_op_names[i], text, (size_t)(colon - text)) == 0) {
            fault->op = i;
            text = colon + 1;
            break;
        }
    }
    fault->glob = strdup(text);
    if (!fault->glob) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a fault");
        return -1;
    }
    return 0;
}

/* The operation of a fault whose pattern names none; -1: any. */
static int default_op(enum ds_fault_kind kind)
{
    switch (kind) {
    case MR_FAULT_STATUS:
    case MR_FAULT_CODE:
        return -1;
    case MR_FAULT_LATE:
        return MR_OP_COMPLETE;
    case MR_FAULT_RATE:
        return MR_OP_COMPOSE;
    case MR_FAULT_KEEP_LESS:
    case MR_FAULT_EXPIRE:
        return MR_OP_CHUNK;
    default:
        return MR_OP_GET;
    }
}

int ds_fault_parse(const char *text, struct ds_fault *fault)
{
    char *copy = strdup(text), *rest = copy;
    int rc = -1;
    memset(fault, 0, sizeof *fault);
    if (!copy) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a fault");
        return -1;
    }
    const char *kind = strsep(&rest, ":"), *rate = rest ? strsep(&rest, ":") : "";
    char *argument = rest ? strsep(&rest, ":") : NULL;
    int number = parse_kind(kind);
    if (number < 0 || parse_rate(rate, fault) < 0)
        goto out;
    fault->kind = (enum ds_fault_kind)number;
    fault->status = 503;
    strcpy(fault->code, "InternalError");
    fault->op = default_op(fault->kind);
    if (argument && *argument && parse_argument(argument, fault) < 0)
        goto out;
    rc = parse_pattern(rest ? rest : "*", fault);
out:
    if (rc < 0)
        mr_error_append("--fault %s", text);
    free(copy);
    return rc;
}

struct ds_faults *ds_faults_new(uint64_t seed)
{
    struct ds_faults *faults = calloc(1, sizeof *faults);
    if (!faults) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for faults");
        return NULL;
    }
    faults->seed = seed;
    pthread_mutex_init(&faults->lock, NULL);
    return faults;
}

void ds_faults_destroy(struct ds_faults *faults)
{
    if (!faults)
        return;
    for (int i = 0; i < faults->n; i++)
        free(faults->faults[i].glob);
    pthread_mutex_destroy(&faults->lock);
    free(faults->table);
    free(faults);
}

int ds_faults_add(struct ds_faults *faults, const char *text)
{
    if (faults->n == FAULTS_MAX) {
        mr_error_set(MR_E_USAGE, "more than %d faults", FAULTS_MAX);
        return -1;
    }
    if (ds_fault_parse(text, &faults->faults[faults->n]) < 0)
        return -1;
    faults->n++;
    return 0;
}

/* The key's place, or a free one for it. The table must not be full. */
static struct count *slot(struct count *table, size_t capacity, uint64_t key)
{
    size_t i = key & (capacity - 1);
    while (table[i].key && table[i].key != key)
        i = (i + 1) & (capacity - 1);
    return &table[i];
}

/* 0, or -1: no memory, and the table stays as it is. */
static int faults_grow(struct ds_faults *faults)
{
    size_t capacity = faults->capacity ? faults->capacity * 2 : 1024;
    struct count *table = calloc(capacity, sizeof *table);
    if (!table)
        return -1;
    for (size_t i = 0; i < faults->capacity; i++) {
        if (faults->table[i].key)
            *slot(table, capacity, faults->table[i].key) = faults->table[i];
    }
    free(faults->table);
    faults->table = table;
    faults->capacity = capacity;
    return 0;
}

/* Counts the request, and returns how many the key had before it. Without memory, counts are lost, and every request is
 * a first one. */
static uint64_t count_request(struct ds_faults *faults, uint64_t key)
{
    pthread_mutex_lock(&faults->lock);
    uint64_t before = 0;
    if (faults->used * 2 < faults->capacity || faults_grow(faults) == 0) {
        struct count *found = slot(faults->table, faults->capacity, key);
        faults->used += found->key == 0;
        found->key = key;
        before = found->count++;
    }
    pthread_mutex_unlock(&faults->lock);
    return before;
}

/* Whether the request is above the rate; if not, it counts. The requests of a tenth of a second may come at once. */
static bool is_over(struct ds_faults *faults, int i)
{
    int64_t now_ns = mr_clock_mono_ns(), each_ns = MR_SECOND_NS / (int64_t)faults->faults[i].over;
    pthread_mutex_lock(&faults->lock);
    int64_t next_ns = (faults->next_ns[i] > now_ns ? faults->next_ns[i] : now_ns) + each_ns;
    bool over = next_ns - now_ns > each_ns + BURST_NS;
    if (!over)
        faults->next_ns[i] = next_ns;
    pthread_mutex_unlock(&faults->lock);
    return over;
}

static uint64_t hash(uint64_t seed, const char *text)
{
    for (; text && *text; text++)
        seed = (seed ^ (unsigned char)*text) * UINT64_C(0x100000001b3); /* FNV-1a */
    return mr_mix64(seed);
}

/* The object's name in the target; for an upload, in the query. "" where there is none. */
static const char *object_of(const struct ds_request *request)
{
    const char *name = request->object ? request->object : ds_request_query(request, "name");
    return name ? name : "";
}

static bool matches(const struct ds_fault *fault, const struct ds_request *request)
{
    if (request->op == MR_OP_ADMIN || (fault->op >= 0 && fault->op != (int)request->op) ||
        (fault->kind == MR_FAULT_CHANGED && request->op != MR_OP_GET) ||
        ((fault->kind == MR_FAULT_CODE || fault->kind == MR_FAULT_LATE) && !request->s3) ||
        (fault->kind == MR_FAULT_LATE && request->op != MR_OP_COMPLETE) ||
        ((fault->kind == MR_FAULT_KEEP_LESS || fault->kind == MR_FAULT_EXPIRE) && request->op != MR_OP_CHUNK))
        return false;
    return fnmatch(fault->glob, object_of(request), 0) == 0;
}

const struct ds_fault *ds_faults_draw(struct ds_faults *faults, const struct ds_request *request, bool only_answers)
{
    for (int i = 0; faults && i < faults->n; i++) {
        const struct ds_fault *fault = &faults->faults[i];
        if ((only_answers && !ds_fault_answers(fault)) || !matches(fault, request))
            continue;
        if (fault->over && !is_over(faults, i))
            continue;
        uint64_t key = hash(hash(faults->seed + (uint64_t)i, request->bucket), object_of(request));
        key += key == 0;
        uint64_t before = count_request(faults, key);
        double chance = (double)(mr_mix64(key ^ mr_mix64(before)) >> 11) * 0x1p-53; /* uniform in [0, 1) */
        if (fault->over || (fault->first ? before < fault->first : chance < fault->rate)) {
            atomic_fetch_add_explicit(&faults->hits[fault->kind], 1, memory_order_relaxed);
            return fault;
        }
    }
    return NULL;
}

bool ds_fault_answers(const struct ds_fault *fault)
{
    return fault->kind == MR_FAULT_STATUS || fault->kind == MR_FAULT_EGRESS || fault->kind == MR_FAULT_RATE ||
           fault->kind == MR_FAULT_CODE;
}

bool ds_fault_in_body(const struct ds_fault *fault)
{
    return fault->kind == MR_FAULT_RESET || fault->kind == MR_FAULT_STALL || fault->kind == MR_FAULT_SHORT ||
           fault->kind == MR_FAULT_WRONG;
}

void ds_fault_reply(const struct ds_fault *fault, const struct ds_request *request, struct ds_reply *reply)
{
    const char *bucket = request->bucket ? request->bucket : "", *object = object_of(request);
    if (request->s3)
        ds_s3_fault_reply(fault, request, reply);
    else if (fault->kind == MR_FAULT_EGRESS)
        ds_reply_error(
            reply, request, 429, NULL,
            "The project exceeded the rate limit for egress bandwidth from Cloud Storage to Google services. "
            "Please reduce your egress bandwidth, or request more quota.");
    else if (fault->kind == MR_FAULT_RATE)
        ds_reply_error(reply, request, 429, NULL,
                       "The object %s/%s exceeded the rate limit for object mutation operations (create, update, and "
                       "delete). Please reduce your request rate. See https://cloud.google.com/storage/docs/gcs429.",
                       bucket, object);
    else
        ds_reply_error(reply, request, fault->status, NULL, "Asked for by --fault.");
    if (fault->has_retry_after)
        ds_reply_header(reply, "Retry-After", "%" PRIu64, fault->retry_after_s);
}

void ds_faults_forget_hits(struct ds_faults *faults)
{
    for (int i = 0; faults && i < MR_FAULT_KINDS; i++)
        atomic_store_explicit(&faults->hits[i], 0, memory_order_relaxed);
}

void ds_faults_statistics(struct ds_faults *faults, struct ds_text *out)
{
    for (int i = 0; i < MR_FAULT_KINDS; i++)
        ds_text_printf(out, "%s\"%s\":%" PRIuFAST64, i ? "," : "{", kind_names[i],
                       faults ? atomic_load_explicit(&faults->hits[i], memory_order_relaxed) : 0);
    ds_text_puts(out, "}");
}
