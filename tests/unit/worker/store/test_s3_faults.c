/*
 * test_s3_faults.c - the table of docs/retries.md for reads, of S3: each fault of a store, at each kind of request, once;
 * is it repaired by a repeat, or which error is it? test_faults.c is the same for GCS, test_s3_write.c has what writes.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "s3_scene.h"
#include "tests/unit/suite.h"
#include "worker/store/s3.h"

#define SIZE 100000u
#define NA   MR_E_INTERNAL /* does not apply */

static const enum bucket_op ops[] = {OP_GET, OP_LIST, OP_STAT};

static const struct row {
    enum bucket_fault fault;
    int status;
    enum mr_code get, list, stat; /* MR_OK: repaired by one repeat */
    const char *text;             /* part of the get's message */
} rows[] = {
    {RESET_BEFORE, 0, MR_OK, MR_OK, MR_OK, ""},
    {CLOSE_BEFORE, 0, MR_OK, MR_OK, MR_OK, ""},
    {RESET_IN_HEAD, 0, MR_OK, MR_OK, MR_OK, ""},
    {RESET_AFTER, 0, MR_OK, MR_OK, MR_OK, ""},  /* of a get: in its body */
    {SHORT_ANSWER, 0, MR_OK, MR_OK, MR_OK, ""}, /* the same with an orderly end; of a stat: in its head */
    {STALL_AFTER, 0, MR_OK, MR_OK, MR_OK, ""},
    {STALL_IN_HEAD, 0, MR_OK, MR_OK, MR_OK, ""},
    {STALL_IN_BODY, 0, MR_OK, MR_OK, NA, ""},
    {ANSWER_STATUS, 408, MR_OK, MR_OK, MR_OK, ""},
    {ANSWER_STATUS, 429, MR_OK, MR_OK, MR_OK, ""},
    {ANSWER_STATUS, 500, MR_OK, MR_OK, MR_OK, ""},
    {ANSWER_STATUS, 502, MR_OK, MR_OK, MR_OK, ""},
    {ANSWER_STATUS, 503, MR_OK, MR_OK, MR_OK, ""},
    {ANSWER_STATUS, 504, MR_OK, MR_OK, MR_OK, ""},
    {ERROR_IN_200, 0, NA, MR_OK, NA, ""},
    {WRONG_CRC, 0, MR_OK, NA, NA, ""},
    {ANSWER_STATUS, 400, MR_E_USAGE, MR_E_USAGE, MR_E_USAGE, "HTTP status 400"},
    {ANSWER_STATUS, 401, MR_E_DENIED, MR_E_DENIED, MR_E_DENIED, "permission"},
    {ANSWER_STATUS, 403, MR_E_DENIED, MR_E_DENIED, MR_E_DENIED, "s3:GetObject"},
    {ANSWER_STATUS, 404, MR_E_NOT_FOUND, MR_E_NOT_FOUND, MR_E_NOT_FOUND, "deleted since the listing"},
    {ANSWER_STATUS, 412, MR_E_CHANGED, MR_E_CHANGED, MR_E_CHANGED, "changed since the listing"},
    {ANSWER_STATUS, 416, MR_E_CHANGED, MR_E_CHANGED, MR_E_CHANGED, "shorter"},
    {ANSWER_STATUS, 301, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "names no region"},
    {ANSWER_STATUS, 501, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "HTTP status 501"},
    {ANSWER_STATUS, 505, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "HTTP status 505"},
    {LONGER, 0, MR_E_PROTOCOL, MR_E_PROTOCOL, NA, "100000 bytes were expected, and 100001 came"},
    {SHORTER, 0, MR_E_PROTOCOL, MR_E_PROTOCOL, NA, "100000 bytes were expected, and 99999 came"},
    {OTHER_VERSION, 0, MR_E_CHANGED, NA, MR_E_CHANGED, "changed since the listing"},
    {NO_HTTP, 0, MR_E_PROTOCOL, MR_E_PROTOCOL, MR_E_PROTOCOL, "s3://bucket/x: "},
};

/* The version that was listed, with a checksum that the store keeps of it. */
static struct s3_object *make_object(void)
{
    struct mr_checksum sum = {MR_CHECKSUM_CRC32C, 0};
    char text[MR_CHECKSUM_TEXT_SIZE];
    struct s3_object *object = fault_s3_put(&s3, "x", data, SIZE);
    mr_checksum_add(&sum, data, SIZE);
    snprintf(object->checksum, sizeof object->checksum, "x-amz-checksum-crc32c: %s\r\n",
             mr_checksum_to_base64(&sum, text));
    return object;
}

static void ask(enum bucket_op op, const struct s3_object *object)
{
    struct mr_store_list_request list = {.prefix = "x"};
    uint64_t generation = mr_s3_generation(object->etag);
    listed[0] = 0;
    if (op == OP_GET)
        fetch("x", SIZE, generation, object->etag);
    else if (op == OP_LIST)
        wait_for(mr_transfer_list(engine, store, &list, on_page, NULL));
    else
        wait_for(mr_transfer_stat(engine, store, "x", 1, generation, on_item, NULL));
}

static void check_good(enum bucket_op op)
{
    check_code(MR_OK, "");
    if (op == OP_GET)
        ck_assert(fetched.verified);
    else if (op == OP_LIST)
        ck_assert_str_eq(listed, "x|");
    else
        ck_assert_uint_eq(last.size, SIZE);
}

START_TEST(a_fault)
{
    const struct row *row = &rows[_i / COUNT(ops)];
    enum bucket_op op = ops[_i % COUNT(ops)];
    enum mr_code expected = op == OP_GET ? row->get : op == OP_LIST ? row->list : row->stat;
    if (expected == NA)
        return;
    bool stalls = row->fault == STALL_AFTER || row->fault == STALL_IN_HEAD || row->fault == STALL_IN_BODY;
    if (stalls)
        open_s3((struct mr_s3_options){.region = NULL}, 300);
    const struct s3_object *object = make_object();
    /* A HEAD's refusal has no words: a GET asks for them, and is refused as well. */
    const struct bucket_step steps[] = {{op, row->fault, row->status, 0, NULL},
                                        {OP_GET, row->fault, row->status, 0, NULL}};
    script(steps, op == OP_STAT && row->fault == ANSWER_STATUS && expected != MR_OK ? 2 : 1);
    ask(op, object);
    const struct mr_transfer_counters *c = mr_transfer_counters(engine);
    if (expected != MR_OK) {
        check_code(expected, op == OP_GET ? row->text : "");
        ck_assert_msg(strncmp(last.text, "s3://bucket/x: ", 15) == 0, "%s", last.text);
        ck_assert_uint_eq(s3.count[op], 1);
        ck_assert_uint_eq(c->failures, 1);
        ck_assert_uint_eq(c->retries, 0);
        return;
    }
    check_good(op);
    if (stalls) { /* on a loaded machine a good answer may seem to stall as well */
        ck_assert_uint_ge(c->stalls, 1);
        ck_assert_uint_ge(c->retries, 1);
        return;
    }
    ck_assert_uint_eq(s3.count[op], 2);
    ck_assert_uint_eq(c->retries, 1);
    ck_assert_uint_eq(c->throttled, row->status == 429 || row->status == 503);
    ck_assert_uint_eq(c->crc_errors, row->fault == WRONG_CRC);
    bool resumed = op == OP_GET && (row->fault == RESET_AFTER || row->fault == SHORT_ANSWER);
    ck_assert_int_eq(sent(op, "Range: bytes=50000-"), resumed);
}
END_TEST

int main(void)
{
    TCase *one = tcase_create("s3_faults");
    tcase_add_checked_fixture(one, s3_setup, s3_teardown);
    tcase_set_timeout(one, 100);
    tcase_add_loop_test(one, a_fault, 0, COUNT(rows) * COUNT(ops));
    return mr_suite_run("s3_faults", one);
}
