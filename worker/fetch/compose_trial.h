/*
 * compose_trial.h - judges for fetch.compose = "auto": the facts about a bucket, and the costs that a trial has
 * measured. No state, no request: compose_choice.h has both.
 *
 * Facts forbid composing, or allow a trial. Those that concern money count only where it costs money: an emulator keeps
 * no soft-deleted bytes and sends no bill, so there measured speed alone decides (and whether compose works at all).
 * Prices are list prices of Google's, rounded, for single regions in the US (https://cloud.google.com/storage/pricing):
 * they go into the text, so that one can judge, and into no decision.
 */
#ifndef MR_WORKER_FETCH_COMPOSE_TRIAL_H
#define MR_WORKER_FETCH_COMPOSE_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_TRIAL_TEXT 400

/* Objects of a data set below which nothing is worth a trial; mean sizes from which requests are a small part of it. */
#define MR_TRIAL_MIN_OBJECTS   UINT64_C(2048)
#define MR_TRIAL_MAX_MEAN_SIZE (UINT64_C(4) << 20)

enum mr_trial_permission {
    MR_TRIAL_CREATE = 1,
    MR_TRIAL_GET = 2,
    MR_TRIAL_DELETE = 4,
    MR_TRIAL_LIST = 8,
    MR_TRIAL_ALL = 15,
};
/* Their names in the order of the bits: "storage.objects.create", ... */
extern const char *const mr_trial_permissions[4];

struct mr_trial_facts {
    bool emulator;
    bool has_permissions; /* the store has answered which are granted */
    unsigned granted;     /* enum mr_trial_permission */
    bool has_bucket;      /* the store has described the bucket (needs storage.buckets.get) */
    const char *storage_class, *location_type;
    bool versioning;
    uint64_t soft_delete_s;
    uint64_t objects, bytes; /* of the data set */
};

/* May it be tried? text: why, with the numbers; one line. */
bool mr_trial_allows(const struct mr_trial_facts *facts, char text[MR_TRIAL_TEXT]);

/* What objects cost one way, over the windows of a trial. */
struct mr_trial_cost {
    uint64_t objects;
    int64_t cpu_ns, wall_ns;
};
/* Is composing better? Faster by a fifth, or as fast (within a fifth) and at less CPU by a tenth. text: the numbers. */
bool mr_trial_favours(const struct mr_trial_cost *composed, const struct mr_trial_cost *plain,
                      char text[MR_TRIAL_TEXT]);

/* Does the endpoint belong to Google, so that it is billed? */
bool mr_trial_is_google(const char *endpoint);

#endif
