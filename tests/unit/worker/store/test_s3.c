/* test_s3.c - reads, listings and look-ups of the client of S3; what a server may answer; where requests go. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "s3_scene.h"
#include "tests/unit/suite.h"
#include "worker/store/s3.h"

/* ---- versions ---- */

START_TEST(versions_are_hashes_of_etags)
{
    uint64_t one = mr_s3_generation("\"d41d8cd98f00b204e9800998ecf8427e\"");
    ck_assert_uint_eq(one, UINT64_C(0x4e76543743d012dd));
    ck_assert_uint_eq(one, mr_s3_generation("d41d8cd98f00b204e9800998ecf8427e"));
    ck_assert_uint_eq(one, mr_s3_generation("W/\"d41d8cd98f00b204e9800998ecf8427e\""));
    static const char *const others[] = {"", "\"", "\"\"", "\"d41d8cd98f00b204e9800998ecf8427e-1\"", "W/"};
    for (int i = 0; i < COUNT(others); i++) {
        ck_assert_uint_ne(mr_s3_generation(others[i]), one);
        ck_assert_uint_gt(mr_s3_generation(others[i]), 0);
        ck_assert_uint_le(mr_s3_generation(others[i]), INT64_MAX);
    }
}
END_TEST

/* ---- single requests ---- */

START_TEST(an_object_there_and_back)
{
    insert("a b/c+d", 1000, 0);
    check_code(MR_OK, "");
    ck_assert(sent(OP_INSERT, "If-None-Match: *\r\n"));
    ck_assert(!sent(OP_INSERT, "x-amz-checksum"));
    ck_assert(sent(OP_INSERT, "Credential=AKIDEXAMPLE/"));
    ck_assert(!sent(OP_INSERT, SECRETS));
    ck_assert_str_eq(s3.last_target[OP_INSERT], "/bucket/a%20b/c%2Bd");
    uint64_t generation = last.generation;
    stat_it("a b/c+d");
    check_code(MR_OK, "");
    ck_assert_uint_eq(last.size, 1000);
    ck_assert_uint_eq(last.generation, generation);
    fetch("a b/c+d", 1000, generation, NULL);
    check_code(MR_OK, "");
    ck_assert(unverified && sent(OP_GET, "x-amz-checksum-mode: ENABLED") && !sent(OP_GET, "If-Match"));
    insert("a b/c+d", 900, 0);
    check_code(MR_E_EXISTS, "it exists already");
    insert("a b/c+d", 900, generation); /* looked up for its ETag */
    check_code(MR_OK, "");
    ck_assert(sent(OP_INSERT, "If-Match: \""));
    insert("a b/c+d", 800, generation);
    check_code(MR_E_CHANGED, "");
    insert("empty", 0, MR_STORE_ANY);
    check_code(MR_OK, "");
    fetch("empty", 0, last.generation, NULL);
    check_code(MR_OK, "");
}
END_TEST

START_TEST(checksums_are_sent_where_they_are_asked_for)
{
    open_s3((struct mr_s3_options){.checksums = MR_S3_CHECKSUMS_ALWAYS}, 10000);
    insert("x", 1000, 0);
    check_code(MR_OK, "");
    ck_assert(sent(OP_INSERT, "x-amz-checksum-crc32c: "));
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(!unverified && fetched.verified);
    open_s3((struct mr_s3_options){.checksums = MR_S3_CHECKSUMS_NEVER}, 10000);
    fetch("x", 1000, 0, NULL);
    ck_assert(!sent(OP_GET, "x-amz-checksum-mode"));
}
END_TEST

START_TEST(whatever_checksum_the_store_names)
{
    struct mr_checksum sum = {MR_CHECKSUM_CRC64NVME, 0};
    char text[MR_CHECKSUM_TEXT_SIZE];
    struct s3_object *object = fault_s3_put(&s3, "x", data, 100000);
    mr_checksum_add(&sum, data, 100000);
    snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc64nvme: %s\r\n",
             mr_checksum_to_base64(&sum, text));
    fetch("x", 100000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(fetched.verified && !unverified);
    static const struct bucket_step flip[] = {{OP_GET, WRONG_CRC, 0, 0, NULL}};
    script(STEPS(flip));
    fetch("x", 100000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert_uint_eq(s3.count[OP_GET], 2);
    ck_assert_uint_eq(mr_transfer_counters(engine)->crc_errors, 1);
    static const struct bucket_step cut[] = {{OP_GET, RESET_AFTER, 0, 0, NULL}}; /* the sum runs on */
    script(STEPS(cut));
    fetch("x", 100000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(fetched.verified && sent(OP_GET, "Range: bytes=") && sent(OP_GET, "If-Match: \""));
    snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc64nvme: AAAAAAAAAAA=\r\n");
    fetch("x", 100000, 0, NULL);
    check_code(MR_E_CORRUPT, "the crc64nvme of its 100000 bytes");
    snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc32c: AAAAAA==-3\r\n");
    fetch("x", 100000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(unverified);
    snprintf(object->checksum, sizeof object->checksum,
             "x-amz-checksum-type: COMPOSITE\r\nx-amz-checksum-crc32c: AAAAAA==\r\n");
    fetch("x", 100000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(unverified);
}
END_TEST

START_TEST(parallel_ranges)
{
    struct mr_transfer_options options = {
        .range_min_bytes = 1 << 20, .range_bytes = 64 << 10, .ranges = 8, .retry_base_ms = 2, .connections = 3};
    const uint64_t size = (8u << 17) + 3; /* a little more than eight ranges of 128 KiB */
    struct s3_object *object = fault_s3_put(&s3, "x", data, size);
    mr_transfer_destroy(engine);
    engine = mr_transfer_new(&options, http);
    static const struct bucket_step cut[] = {{OP_GET, RESET_AFTER, 0, 0, NULL}};
    script(STEPS(cut));
    fetch("x", size, mr_s3_generation(object->etag), NULL);
    check_code(MR_OK, "");
    ck_assert_uint_eq(s3.count[OP_GET], 6 + 1); /* each of so many whole 64 KiB */
    ck_assert_uint_ge(s3.matches, 1);           /* of the later ones the ETag was known */
}
END_TEST

START_TEST(another_version)
{
    struct s3_object *object = fault_s3_put(&s3, "x", data, 1000);
    char before[64];
    snprintf(before, sizeof before, "%s", object->etag);
    uint64_t generation = mr_s3_generation(before);
    fault_s3_put(&s3, "x", data + 1, 1000);
    fetch("x", 1000, generation, NULL);
    check_code(MR_E_CHANGED, "changed since the listing: its ETag is");
    fetch("x", 1000, generation, before);
    check_code(MR_E_CHANGED, "changed since the listing: its ETag was");
    fetch("gone", 1000, generation, before);
    check_code(MR_E_NOT_FOUND, "deleted since the listing");
    wait_for(mr_transfer_stat(engine, store, "x", 1, generation, on_item, NULL));
    check_code(MR_E_CHANGED, "changed since the listing");
    struct mr_store_name name = {"x", 1, generation, NULL};
    unsigned one = 1;
    wait_for(mr_transfer_delete_batch(engine, store, &name, 1, on_batch, &one));
    ck_assert_int_eq(last.each[0], MR_E_CHANGED);
    ck_assert_ptr_nonnull(fault_s3_find(&s3, "x"));
}
END_TEST

/* ---- what can be put right ---- */

START_TEST(a_clock_that_is_wrong)
{
    s3.clock_off_s = 7200;
    fault_s3_put(&s3, "x", data, 1000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert_uint_eq(s3.count[OP_GET], 2);
    stat_it("x"); /* known from now on */
    ck_assert_uint_eq(s3.count[OP_STAT], 1);
    s3.clock_off_s = -7200; /* HEAD's answer has no words: GET says why */
    stat_it("x");
    check_code(MR_OK, "");
    ck_assert_uint_eq(last.size, 1000);
    fault_s3_put(&s3, "empty", data, 0); /* of which GET could have no byte */
    s3.clock_off_s = 7200;
    stat_it("empty");
    check_code(MR_OK, "");
    ck_assert_uint_eq(last.size, 0);
}
END_TEST

START_TEST(another_region)
{
    s3.region = "eu-north-7";
    fault_s3_put(&s3, "x", data, 1000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert_uint_eq(s3.count[OP_GET], 2);
    ck_assert(sent(OP_GET, "/eu-north-7/s3/aws4_request"));
    insert("y", 10, 0);
    ck_assert_uint_eq(s3.count[OP_INSERT], 1);
    s3.region = "no region/";
    fetch("x", 1000, 0, NULL);
    check_code(MR_E_DENIED, "the region is not the bucket's");
}
END_TEST

#define AT_ONCE 32u

static unsigned good, bad;

static void on_one(void *arg, const struct mr_transfer_result *result)
{
    (void)arg;
    good += result->code == MR_OK;
    bad += result->code != MR_OK;
    ck_assert_msg(result->code == MR_OK, "%s", result->text);
}

/* Each is sent before the first is answered: all are signed with what is wrong. */
static void fetch_many(void)
{
    static unsigned char to[AT_ONCE][1000];
    good = bad = 0;
    for (unsigned i = 0; i < AT_ONCE; i++) {
        struct mr_transfer_request request = {
            .store = store, .name = "x", .name_length = 1, .size = 1000, .length = 1000, .dest = to[i]};
        ck_assert_ptr_nonnull(mr_transfer_fetch(engine, &request, on_one, NULL));
    }
    while (good + bad < AT_ONCE)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
}

START_TEST(many_requests_with_what_is_wrong)
{
    fault_s3_put(&s3, "x", data, 1000);
    s3.region = "eu-north-7";
    fetch_many();
    s3.region = "ap-south-9"; /* the bucket moves, with the connections there */
    fetch_many();
    s3.clock_off_s = 7200;
    fetch_many();
    s3.clock_off_s = -7200;
    s3.region = "eu-north-7"; /* both at once */
    fetch_many();
}
END_TEST

/* The keys are refused, the new ones are good, and then the clock is wrong: the new ones are not refused with it. */
START_TEST(a_second_repair_does_not_cost_good_keys)
{
    fault_s3_put(&s3, "x", data, 1000);
    char path[] = "/tmp/millrace-test-keys-XXXXXX", line[300];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    static const char script[] =
        "#!/bin/sh\n"
        "[ -e \"$0.1\" ] && key=AKIDNEW || key=AKIDEXAMPLE\n"
        ": >\"$0.1\"\n"
        "echo '{\"Version\":1,\"AccessKeyId\":\"'$key'\",\"SecretAccessKey\":\"" SECRETS "\"}'\n";
    ck_assert_int_eq(write(fd, script, sizeof script - 1), sizeof script - 1);
    ck_assert_int_eq(fchmod(fd, 0700), 0);
    close(fd);
    char config[] = "/tmp/millrace-test-config-XXXXXX";
    fd = mkstemp(config);
    int n = snprintf(line, sizeof line, "[default]\ncredential_process = %s\n", path);
    ck_assert_int_eq(write(fd, line, (size_t)n), n);
    close(fd);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    setenv("AWS_CONFIG_FILE", config, 1);
    s3.keys = "AKIDNEW";
    s3.clock_off_s = 7200;
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    snprintf(line, sizeof line, "%s.1", path);
    unlink(line);
    unlink(path);
    unlink(config);
}
END_TEST

START_TEST(keys_that_have_ended)
{
    s3.keys = "AKIDNEW";
    fault_s3_put(&s3, "x", data, 1000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_E_DENIED, "ExpiredToken: the store refuses the keys of"); /* it still has the same */
    s3.keys = getenv("AWS_ACCESS_KEY_ID");                                  /* they are good after all */
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    s3.keys = "AKIDNEW";
    setenv("AWS_ACCESS_KEY_ID", "AKIDNEW", 1);
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
}
END_TEST

static const struct {
    int status;
    enum mr_code code;
    const char *text;
} refusals[] = {
    {403, MR_E_DENIED, "s3:ListBucket"},
    {404, MR_E_NOT_FOUND, "check the bucket's"},
    {501, MR_E_PROTOCOL, "NotImplemented"},
    {400, MR_E_USAGE, "InvalidRequest"},
};

START_TEST(refusals_have_names)
{
    const struct bucket_step steps[] = {{OP_GET, ANSWER_STATUS, refusals[_i].status, 0, NULL}};
    fault_s3_put(&s3, "x", data, 1000);
    script(steps, 1);
    fetch("x", 1000, 0, NULL);
    check_code(refusals[_i].code, refusals[_i].text);
    ck_assert_ptr_nonnull(strstr(last.text, "s3://bucket/x"));
}
END_TEST

/* ---- listings ---- */

static char names[40][64];

START_TEST(ranges_of_names)
{
    static const char *const all[] = {
        "a",   "a!",    "a\x01",    "a/b",      "a/c", "ab", "b",   "b~",           "b\x7f",           "c d",
        "c+d", "c%2Fd", "\xc3\xbc", "\xc3\xbd", "z",   "zz", "zzz", "\xe4\xb8\x80", "\xf0\x9f\x98\x80"};
    for (int i = 0; i < COUNT(all); i++)
        fault_s3_put(&s3, all[i], data, 1);
    s3.page = 4;
    for (int i = -1; i < COUNT(all); i++) {
        for (int k = -1; k < COUNT(all); k++) {
            const char *start = i < 0 ? NULL : all[i], *end = k < 0 ? NULL : all[k];
            char wanted[4000] = "";
            unsigned count = 0;
            for (int n = 0; n < COUNT(all); n++)
                if ((!start || strcmp(all[n], start) >= 0) && (!end || strcmp(all[n], end) < 0))
                    snprintf(names[count++], sizeof names[0], "%s", all[n]);
            qsort(names, count, sizeof names[0], (int (*)(const void *, const void *))strcmp);
            for (unsigned n = 0; n < count; n++)
                snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s|", names[n]);
            list_all(NULL, start, end);
            check_code(MR_OK, "");
            ck_assert_str_eq(listed, wanted);
        }
    }
    list_all("a/", NULL, NULL);
    ck_assert_str_eq(listed, "a/b|a/c|");
    list_all("a/", "a/c", NULL);
    ck_assert_str_eq(listed, "a/c|");
}
END_TEST

/* ---- what a server may answer ---- */

static const char *canned;

static bool answer_canned(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg, (void)request;
    fault_answer(conn, 200, "", canned, strlen(canned));
    return true;
}

/* MinIO and many a proxy compress what has 1,000 bytes and more, if they are asked for that, and some though not. */
static bool answer_compressed(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    ck_assert_ptr_nonnull(strstr(request->head, "Accept-Encoding: identity\r\n"));
    ck_assert_ptr_null(strstr(request->head, "gzip"));
    fault_answer(conn, strstr(request->target, "list-type") ? 200 : 503, "Content-Encoding: gzip\r\n", "\x1f\x8b\x08",
                 3);
    return true;
}

START_TEST(a_compressed_answer_is_named)
{
    struct fault_server *other = fault_server_start(answer_compressed, NULL);
    struct mr_store_list_request request = {.prefix = ""};
    scene_open(
        (struct mr_store_options){.scheme = MR_SCHEME_S3, .bucket = "bucket", .endpoint = fault_server_host(other)},
        100);
    wait_for(mr_transfer_list(engine, store, &request, on_page, NULL));
    check_code(MR_E_PROTOCOL, "it came compressed");
    struct mr_store_name name = {"x", 1, 0, NULL};
    unsigned one = 1;
    wait_for(mr_transfer_delete_batch(engine, store, &name, 1, on_batch, &one));
    ck_assert_ptr_nonnull(strstr(last.first_text, "it came compressed"));
    scene_close();
    fault_server_stop(other);
}
END_TEST

static const struct {
    const char *body, *text;
} pages[] = {
    {"", "not XML"},
    {"no XML", "not XML"},
    {"<ListBucketResult>", "not XML"},
    {"<Other/>", "ListBucketResult was expected, and Other came"},
    {"<!DOCTYPE a><ListBucketResult/>", "document type"},
    {"<Error><Code>InternalFailure</Code><Message>m</Message></Error>", "InternalFailure: m"},
    {"<ListBucketResult><Contents><ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>", "without a name"},
    {"<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>", "without a usable ETag"},
    {"<ListBucketResult><Contents><Key>a</Key><ETag>e</ETag></Contents></ListBucketResult>", "without a size"},
    {"<ListBucketResult><Contents><Key>a</Key><ETag>e</ETag><Size>-1</Size></Contents></ListBucketResult>",
     "without a size"},
    {"<ListBucketResult><Contents><Key>a</Key><ETag>e</ETag><Size>99999999999999999999</Size></Contents>"
     "</ListBucketResult>",
     "without a size"},
    {"<ListBucketResult><Contents><Key>q</Key><ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>",
     "without the prefix"},
    {"<ListBucketResult><Contents><Key>b</Key><ETag>e</ETag><Size>1</Size></Contents><Contents><Key>b</Key>"
     "<ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>",
     "not in ascending order"},
    {"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>b%00</Key><ETag>e</ETag><Size>1</Size>"
     "</Contents></ListBucketResult>",
     "a NUL"},
    {"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "without a token"},
    {"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
     "</ListBucketResult>",
     "would never end"},
};

START_TEST(answers_that_are_no_listing)
{
    struct fault_server *other = fault_server_start(answer_canned, NULL);
    const char *prefix = strstr(pages[_i].text, "prefix") ? "b" : "";
    scene_open(
        (struct mr_store_options){
            .scheme = MR_SCHEME_S3, .bucket = "bucket", .endpoint = fault_server_host(other), .auth = "default"},
        20000);
    canned = pages[_i].body;
    struct mr_store_list_request request = {.prefix = prefix, .page_token = "t"};
    wait_for(mr_transfer_list(engine, store, &request, on_page, NULL));
    check_code(MR_E_PROTOCOL, pages[_i].text);
    scene_close();
    fault_server_stop(other);
}
END_TEST

START_TEST(a_list_that_is_not_encoded)
{
    struct fault_server *other = fault_server_start(answer_canned, NULL);
    scene_open(
        (struct mr_store_options){
            .scheme = MR_SCHEME_S3, .bucket = "bucket", .endpoint = fault_server_host(other), .auth = "default"},
        20000);
    canned = "<ListBucketResult><Contents><Key>a+b%41</Key><ETag>e</ETag><Size>1</Size></Contents></ListBucketResult>";
    listed[0] = 0;
    wait_for(mr_transfer_list(engine, store, &(struct mr_store_list_request){.prefix = NULL}, on_page, NULL));
    check_code(MR_OK, "");
    ck_assert_str_eq(listed, "a+b%41|");
    scene_close();
    fault_server_stop(other);
}
END_TEST

/* ---- where requests go ---- */

static char asked[8192];

static bool note_target(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    snprintf(asked, sizeof asked, "%s", request->target);
    fault_answer(conn, 404, "", "", 0);
    return true;
}

static const struct {
    const char *endpoint, *region, *bucket;
    enum mr_s3_addressing addressing;
    const char *url;
} places[] = {
    {"http://store.example.org", NULL, "bucket", 0, "http://store.example.org/bucket/x"},
    {"http://store.example.org:9000", NULL, "bucket", MR_S3_ADDRESSING_VIRTUAL,
     "http://bucket.store.example.org:9000/x"},
    {"http://s3.eu-west-1.amazonaws.com", NULL, "bucket", 0, "http://bucket.s3.eu-west-1.amazonaws.com/x"},
    {"http://s3.eu-west-1.amazonaws.com", NULL, "a.b", 0, "http://a.b.s3.eu-west-1.amazonaws.com/x"},
    {"http://s3.eu-west-1.amazonaws.com", NULL, "Bucket_1", 0, "http://s3.eu-west-1.amazonaws.com/Bucket_1/x"},
    {"http://s3.eu-west-1.amazonaws.com", NULL, "bucket", MR_S3_ADDRESSING_PATH,
     "http://s3.eu-west-1.amazonaws.com/bucket/x"},
    {"http://minio:9000/", NULL, "bucket", 0, "http://minio:9000/bucket/x"},
    {"http://minio:9000", NULL, "bucket", MR_S3_ADDRESSING_VIRTUAL, "http://bucket.minio:9000/x"},
    {"http://10.1.2.3", NULL, "bucket", 0, "http://10.1.2.3/bucket/x"},
};

START_TEST(addresses)
{
    struct fault_server *proxy = fault_server_start(note_target, NULL);
    char url[200];
    snprintf(url, sizeof url, "http://%s", fault_server_host(proxy));
    scene_close();
    http = mr_http_new(&(struct mr_http_options){.proxy = url});
    struct mr_s3_options options = {.region = places[_i].region, .addressing = places[_i].addressing};
    scene_open((struct mr_store_options){.scheme = MR_SCHEME_S3,
                                         .bucket = places[_i].bucket,
                                         .endpoint = places[_i].endpoint,
                                         .auth = "default",
                                         .s3 = &options},
               20000);
    fetch("x", 1, 0, NULL);
    check_code(MR_E_NOT_FOUND, "");
    ck_assert_str_eq(asked, places[_i].url);
    scene_close();
    fault_server_stop(proxy);
}
END_TEST

static struct mr_store *open_at(const char *bucket_name, const struct mr_s3_options *options)
{
    return mr_store_open(
        &(struct mr_store_options){.scheme = MR_SCHEME_S3, .bucket = bucket_name, .s3 = options, .http = http});
}

START_TEST(fips_is_not_dropped_in_silence)
{
    struct mr_s3_options options = {.region = "us-gov-west-1"};
    setenv("AWS_USE_FIPS_ENDPOINT", "true", 1);
    ck_assert_ptr_null(open_at("bucket", &options));
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "https://s3-fips.us-gov-west-1.amazonaws.com"));
    ck_assert_ptr_null(open_at("bucket--usw2-az1--x-s3", &options));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "https://s3express-fips-usw2-az1.us-west-2.amazonaws.com"));
    setenv("AWS_ENDPOINT_URL_S3", "https://s3-fips.us-gov-west-1.amazonaws.com", 1);
    struct mr_store *named = open_at("bucket", &options);
    ck_assert_ptr_nonnull(named);
    mr_store_close(named);
    unsetenv("AWS_ENDPOINT_URL_S3");
    unsetenv("AWS_USE_FIPS_ENDPOINT");
}
END_TEST

START_TEST(aws_by_region)
{
    char service[300], credentials[300];
    static const char *const regions[][2] = {{NULL, "https://s3.us-east-1.amazonaws.com"},
                                             {"eu-west-1", "https://s3.eu-west-1.amazonaws.com"},
                                             {"cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"}};
    for (int i = 0; i < COUNT(regions); i++) {
        struct mr_store *aws = open_at("bucket", &(struct mr_s3_options){.region = regions[i][0]});
        ck_assert_ptr_nonnull(aws);
        mr_store_describe(aws, service, sizeof service, credentials, sizeof credentials);
        ck_assert_str_eq(service, regions[i][1]);
        ck_assert_ptr_null(strstr(credentials, SECRETS));
        mr_store_close(aws);
    }
    setenv("AWS_ENDPOINT_URL", "store.example.org/", 1);
    struct mr_store *other = open_at("bucket", NULL);
    mr_store_describe(other, service, sizeof service, credentials, sizeof credentials);
    ck_assert_str_eq(service, "https://store.example.org");
    mr_store_close(other);
    s3_environment();
}
END_TEST

START_TEST(stores_that_cannot_be_opened)
{
    ck_assert_ptr_null(open_at("", NULL));
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_ptr_null(open_at("bucket", &(struct mr_s3_options){.region = "Europe"}));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "not a region of S3"));
    ck_assert_ptr_null(open_at("bucket", &(struct mr_s3_options){.customer_key_file = "/dev/null"}));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "not a readable file of 32 bytes"));
    setenv("AWS_ENDPOINT_URL_S3", "http://a b/", 1);
    ck_assert_ptr_null(open_at("bucket", NULL));
    ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "is not of the form http[s]://host[:port]"));
    s3_environment();
}
END_TEST

START_TEST(a_key_of_ones_own_goes_over_tls_alone)
{
    char path[] = "/tmp/mr-key-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, data, 32), 32);
    close(fd);
    struct mr_s3_options options = {.customer_key_file = path};
    struct mr_store *aws = open_at("bucket", &options);
    ck_assert_msg(aws != NULL, "%s", mr_error_text());
    mr_store_close(aws);
    setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1);
    ck_assert_ptr_null(open_at("bucket", &options));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "the endpoint is http://"));
    s3_environment();
    unlink(path);
}
END_TEST

START_TEST(lines_of_every_request)
{
    open_s3((struct mr_s3_options){.requester_pays = true, .encryption = MR_S3_ENCRYPTION_KMS, .kms_key_id = "key-1"},
            10000);
    insert("x", 10, 0);
    check_code(MR_OK, "");
    ck_assert(sent(OP_INSERT, "x-amz-server-side-encryption: aws:kms\r\n"));
    ck_assert(sent(OP_INSERT, "x-amz-server-side-encryption-aws-kms-key-id: key-1\r\n"));
    ck_assert(sent(OP_INSERT, "x-amz-request-payer: requester\r\n"));
    ck_assert(sent(OP_INSERT, ";x-amz-request-payer;")); /* signed */
    fetch("x", 10, 0, NULL);
    ck_assert(sent(OP_GET, "x-amz-request-payer: requester\r\n") && !sent(OP_GET, "encryption"));
}
END_TEST

int main(void)
{
    TCase *one = tcase_create("s3");
    tcase_add_checked_fixture(one, s3_setup, s3_teardown);
    tcase_set_timeout(one, 100);
    tcase_add_test(one, versions_are_hashes_of_etags);
    tcase_add_test(one, an_object_there_and_back);
    tcase_add_test(one, checksums_are_sent_where_they_are_asked_for);
    tcase_add_test(one, whatever_checksum_the_store_names);
    tcase_add_test(one, parallel_ranges);
    tcase_add_test(one, another_version);
    tcase_add_test(one, a_clock_that_is_wrong);
    tcase_add_test(one, another_region);
    tcase_add_test(one, many_requests_with_what_is_wrong);
    tcase_add_test(one, a_second_repair_does_not_cost_good_keys);
    tcase_add_test(one, keys_that_have_ended);
    tcase_add_loop_test(one, refusals_have_names, 0, COUNT(refusals));
    tcase_add_test(one, ranges_of_names);
    tcase_add_loop_test(one, answers_that_are_no_listing, 0, COUNT(pages));
    tcase_add_test(one, a_compressed_answer_is_named);
    tcase_add_test(one, a_list_that_is_not_encoded);
    tcase_add_loop_test(one, addresses, 0, COUNT(places));
    tcase_add_test(one, aws_by_region);
    tcase_add_test(one, fips_is_not_dropped_in_silence);
    tcase_add_test(one, stores_that_cannot_be_opened);
    tcase_add_test(one, a_key_of_ones_own_goes_over_tls_alone);
    tcase_add_test(one, lines_of_every_request);
    return mr_suite_run("s3", one);
}
