/* test_transfer_write.c - each request that writes, against a bucket that does each thing wrong: docs/retries.md is its
 * table. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "store_scene.h"
#include "worker/store/http_impl.h"
#include "worker/store/transfer_impl.h"

static void open_for(enum bucket_fault fault)
{
    if (fault == STALL_AFTER)
        open_stalling(fault_server_host(server), 100000, 3000);
}

static struct mr_store_insert_request a_body(const char *body, uint64_t match)
{
    return (struct mr_store_insert_request){.name = "x",
                                            .name_length = 1,
                                            .body = body,
                                            .length = strlen(body),
                                            .crc32c = mr_crc32c(0, body, strlen(body)),
                                            .content_type = "text/plain",
                                            .generation_match = match};
}

static struct answer *insert(const char *body, uint64_t match)
{
    struct mr_store_insert_request request = a_body(body, match);
    return wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL));
}

static struct answer *compose(uint64_t match)
{
    struct mr_store_name sources[2] = {{"one", 3, 0, NULL}, {"two", 3, MR_STORE_ANY, NULL}};
    struct mr_store_compose_request request = {.name = "x",
                                               .name_length = 1,
                                               .sources = sources,
                                               .count = 2,
                                               .generation_match = match,
                                               .has_size = true,
                                               .has_crc32c = true,
                                               .size = 6,
                                               .crc32c = mr_crc32c(0, "onetwo", 6)};
    if (!fault_bucket_find(&bucket, "one"))
        fault_bucket_put(&bucket, "one", "one", 3);
    if (!fault_bucket_find(&bucket, "two"))
        fault_bucket_put(&bucket, "two", "two", 3);
    sources[0].generation = fault_bucket_find(&bucket, "one")->generation;
    return wait_for(mr_transfer_compose(engine, store, &request, on_item, NULL));
}

/* Object "x", in a batch of one: the answer is its own. */
static struct answer *delete_it(uint64_t generation)
{
    unsigned count = 1;
    struct mr_store_name name = {"x", 1, generation, NULL};
    wait_for(mr_transfer_delete_batch(engine, store, &name, 1, on_batch, &count));
    ck_assert_int_eq(last.code, MR_OK);
    last.code = last.each[0];
    memcpy(last.text, last.first_text, sizeof last.text);
    return &last;
}

/* A failure, which names the object. */
static void check_failure(enum mr_code code, const char *text)
{
    check_code(code, text);
    ck_assert_msg(strncmp(last.text, "gs://bucket/", 12) == 0, "%s", last.text);
}

static void check_body(const char *name, const char *body)
{
    struct bucket_object *object = fault_bucket_find(&bucket, name);
    if (!body) {
        ck_assert_ptr_null(object);
        return;
    }
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, strlen(body));
    ck_assert_mem_eq(object->data, body, object->size);
}

/* ---- insert and compose: with a precondition ---- */

/* What is done once: `op` is filled in. looks: stat requests; the object is there afterwards, once. */
static const struct {
    enum bucket_fault fault;
    int status;
    unsigned looks;
} repaired[] = {
    {ANSWER_STATUS, 408, 0}, {ANSWER_STATUS, 429, 0}, {ANSWER_STATUS, 500, 0}, {ANSWER_STATUS, 502, 0},
    {ANSWER_STATUS, 503, 0}, {ANSWER_STATUS, 504, 0}, {RESET_BEFORE, 0, 0},    {RESET_AFTER, 0, 1},
    {SHORT_ANSWER, 0, 1},    {STALL_AFTER, 0, 1},     {DONE_STATUS, 503, 1},   {DONE_STATUS, 500, 1},
};

START_TEST(a_new_object_is_repaired)
{
    open_for(repaired[_i].fault);
    for (int is_compose = 0; is_compose <= 1; is_compose++) {
        enum bucket_op op = is_compose ? OP_COMPOSE : OP_INSERT;
        struct bucket_step step = {op, repaired[_i].fault, repaired[_i].status, 0, NULL};
        play(&step, 1);
        fault_bucket_remove(&bucket, "x");
        unsigned stats = bucket.count[OP_STAT];
        if (is_compose)
            compose(0);
        else
            insert("onetwo", 0);
        check_code(MR_OK, "");
        check_body("x", "onetwo");
        ck_assert_uint_eq(last.generation, fault_bucket_find(&bucket, "x")->generation);
        ck_assert_uint_eq(last.crc32c, mr_crc32c(0, "onetwo", 6));
        ck_assert_uint_eq(bucket.count[op], 2);
        ck_assert_uint_eq(bucket.count[OP_STAT] - stats, repaired[_i].looks);
    }
}
END_TEST

START_TEST(a_replaced_object_is_repaired)
{
    struct bucket_step script[] = {{OP_INSERT, repaired[_i].fault, repaired[_i].status, 0, NULL}};
    uint64_t before = fault_bucket_put(&bucket, "x", "old", 3);
    open_for(repaired[_i].fault);
    play(STEPS(script));
    insert("new", before);
    check_code(MR_OK, "");
    check_body("x", "new");
    ck_assert_uint_eq(bucket.count[OP_INSERT], 2);
    ck_assert_uint_eq(mr_transfer_counters(engine)->retries, 1);
    ck_assert_uint_eq(mr_transfer_counters(engine)->class_a, 2);
    ck_assert_uint_eq(mr_transfer_counters(engine)->class_b, repaired[_i].looks);
}
END_TEST

static const struct {
    enum bucket_fault fault;
    int status;
    enum mr_code code;
    const char *text;
} fatal[] = {
    {ANSWER_STATUS, 400, MR_E_USAGE, "the script says 400"},
    {ANSWER_STATUS, 401, MR_E_DENIED, "storage.objects.create"},
    {ANSWER_STATUS, 403, MR_E_DENIED, "storage.objects.create"},
    {ANSWER_STATUS, 404, MR_E_NOT_FOUND, "check the bucket"},
    {ANSWER_STATUS, 413, MR_E_PROTOCOL, "413"},
    {ANSWER_STATUS, 501, MR_E_PROTOCOL, "501"},
    {ANSWER_STATUS, 301, MR_E_PROTOCOL, "redirects"},
    {GARBAGE, 0, MR_E_PROTOCOL, "not JSON"},
};

START_TEST(what_is_not_repeated)
{
    for (int is_compose = 0; is_compose <= 1; is_compose++) {
        enum bucket_op op = is_compose ? OP_COMPOSE : OP_INSERT;
        struct bucket_step step = {op, fatal[_i].fault, fatal[_i].status, 0, NULL};
        play(&step, 1);
        if (is_compose)
            compose(MR_STORE_ANY);
        else
            insert("onetwo", 0);
        check_failure(fatal[_i].code, fatal[_i].text);
        ck_assert_uint_eq(bucket.count[op], 1);
        ck_assert_uint_eq(bucket.count[OP_STAT], 0);
        ck_assert_uint_eq(mr_transfer_counters(engine)->failures, (unsigned)is_compose + 1);
    }
}
END_TEST

START_TEST(exists_or_changed)
{
    uint64_t there = fault_bucket_put(&bucket, "x", "theirs", 6);
    insert("mine", 0);
    check_failure(MR_E_EXISTS, "exists already");
    insert("mine", there + 7);
    check_failure(MR_E_CHANGED, "another generation");
    ck_assert_uint_eq(bucket.count[OP_INSERT], 2);
    compose(0);
    check_failure(MR_E_EXISTS, "exists already");
    compose(there + 7);
    check_failure(MR_E_CHANGED, "412");
    check_body("x", "theirs");
    /* A source that changed is not taken for the destination. */
    fault_bucket_remove(&bucket, "x");
    static const struct bucket_step script[] = {
        {OP_COMPOSE, WELL, 0, 0, NULL}, {OP_COMPOSE, WELL, 0, 0, NULL}, {OP_COMPOSE, ANSWER_STATUS, 412, 0, NULL}};
    play(STEPS(script));
    compose(0);
    check_failure(MR_E_CHANGED, "a source");
}
END_TEST

START_TEST(somebody_else_was_first)
{
    /* The first answer is lost, and by the second request there is somebody else's object: not ours. */
    static const struct bucket_step script[] = {{OP_INSERT, DONE_TWICE, 0, 0, NULL},
                                                {OP_COMPOSE, DONE_TWICE, 0, 0, NULL}};
    play(STEPS(script));
    insert("mine", 0);
    check_failure(MR_E_EXISTS, "exists already");
    check_body("x", "other");
    fault_bucket_remove(&bucket, "x");
    compose(0);
    check_failure(MR_E_EXISTS, "exists already");
    check_body("x", "other");
    ck_assert_uint_eq(bucket.count[OP_STAT], 2);
}
END_TEST

/* Refused for good, but the request before it may have made the object. */
START_TEST(a_refusal_after_a_lost_answer)
{
    static const struct bucket_step script[] = {{OP_COMPOSE, RESET_AFTER, 0, 0, NULL},
                                                {OP_COMPOSE, ANSWER_STATUS, 403, 0, NULL},
                                                {OP_COMPOSE, ANSWER_STATUS, 429, 0, NULL},
                                                {OP_COMPOSE, ANSWER_STATUS, 403, 0, NULL}};
    play(STEPS(script));
    compose(0);
    check_failure(MR_E_DENIED, "403");
    ck_assert(last.maybe_done);
    check_body("x", "onetwo");
    fault_bucket_remove(&bucket, "x");
    compose(0);
    check_failure(MR_E_DENIED, "403");
    ck_assert(!last.maybe_done);
}
END_TEST

START_TEST(other_bytes_than_were_sent)
{
    static const struct bucket_step script[] = {
        {OP_INSERT, WRONG_CRC, 0, 0, NULL},       {OP_COMPOSE, WRONG_CRC, 0, 0, NULL},
        {OP_DELETE, ANSWER_STATUS, 503, 0, NULL}, {OP_DELETE, WELL, 0, 0, NULL},
        {OP_DELETE, ANSWER_STATUS, 403, 0, NULL}, {OP_INSERT, WRONG_CRC, 0, 0, NULL}};
    play(STEPS(script));
    insert("mine", 0);
    check_failure(MR_E_CORRUPT, "deleted again");
    check_body("x", NULL);
    ck_assert_uint_eq(bucket.count[OP_DELETE], 2);
    compose(0);
    check_failure(MR_E_CORRUPT, "that failed");
    ck_assert_uint_eq(bucket.count[OP_DELETE], 3);
    fault_bucket_remove(&bucket, "x");
    insert("mine", MR_STORE_ANY);
    check_failure(MR_E_CORRUPT, "deleted again");
    check_body("x", NULL);
    ck_assert_uint_eq(mr_transfer_counters(engine)->crc_errors, 3);
}
END_TEST

START_TEST(other_bytes_that_stay)
{
    static struct bucket_step script[1000] = {{OP_INSERT, WRONG_CRC, 0, 0, NULL}};
    for (int i = 1; i < 1000; i++)
        script[i] = (struct bucket_step){OP_DELETE, ANSWER_STATUS, 503, 0, NULL};
    open_store(fault_server_host(server), 100);
    play(STEPS(script));
    insert("mine", 0);
    check_failure(MR_E_CORRUPT, "was deleted again (that failed: gs://bucket/x: ");
    check_body("x", "mine");
}
END_TEST

START_TEST(an_object_that_cannot_be_looked_up)
{
    static const struct bucket_step script[] = {{OP_INSERT, RESET_AFTER, 0, 0, NULL},
                                                {OP_STAT, ANSWER_STATUS, 503, 0, NULL},
                                                {OP_STAT, ANSWER_STATUS, 403, 0, NULL}};
    play(STEPS(script));
    insert("mine", 0);
    check_failure(MR_E_DENIED, "403");
    ck_assert_uint_eq(bucket.count[OP_STAT], 2);
}
END_TEST

/* ---- without a precondition ---- */

static const struct {
    enum bucket_fault fault;
    int status;
    enum mr_code code;
} once[] = {
    {ANSWER_STATUS, 408, MR_E_BUSY}, {ANSWER_STATUS, 429, MR_E_BUSY}, {ANSWER_STATUS, 503, MR_E_BUSY},
    {RESET_BEFORE, 0, MR_E_NET},     {RESET_AFTER, 0, MR_E_NET},      {SHORT_ANSWER, 0, MR_E_NET},
    {STALL_AFTER, 0, MR_E_TIMEOUT},
};

START_TEST(without_a_precondition_nothing_is_repeated)
{
    struct bucket_step script[] = {{OP_INSERT, WELL, 0, 0, NULL},
                                   {OP_INSERT, once[_i].fault, once[_i].status, 0, NULL},
                                   {OP_COMPOSE, once[_i].fault, once[_i].status, 0, NULL},
                                   {OP_BATCH, once[_i].fault, once[_i].status, 0, NULL}};
    play(STEPS(script));
    open_for(once[_i].fault);
    insert("one", MR_STORE_ANY);
    check_code(MR_OK, "");
    insert("two", MR_STORE_ANY);
    check_failure(once[_i].code, "");
    compose(MR_STORE_ANY);
    check_failure(once[_i].code, "");
    fault_bucket_put(&bucket, "x", "x", 1);
    delete_it(_i % 2 ? MR_STORE_ANY : 0);
    check_failure(once[_i].code, "");
    ck_assert_uint_eq(bucket.count[OP_INSERT], 2);
    ck_assert_uint_eq(bucket.count[OP_COMPOSE], 1);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 1);
    /* Each on a connection of its own: one that had died in the meantime would look the same. */
    ck_assert_uint_eq(bucket.seen_on_conn[OP_INSERT] + bucket.seen_on_conn[OP_COMPOSE] + bucket.seen_on_conn[OP_BATCH],
                      0);
    ck_assert_uint_eq(mr_transfer_counters(engine)->retries, 0);
}
END_TEST

START_TEST(what_never_left_is_repeated)
{
    char host[32];
    struct fault_server *other = fault_server_start(fault_bucket_handle, &bucket);
    snprintf(host, sizeof host, "%s", fault_server_host(other));
    fault_server_stop(other); /* nobody listens there */
    open_store(host, 1000);
    insert("one", MR_STORE_ANY);
    check_failure(MR_E_NET, "requests)");
    ck_assert_uint_gt(mr_transfer_counters(engine)->retries, 0);
}
END_TEST

/* ---- deletes ---- */

static struct mr_store_name names[MR_STORE_BATCH_MAX];
static char texts[MR_STORE_BATCH_MAX][16];

static void put_names(unsigned count, uint64_t generation)
{
    for (unsigned i = 0; i < count; i++) {
        snprintf(texts[i], sizeof texts[i], "n/%u &", i);
        uint64_t there = fault_bucket_put(&bucket, texts[i], "x", 1);
        names[i] =
            (struct mr_store_name){texts[i], strlen(texts[i]), generation == MR_STORE_ANY ? generation : there, NULL};
    }
}

static void delete_names(unsigned count)
{
    wait_for(mr_transfer_delete_batch(engine, store, names, count, on_batch, &count));
    ck_assert_int_eq(last.code, MR_OK);
}

static unsigned names_left(unsigned count)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        left += fault_bucket_find(&bucket, texts[i]) != NULL;
    return left;
}

START_TEST(a_batch_is_repaired)
{
    struct bucket_step script[] = {{OP_BATCH, repaired[_i].fault, repaired[_i].status, 0, NULL}};
    open_for(repaired[_i].fault);
    insert("mine", 0); /* the connection is an old one, on which libcurl alone would send a second time */
    play(STEPS(script));
    put_names(100, 0);
    delete_names(100);
    for (unsigned i = 0; i < 100; i++)
        ck_assert_int_eq(last.each[i], MR_OK);
    ck_assert_uint_eq(names_left(100), 0);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 2);
    ck_assert_uint_eq(bucket.count[OP_STAT], 0);
    ck_assert_uint_eq(mr_transfer_counters(engine)->deletes, 200);
}
END_TEST

START_TEST(deletes_that_fail)
{
    static const struct bucket_step script[] = {{OP_BATCH, WELL, 0, 0, NULL},
                                                {OP_BATCH, WELL, 0, 0, NULL},
                                                {OP_BATCH, PART_STATUS, 403, 0, NULL},
                                                {OP_BATCH, PART_STATUS, 429, 0, NULL}};
    play(STEPS(script));
    delete_it(1);
    check_failure(MR_E_NOT_FOUND, "404");
    uint64_t there = fault_bucket_put(&bucket, "x", "x", 1);
    delete_it(there + 1);
    check_failure(MR_E_CHANGED, "another generation");
    delete_it(there);
    check_failure(MR_E_DENIED, "storage.objects.delete");
    ck_assert_uint_eq(bucket.count[OP_BATCH], 3);
    delete_it(there + 1); /* a 429 was not done: the 412 after it is no echo */
    check_failure(MR_E_CHANGED, "another generation");
    ck_assert_uint_eq(bucket.count[OP_BATCH], 5);
}
END_TEST

START_TEST(parts_of_a_batch)
{
    static const struct bucket_step script[] = {
        {OP_BATCH, PART_STATUS, 503, 0, NULL}, {OP_BATCH, LEAVE_OUT, 0, 0, NULL},
        {OP_BATCH, WELL, 0, 0, NULL},          {OP_BATCH, WELL, 0, 0, NULL},
        {OP_BATCH, PART_STATUS, 403, 0, NULL}, {OP_BATCH, PART_STATUS, 503, 0, NULL}};
    play(STEPS(script));
    put_names(5, 0);
    names[1].generation++;
    fault_bucket_put(&bucket, "gone", "x", 1);
    names[2].name = "never";
    names[2].name_length = 5;
    delete_names(5); /* 0 again; done, but left out; then it is gone */
    ck_assert_uint_eq(bucket.count[OP_BATCH], 3);
    for (unsigned i = 0; i < 5; i++)
        ck_assert_int_eq(last.each[i], i == 1 ? MR_E_CHANGED : i == 2 ? MR_E_NOT_FOUND : MR_OK);
    ck_assert_uint_eq(names_left(5), 2);
    put_names(1, 0);
    delete_names(1);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 4);
    put_names(2, 0);
    delete_names(2);
    ck_assert_int_eq(last.each[0], MR_E_DENIED);
    ck_assert_int_eq(last.each[1], MR_OK);
    put_names(2, MR_STORE_ANY);
    delete_names(2);
    ck_assert_int_eq(last.each[0], MR_E_BUSY); /* no precondition, no repeat */
    ck_assert_int_eq(last.each[1], MR_OK);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 6);
}
END_TEST

/* Names that are refused for the rate of requests come in smaller batches, which grow again. */
START_TEST(batches_that_are_too_much)
{
    static const struct bucket_step script[] = {
        {OP_BATCH, PART_STATUS, 429, 0, NULL}, {OP_BATCH, WELL, 0, 0, NULL}, {OP_BATCH, WELL, 0, 0, NULL},
        {OP_BATCH, WELL, 0, 0, NULL},          {OP_BATCH, WELL, 0, 0, NULL}, {OP_BATCH, PART_STATUS, 429, 0, NULL}};
    play(STEPS(script));
    put_names(5, 0);
    delete_names(5); /* 4 of 5, and the one */
    ck_assert_uint_eq(names_left(5), 0);
    ck_assert_uint_eq(mr_transfer_counters(engine)->deletes, 6);
    put_names(11, 0);
    delete_names(11); /* 4, 5, 2 */
    ck_assert_uint_eq(names_left(11), 0);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 2 + 3);
    ck_assert_uint_eq(mr_transfer_counters(engine)->deletes, 6 + 11);
    put_names(1, 0);
    delete_names(1); /* that none was taken says the same */
    ck_assert_uint_eq(bucket.count[OP_BATCH], 5 + 2);
    put_names(100, 0);
    delete_names(100); /* 2, 3, ... 13, 10 */
    for (unsigned i = 0; i < 100; i++)
        ck_assert_int_eq(last.each[i], MR_OK);
    ck_assert_uint_eq(names_left(100), 0);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 7 + 13);
}
END_TEST

/* The deadline ends a batch of which some were not sent: each error is of its own name. */
START_TEST(a_batch_that_is_not_sent_whole)
{
    static struct bucket_step script[1000];
    for (int i = 0; i < 1000; i++)
        script[i] = (struct bucket_step){OP_BATCH, i == 0 ? PART_STATUS : ANSWER_STATUS, 429, 0, NULL};
    open_store(fault_server_host(server), 100);
    double before = engine->rate.endured;
    play(STEPS(script));
    put_names(2, 0);
    delete_names(2); /* one fits from now on */
    ck_assert_int_eq(last.each[1], MR_OK);
    /* What is refused whole counts against the rate, also after a part was done. */
    ck_assert(engine->rate.limit > 0 || engine->rate.endured < before);
    put_names(2, 0);
    delete_names(2);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_int_eq(last.each[i], MR_E_BUSY);
    ck_assert_msg(strncmp(last.last_text, "gs://bucket/n/1 &: the deletion was not sent: gs://bucket: ", 30) == 0, "%s",
                  last.last_text);
    ck_assert_ptr_nonnull(strstr(last.last_text, "429"));
}
END_TEST

START_TEST(no_batches_there)
{
    static const int status[] = {404, 405, 501};
    struct bucket_step script[] = {{OP_BATCH, ANSWER_STATUS, status[_i], 0, NULL},
                                   {OP_DELETE, ANSWER_STATUS, 503, 0, NULL}};
    play(STEPS(script));
    put_names(7, 0);
    delete_names(7);
    for (unsigned i = 0; i < 7; i++)
        ck_assert_int_eq(last.each[i], MR_OK);
    ck_assert_uint_eq(bucket.count[OP_DELETE], 8);
    put_names(3, 0);
    delete_names(3);
    ck_assert_uint_eq(names_left(7), 0);
    ck_assert_uint_eq(bucket.count[OP_BATCH], 1); /* remembered */
}
END_TEST

START_TEST(a_batch_that_is_refused)
{
    static const struct bucket_step script[] = {
        {OP_BATCH, ANSWER_STATUS, 403, 0, NULL}, {OP_BATCH, GARBAGE, 0, 0, NULL}, {OP_BATCH, RESET_BEFORE, 0, 0, NULL}};
    play(STEPS(script));
    put_names(3, 0);
    delete_names(3);
    ck_assert_int_eq(last.each[2], MR_E_DENIED);
    delete_names(3);
    ck_assert_int_eq(last.each[2], MR_E_PROTOCOL);
    put_names(3, 0); /* the garbage came from a server that had done it */
    names[0].generation = names[1].generation = MR_STORE_ANY;
    delete_names(3); /* what has a precondition is repeated, what has none is not */
    ck_assert_int_eq(last.each[0], MR_E_NET);
    ck_assert_int_eq(last.each[1], MR_E_NET);
    ck_assert_int_eq(last.each[2], MR_OK);
    ck_assert_uint_eq(names_left(3), 2);
}
END_TEST

/* ---- what is sent ---- */

START_TEST(the_requests)
{
    open_store(fault_server_host(server), 1000);
    struct mr_store_insert_request request = a_body("body", 5);
    request.name = "a/b \"\xc3\xa9\\\x01";
    request.name_length = strlen(request.name);
    wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL));
    ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_INSERT], "&name=a%2Fb%20%22%C3%A9%5C%01&ifGenerationMatch=5"));
    ck_assert_ptr_nonnull(strstr(bucket.last_body[OP_INSERT], "\"name\":\"a/b \\\"\xc3\xa9\\\\\\u0001\""));
    ck_assert_ptr_nonnull(strstr(bucket.last_body[OP_INSERT], "\"contentType\":\"text/plain\""));
    compose(7);
    ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_COMPOSE], "/o/x/compose?"));
    ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_COMPOSE], "&ifGenerationMatch=7"));
    char wanted[200];
    unsigned long long one = fault_bucket_find(&bucket, "one")->generation;
    snprintf(wanted, sizeof wanted,
             "{\"name\":\"one\",\"generation\":%llu,\"objectPreconditions\":{\"ifGenerationMatch\":%llu}},{\"name\":"
             "\"two\"}",
             one, one);
    ck_assert_ptr_nonnull(strstr(bucket.last_body[OP_COMPOSE], wanted));
    delete_it(9);
    ck_assert_ptr_nonnull(strstr(bucket.last_body[OP_BATCH], "/o/x?alt=json&ifGenerationMatch=9"));
    delete_it(0);
    ck_assert_ptr_null(strstr(bucket.last_body[OP_BATCH], "ifGenerationMatch"));
}
END_TEST

START_TEST(what_cannot_be_asked_for)
{
    struct mr_store_insert_request request = a_body("body", 0);
    request.name_length = 0;
    ck_assert_ptr_null(mr_store_insert(store, &request, on_item, NULL));
    request.name_length = 1;
    request.content_type = "text/plain\r\nX-Evil: 1";
    ck_assert_ptr_null(mr_store_insert(store, &request, on_item, NULL));
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    wait_for(mr_transfer_insert(engine, store, &request, on_item, NULL)); /* a transfer says so later */
    ck_assert_int_eq(last.code, MR_E_USAGE);
    ck_assert_ptr_null(mr_transfer_delete_batch(engine, store, names, 0, on_batch, NULL));
    ck_assert_ptr_null(mr_transfer_delete_batch(engine, store, names, 101, on_batch, NULL));
    struct mr_store_compose_request many = {.name = "x", .name_length = 1, .sources = names, .count = 33};
    ck_assert_ptr_null(mr_transfer_compose(engine, store, &many, on_item, NULL));
    ck_assert_ptr_null(mr_transfer_permissions(engine, store, NULL, 17, on_permissions, NULL));
    ck_assert_uint_eq(fault_server_connections(server), 0);
}
END_TEST

START_TEST(cancelled)
{
    static const struct bucket_step script[] = {{OP_INSERT, STALL_AFTER, 0, 0, NULL},
                                                {OP_COMPOSE, STALL_AFTER, 0, 0, NULL}};
    struct mr_store_insert_request request = a_body("mine", 0);
    play(STEPS(script));
    memset(&last, 0, sizeof last);
    struct mr_transfer *transfer = mr_transfer_insert(engine, store, &request, on_item, NULL);
    while (bucket.count[OP_INSERT] == 0)
        ck_assert_int_ge(mr_http_step(http, 5, -1), 0);
    mr_transfer_cancel(engine, transfer);
    put_names(2, 0);
    unsigned count = 2;
    mr_transfer_cancel(engine, mr_transfer_delete_batch(engine, store, names, 2, on_batch, &count));
    ck_assert_ptr_nonnull(mr_transfer_delete_batch(engine, store, names, 2, on_batch, &count));
    mr_transfer_destroy(engine); /* with all that is under way */
    engine = NULL;
    open_store(fault_server_host(server), 1000);
    insert("more", MR_STORE_ANY);
    check_code(MR_OK, "");
}
END_TEST

/* ---- the bucket ---- */

START_TEST(questions_about_the_bucket)
{
    static const char *const asked[] = {"storage.objects.get", "storage.objects.delete", "storage.objects.create"};
    static const struct bucket_step script[] = {{OP_BUCKET, ANSWER_STATUS, 503, 0, NULL},
                                                {OP_BUCKET, RESET_BEFORE, 0, 0, NULL},
                                                {OP_BUCKET, WELL, 0, 0, NULL},
                                                {OP_BUCKET, ANSWER_STATUS, 403, 0, NULL},
                                                {OP_BUCKET, GARBAGE, 0, 0, NULL},
                                                {OP_PERMISSIONS, RESET_BEFORE, 0, 0, NULL},
                                                {OP_PERMISSIONS, WELL, 0, 0, NULL},
                                                {OP_PERMISSIONS, ANSWER_STATUS, 404, 0, NULL}};
    play(STEPS(script));
    wait_for(mr_transfer_bucket(engine, store, on_bucket, NULL));
    check_code(MR_OK, "");
    ck_assert_str_eq(last.storage_class, "NEARLINE/US-EAST1/region");
    ck_assert(last.bucket.hierarchical && !last.bucket.versioning && last.bucket.requester_pays &&
              last.bucket.autoclass);
    ck_assert_uint_eq(last.bucket.soft_delete_s, 604800);
    wait_for(mr_transfer_bucket(engine, store, on_bucket, NULL));
    check_failure(MR_E_DENIED, "403");
    wait_for(mr_transfer_bucket(engine, store, on_bucket, NULL));
    check_failure(MR_E_PROTOCOL, "not JSON");
    wait_for(mr_transfer_permissions(engine, store, asked, 3, on_permissions, NULL));
    check_code(MR_OK, "");
    ck_assert_uint_eq(last.granted, 5);
    wait_for(mr_transfer_permissions(engine, store, asked, 3, on_permissions, NULL));
    check_failure(MR_E_NOT_FOUND, "404");
}
END_TEST

/* The time in which a body was sent is not time without progress; that of the answer and of waits is. */
START_TEST(a_body_that_takes_longer_than_the_deadline)
{
    static const struct bucket_step busy[] = {{OP_INSERT, ANSWER_STATUS, 503, 0, NULL}};
    const int64_t took_ns = 200 * MR_SECOND_NS; /* the deadline is 100 s */
    static char body[(16u << 20) + 1];
    memset(body, 'b', sizeof body - 1);
    for (unsigned sends = 0; sends < 2; sends++) {
        struct mr_store_insert_request request = a_body(body, 0);
        bucket.count[OP_INSERT] = 0;
        play(STEPS(busy));
        struct mr_transfer *transfer = mr_transfer_insert(engine, store, &request, on_item, NULL);
        ck_assert_ptr_nonnull(transfer);
        while (!http->active)
            ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
        ck_assert_uint_lt(http->active->body_at, sizeof body / 2);
        transfer->progress_ns -= took_ns;
        if (sends)
            http->active->started_ran_ns -= took_ns;
        wait_for(transfer);
        if (sends)
            check_code(MR_OK, "");
        else
            check_failure(MR_E_BUSY, "503");
        ck_assert_uint_eq(bucket.count[OP_INSERT], 1 + sends);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_write");
    TCase *tc = tcase_create("write");
    tcase_add_checked_fixture(tc, scene_bucket_setup, scene_bucket_teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_new_object_is_repaired, 0, COUNT(repaired));
    tcase_add_loop_test(tc, a_replaced_object_is_repaired, 0, COUNT(repaired));
    tcase_add_loop_test(tc, what_is_not_repeated, 0, COUNT(fatal));
    tcase_add_test(tc, exists_or_changed);
    tcase_add_test(tc, somebody_else_was_first);
    tcase_add_test(tc, a_refusal_after_a_lost_answer);
    tcase_add_test(tc, other_bytes_than_were_sent);
    tcase_add_test(tc, other_bytes_that_stay);
    tcase_add_test(tc, an_object_that_cannot_be_looked_up);
    tcase_add_loop_test(tc, without_a_precondition_nothing_is_repeated, 0, COUNT(once));
    tcase_add_test(tc, what_never_left_is_repeated);
    tcase_add_test(tc, a_body_that_takes_longer_than_the_deadline);
    tcase_add_test(tc, deletes_that_fail);
    tcase_add_loop_test(tc, a_batch_is_repaired, 0, COUNT(repaired));
    tcase_add_test(tc, parts_of_a_batch);
    tcase_add_test(tc, batches_that_are_too_much);
    tcase_add_test(tc, a_batch_that_is_not_sent_whole);
    tcase_add_loop_test(tc, no_batches_there, 0, 3);
    tcase_add_test(tc, a_batch_that_is_refused);
    tcase_add_test(tc, the_requests);
    tcase_add_test(tc, what_cannot_be_asked_for);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, questions_about_the_bucket);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
