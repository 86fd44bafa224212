/* test_s3_express.c - directory buckets of S3: where they are, sessions, listings that come in no order. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "s3_scene.h"
#include "tests/unit/suite.h"
#include "worker/store/s3.h"

#define BUCKET "mine--use1-az4--x-s3"

static void setup(void)
{
    s3_setup();
    s3.express = true;
    s3.session_s = 300;
    s3_bucket = BUCKET;
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
}

/* ---- sessions ---- */

START_TEST(requests_are_made_in_a_session)
{
    insert("a/x", 1000, 0);
    check_code(MR_OK, "");
    ck_assert(sent(OP_SESSION, "x-amz-create-session-mode: ReadWrite\r\n"));
    ck_assert(sent(OP_SESSION, "Credential=AKIDEXAMPLE/") && !sent(OP_SESSION, "x-amz-s3session-token"));
    ck_assert(sent(OP_INSERT, "Credential=SESSION1/") && sent(OP_INSERT, "x-amz-s3session-token: TOKEN1\r\n"));
    ck_assert(!sent(OP_INSERT, "x-amz-security-token") && !sent(OP_INSERT, "of-1"));
    stat_it("a/x");
    check_code(MR_OK, "");
    uint64_t generation = last.generation;
    fetch("a/x", 1000, generation, NULL);
    check_code(MR_OK, "");
    insert("a/x", 900, 0);
    check_code(MR_E_EXISTS, "");
    const struct mr_store_name names[] = {{.name = "a/x", .name_length = 3}, {.name = "a/y", .name_length = 3}};
    unsigned count = 2;
    wait_for(mr_transfer_delete_batch(engine, store, names, count, on_batch, &count));
    check_code(MR_OK, "");
    ck_assert(sent(OP_BATCH, "x-amz-checksum-crc32c: ") && !fault_s3_find(&s3, "a/x"));
    ck_assert_uint_eq(s3.count[OP_SESSION], 1);
}
END_TEST

START_TEST(what_belongs_to_a_session_goes_with_it)
{
    setenv("AWS_SESSION_TOKEN", "of-the-caller", 1);
    open_s3((struct mr_s3_options){.encryption = MR_S3_ENCRYPTION_KMS, .kms_key_id = "key-1", .requester_pays = true},
            10000);
    insert("x", 10, 0);
    check_code(MR_OK, "");
    ck_assert(sent(OP_SESSION, "x-amz-security-token: of-the-caller\r\n"));
    ck_assert(sent(OP_SESSION, "x-amz-server-side-encryption: aws:kms\r\n"));
    ck_assert(sent(OP_SESSION, "x-amz-server-side-encryption-aws-kms-key-id: key-1\r\n"));
    ck_assert(!sent(OP_INSERT, "encryption") && !sent(OP_INSERT, "request-payer"));
    ck_assert(!sent(OP_INSERT, "of-the-caller"));
}
END_TEST

START_TEST(a_session_that_ends)
{
    fault_s3_put(&s3, "x", data, 1000);
    for (unsigned session = 1; session < 4; session++) {
        s3.session_from = session;
        fetch("x", 1000, 0, NULL);
        check_code(MR_OK, "");
        ck_assert_uint_eq(s3.count[OP_SESSION], session);
    }
    s3.session_s = 0; /* they have ended when they come */
    s3.session_from = 4;
    fetch("x", 1000, 0, NULL);
    check_code(MR_E_DENIED, "the session of s3://" BUCKET);
}
END_TEST

START_TEST(a_session_that_is_not_given)
{
    fault_s3_put(&s3, "x", data, 1000);
    s3.read_only = true;
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(s3.count[OP_SESSION] == 2 && sent(OP_SESSION, "x-amz-create-session-mode: ReadOnly\r\n"));
    s3.read_only = false; /* the policy is another by now */
    s3.session_from = s3.session + 1;
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(s3.count[OP_SESSION] == 3 && sent(OP_SESSION, "x-amz-create-session-mode: ReadWrite\r\n"));
    s3.read_only = true;
    static const struct bucket_step busy[] = {{OP_SESSION, ANSWER_STATUS, 503, 0, NULL},
                                              {OP_SESSION, RESET_BEFORE, 0, 0, NULL}};
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    script(STEPS(busy));
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert_uint_eq(s3.count[OP_SESSION], 4); /* and once more for the mode */
    static const struct bucket_step denied[] = {{OP_SESSION, ANSWER_STATUS, 403, 0, NULL},
                                                {OP_SESSION, ANSWER_STATUS, 403, 0, NULL}};
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    script(STEPS(denied));
    fetch("x", 1000, 0, NULL);
    check_code(MR_E_DENIED, "s3express:CreateSession");
    static const struct bucket_step garbage[] = {{OP_SESSION, GARBAGE, 0, 0, NULL}};
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    script(STEPS(garbage));
    fetch("x", 1000, 0, NULL);
    check_code(MR_E_PROTOCOL, "");
}
END_TEST

START_TEST(a_session_is_asked_for_with_another_clock_and_region)
{
    fault_s3_put(&s3, "x", data, 1000);
    s3.clock_off_s = 7200;
    s3.region = "eu-north-7";
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
    ck_assert(sent(OP_GET, "/eu-north-7/s3express/aws4_request"));
    s3.clock_off_s = -400; /* which the store takes, and by which a session has ended here when it comes */
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    fetch("x", 1000, 0, NULL);
    check_code(MR_OK, "");
}
END_TEST

START_TEST(a_store_that_is_closed_while_it_waits_for_a_session)
{
    static const struct bucket_step silence[] = {{OP_SESSION, STALL_AFTER, 0, 0, NULL}};
    script(STEPS(silence));
    ck_assert_ptr_nonnull(mr_transfer_stat(engine, store, "x", 1, 0, on_item, NULL));
    for (int i = 0; i < 3; i++)
        ck_assert_int_ge(mr_http_step(http, 20, -1), 0);
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    script(NULL, 0);
    insert("x", 10, 0);
    check_code(MR_OK, "");
}
END_TEST

/* ---- writes ---- */

START_TEST(a_write_whose_answer_was_lost)
{
    static const struct bucket_step lost[] = {{OP_INSERT, RESET_AFTER, 0, 0, NULL}};
    open_s3((struct mr_s3_options){.checksums = MR_S3_CHECKSUMS_ALWAYS}, 10000);
    script(STEPS(lost));
    insert("x", 1000, 0);
    check_code(MR_OK, ""); /* by its checksum: an ETag that is drawn says nothing */
    open_s3((struct mr_s3_options){.region = NULL}, 10000);
    script(STEPS(lost));
    insert("y", 1000, 0);
    ck_assert_int_ne(last.code, MR_OK); /* nobody can tell whose it is */
}
END_TEST

/* ---- listings ---- */

static void put_names(void)
{
    static const char *const names[] = {"a/1", "a/10", "a/2", "a/b/1", "a/b/2", "a/c", "ab", "b/1", "é/x", "z"};
    for (int i = 0; i < COUNT(names); i++)
        fault_s3_put(&s3, names[i], data, (uint64_t)i);
}

static const struct {
    const char *prefix, *start, *end, *names;
} listings[] = {
    {NULL, NULL, NULL, "a/1|a/10|a/2|a/b/1|a/b/2|a/c|ab|b/1|z|é/x|"},
    {"a/", NULL, NULL, "a/1|a/10|a/2|a/b/1|a/b/2|a/c|"},
    {"a", NULL, NULL, "a/1|a/10|a/2|a/b/1|a/b/2|a/c|ab|"},
    {"a/b/", NULL, NULL, "a/b/1|a/b/2|"},
    {"a/1", NULL, NULL, "a/1|a/10|"},
    {"a/", "a/10", "a/b/2", "a/10|a/2|a/b/1|"},
    {NULL, "b", NULL, "b/1|z|é/x|"},
    {"none/", NULL, NULL, ""},
};

START_TEST(names_come_in_order)
{
    put_names();
    s3.page = 3;
    list_all(listings[_i].prefix, listings[_i].start, listings[_i].end);
    check_code(MR_OK, "");
    ck_assert_str_eq(listed, listings[_i].names);
    s3.page = 1000;
    list_all(listings[_i].prefix, listings[_i].start, listings[_i].end);
    ck_assert_str_eq(listed, listings[_i].names);
}
END_TEST

START_TEST(a_page_that_fails_is_asked_for_again)
{
    static const struct bucket_step steps[] = {{OP_LIST, WELL, 0, 0, NULL},
                                               {OP_LIST, ANSWER_STATUS, 503, 0, NULL},
                                               {OP_LIST, RESET_AFTER, 0, 0, NULL},
                                               {OP_LIST, WELL, 0, 0, NULL}};
    put_names();
    s3.page = 3;
    script(STEPS(steps));
    list_all(NULL, NULL, NULL);
    check_code(MR_OK, "");
    ck_assert_str_eq(listed, listings[0].names);
    ck_assert_uint_eq(s3.count[OP_LIST], 6); /* four pages, and two that failed */
    static const struct bucket_step denied[] = {{OP_LIST, WELL, 0, 0, NULL}, {OP_LIST, ANSWER_STATUS, 403, 0, NULL}};
    script(STEPS(denied));
    list_all(NULL, NULL, NULL);
    check_code(MR_E_DENIED, "s3:ListBucket");
    list_all(NULL, NULL, NULL);
    ck_assert_str_eq(listed, listings[0].names);
}
END_TEST

/* The page of that token alone; its own next one into `next`. */
static void list_page(const char *token, unsigned most)
{
    const struct mr_store_list_request request = {.page_token = token, .max_results = most};
    listed[0] = 0;
    wait_for(mr_transfer_list(engine, store, &request, on_page, NULL));
    check_code(MR_OK, "");
}

START_TEST(a_listing_that_is_there_no_more_goes_on_behind_its_last_name)
{
    put_names();
    list_page(NULL, 4);
    ck_assert_str_eq(listed, "a/1|a/10|a/2|a/b/1|");
    list_page("1.1.a/b/1", 4);
    ck_assert_str_eq(listed, "a/b/2|a/c|ab|b/1|");
    ck_assert_uint_eq(s3.count[OP_LIST], 1);
    list_page("1.1.a/b/1", 4); /* of a page that was given: another process asks, as it were */
    ck_assert_str_eq(listed, "a/b/2|a/c|ab|b/1|");
    for (int i = 0; i < 20; i++) /* and are left in the middle */
        list_page(NULL, 1);
    list_page("1.2.b/1", 4);
    ck_assert_str_eq(listed, "z|é/x|");
    list_page("no token", 2);
    ck_assert_str_eq(listed, "a/1|a/10|");
    s3.page = 3;
    list_page("99.5.b/1", 0); /* over several pages of the store, the first of which it is */
    list_all(NULL, NULL, NULL);
    ck_assert_str_eq(listed, "z|é/x|");
}
END_TEST

START_TEST(a_name_that_comes_twice)
{
    put_names();
    s3.page = 3;
    list_page(NULL, 0);
    fault_s3_put(&s3, "é/x", data, 99); /* replaced */
    fault_s3_put(&s3, "é/y", data, 1);  /* and the store's pages move by one: "b/1" comes again */
    list_page("1.1.", 0);
    list_page("1.2.", 0);
    list_page("1.3.", 0);
    ck_assert_str_eq(listed, listings[0].names);
    ck_assert_uint_eq(s3.count[OP_LIST], 4);
}
END_TEST

/* One of several that go on side by side. */
struct side {
    struct mr_store_list_request request;
    char names[400], token[1200];
    bool done;
};

static void on_side(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    struct side *side = arg;
    ck_assert_int_eq(result->code, MR_OK);
    for (size_t i = 0; i < page->count; i++)
        snprintf(side->names + strlen(side->names), sizeof side->names - strlen(side->names), "%s|",
                 page->items[i].name);
    side->done = !page->next_token;
    snprintf(side->token, sizeof side->token, "%s", side->done ? "" : page->next_token);
    side->request.page_token = side->token;
    if (!side->done) /* at once, from its callback, as a list worker does */
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &side->request, on_side, side));
}

START_TEST(listings_beside_each_other)
{
    static struct side sides[3];
    put_names();
    s3.page = 2;
    sides[0].request = (struct mr_store_list_request){.prefix = "a/", .max_results = 2};
    sides[1].request = (struct mr_store_list_request){.prefix = "a", .max_results = 3};
    struct mr_transfer *left = mr_transfer_list(engine, store, &sides[0].request, on_side, &sides[2]);
    for (int i = 0; i < 2; i++)
        ck_assert_ptr_nonnull(mr_transfer_list(engine, store, &sides[i].request, on_side, &sides[i]));
    mr_transfer_cancel(engine, left);
    while (!sides[0].done || !sides[1].done)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_str_eq(sides[0].names, listings[1].names);
    ck_assert_str_eq(sides[1].names, listings[2].names);
}
END_TEST

/* ---- where they are ---- */

static const struct {
    const char *bucket, *region, *service; /* NULL: it cannot be opened */
} places[] = {
    {"x--use1-az4--x-s3", NULL, "https://s3express-use1-az4.us-east-1.amazonaws.com"},
    {"x--usw2-az1--x-s3", "eu-west-1", "https://s3express-usw2-az1.us-west-2.amazonaws.com"},
    {"x--apne1-az4--x-s3", NULL, "https://s3express-apne1-az4.ap-northeast-1.amazonaws.com"},
    {"x--usw2-lax1-az1--x-s3", NULL, "https://s3express-usw2-lax1-az1.us-west-2.amazonaws.com"},
    {"x--usgw1-az1--x-s3", NULL, "https://s3express-usgw1-az1.us-gov-west-1.amazonaws.com"},
    {"a--b--eun1-az1--x-s3", NULL, "https://s3express-eun1-az1.eu-north-1.amazonaws.com"},
    {"x--new-zone1--x-s3", "eu-west-1", "https://s3express-new-zone1.eu-west-1.amazonaws.com"},
    {"x--x-s3", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"}, /* none */
    {"--use1-az4--x-s3", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"},
};

START_TEST(zones)
{
    char service[300], credentials[300];
    const struct mr_s3_options options = {.region = places[_i].region};
    struct mr_store *aws = mr_store_open(
        &(struct mr_store_options){.scheme = MR_SCHEME_S3, .bucket = places[_i].bucket, .s3 = &options, .http = http});
    ck_assert_msg(aws != NULL, "%s", mr_error_text());
    mr_store_describe(aws, service, sizeof service, credentials, sizeof credentials);
    ck_assert_str_eq(service, places[_i].service);
    ck_assert_int_eq(mr_store_lists_ranges(aws), strstr(service, "s3express") == NULL);
    mr_store_close(aws);
}
END_TEST

START_TEST(a_regional_endpoint_is_not_theirs)
{
    char service[300], credentials[300];
    static const char *const endpoints[][2] = {
        {"https://s3.us-east-1.amazonaws.com", "https://s3express-use1-az4.us-east-1.amazonaws.com"},
        {"https://store.example.org", "https://store.example.org"}};
    for (int i = 0; i < COUNT(endpoints); i++) {
        struct mr_store *there = mr_store_open(&(struct mr_store_options){
            .scheme = MR_SCHEME_S3, .bucket = BUCKET, .endpoint = endpoints[i][0], .http = http});
        ck_assert_msg(there != NULL, "%s", mr_error_text());
        mr_store_describe(there, service, sizeof service, credentials, sizeof credentials);
        ck_assert_str_eq(service, endpoints[i][1]);
        mr_store_close(there);
    }
}
END_TEST

START_TEST(what_they_do_not_know)
{
    static const struct {
        struct mr_s3_options options;
        const char *text;
    } all[] = {{{.customer_key_file = "/dev/null"}, "customer_key_file"},
               {{.encryption = MR_S3_ENCRYPTION_KMS_DSSE}, "aws:kms:dsse"},
               {{.addressing = MR_S3_ADDRESSING_PATH}, "addressing = \"path\""}};
    for (int i = 0; i < COUNT(all); i++) {
        ck_assert_ptr_null(mr_store_open(
            &(struct mr_store_options){.scheme = MR_SCHEME_S3, .bucket = BUCKET, .s3 = &all[i].options, .http = http}));
        ck_assert_int_eq(mr_error_code(), MR_E_CONFIG);
        ck_assert_ptr_nonnull(strstr(mr_error_text(), all[i].text));
    }
}
END_TEST

int main(void)
{
    TCase *one = tcase_create("s3_express");
    tcase_add_checked_fixture(one, setup, s3_teardown);
    tcase_set_timeout(one, 100);
    tcase_add_test(one, requests_are_made_in_a_session);
    tcase_add_test(one, what_belongs_to_a_session_goes_with_it);
    tcase_add_test(one, a_session_that_ends);
    tcase_add_test(one, a_session_that_is_not_given);
    tcase_add_test(one, a_session_is_asked_for_with_another_clock_and_region);
    tcase_add_test(one, a_store_that_is_closed_while_it_waits_for_a_session);
    tcase_add_test(one, a_write_whose_answer_was_lost);
    tcase_add_loop_test(one, names_come_in_order, 0, COUNT(listings));
    tcase_add_test(one, a_page_that_fails_is_asked_for_again);
    tcase_add_test(one, a_listing_that_is_there_no_more_goes_on_behind_its_last_name);
    tcase_add_test(one, a_name_that_comes_twice);
    tcase_add_test(one, listings_beside_each_other);
    tcase_add_loop_test(one, zones, 0, COUNT(places));
    tcase_add_test(one, a_regional_endpoint_is_not_theirs);
    tcase_add_test(one, what_they_do_not_know);
    return mr_suite_run("s3_express", one);
}
