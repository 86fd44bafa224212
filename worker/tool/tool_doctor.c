/*
 * tool_doctor.c - the part of `millrace doctor` that needs the network: for each bucket the endpoint, the clock, the
 * credentials, the bucket's properties, and the permissions in it (doctor_write.h: how it treats writes).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/tool/dead_uploads.h"
#include "worker/tool/doctor_write.h"
#include "worker/tool/tool.h"

#define CLOCK_NOTE_S 30
#define CLOCK_FAIL_S 300 /* Google refuses a signed token that is five minutes off */
#define ANSWER_MS    15000
#define DEADLINE_MS  15000 /* without progress: a check does not wait for an outage to end */

static const char *const permissions[] = {"storage.objects.list", "storage.objects.get", "storage.objects.create",
                                          "storage.objects.delete"};
#define PERMISSIONS 4
#define ALL_GRANTED ((1u << PERMISSIONS) - 1)

struct doctor {
    struct mr_tool tool;
    struct mr_uri uri;
    char place[600]; /* "gs://bucket" */
    char seen[32][800];
    unsigned seen_count;
    struct mr_store_bucket bucket; /* its strings: below */
    char class[64], location[64], location_type[32];
    bool answers; /* of the endpoint that was asked last */
    unsigned granted;
    int64_t answered_ns, date_s;
    int status;
    uint64_t listed;
    bool writes; /* writes are checked too */
    char first[300], token[MR_STORE_NAME_MAX];
};

/* Prints one line; control bytes, which could break it, become spaces. */
static void print_check(const char *level, const char *what, const char *text)
{
    char clean[1200];
    snprintf(clean, sizeof clean, "%s", text);
    for (char *at = clean; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = ' ';
    printf("%s\t%s\t%s\n", level, what, clean);
    fflush(stdout);
}

#define CHECK(level, what, ...)                     \
    do {                                            \
        char text_[1200];                           \
        snprintf(text_, sizeof text_, __VA_ARGS__); \
        print_check(level, what, text_);            \
    } while (0)

/* ---- endpoint and clock ---- */

static void answered(void *arg, const struct mr_http_result *result)
{
    struct doctor *d = arg;
    struct mr_store_result plain = {.code = result->code, .text = result->text};
    mr_tool_answer(&d->tool, &plain);
    d->answered_ns = mr_clock_mono_ns();
    d->status = result->status;
    d->date_s = result->headers.date_s;
}

/* Milliseconds until an answer came, whatever it says; -1 with mr_error. */
static double tool_doctor_ask(struct doctor *d, const char *url)
{
    struct mr_http_request request = {
        .method = "GET", .url = url, .stall_timeout_ms = ANSWER_MS, .collect_max = 1 << 20, .done = answered, .arg = d};
    int64_t began_ns = mr_clock_mono_ns();
    bool answered = true;
    struct mr_http_call *call = mr_http_start(d->tool.net.http, &request);
    int rc = call ? mr_tool_wait(&d->tool, &answered) : -1;
    if (!answered)
        mr_http_cancel(d->tool.net.http, call);
    if (rc != 0)
        return -1;
    return (double)(d->answered_ns - began_ns) / 1e6;
}

/* Compares our clock with the Date of the last answer, which must have just arrived. */
static void check_clock(const struct doctor *d)
{
    double off_s = (double)mr_clock_wall_ns() / 1e9 - (double)d->date_s - 0.5; /* the header has whole seconds */
    double amount_s = off_s < 0 ? -off_s : off_s;
    const char *direction = off_s < 0 ? "behind" : "ahead of";
    if (d->date_s == 0)
        CHECK("note", "clock", "the server's answer has no Date to compare with");
    else if (amount_s <= CLOCK_NOTE_S)
        CHECK("ok", "clock", "within %.0f s of the server's", amount_s < 1 ? 1 : amount_s);
    else
        CHECK(amount_s > CLOCK_FAIL_S ? "fail" : "note", "clock",
              "%.0f s %s the server's: tokens are refused from %d s on; set it by NTP (timedatectl set-ntp true)",
              amount_s, direction, CLOCK_FAIL_S);
}

/* Whether the endpoint answers. Prints its line, and the clock's. */
static bool check_endpoint(struct doctor *d, const char *endpoint)
{
    const struct mr_config *config = &d->tool.config;
    char url[1100];
    snprintf(url, sizeof url, "%s/", endpoint);
    double first_ms = tool_doctor_ask(d, url);
    if (first_ms < 0) {
        bool tls = strstr(mr_error_text(), "certificate") || strstr(mr_error_text(), "SSL");
        CHECK("fail", "endpoint", "%s: %s; %s", endpoint, mr_error_text(),
              tls ? "if a proxy replaces certificates, [http] ca_bundle names the file with its own"
              : config->http.proxy[0] != '\0'
                  ? "check [http] proxy"
                  : "check the network, the name server, and whether this machine needs [http] proxy");
        return false;
    }
    double second_ms = tool_doctor_ask(d, url);
    CHECK("ok", "endpoint", "%s answers: %.0f ms with a new connection, %.1f ms with an open one", endpoint, first_ms,
          second_ms < 0 ? first_ms : second_ms);
    check_clock(d);
    return true;
}

/* ---- a bucket ---- */

static void bucket_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket)
{
    struct doctor *d = arg;
    mr_tool_answer(&d->tool, result);
    if (result->code != MR_OK)
        return;
    d->bucket = *bucket;
    snprintf(d->class, sizeof d->class, "%s", bucket->storage_class);
    snprintf(d->location, sizeof d->location, "%s", bucket->location);
    snprintf(d->location_type, sizeof d->location_type, "%s", bucket->location_type);
}

static void check_soft_delete(const struct doctor *d)
{
    bool composes = d->tool.config.fetch.compose != MR_COMPOSE_NEVER;
    if (d->uri.scheme == MR_SCHEME_S3)
        return;
    double days = (double)d->bucket.soft_delete_s / 86400;
    if (d->bucket.soft_delete_s == 0)
        CHECK("ok", "soft delete", "%s: off", d->place);
    else
        CHECK(
            composes ? "note" : "ok", "soft delete", "%s: deleted objects are kept and billed for %.3g days%s",
            d->place, days,
            composes
                ? ": the temporary objects of composed downloads too, so fetch.compose = \"auto\" decides against them"
                : "");
}

/* Reports on the bucket. seen: the request for it succeeded; otherwise mr_error says why not. true: go on with it. */
static bool check_bucket(struct doctor *d, bool seen)
{
    char extra[200] = "";
    if (!seen && mr_error_code() == MR_E_DENIED) {
        CHECK("note", "bucket", "%s: what it is cannot be seen: %s", d->place, mr_error_text());
        return true;
    }
    if (!seen) {
        CHECK("fail", "bucket", "%s", mr_error_text());
        return false;
    }
    snprintf(extra, sizeof extra, "%s%s%s%s", d->bucket.hierarchical ? ", hierarchical" : "",
             d->bucket.versioning ? ", with versions" : "", d->bucket.autoclass ? ", autoclass" : "",
             d->bucket.requester_pays ? ", requester pays" : "");
    bool standard = d->class[0] == '\0' || strcmp(d->class, "STANDARD") == 0 || strcmp(d->class, "RAPID") == 0 ||
                    strcmp(d->class, "EXPRESS_ONEZONE") == 0 || d->bucket.autoclass;
    CHECK(standard ? "ok" : "note", "bucket", "%s: %s in %s%s%s%s%s%s", d->place,
          d->class[0] ? d->class : "class unknown", d->location[0] ? d->location : "an unknown place",
          d->location_type[0] ? " (" : "", d->location_type, d->location_type[0] ? ")" : "", extra,
          standard ? "" : "; each read of this class is billed by the byte");
    check_soft_delete(d);
    if (d->bucket.requester_pays && d->tool.config.gcs.user_project[0] == '\0')
        CHECK("fail", "billing", "%s: the requester pays: set [gcs] user_project to the project that is billed",
              d->place);
    return true;
}

/* Whether the key comes for the first time; remembers it. When the table is full, every new key counts as new each
 * time. */
static bool is_new(struct doctor *d, const char *key)
{
    for (unsigned i = 0; i < d->seen_count; i++)
        if (strncmp(d->seen[i], key, sizeof d->seen[0] - 1) == 0)
            return false;
    if (d->seen_count < sizeof d->seen / sizeof d->seen[0])
        snprintf(d->seen[d->seen_count++], sizeof d->seen[0], "%s", key);
    return true;
}

/* Whether the request was sent with the credentials it needs. The same credentials are printed once. */
static bool check_credentials(struct doctor *d, struct mr_store *store, bool seen)
{
    char endpoint[600], credentials[800];
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    bool good = strstr(credentials, "token is good") || strncmp(credentials, "none", 4) == 0 ||
                (d->uri.scheme == MR_SCHEME_S3 && (seen || mr_error_code() != MR_E_DENIED));
    if (!good)
        CHECK("fail", "credentials", "%s: %s", credentials, mr_error_text());
    else if (is_new(d, credentials))
        CHECK("ok", "credentials", "%s", credentials);
    return good;
}

static void permissions_arrived(void *arg, const struct mr_store_result *result, unsigned granted)
{
    struct doctor *d = arg;
    mr_tool_answer(&d->tool, result);
    d->granted = granted;
}

static void check_permissions(struct doctor *d, struct mr_store *store)
{
    char missing[200] = "";
    if (mr_tool_await(&d->tool, mr_transfer_permissions(d->tool.net.engine, store, permissions, PERMISSIONS,
                                                        permissions_arrived, d)) != 0) {
        if (!mr_tool_interrupted())
            CHECK("note", "permissions", "%s: the store does not report them: %s", d->place, mr_error_text());
        return;
    }
    for (unsigned i = 0; i < PERMISSIONS; i++)
        if (!(d->granted & 1u << i))
            snprintf(missing + strlen(missing), sizeof missing - strlen(missing), "%s%s", missing[0] ? ", " : "",
                     permissions[i]);
    if (d->granted == ALL_GRANTED)
        CHECK("ok", "permissions", "%s: list, get, create and delete objects", d->place);
    else if ((d->granted & 3) != 3)
        CHECK(
            "fail", "permissions",
            "%s: %s missing; a data set needs list and get (roles/storage.objectViewer), composed downloads, cp and rm "
            "create and delete too (roles/storage.objectUser)",
            d->place, missing);
    else
        CHECK(
            "note", "permissions",
            "%s: list and get are granted, which is all that reading needs; %s missing: composed downloads, cp and rm "
            "need create and delete (roles/storage.objectUser)",
            d->place, missing);
}

/* ---- a data set ---- */

static void tool_doctor_page_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct doctor *d = arg;
    mr_tool_answer(&d->tool, result);
    d->listed = result->code == MR_OK ? page->count : 0;
    snprintf(d->token, sizeof d->token, "%s", result->code == MR_OK && page->next_token ? page->next_token : "");
    if (d->listed > 0)
        snprintf(d->first, sizeof d->first, "%s", page->items[0].name);
}

static void check_place(struct doctor *d, struct mr_store *store, const char *text)
{
    struct mr_store_list_request request = {.prefix = d->uri.key, .max_results = 1};
    int rc;
    d->token[0] = 0;
    do { /* a page may be empty, and not the last */
        request.page_token = d->token[0] ? d->token : NULL;
        rc =
            mr_tool_await(&d->tool, mr_transfer_list(d->tool.net.engine, store, &request, tool_doctor_page_arrived, d));
    } while (rc == 0 && d->listed == 0 && d->token[0]);
    if (rc != 0) {
        if (!mr_tool_interrupted())
            CHECK("fail", "data", "%s", mr_error_text());
    } else if (d->listed == 0) {
        CHECK(d->writes ? "note" : "fail", "data", "%s: no object is there%s", text,
              d->writes ? " yet" : ": is the prefix right?");
    } else {
        CHECK("ok", "data", "%s: there are objects; the first is %s", text, d->first);
    }
}

/* Checks the URI's endpoint and bucket, each once. true: go on with the data in it. */
static bool check_bucket_place(struct doctor *d, struct mr_store *store)
{
    char endpoint[600], credentials[800];
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    if (is_new(d, endpoint))
        d->answers = check_endpoint(d, endpoint);
    mr_uri_place(d->uri.scheme, d->uri.bucket, d->place);
    if (!d->answers || !is_new(d, d->place))
        return d->answers;
    bool seen = mr_tool_await(&d->tool, mr_transfer_bucket(d->tool.net.engine, store, bucket_arrived, d)) == 0;
    if (mr_tool_interrupted() || !check_credentials(d, store, seen) || !check_bucket(d, seen))
        return false;
    if (d->uri.scheme == MR_SCHEME_GS) /* S3 has no such request */
        check_permissions(d, store);
    return !mr_tool_interrupted();
}

/* 0 even where a check failed, which its line says; -1 for a malformed URI, or after a signal. */
static int check_uri(struct doctor *d, const char *text)
{
    mr_uri_close(&d->uri);
    if (mr_uri_init(&d->uri, text) != 0)
        return -1;
    struct mr_store *store = mr_net_store(&d->tool.net, d->uri.scheme, d->uri.bucket);
    if (!store) { /* broken credentials are found here */
        CHECK("fail", mr_error_code() == MR_E_DENIED ? "credentials" : "data", "%s: %s", text, mr_error_text());
        return 0;
    }
    if (d->uri.scheme == MR_SCHEME_FILE || check_bucket_place(d, store)) {
        check_place(d, store, text);
        if (d->writes && !mr_tool_interrupted() && mr_doctor_write(&d->tool, &d->uri, print_check) != 0)
            return -1;
    }
    return mr_tool_interrupted() ? -1 : 0;
}

static void note_dead_uploads(void *arg, const char *line)
{
    (void)arg;
    CHECK("note", "uploads", "%s", line);
}

/* Without URIs, checks those of the configured data sets. 0 even where checks failed; -1 with mr_error. */
static int tool_doctor_run(struct doctor *d, char **uris, uint32_t count)
{
    struct mr_config *config = &d->tool.config;
    if (d->writes && count == 0) {
        mr_error_set(MR_E_USAGE, "--write needs a URI, below which it may write: s3://bucket/checkpoints/");
        return -1;
    }
    if (mr_tool_load(&d->tool) != 0)
        return -1;
    if (config->retry.deadline_ms > DEADLINE_MS)
        config->retry.deadline_ms = DEADLINE_MS;
    mr_log_set_level(MR_LOG_ERROR); /* each failure is in its check's line */
    if (mr_tool_start(&d->tool) != 0)
        return -1;
    for (uint32_t i = 0; i < count; i++)
        if (check_uri(d, uris[i]) != 0)
            return -1;
    for (size_t i = 0; count == 0 && i < config->dataset_count; i++)
        for (size_t k = 0; k < config->datasets[i].uris.count; k++)
            if (check_uri(d, config->datasets[i].uris.items[k]) != 0)
                return -1;
    mr_tool_dead_uploads(NULL, note_dead_uploads, NULL);
    if (count == 0 && config->dataset_count == 0)
        CHECK("note", "data", "no data set is configured: give -c FILE or a URI to check a bucket and the credentials");
    return 0;
}

static int doctor_main(const struct mr_arguments *arguments)
{
    static struct doctor doctor;
    doctor.writes = mr_arguments_have(arguments, MR_OPT_WRITE);
    int rc = tool_doctor_run(&doctor, arguments->operands, arguments->operand_count);
    mr_uri_close(&doctor.uri);
    mr_tool_close(&doctor.tool);
    return rc == 0 ? 0 : mr_tool_fail("doctor");
}

int mr_tool_doctor(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, doctor_main);
}
