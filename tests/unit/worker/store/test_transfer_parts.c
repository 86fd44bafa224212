/* test_transfer_parts.c - objects of upload parts, against a bucket that does each thing wrong; and the parser of its
 * XML. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "store_scene.h"
#include "worker/store/upload_parts.h"
#include "worker/store/xml.h"

#define PART  300000u
#define PARTS 3u
#define SIZE  (2 * PART + 77)

static unsigned char data[SIZE];

/* Uploads under way, page by page. */
static struct {
    char names[16][64], ids[16][64];
    unsigned count;
    int64_t started_s;
    char next_name[64], next_id[64];
} listed;

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_pending_page *page)
{
    (void)arg;
    keep(result);
    ck_assert_int_eq(page != NULL, result->code == MR_OK);
    listed.next_name[0] = 0;
    for (size_t i = 0; page && i < page->count; i++) {
        snprintf(listed.names[listed.count], 64, "%s", page->items[i].name);
        snprintf(listed.ids[listed.count++], 64, "%s", page->items[i].id);
        listed.started_s = page->items[i].started_s;
    }
    if (page && page->next_name) {
        snprintf(listed.next_name, 64, "%s", page->next_name);
        snprintf(listed.next_id, 64, "%s", page->next_id);
    }
}

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    memset(&listed, 0, sizeof listed);
    scene_bucket_setup();
}

static void begin(void)
{
    wait_for(mr_transfer_parts_begin(engine, store, "a/x", 3, "text/plain", on_word, NULL));
}

static void send_part(unsigned number, const char *id, struct mr_upload_part *part)
{
    uint64_t at = (uint64_t)(number - 1) * PART, length = SIZE - at < PART ? SIZE - at : PART;
    struct mr_upload_part_request request = {.name = "a/x",
                                             .name_length = 3,
                                             .id = id,
                                             .number = number,
                                             .data = data + at,
                                             .length = length,
                                             .crc32c = mr_crc32c(0, data + at, length)};
    wait_for(mr_transfer_part_send(engine, store, &request, on_word, NULL));
    part->number = number;
    part->crc32c = request.crc32c;
    snprintf(part->etag, sizeof part->etag, "%.90s", last.word);
}

static void complete(const char *id, const struct mr_upload_part *parts, uint32_t crc)
{
    struct mr_store_complete_request request = {
        .name = "a/x", .name_length = 3, .id = id, .parts = parts, .count = PARTS, .size = SIZE, .crc32c = crc};
    wait_for(mr_transfer_parts_complete(engine, store, &request, on_item, NULL));
}

/* All of it, with the script. */
static void write_all(void)
{
    begin();
    check_code(MR_OK, "");
    char id[sizeof last.word];
    snprintf(id, sizeof id, "%s", last.word);
    struct mr_upload_part parts[PARTS];
    for (unsigned n = PARTS; n > 0; n--) { /* in any order */
        send_part(n, id, &parts[n - 1]);
        check_code(MR_OK, "");
    }
    complete(id, parts, mr_crc32c(0, data, SIZE));
}

static void check_there(void)
{
    struct bucket_object *object = fault_bucket_find(&bucket, "a/x");
    check_code(MR_OK, "");
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, SIZE);
    ck_assert_mem_eq(object->data, data, SIZE);
    ck_assert_uint_eq(last.size, SIZE);
    ck_assert_uint_eq(last.crc32c, mr_crc32c(0, data, SIZE));
}

START_TEST(an_object_in_parts)
{
    ck_assert(mr_store_has_parts(store));
    write_all();
    check_there();
    ck_assert_str_eq(bucket.last_target[OP_INITIATE], "/bucket/a%2Fx?uploads");
    ck_assert_ptr_nonnull(strstr(bucket.last_head[OP_INITIATE], "Content-Type: text/plain\r\n"));
    ck_assert_ptr_nonnull(strstr(bucket.last_head[OP_INITIATE], "x-goog-user-project: payer\r\n"));
    ck_assert_ptr_nonnull(strstr(bucket.last_head[OP_PART], "x-goog-hash: crc32c="));
    ck_assert_ptr_nonnull(strstr(bucket.last_body[OP_COMPLETE], "<PartNumber>1</PartNumber><ETag>\"part-1-"));
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    ck_assert_uint_eq(c->class_a, 5);
    ck_assert_uint_eq(c->class_b, 1);
}
END_TEST

static const struct {
    struct bucket_step step;
    unsigned initiates, parts, completes, looks;
} repaired[] = {
    {{OP_INITIATE, ANSWER_STATUS, 503, 0, NULL}, 2, 3, 1, 1}, {{OP_INITIATE, RESET_AFTER, 0, 0, NULL}, 2, 3, 1, 1},
    {{OP_PART, ANSWER_STATUS, 429, 0, NULL}, 1, 4, 1, 1},     {{OP_PART, ANSWER_STATUS, 500, 0, NULL}, 1, 4, 1, 1},
    {{OP_PART, RESET_BEFORE, 0, 0, NULL}, 1, 4, 1, 1},        {{OP_PART, RESET_AFTER, 0, 0, NULL}, 1, 4, 1, 1},
    {{OP_PART, STALL_AFTER, 0, 0, NULL}, 1, 4, 1, 1},         {{OP_COMPLETE, ANSWER_STATUS, 429, 0, NULL}, 1, 3, 2, 1},
    {{OP_COMPLETE, ANSWER_STATUS, 503, 0, NULL}, 1, 3, 2, 2}, {{OP_COMPLETE, RESET_BEFORE, 0, 0, NULL}, 1, 3, 2, 2},
    {{OP_COMPLETE, RESET_AFTER, 0, 0, NULL}, 1, 3, 1, 1},     {{OP_COMPLETE, SHORT_ANSWER, 0, 0, NULL}, 1, 3, 1, 1},
    {{OP_COMPLETE, STALL_AFTER, 0, 0, NULL}, 1, 3, 1, 1},     {{OP_COMPLETE, DONE_STATUS, 503, 0, NULL}, 1, 3, 1, 1},
    {{OP_STAT, ANSWER_STATUS, 503, 0, NULL}, 1, 3, 1, 2},
};

START_TEST(one_fault_is_repaired)
{
    if (repaired[_i].step.fault == STALL_AFTER)
        open_stalling(fault_server_host(server), 100000, 3000);
    if (_i % 2)
        fault_bucket_put(&bucket, "a/x", "before", 6); /* what is replaced is not taken for ours */
    play(&repaired[_i].step, 1);
    write_all();
    check_there();
    ck_assert_uint_eq(bucket.count[OP_INITIATE], repaired[_i].initiates);
    ck_assert_uint_eq(bucket.count[OP_PART], repaired[_i].parts);
    ck_assert_uint_eq(bucket.count[OP_COMPLETE], repaired[_i].completes);
    ck_assert_uint_eq(bucket.count[OP_STAT], repaired[_i].looks);
}
END_TEST

START_TEST(a_lost_end_that_cannot_be_looked_up_at_first)
{
    /* Done, lost; somebody looks and sees nothing yet; asked again, the upload is gone; then it is there. */
    static const struct bucket_step script[] = {{OP_COMPLETE, RESET_AFTER, 0, 0, NULL},
                                                {OP_STAT, ANSWER_STATUS, 404, 0, NULL}};
    play(STEPS(script));
    write_all();
    check_there();
    ck_assert_uint_eq(bucket.count[OP_COMPLETE], 2);
    ck_assert_uint_eq(bucket.count[OP_STAT], 2);
}
END_TEST

START_TEST(an_end_that_fails)
{
    static const struct bucket_step script[] = {
        {OP_COMPLETE, ANSWER_STATUS, 400, 0, NULL}, {OP_COMPLETE, ANSWER_STATUS, 404, 0, NULL},
        {OP_COMPLETE, GARBAGE, 0, 0, NULL},         {OP_COMPLETE, WRONG_CRC, 0, 0, NULL},
        {OP_COMPLETE, ANSWER_STATUS, 403, 0, NULL}, {OP_COMPLETE, RESET_BEFORE, 0, 0, NULL},
        {OP_COMPLETE, ANSWER_STATUS, 404, 0, NULL}};
    static const struct {
        enum mr_code code;
        const char *text;
    } wanted[] = {{MR_E_USAGE, "400"},        {MR_E_NOT_FOUND, "404"},
                  {MR_E_PROTOCOL, "not XML"}, {MR_E_CORRUPT, "deleted again"},
                  {MR_E_DENIED, "403"},       {MR_E_NOT_FOUND, "404"}};
    play(STEPS(script));
    for (int i = 0; i < COUNT(wanted); i++) {
        write_all();
        check_code(wanted[i].code, wanted[i].text);
    }
    ck_assert_uint_eq(bucket.count[OP_DELETE], 1);
}
END_TEST

START_TEST(what_was_completed_and_is_gone_is_no_upload_that_was_removed)
{
    static const struct bucket_step script[] = {{OP_STAT, ANSWER_STATUS, 404, 0, NULL}};
    play(STEPS(script));
    write_all();
    check_code(MR_E_CHANGED, "it was written, and removed by another writer at once");
}
END_TEST

START_TEST(another_checksum_than_the_callers)
{
    begin();
    char id[sizeof last.word];
    snprintf(id, sizeof id, "%s", last.word);
    struct mr_upload_part parts[PARTS];
    for (unsigned n = 1; n <= PARTS; n++)
        send_part(n, id, &parts[n - 1]);
    complete(id, parts, 1);
    check_code(MR_E_CORRUPT, "crc32c");
    ck_assert_ptr_null(fault_bucket_find(&bucket, "a/x"));
}
END_TEST

START_TEST(a_part_that_is_refused)
{
    static const struct bucket_step script[] = {
        {OP_PART, ANSWER_STATUS, 403, 0, NULL}, {OP_PART, ANSWER_STATUS, 404, 0, NULL}, {OP_PART, GARBAGE, 0, 0, NULL}};
    play(STEPS(script));
    begin();
    char id[sizeof last.word];
    snprintf(id, sizeof id, "%s", last.word);
    struct mr_upload_part part;
    send_part(1, id, &part);
    check_code(MR_E_DENIED, "403");
    send_part(1, id, &part);
    check_code(MR_E_NOT_FOUND, "404");
    send_part(1, id, &part);
    check_code(MR_E_PROTOCOL, "ETag");
    struct mr_upload_part_request request = {
        .name = "a/x", .name_length = 3, .id = id, .number = 1, .data = data, .length = 9};
    wait_for(mr_transfer_part_send(engine, store, &request, on_word, NULL)); /* a wrong crc32c */
    check_code(MR_E_CORRUPT, "the part is refused");
    request.number = MR_UPLOAD_PARTS_MAX + 1;
    ck_assert_ptr_null(mr_upload_part_send(store, &request, on_word, NULL));
}
END_TEST

START_TEST(endpoints_without_parts)
{
    static const int status[] = {400, 404, 405, 501};
    struct bucket_step step = {OP_INITIATE, ANSWER_STATUS, status[_i], 0, NULL};
    play(&step, 1);
    begin();
    check_code(MR_E_PROTOCOL, "has no multipart uploads");
    ck_assert(!mr_store_has_parts(store)); /* kept in mind */
    ck_assert_uint_eq(bucket.count[OP_INITIATE], 1);
}
END_TEST

START_TEST(what_is_under_way)
{
    static const struct bucket_step script[] = {{OP_UPLOADS, ANSWER_STATUS, 503, 0, NULL},
                                                {OP_UPLOADS, RESET_BEFORE, 0, 0, NULL}};
    play(STEPS(script));
    for (int i = 0; i < 7; i++)
        begin();
    listed.count = 0;
    wait_for(mr_transfer_parts_list(engine, store, "a/", NULL, NULL, on_list, NULL));
    check_code(MR_OK, "");
    ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_UPLOADS], "/bucket?uploads&prefix=a%2F"));
    ck_assert_uint_eq(listed.count, 3);
    ck_assert_int_eq(listed.started_s, 1767323045);
    ck_assert_str_eq(listed.next_name, "k&2");
    while (listed.next_name[0]) {
        char name[64];
        snprintf(name, sizeof name, "%s", listed.next_name);
        char id[64];
        snprintf(id, sizeof id, "%s", listed.next_id);
        wait_for(mr_transfer_parts_list(engine, store, NULL, name, id, on_list, NULL));
        ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_UPLOADS], "key-marker=k%26"));
    }
    ck_assert_uint_eq(listed.count, 7);
    ck_assert_str_eq(listed.names[6], "a/x");
    static const struct bucket_step aborts[] = {
        {OP_ABORT, RESET_AFTER, 0, 0, NULL}, {OP_ABORT, WELL, 0, 0, NULL}, {OP_ABORT, ANSWER_STATUS, 403, 0, NULL}};
    play(STEPS(aborts));
    wait_for(mr_transfer_parts_abort(engine, store, "a/x", 3, listed.ids[6], on_delete, NULL));
    check_code(MR_OK, "");
    ck_assert(bucket.sessions[6].gone);
    wait_for(mr_transfer_parts_abort(engine, store, "a/x", 3, listed.ids[5], on_delete, NULL));
    check_code(MR_E_DENIED, "403");
}
END_TEST

/* ---- the parser ---- */

START_TEST(xml_of_all_kinds)
{
    static const struct {
        const char *xml, *error;
    } bad[] = {
        {"", "not XML"},
        {"<a>", "not XML"},
        {"<a></b>", "not XML"},
        {"{}", "not XML"},
        {"<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>", "document type"},
        {"<a>&x;</a>", "not XML"},
        {"<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>", "nested too deep"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        ck_assert_ptr_null(mr_xml_parse(bad[i].xml, strlen(bad[i].xml)));
        ck_assert_msg(strstr(mr_error_text(), bad[i].error) != NULL, "%s", mr_error_text());
    }
    static const char text[] =
        "<?xml version='1.0'?><x:Root xmlns:x='u'><A>1 &amp; 2</A><B><A>inner</A></B><C/></x:Root>";
    struct mr_xml *xml = mr_xml_parse(text, strlen(text));
    ck_assert_ptr_nonnull(xml);
    ck_assert_str_eq(mr_xml_root(xml), "Root");
    ck_assert_str_eq(mr_xml_text(xml, "A"), "1 & 2");
    ck_assert_str_eq(mr_xml_text(xml, "C"), "");
    ck_assert_str_eq(mr_xml_text(xml, "Z"), "");
    struct mr_store_pending_page page;
    ck_assert_int_eq(mr_xml_pending(xml, &page), -1);
    mr_xml_destroy(xml);
    static const char *const lists[] = {
        "<ListMultipartUploadsResult><Upload><Key>a</Key></Upload></ListMultipartUploadsResult>",
        "<ListMultipartUploadsResult><Upload><UploadId>a</UploadId></Upload></ListMultipartUploadsResult>",
        "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>"};
    for (int i = 0; i < COUNT(lists); i++) {
        xml = mr_xml_parse(lists[i], strlen(lists[i]));
        ck_assert_ptr_nonnull(xml);
        ck_assert_int_eq(mr_xml_pending(xml, &page), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
        mr_xml_destroy(xml);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_parts");
    TCase *tc = tcase_create("parts");
    tcase_add_checked_fixture(tc, setup, scene_bucket_teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, an_object_in_parts);
    tcase_add_loop_test(tc, one_fault_is_repaired, 0, COUNT(repaired));
    tcase_add_test(tc, a_lost_end_that_cannot_be_looked_up_at_first);
    tcase_add_test(tc, an_end_that_fails);
    tcase_add_test(tc, what_was_completed_and_is_gone_is_no_upload_that_was_removed);
    tcase_add_test(tc, another_checksum_than_the_callers);
    tcase_add_test(tc, a_part_that_is_refused);
    tcase_add_loop_test(tc, endpoints_without_parts, 0, 4);
    tcase_add_test(tc, what_is_under_way);
    tcase_add_test(tc, xml_of_all_kinds);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
