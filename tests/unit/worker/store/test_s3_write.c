/* test_s3_write.c - what the client of S3 does, against a bucket that does each thing wrong. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "s3_scene.h"
#include "tests/unit/suite.h"
#include "worker/store/s3.h"
#include "worker/store/upload_parts.h"

/* ---- each operation with each fault ---- */

static unsigned pulled;

static int64_t pull(void *arg, void *buffer, size_t size)
{
    (void)arg;
    size_t n = BIG - pulled < size ? BIG - pulled : size;
    memcpy(buffer, data + pulled, n);
    pulled += (unsigned)n;
    return (int64_t)n;
}

static int rewind_it(void *arg)
{
    (void)arg;
    pulled = 0;
    return 0;
}

/* Of three chunks. */
static void upload(uint64_t match)
{
    pulled = 0;
    struct mr_transfer_upload_request request = {.store = store,
                                                 .name = "up",
                                                 .name_length = 2,
                                                 .generation_match = match,
                                                 .size = BIG,
                                                 .chunk_bytes = CHUNK,
                                                 .read = pull,
                                                 .rewind = rewind_it,
                                                 .fd = -1};
    wait_for(mr_transfer_upload(engine, &request, on_item, NULL));
}

/* Of three upload parts, in any order. */
static void write_parts(uint64_t match)
{
    wait_for(mr_transfer_parts_begin(engine, store, "up", 2, NULL, on_word, NULL));
    if (last.code != MR_OK)
        return;
    char id[sizeof last.word];
    snprintf(id, sizeof id, "%s", last.word);
    struct mr_upload_part parts[3];
    for (unsigned n = 3; n > 0; n--) {
        struct mr_upload_part_request request = {.name = "up",
                                                 .name_length = 2,
                                                 .id = id,
                                                 .number = n,
                                                 .data = data + (size_t)(n - 1) * PART,
                                                 .length = PART,
                                                 .crc32c = mr_crc32c(0, data + (size_t)(n - 1) * PART, PART)};
        wait_for(mr_transfer_part_send(engine, store, &request, on_word, NULL));
        if (last.code != MR_OK)
            return;
        parts[n - 1] = (struct mr_upload_part){.number = n, .crc32c = request.crc32c};
        snprintf(parts[n - 1].etag, sizeof parts[n - 1].etag, "%.90s", last.word);
    }
    struct mr_store_complete_request complete = {.name = "up",
                                                 .name_length = 2,
                                                 .id = id,
                                                 .parts = parts,
                                                 .count = 3,
                                                 .size = 3 * PART,
                                                 .crc32c = mr_crc32c(0, data, 3 * PART),
                                                 .generation_match = match};
    wait_for(mr_transfer_parts_complete(engine, store, &complete, on_item, NULL));
}

static void delete_two(void)
{
    struct s3_object *a = fault_s3_put(&s3, "a", data, 10), *b = fault_s3_put(&s3, "b", data, 20);
    char etags[2][64];
    snprintf(etags[0], 64, "%s", a->etag);
    snprintf(etags[1], 64, "%s", b->etag);
    struct mr_store_name two[] = {{"a", 1, mr_s3_generation(etags[0]), etags[0]},
                                  {"b", 1, mr_s3_generation(etags[1]), etags[1]}};
    unsigned count = 2;
    wait_for(mr_transfer_delete_batch(engine, store, two, 2, on_batch, &count));
    for (unsigned i = 0; i < 2 && last.code == MR_OK; i++)
        last.code = last.each[i];
    snprintf(last.text, sizeof last.text, "%s", last.first_text);
}

enum deed { GET_IT, STAT_IT, LIST_IT, PUT_IT, UPLOAD_IT, PARTS, DELETE_IT };

static void perform(enum deed deed)
{
    switch (deed) {
    case GET_IT:
        fault_s3_put(&s3, "x", data, 200000);
        fetch("x", 200000, 0, NULL);
        break;
    case STAT_IT:
        fault_s3_put(&s3, "x", data, 1000);
        stat_it("x");
        break;
    case LIST_IT:
        fault_s3_put(&s3, "x", data, 1000);
        list_all(NULL, NULL, NULL);
        break;
    case PUT_IT:
        insert("put", 5000, 0);
        break;
    case UPLOAD_IT:
        upload(0);
        break;
    case PARTS:
        write_parts(0);
        break;
    case DELETE_IT:
        delete_two();
        break;
    }
}

static void check_done(enum deed deed)
{
    static const uint64_t sizes[] = {[PUT_IT] = 5000, [UPLOAD_IT] = BIG, [PARTS] = 3 * PART};
    check_code(MR_OK, "");
    if (deed == DELETE_IT) {
        ck_assert(!fault_s3_find(&s3, "a") && !fault_s3_find(&s3, "b"));
    } else if (deed >= PUT_IT) {
        struct s3_object *object = fault_s3_find(&s3, deed == PUT_IT ? "put" : "up");
        ck_assert_ptr_nonnull(object);
        ck_assert_uint_eq(object->size, sizes[deed]);
        ck_assert_mem_eq(object->data, data, sizes[deed]);
        ck_assert_uint_eq(last.generation, mr_s3_generation(object->etag));
    }
}

/* What the first request of `op` meets, and is put right. */
static const struct {
    enum deed deed;
    enum bucket_op op;
} operations[] = {
    {GET_IT, OP_GET},         {STAT_IT, OP_STAT},   {LIST_IT, OP_LIST},       {PUT_IT, OP_INSERT},
    {UPLOAD_IT, OP_INITIATE}, {UPLOAD_IT, OP_PART}, {UPLOAD_IT, OP_COMPLETE}, {PARTS, OP_INITIATE},
    {PARTS, OP_PART},         {PARTS, OP_COMPLETE}, {PARTS, OP_STAT},         {DELETE_IT, OP_BATCH},
};
static const struct bucket_step faults[] = {
    {OP_COUNT, ANSWER_STATUS, 503, 0, NULL}, {OP_COUNT, ANSWER_STATUS, 500, 0, NULL},
    {OP_COUNT, ANSWER_STATUS, 429, 0, NULL}, {OP_COUNT, ANSWER_STATUS, 408, 0, NULL},
    {OP_COUNT, DONE_STATUS, 503, 0, NULL},   {OP_COUNT, RESET_BEFORE, 0, 0, NULL},
    {OP_COUNT, RESET_AFTER, 0, 0, NULL},     {OP_COUNT, STALL_AFTER, 0, 0, NULL},
    {OP_COUNT, SHORT_ANSWER, 0, 0, NULL},    {OP_COUNT, ERROR_IN_200, 0, 0, NULL},
    {OP_COUNT, ANSWER_STATUS, 502, 0, NULL}, {OP_COUNT, ANSWER_STATUS, 504, 0, NULL},
    {OP_COUNT, CLOSE_BEFORE, 0, 0, NULL},    {OP_COUNT, RESET_IN_HEAD, 0, 0, NULL},
    {OP_COUNT, STALL_IN_HEAD, 0, 0, NULL},
};

/* Where it says nothing: a PUT, a HEAD and a GET answer with no XML. */
static bool has_xml(enum bucket_op op)
{
    return op == OP_LIST || op == OP_INITIATE || op == OP_COMPLETE || op == OP_BATCH;
}

START_TEST(one_fault_is_repaired)
{
    enum deed deed = operations[_i / COUNT(faults)].deed;
    struct bucket_step step = faults[_i % COUNT(faults)];
    step.op = operations[_i / COUNT(faults)].op;
    if (step.fault == ERROR_IN_200 && !has_xml(step.op))
        return;
    if (step.fault == STALL_AFTER || step.fault == STALL_IN_HEAD)
        open_s3((struct mr_s3_options){.region = NULL}, 300);
    script(&step, 1);
    perform(deed);
    check_done(deed);
    ck_assert_uint_eq(fault_s3_uploads(&s3), step.op == OP_INITIATE && step.fault != ANSWER_STATUS &&
                                                     step.fault != RESET_BEFORE && step.fault != ERROR_IN_200
                                                 ? 1 /* its id is not known: `millrace clean` */
                                                 : 0);
}
END_TEST

START_TEST(the_same_with_checksums)
{
    open_s3((struct mr_s3_options){.checksums = MR_S3_CHECKSUMS_ALWAYS}, 10000);
    static const struct bucket_step steps[] = {{OP_COMPLETE, RESET_AFTER, 0, 0, NULL}};
    for (int i = 0; i < 2; i++) {
        script(steps, (size_t)i);
        perform(PARTS);
        check_done(PARTS);
        ck_assert(sent(OP_COMPLETE, "x-amz-checksum-crc32c: ") && sent(OP_COMPLETE, "x-amz-mp-object-size: 900000"));
        ck_assert_ptr_nonnull(strstr(s3.last_body[OP_COMPLETE], "<ChecksumCRC32C>"));
        ck_assert_uint_eq(last.crc32c, mr_crc32c(0, data, 3 * PART));
        fault_s3_find(&s3, "up")->name[0] = '#';
    }
    perform(UPLOAD_IT);
    check_done(UPLOAD_IT);
    static const struct bucket_step wrong[] = {{OP_COMPLETE, WRONG_CRC, 0, 0, NULL}};
    fault_s3_find(&s3, "up")->name[0] = '!';
    script(STEPS(wrong));
    perform(PARTS);
    check_code(MR_E_CHANGED, "replaced by another writer");
}
END_TEST

START_TEST(somebody_else_was_first)
{
    fault_s3_put(&s3, "up", "other", 5);
    fault_s3_put(&s3, "put", "other", 5);
    for (enum deed deed = PUT_IT; deed <= PARTS; deed++) {
        perform(deed);
        check_code(MR_E_EXISTS, "exists");
    }
    static const struct bucket_step lost[] = {{OP_INSERT, DONE_STATUS, 503, 0, NULL}};
    script(STEPS(lost));
    perform(PUT_IT); /* refused, and the answer was lost: what is there is not ours */
    check_code(MR_E_EXISTS, "exists");
    static const struct bucket_step late[] = {{OP_COMPLETE, ERROR_IN_200, 0, 0, "PreconditionFailed"}};
    script(STEPS(late));
    fault_s3_find(&s3, "up")->name[0] = '#';
    perform(PARTS);
    check_code(MR_E_EXISTS, "PreconditionFailed");
    static const struct bucket_step conflict[] = {{OP_COMPLETE, ANSWER_STATUS, 409, 0, NULL},
                                                  {OP_INSERT, ANSWER_STATUS, 409, 0, NULL}};
    script(STEPS(conflict));
    perform(PARTS);
    check_code(MR_E_CHANGED, "ConditionalRequestConflict");
    fault_s3_find(&s3, "put")->name[0] = '#';
    perform(PUT_IT);
    check_done(PUT_IT);
}
END_TEST

/* The completion is done, and its response is lost; a look-up comes too early, and the repeat is refused because of the
 * object that is there: it is ours. */
START_TEST(what_was_completed_refuses_the_repeat)
{
    static const int refusals[] = {412, 409};
    for (int i = 0; i < COUNT(refusals); i++) {
        const struct bucket_step steps[] = {{OP_COMPLETE, RESET_AFTER, 0, 0, NULL},
                                            {OP_STAT, ANSWER_STATUS, 404, 0, NULL},
                                            {OP_COMPLETE, ANSWER_STATUS, refusals[i], 0, NULL}};
        script(STEPS(steps));
        perform(PARTS);
        check_done(PARTS);
        ck_assert_uint_eq(s3.count[OP_COMPLETE], 2);
        ck_assert_uint_eq(s3.count[OP_STAT], 2);
        fault_s3_find(&s3, "up")->name[0] = '#';
        const struct bucket_step theirs[] = {{OP_COMPLETE, RESET_BEFORE, 0, 0, NULL},
                                             {OP_COMPLETE, ANSWER_STATUS, refusals[i], 0, NULL}};
        script(STEPS(theirs));
        perform(PARTS);
        check_code(refusals[i] == 412 ? MR_E_EXISTS : MR_E_CHANGED,
                   refusals[i] == 412 ? "exists" : "ConditionalRequestConflict");
    }
}
END_TEST

/* Done, and replaced by somebody else before the answer comes, by as many bytes or after a look-up that was refused:
 * what is not provably ours stays. */
START_TEST(what_somebody_else_has_written_since_stays)
{
    static const struct bucket_step replaced[] = {{OP_INSERT, REPLACED, 0, 0, NULL},
                                                  {OP_COMPLETE, REPLACED, 0, 0, NULL},
                                                  {OP_COMPLETE, REPLACED, 0, 0, NULL},
                                                  {OP_STAT, ANSWER_STATUS, 403, 0, NULL}};
    for (enum deed deed = PUT_IT; deed <= PARTS; deed++) {
        const char *name = deed == PUT_IT ? "put" : "up";
        for (size_t steps = 3; steps <= 4; steps++) {
            script(replaced, steps);
            perform(deed);
            ck_assert_msg(last.code == MR_OK || last.code == MR_E_CHANGED || last.code == MR_E_DENIED, "%s", last.text);
            struct s3_object *theirs = fault_s3_find(&s3, name);
            ck_assert_msg(theirs != NULL, "deed %d has deleted what it did not make", (int)deed);
            ck_assert_int_eq(theirs->data[0], 0);
            ck_assert_uint_eq(s3.count[OP_DELETE], 0);
            theirs->name[0] = '#';
        }
    }
}
END_TEST

/* HEAD is refused once, and asked again as a GET of one byte: the object has more. */
START_TEST(a_look_that_is_refused_once)
{
    static const struct bucket_step refused[] = {{OP_STAT, ANSWER_STATUS, 403, 0, NULL}};
    for (enum deed deed = PUT_IT; deed <= PARTS; deed++) {
        script(STEPS(refused));
        perform(deed);
        check_done(deed);
        ck_assert_uint_eq(s3.count[OP_DELETE], 0);
        fault_s3_find(&s3, deed == PUT_IT ? "put" : "up")->name[0] = '#';
    }
}
END_TEST

START_TEST(what_replaces_another_version)
{
    struct s3_object *object = fault_s3_put(&s3, "up", "before", 6);
    uint64_t generation = mr_s3_generation(object->etag);
    write_parts(generation);
    check_code(MR_OK, "");
    ck_assert(sent(OP_COMPLETE, "If-Match: \""));
    write_parts(generation);
    check_code(MR_E_CHANGED, "changed");
    fault_s3_put(&s3, "up", "before", 6);
    upload(generation);
    check_code(MR_OK, "");
    upload(generation);
    check_code(MR_E_CHANGED, "changed");
}
END_TEST

/* What is to be replaced is removed before the look-up that gets its ETag, or between that and the request itself. */
START_TEST(what_replaces_a_version_that_is_gone)
{
    static const char gone[] = "it was to be replaced, and has been removed";
    const uint64_t generation = mr_s3_generation(fault_s3_put(&s3, "put", "before", 6)->etag);
    static const struct bucket_step steps[] = {{OP_INSERT, ANSWER_STATUS, 404, 0, NULL},
                                               {OP_COMPLETE, ANSWER_STATUS, 404, 0, NULL}};
    script(STEPS(steps));
    insert("put", 10, generation);
    check_code(MR_E_CHANGED, gone);
    fault_s3_put(&s3, "up", "before", 6);
    write_parts(generation);
    check_code(MR_E_CHANGED, gone);
    fault_s3_find(&s3, "put")->name[0] = '#';
    fault_s3_find(&s3, "up")->name[0] = '#';
    script(NULL, 0);
    insert("put", 10, generation);
    check_code(MR_E_CHANGED, gone);
    write_parts(generation);
    check_code(MR_E_CHANGED, gone);
    upload(generation);
    check_code(MR_E_CHANGED, gone);
}
END_TEST

START_TEST(etags_that_say_nothing)
{
    s3.no_etag_of_parts = true; /* encrypted by KMS, for instance */
    perform(PARTS);
    check_done(PARTS);
    fault_s3_find(&s3, "up")->name[0] = '#';
    perform(UPLOAD_IT);
    check_done(UPLOAD_IT);
}
END_TEST

START_TEST(batches)
{
    static const struct bucket_step steps[] = {{OP_BATCH, LEAVE_OUT, 0, 0, NULL}, {OP_BATCH, PART_STATUS, 0, 0, NULL}};
    script(STEPS(steps));
    perform(DELETE_IT);
    check_done(DELETE_IT);
    ck_assert_uint_eq(s3.count[OP_BATCH], 3);
    ck_assert(sent(OP_BATCH, "Content-MD5: "));
    static const struct bucket_step slow[] = {{OP_BATCH, PART_STATUS, 503, 0, NULL}};
    script(STEPS(slow)); /* the first of two is told to slow down */
    uint64_t throttled = mr_transfer_counters(engine)->throttled;
    perform(DELETE_IT);
    check_done(DELETE_IT);
    ck_assert_uint_eq(mr_transfer_counters(engine)->throttled, throttled + 1);
    ck_assert_uint_eq(s3.count[OP_BATCH], 2);
    fault_s3_put(&s3, "a", data, 10);
    struct mr_store_name old = {"a", 1, mr_s3_generation("\"old\""), "\"old\""};
    unsigned one = 1;
    wait_for(mr_transfer_delete_batch(engine, store, &old, 1, on_batch, &one));
    ck_assert_int_eq(last.each[0], MR_E_CHANGED);
    s3.no_batch = true;
    perform(DELETE_IT);
    check_done(DELETE_IT);
    ck_assert_uint_eq(s3.count[OP_DELETE], 2);
    fault_s3_put(&s3, "ctrl\x02", data, 10);
    struct mr_store_name control = {"ctrl\x02", 5, 0, NULL};
    wait_for(mr_transfer_delete_batch(engine, store, &control, 1, on_batch, &one));
    ck_assert_int_eq(last.each[0], MR_OK);
    ck_assert_ptr_null(fault_s3_find(&s3, "ctrl\x02"));
    static const struct bucket_step no_match[] = {{OP_DELETE, ANSWER_STATUS, 501, 0, NULL}};
    script(STEPS(no_match)); /* a delete without the condition */
    perform(DELETE_IT);
    check_done(DELETE_IT);
    ck_assert(!sent(OP_DELETE, "If-Match"));
}
END_TEST

START_TEST(a_store_closes_while_requests_are_under_way)
{
    static const struct bucket_step steps[] = {{OP_DELETE, STALL_AFTER, 0, 0, NULL},
                                               {OP_PART, STALL_AFTER, 0, 0, NULL}};
    unsigned one = 1;
    s3.no_batch = true;
    script(STEPS(steps));
    fault_s3_put(&s3, "a", data, 10);
    struct mr_store_name name = {"a", 1, 0, NULL};
    ck_assert_ptr_nonnull(mr_transfer_delete_batch(engine, store, &name, 1, on_batch, &one));
    while (s3.count[OP_DELETE] == 0)
        mr_http_step(http, 20, -1);
    ck_assert_ptr_nonnull(mr_store_delete_batch(store, &name, 1, on_batch, &one));
    mr_http_step(http, 0, -1);
}
END_TEST

int main(void)
{
    TCase *one = tcase_create("s3_write");
    tcase_add_checked_fixture(one, s3_setup, s3_teardown);
    tcase_set_timeout(one, 100);
    tcase_add_loop_test(one, one_fault_is_repaired, 0, COUNT(operations) * COUNT(faults));
    tcase_add_test(one, the_same_with_checksums);
    tcase_add_test(one, somebody_else_was_first);
    tcase_add_test(one, what_was_completed_refuses_the_repeat);
    tcase_add_test(one, what_somebody_else_has_written_since_stays);
    tcase_add_test(one, a_look_that_is_refused_once);
    tcase_add_test(one, what_replaces_another_version);
    tcase_add_test(one, what_replaces_a_version_that_is_gone);
    tcase_add_test(one, etags_that_say_nothing);
    tcase_add_test(one, batches);
    tcase_add_test(one, a_store_closes_while_requests_are_under_way);
    return mr_suite_run("s3_write", one);
}
