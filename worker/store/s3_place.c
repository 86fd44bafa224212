/* Where the requests of an S3 store go: endpoint, region, style of the address; and what a server's refusal says about
 * that. Facts: docs/protocols.md, "S3". */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker/store/aws_partition.h"
#include "worker/store/s3_impl.h"

#define REGION       "us-east-1"
#define NAME_END     "--x-s3" /* of a directory bucket */
#define CLOCK_MOST_S (INT64_C(10) * 366 * 86400)
#define CLOCK_SAME_S 10 /* another request has found it out before */

/* ---- endpoint ---- */

/* mr_uri_endpoint's; NULL with mr_error. */
static char *make_endpoint(const char *text)
{
    char *endpoint = mr_uri_endpoint(text, false);
    if (endpoint && !mr_uri_is_endpoint(endpoint, false)) {
        mr_error_set(MR_E_CONFIG,
                     "the S3 endpoint \"%s\" is not of the form http[s]://host[:port]: check [s3] endpoint, "
                     "AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL",
                     text);
        free(endpoint);
        return NULL;
    }
    return endpoint;
}

static int read_settings(const char *profile, struct mr_aws_settings *settings)
{
    return mr_aws_settings_read(&(struct mr_aws_options){.profile = profile && profile[0] ? profile : NULL}, settings);
}

int mr_s3_endpoint(const char *configured, const char *profile, char **endpoint)
{
    struct mr_aws_settings settings = {0};
    *endpoint = NULL;
    if (configured && configured[0]) {
        *endpoint = make_endpoint(configured);
        return *endpoint ? 0 : -1;
    }
    if (read_settings(profile, &settings) != 0)
        return -1;
    int rc = 0;
    if (settings.endpoint_url) {
        *endpoint = make_endpoint(settings.endpoint_url);
        rc = *endpoint ? 0 : -1;
    }
    mr_aws_settings_close(&settings);
    return rc;
}

static bool is_region(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && length < 40 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

/* The host of "scheme://host[:port]". */
static const char *host_of(const char *endpoint, char *out, size_t size)
{
    const char *host = strstr(endpoint, "://") + 3;
    size_t length = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    snprintf(out, size, "%.*s", (int)length, host);
    return out;
}

/* Whether the name can be a DNS label, or several. */
static bool is_host_name(const char *bucket)
{
    size_t length = strlen(bucket);
    return length >= 3 && length <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-") == length &&
           isalnum((unsigned char)bucket[0]) && isalnum((unsigned char)bucket[length - 1]) && !strstr(bucket, "..");
}

static bool is_path_style(const struct s3_store *store, const char *bucket)
{
    if (store->zone[0] && store->is_aws)
        return false;
    if (store->addressing != MR_S3_ADDRESSING_AUTO)
        return store->addressing == MR_S3_ADDRESSING_PATH;
    /* At an endpoint that is not AWS's as the AWS tools do: few have a name for each bucket. */
    return !store->is_aws || !is_host_name(bucket) || (store->is_tls && strchr(bucket, '.'));
}

const char *mr_s3_service(const struct s3_store *store, char *out, size_t size)
{
    if (store->endpoint)
        snprintf(out, size, "%s", store->endpoint);
    else if (store->zone[0])
        snprintf(out, size, "https://s3express-%s.%s.%s", store->zone, store->region, mr_aws_domain(store->region));
    else
        snprintf(out, size, "https://s3.%s.%s", store->region, mr_aws_domain(store->region));
    return out;
}

/* Also sets is_tls and is_aws. To be called again when the region changes. -1 with mr_error. */
static int make_origin(struct s3_store *store, const char *bucket)
{
    char service[600], host[400];
    mr_s3_service(store, service, sizeof service);
    host_of(service, host, sizeof host);
    const char *rest = strstr(service, "://") + 3;
    store->is_tls = strncasecmp(service, "https", 5) == 0;
    store->is_aws = mr_aws_is_host(host);
    mr_text_clear(&store->origin);
    mr_text_add(&store->origin, service, (size_t)(rest - service));
    bool by_path = is_path_style(store, bucket);
    if (!by_path) {
        mr_text_puts(&store->origin, bucket);
        mr_text_puts(&store->origin, ".");
    }
    mr_text_puts(&store->origin, rest);
    if (by_path) {
        mr_text_puts(&store->origin, "/");
        mr_text_put_encoded(&store->origin, bucket, strlen(bucket));
    }
    if (!store->origin.failed)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
    return -1;
}

/* AWS's own host for a region does not serve its directory buckets: it is dropped, and the zone's is used as if no
 * endpoint were given. */
static void drop_regional(struct s3_store *store)
{
    char host[400];
    if (!store->zone[0] || !store->endpoint || !mr_aws_is_host(host_of(store->endpoint, host, sizeof host)) ||
        strncasecmp(host, "s3.", 3) != 0)
        return;
    free(store->endpoint);
    store->endpoint = NULL;
}

/* ---- directory buckets ---- */

/* "us-west-2" of "usw2-az1" and "usw2-lax1-az1"; "" for any other form. */
static void region_of(const char *zone, char region[32])
{
    static const struct {
        const char *letters, *words;
    } directions[] = {{"n", "north"},      {"s", "south"},      {"e", "east"},       {"w", "west"},
                      {"c", "central"},    {"ne", "northeast"}, {"nw", "northwest"}, {"se", "southeast"},
                      {"sw", "southwest"}, {"ge", "gov-east"},  {"gw", "gov-west"}};
    size_t letters = strspn(zone, "abcdefghijklmnopqrstuvwxyz");
    size_t digits = strspn(zone + letters, "0123456789");
    region[0] = 0;
    if (letters < 3 || digits == 0 || digits > 2 || zone[letters + digits] != '-')
        return;
    for (size_t i = 0; i < sizeof directions / sizeof *directions; i++)
        if (strlen(directions[i].letters) == letters - 2 && strncmp(zone + 2, directions[i].letters, letters - 2) == 0)
            snprintf(region, 32, "%.2s-%s-%.*s", zone, directions[i].words, (int)digits, zone + letters);
}

/* Sets store->zone from the name of a directory bucket, whose listings are unsorted; "" for any other bucket. region:
 * the zone's, "" if its name does not tell. */
static void find_zone(struct s3_store *store, const char *bucket, char region[32])
{
    size_t length = strlen(bucket), end = strlen(NAME_END);
    region[0] = store->zone[0] = 0;
    if (length <= end || strcmp(bucket + length - end, NAME_END) != 0)
        return;
    size_t to = length - end, from = to;
    while (from >= 2 && strncmp(bucket + from - 2, "--", 2) != 0)
        from--;
    if (from < 3 || from == to || to - from >= sizeof store->zone)
        return;
    snprintf(store->zone, sizeof store->zone, "%.*s", (int)(to - from), bucket + from);
    store->base.unsorted = true;
    region_of(store->zone, region);
}

/* ---- the place ---- */

/* What [s3] says, else the profile. -1 with mr_error. */
static int choose_addressing(struct s3_store *store, const struct mr_s3_options *s3,
                             const struct mr_aws_settings *settings)
{
    const char *style = settings->addressing ? settings->addressing : "auto";
    store->addressing = s3->addressing;
    if (s3->addressing != MR_S3_ADDRESSING_AUTO || strcmp(style, "auto") == 0)
        return 0;
    if (strcmp(style, "path") == 0)
        store->addressing = MR_S3_ADDRESSING_PATH;
    else if (strcmp(style, "virtual") == 0)
        store->addressing = MR_S3_ADDRESSING_VIRTUAL;
    else
        mr_error_set(MR_E_CONFIG, "the profile's s3 addressing_style is \"%.60s\": it is auto, path or virtual", style);
    return store->addressing == MR_S3_ADDRESSING_AUTO ? -1 : 0;
}

/* Hosts of that kind are not chosen here, and others are not what was asked for. */
static int refuse_fips(const struct s3_store *store, const struct mr_aws_settings *settings, const char *region)
{
    if (!settings->fips || store->endpoint)
        return 0;
    mr_error_set(MR_E_CONFIG,
                 "AWS_USE_FIPS_ENDPOINT, or the profile's use_fips_endpoint, is set: name that host as [s3] endpoint "
                 "(https://s3%s-fips%s%s.%.40s.amazonaws.com), or unset it",
                 store->zone[0] ? "express" : "", store->zone[0] ? "-" : "", store->zone, region ? region : REGION);
    return -1;
}

int mr_s3_place_init(struct s3_store *store, const struct mr_store_options *options)
{
    static const struct mr_s3_options none;
    const struct mr_s3_options *s3 = options->s3 ? options->s3 : &none;
    struct mr_aws_settings settings = {0};
    char of_zone[32];
    find_zone(store, options->bucket, of_zone);
    if (mr_s3_endpoint(options->endpoint, s3->profile, &store->endpoint) != 0 ||
        read_settings(s3->profile, &settings) != 0)
        return -1;
    drop_regional(store);
    const char *region = s3->region && s3->region[0] ? s3->region : settings.region;
    if (of_zone[0] && !store->endpoint) /* which is in one region only */
        region = of_zone;
    int rc = -1;
    store->region_is_given = region != NULL;
    if (choose_addressing(store, s3, &settings) != 0 || refuse_fips(store, &settings, region) != 0) {
        rc = -1; /* mr_error says why */
    } else if (region && !is_region(region)) {
        mr_error_set(MR_E_CONFIG,
                     "\"%.60s\" is not a region of S3: check [s3] region, AWS_REGION and AWS_DEFAULT_REGION", region);
    } else if (!(store->region = strdup(region ? region : REGION))) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
    } else {
        rc = make_origin(store, options->bucket);
    }
    mr_aws_settings_close(&settings);
    return rc;
}

/* ---- what a refusal says ---- */

/* The text of <name> in an error response, "" if it has none. Returns out. */
static const char *s3_place_find(const struct mr_http_result *http, const char *name, char *out, size_t size)
{
    struct mr_xml *xml = http->body_length ? mr_xml_parse(http->body, http->body_length) : NULL;
    snprintf(out, size, "%s", xml ? mr_xml_text(xml, name) : "");
    mr_xml_destroy(xml);
    return out;
}

/* The bucket is in another region, which the response names. At an endpoint other than AWS's the host stays: keys are
 * sent nowhere else. false: it cannot be put right. */
static bool repair_region(struct s3_call *call, const struct mr_http_result *http)
{
    struct s3_store *store = mr_s3_store(call);
    char region[64], uri[400];
    if (call->place != store->place) /* another request has found it out since this one was signed */
        return true;
    if (call->repaired & S3_REPAIR_REGION)
        return false;
    call->repaired |= S3_REPAIR_REGION;
    snprintf(region, sizeof region, "%s", http->headers.region);
    if (!region[0])
        s3_place_find(http, "Region", region, sizeof region);
    if (!is_region(region) || strcmp(region, store->region) == 0)
        return false;
    char *copy = strdup(region);
    if (!copy)
        return false;
    mr_log_info(
        "%s: the bucket is in the region %s, and not in %s: requests go there from now on; [s3] region saves the "
        "detour",
        mr_store_uri(&store->base, uri, sizeof uri, "", 0), region, store->region);
    free(store->region);
    store->region = copy;
    store->place++;
    return make_origin(store, store->base.bucket) == 0;
}

/* From now on requests are dated by the server's clock. false: it cannot be put right. */
static bool repair_clock(struct s3_call *call, const struct mr_http_result *http)
{
    struct s3_store *store = mr_s3_store(call);
    if (call->clock_off_s != store->clock_off_s) /* as above */
        return true;
    if (call->repaired & S3_REPAIR_CLOCK)
        return false;
    call->repaired |= S3_REPAIR_CLOCK;
    int64_t off_s = http->headers.date_s - mr_clock_wall_ns() / MR_SECOND_NS;
    if (http->headers.date_s == 0 || off_s > CLOCK_MOST_S || off_s < -CLOCK_MOST_S)
        return false;
    char uri[400];
    int64_t change_s = off_s - store->clock_off_s;
    if (change_s > CLOCK_SAME_S || change_s < -CLOCK_SAME_S)
        mr_log_warning(
            "%s: this machine's clock is %lld s %s the server's, which refuses that: requests are dated by the "
            "server's from now on; set the clock by NTP",
            mr_store_uri(&store->base, uri, sizeof uri, "", 0), (long long)(off_s < 0 ? -off_s : off_s),
            off_s < 0 ? "ahead of" : "behind");
    store->clock_off_s = off_s;
    return true;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

enum s3_repair mr_s3_repair(struct s3_call *call, const struct mr_http_result *http, const char *word)
{
    static const char *const keys[] = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired",
                                       "InvalidToken", "InvalidAccessKeyId",    NULL};
    static const char *const regions[] = {"AuthorizationHeaderMalformed",
                                          "PermanentRedirect",
                                          "Redirect",
                                          "TemporaryRedirect",
                                          "IllegalLocationConstraint",
                                          NULL};
    bool redirected = http->status / 100 == 3 && http->status != 304;
    enum s3_repair repair = strcmp(word, "RequestTimeTooSkewed") == 0 ? S3_REPAIR_CLOCK
                            : is_one_of(word, keys)                   ? S3_REPAIR_KEYS
                            : redirected || is_one_of(word, regions)  ? S3_REPAIR_REGION
                                                                      : S3_REPAIR_NONE;
    switch (repair) {
    case S3_REPAIR_CLOCK:
        return repair_clock(call, http) ? repair : S3_REPAIR_NONE;
    case S3_REPAIR_REGION:
        return repair_region(call, http) ? repair : S3_REPAIR_NONE;
    case S3_REPAIR_KEYS:
        if (call->serial == 0 || (call->repaired & S3_REPAIR_KEYS))
            return S3_REPAIR_NONE;
        call->repaired |= S3_REPAIR_KEYS;
        snprintf(call->refusal, sizeof call->refusal, "%s", word);
        return repair;
    default:
        return S3_REPAIR_NONE;
    }
}
