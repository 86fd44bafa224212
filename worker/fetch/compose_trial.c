#include "worker/fetch/compose_trial.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DAY_S         UINT64_C(86400)
#define STORAGE_PRICE 0.020  /* USD for a GB (10^9 bytes) of STANDARD and 30 days */
#define CLASS_A_PRICE 5.0e-6 /* USD for an operation */
#define CLASS_B_PRICE 0.4e-6 /* USD for an operation */
#define COMPOSED      32     /* objects of a composite, about */

const char *const mr_trial_permissions[4] = {"storage.objects.create", "storage.objects.get", "storage.objects.delete",
                                             "storage.objects.list"};

/* Classes whose objects may be deleted at any age without a fee. */
static bool is_standard(const char *storage_class)
{
    static const char *const names[] = {"", "STANDARD", "REGIONAL", "MULTI_REGIONAL", "DURABLE_REDUCED_AVAILABILITY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(storage_class, names[i]) == 0)
            return true;
    return false;
}

static unsigned least_days(const char *storage_class)
{
    return strcasecmp(storage_class, "NEARLINE") == 0 ? 30 : strcasecmp(storage_class, "COLDLINE") == 0 ? 90 : 365;
}

static bool denied(const struct mr_trial_facts *facts, char text[MR_TRIAL_TEXT])
{
    unsigned missing = MR_TRIAL_ALL & ~facts->granted;
    if (!facts->has_permissions || missing == 0)
        return false;
    int n = snprintf(text, MR_TRIAL_TEXT, "no permission:");
    for (unsigned i = 0; i < 4; i++)
        if (missing & 1u << i)
            n += snprintf(text + n, MR_TRIAL_TEXT - (size_t)n, " %s", mr_trial_permissions[i]);
    return true;
}

/* What an epoch costs more, in USD: bytes that are kept after their deletion. */
static double soft_delete_cost(const struct mr_trial_facts *facts)
{
    return (double)facts->bytes / 1e9 * STORAGE_PRICE * (double)facts->soft_delete_s / (30.0 * DAY_S);
}

/* True with the reason in `text` where deleted composites would still be billed. */
static bool costs_money(const struct mr_trial_facts *facts, char text[MR_TRIAL_TEXT])
{
    double plain = (double)facts->objects * CLASS_B_PRICE;
    double composed = (double)facts->objects / COMPOSED * (CLASS_A_PRICE + CLASS_B_PRICE);
    if (facts->versioning) {
        snprintf(text, MR_TRIAL_TEXT,
                 "the bucket keeps old versions: deleted composites would stay, and be billed, without end");
        return true;
    }
    if (facts->soft_delete_s > 0) {
        snprintf(text, MR_TRIAL_TEXT,
                 "soft delete keeps deleted composites for %.1f days: %.1f GB an epoch, about $%.2f for storage, where "
                 "requests cost $%.2f instead of $%.2f (gcloud storage buckets update --clear-soft-delete, if no one "
                 "needs it)",
                 (double)facts->soft_delete_s / (double)DAY_S, (double)facts->bytes / 1e9, soft_delete_cost(facts),
                 composed, plain);
        return true;
    }
    if (!is_standard(facts->storage_class)) {
        snprintf(text, MR_TRIAL_TEXT,
                 "storage class %.30s: each composite would be billed for %u days although it is deleted at once "
                 "(%.1f GB an epoch)",
                 facts->storage_class, least_days(facts->storage_class), (double)facts->bytes / 1e9);
        return true;
    }
    return false;
}

bool mr_trial_allows(const struct mr_trial_facts *facts, char text[MR_TRIAL_TEXT])
{
    uint64_t mean = facts->objects ? facts->bytes / facts->objects : 0;
    if (facts->objects < MR_TRIAL_MIN_OBJECTS) {
        snprintf(text, MR_TRIAL_TEXT, "%" PRIu64 " objects are too few to gain by it", facts->objects);
        return false;
    }
    if (mean >= MR_TRIAL_MAX_MEAN_SIZE) {
        snprintf(text, MR_TRIAL_TEXT,
                 "objects of %.1f MiB on average: requests are a small part of what they cost, and there is little to "
                 "gain",
                 (double)mean / 1048576);
        return false;
    }
    if (denied(facts, text))
        return false;
    if (facts->has_bucket &&
        (strcasecmp(facts->location_type, "zone") == 0 || strcasecmp(facts->storage_class, "RAPID") == 0)) {
        snprintf(text, MR_TRIAL_TEXT, "a zonal (Rapid) bucket: its objects cannot be composed, and its reads are fast");
        return false;
    }
    if (facts->has_bucket && !facts->emulator && costs_money(facts, text))
        return false;
    if (!facts->has_bucket && !facts->emulator) { /* without storage.buckets.get the cost is unknown */
        snprintf(text, MR_TRIAL_TEXT,
                 "whether the bucket has soft delete, which makes it expensive, cannot be seen without the permission "
                 "storage.buckets.get (or set fetch.compose = \"always\")");
        return false;
    }
    snprintf(text, MR_TRIAL_TEXT, "%" PRIu64 " objects of %.1f KiB on average%s", facts->objects, (double)mean / 1024,
             facts->emulator ? ", and no Google endpoint: measured speed alone decides" : "");
    return true;
}

bool mr_trial_favours(const struct mr_trial_cost *composed, const struct mr_trial_cost *plain, char text[MR_TRIAL_TEXT])
{
    const struct mr_trial_cost *const costs[2] = {composed, plain};
    double wall[2], cpu[2];
    for (unsigned i = 0; i < 2; i++) {
        double objects = costs[i]->objects ? (double)costs[i]->objects : 1;
        wall[i] = (double)costs[i]->wall_ns / objects / 1000;
        cpu[i] = (double)costs[i]->cpu_ns / objects / 1000;
    }
    snprintf(text, MR_TRIAL_TEXT,
             "composed %.0f us and %.0f us of CPU an object (%" PRIu64 " tried), plain %.0f us and %.0f us (%" PRIu64
             " tried)",
             wall[0], cpu[0], composed->objects, wall[1], cpu[1], plain->objects);
    if (composed->objects == 0)
        return false;
    if (wall[0] <= 0.8 * wall[1])
        return true;
    return wall[0] <= 1.2 * wall[1] && cpu[0] <= 0.9 * cpu[1];
}

bool mr_trial_is_google(const char *endpoint)
{
    const char *host = strstr(endpoint, "://");
    static const char domain[] = ".googleapis.com";
    if (!host)
        return false;
    host += 3;
    size_t length = strcspn(host, ":/?#");
    return length > sizeof domain - 1 &&
           strncasecmp(host + length - (sizeof domain - 1), domain, sizeof domain - 1) == 0;
}
