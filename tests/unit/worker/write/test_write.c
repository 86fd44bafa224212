/* test_write.c - the write role's lanes against a bucket that does each thing wrong: one part, and parts of the XML
 * API. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "fault_bucket.h"
#include "worker/write/write_impl.h"
#include "write_scene.h"

#define STEPS(array) (array), sizeof(array) / sizeof *(array)
#define COUNT(table) (int)(sizeof(table) / sizeof *(table))
#define URI          "gs://bucket/ckpt/step 1.pt"
#define NAME         "ckpt/step 1.pt"

static unsigned char data[45 * SCENE_PART];
static struct fault_bucket bucket;
static struct fault_server *server;
static struct scene scene;

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    scene_make_runtime();
    fault_bucket_init(&bucket);
    server = fault_server_start(fault_bucket_handle, &bucket);
}

static void teardown(void)
{
    fault_server_stop(server);
    fault_bucket_close(&bucket);
    scene_remove_runtime();
}

static void check_stored(uint64_t size)
{
    const struct bucket_object *object = fault_bucket_find(&bucket, NAME);
    ck_assert_msg(scene.outcome == MR_CKPT_PART_DONE, "%s", scene.text);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, size);
    ck_assert_mem_eq(object->data, data, size);
    ck_assert_uint_eq(object->generation, scene.generation);
    ck_assert_uint_eq(scene.crc32c, mr_crc32c(0, data, size));
}

/* No temporary object, no unfinished upload. */
static void check_nothing_left(void)
{
    for (unsigned i = 0; i < BUCKET_OBJECTS; i++)
        ck_assert_msg(!bucket.objects[i].data || strcmp(bucket.objects[i].name, NAME) == 0, "%s is left",
                      bucket.objects[i].name);
    for (unsigned i = 0; i < 16; i++) /* one whose id was never known has no parts: millrace clean */
        ck_assert(!bucket.sessions[i].used || bucket.sessions[i].gone || !bucket.sessions[i].part[1]);
}

/* The same, where requests were broken off: some may arrive after all, and the next worker of the slot removes what
 * they made. */
static void check_nothing_left_later(void)
{
    fault_server_settle(server);
    scene_look_again(&scene, "bucket");
    check_nothing_left();
}

/* What is asked for, and so the way that more than one part takes. */
enum way { NEW_NAME, OLD_NAME, IF_ABSENT, NO_XML, WAYS };
static const struct bucket_step no_xml[] = {{OP_INITIATE, ANSWER_STATUS, 404, 0, NULL}};

static void open_way(enum way way, uint64_t size)
{
    scene_open(&scene, fault_server_host(server), URI, data, size);
    scene.if_absent = way == IF_ABSENT;
    if (way == OLD_NAME)
        fault_bucket_put(&bucket, NAME, "the old one", 11);
    if (way == NO_XML) {
        bucket.script = no_xml;
        bucket.steps = 1;
    }
}

static const uint64_t sizes[] = {
    0, 1, SCENE_PART - 1, SCENE_PART, SCENE_PART + 1, 40 * SCENE_PART, 40 * SCENE_PART + 7};

START_TEST(objects_of_all_sizes)
{
    uint64_t parts = (sizes[_i % COUNT(sizes)] + SCENE_PART - 1) / SCENE_PART;
    enum way way = (enum way)(_i / COUNT(sizes));
    open_way(way, sizes[_i % COUNT(sizes)]);
    scene_write(&scene);
    check_stored(scene.size);
    check_nothing_left();
    ck_assert_uint_eq(bucket.count[OP_INSERT] + bucket.count[OP_PART], parts ? parts : 1);
    ck_assert_uint_eq(bucket.count[OP_INITIATE], parts > 1 && (way == NEW_NAME || way == NO_XML));
    ck_assert_uint_eq(bucket.count[OP_COMPLETE], parts > 1 && way == NEW_NAME);
    ck_assert_uint_eq(bucket.count[OP_COMPOSE],
                      parts <= 1 || way == NEW_NAME ? 0 : (parts <= 32 ? 1u : 3u) + (way == OLD_NAME));
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_UPLOADS_DONE), 1);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_PARTS), parts);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_PART_BYTES), scene.size);
    scene_close(&scene);
}
END_TEST

static unsigned requests(void)
{
    unsigned sum = 0;
    pthread_mutex_lock(&bucket.lock);
    for (int i = 0; i < OP_COUNT; i++)
        sum += bucket.count[i];
    pthread_mutex_unlock(&bucket.lock);
    return sum;
}

/* The worker dies once the bucket has seen n requests, and its successor after as many more. */
static void write_with_deaths(unsigned n)
{
    for (int life = 0; life < 2; life++) {
        unsigned before = requests();
        scene_start(&scene);
        while (requests() < before + n && !mr_write_lane_is_ended(scene.worker))
            scene_step(&scene, 1);
        scene_die(&scene);
    }
    scene_write(&scene);
}

START_TEST(a_worker_that_dies)
{
    enum way way = (enum way)(_i % WAYS);
    open_way(way, (_i / WAYS) % 3 == 2 ? SCENE_PART : 40 * SCENE_PART - 3);
    write_with_deaths((unsigned)(_i / WAYS));
    check_nothing_left_later();
    check_stored(scene.size);
    ck_assert_uint_le(bucket.count[OP_PART], 40 + 2 * SCENE_SLOTS); /* only what was under way is sent again */
    scene_close(&scene);
}
END_TEST

static void check_failed(enum mr_code code, const char *text);

/* The worker dies where its last request is noted in the lane and was not sent, and somebody else writes as many other bytes under the
 * name: to the successor that object is not its own. An upload in parts replaces it, as it does any; whatever has a
 * precondition fails. */
START_TEST(somebody_elses_object_of_the_same_size)
{
    static unsigned char theirs[9 * SCENE_PART];
    enum way way = (enum way)(_i % WAYS);
    uint64_t size = _i < WAYS ? 9 * SCENE_PART : SCENE_PART - 1;
    open_way(way, size);
    scene.stop = true;
    scene_start(&scene);
    while (!mr_ckpt_part_complete_sent(&scene.lane))
        scene_step(&scene, 1);
    scene_die(&scene);
    fault_server_settle(server);
    scene.stop = false;
    pthread_mutex_lock(&bucket.lock);
    fault_bucket_put(&bucket, NAME, theirs, size);
    pthread_mutex_unlock(&bucket.lock);
    scene_start(&scene);
    scene_run(&scene);
    scene_leave(&scene);
    if (way == NEW_NAME && size > SCENE_PART) {
        check_stored(size);
    } else {
        check_failed(way == IF_ABSENT ? MR_E_EXISTS : MR_E_CHANGED, "gs://bucket/" NAME);
        ck_assert_mem_eq(fault_bucket_find(&bucket, NAME)->data, theirs, size);
    }
    scene_close(&scene);
}
END_TEST

/* ---- faults ---- */

static void check_failed(enum mr_code code, const char *text)
{
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_FAILED);
    ck_assert_msg(scene.code == (uint32_t)code, "%s: %s", mr_code_name(scene.code), scene.text);
    ck_assert_msg(strstr(scene.text, text) != NULL, "\"%s\" is not in: %s", text, scene.text);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_UPLOADS_FAILED), 1);
    check_nothing_left_later();
}

/* Behind an upload that failed: what was there before is there, or nothing is. */
static void check_old(enum way way)
{
    const struct bucket_object *object = fault_bucket_find(&bucket, NAME);
    if (way != OLD_NAME) {
        ck_assert_ptr_null(object);
        return;
    }
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, 11);
}

static const struct bucket_step repaired[] = {
    {OP_STAT, ANSWER_STATUS, 503, 0, NULL},     {OP_INSERT, ANSWER_STATUS, 429, 0, NULL},
    {OP_INSERT, ANSWER_STATUS, 500, 0, NULL},   {OP_INSERT, RESET_BEFORE, 0, 0, NULL},
    {OP_INSERT, RESET_AFTER, 0, 0, NULL},       {OP_INSERT, SHORT_ANSWER, 0, 0, NULL},
    {OP_PART, ANSWER_STATUS, 503, 0, NULL},     {OP_PART, RESET_AFTER, 0, 0, NULL},
    {OP_INITIATE, ANSWER_STATUS, 503, 0, NULL}, {OP_COMPLETE, ANSWER_STATUS, 503, 0, NULL},
    {OP_COMPLETE, RESET_AFTER, 0, 0, NULL},     {OP_COMPLETE, RESET_BEFORE, 0, 0, NULL},
    {OP_COMPLETE, SHORT_ANSWER, 0, 0, NULL},    {OP_COMPOSE, ANSWER_STATUS, 503, 0, NULL},
    {OP_COMPOSE, RESET_AFTER, 0, 0, NULL},      {OP_COMPOSE, DONE_STATUS, 500, 0, NULL},
    {OP_COMPOSE, RESET_BEFORE, 0, 0, NULL},     {OP_BATCH, ANSWER_STATUS, 503, 0, NULL},
    {OP_BATCH, RESET_AFTER, 0, 0, NULL},
};
static const uint64_t fault_sizes[] = {SCENE_PART - 1, 5 * SCENE_PART + 1, 36 * SCENE_PART};

START_TEST(one_fault_is_repaired)
{
    struct bucket_step script[2] = {repaired[_i]};
    for (int way = 0; way < WAYS; way++)
        for (int size = 0; size < COUNT(fault_sizes); size++) {
            fault_bucket_close(&bucket);
            fault_bucket_init(&bucket);
            open_way((enum way)way, fault_sizes[size]);
            script[1] = no_xml[0];
            bucket.script = script;
            bucket.steps = way == NO_XML ? 2 : 1;
            scene_write(&scene);
            check_stored(scene.size);
            check_nothing_left();
            scene_close(&scene);
        }
}
END_TEST

/* Every request fails a few times. */
START_TEST(a_storm)
{
    static struct bucket_step script[OP_COUNT * 6];
    for (unsigned i = 0; i < OP_COUNT * 6; i++)
        script[i] = (struct bucket_step){(enum bucket_op)(i % OP_COUNT), ANSWER_STATUS, i % 2 ? 503 : 408, 0, NULL};
    open_way((enum way)(_i % 3), fault_sizes[_i / 3]);
    bucket.script = script;
    bucket.steps = OP_COUNT * 6;
    scene_write(&scene);
    check_stored(scene.size);
    check_nothing_left();
    scene_close(&scene);
}
END_TEST

static const struct {
    struct bucket_step step;
    uint64_t size;
    bool parts; /* by the way of NEW_NAME, or by all others */
    enum mr_code code;
    const char *text;
} fatal[] = {
    {{OP_STAT, ANSWER_STATUS, 403, 0, NULL}, 1, true, MR_E_DENIED, "403"},
    {{OP_STAT, ANSWER_STATUS, 403, 0, NULL}, 1, false, MR_E_DENIED, "403"},
    {{OP_INSERT, ANSWER_STATUS, 403, 0, NULL}, 1, true, MR_E_DENIED, "403"},
    {{OP_INSERT, ANSWER_STATUS, 401, 0, NULL}, 1, false, MR_E_DENIED, "401"},
    {{OP_INSERT, ANSWER_STATUS, 412, 0, NULL}, 1, true, MR_E_CHANGED, "another writer"},
    {{OP_INSERT, ANSWER_STATUS, 403, 0, NULL}, 5 * SCENE_PART, false, MR_E_DENIED, "403"},
    {{OP_INSERT, ANSWER_STATUS, 400, 0, NULL}, 36 * SCENE_PART, false, MR_E_USAGE, "400"},
    {{OP_INITIATE, ANSWER_STATUS, 403, 0, NULL}, 5 * SCENE_PART, true, MR_E_DENIED, "403"},
    {{OP_PART, ANSWER_STATUS, 404, 0, NULL}, 5 * SCENE_PART, true, MR_E_NOT_FOUND, "unfinished upload"},
    {{OP_PART, ANSWER_STATUS, 401, 0, NULL}, 5 * SCENE_PART, true, MR_E_DENIED, "401"},
    {{OP_COMPLETE, ANSWER_STATUS, 404, 0, NULL}, 5 * SCENE_PART, true, MR_E_NOT_FOUND, "unfinished upload"},
    {{OP_COMPLETE, ANSWER_STATUS, 403, 0, NULL}, 5 * SCENE_PART, true, MR_E_DENIED, "403"},
    {{OP_COMPLETE, WRONG_CRC, 0, 0, NULL}, 5 * SCENE_PART, true, MR_E_CORRUPT, "deleted again"},
    {{OP_COMPOSE, ANSWER_STATUS, 404, 0, NULL}, 5 * SCENE_PART, false, MR_E_CHANGED, "temporary part of it is missing"},
    {{OP_COMPOSE, ANSWER_STATUS, 403, 0, NULL}, 36 * SCENE_PART, false, MR_E_DENIED, "403"},
    {{OP_COMPOSE, WRONG_CRC, 0, 0, NULL}, 5 * SCENE_PART, false, MR_E_CORRUPT, "deleted again"},
    {{OP_COMPOSE, WRONG_CRC, 0, 0, NULL}, 36 * SCENE_PART, false, MR_E_CORRUPT, "deleted again"},
};

START_TEST(one_fault_is_fatal)
{
    for (int i = 0; i < WAYS; i++) {
        enum way way = (enum way)i;
        struct bucket_step script[2] = {fatal[_i].step, no_xml[0]};
        if (fatal[_i].parts ? way != NEW_NAME : way == NEW_NAME)
            continue;
        fault_bucket_close(&bucket);
        fault_bucket_init(&bucket);
        open_way(way, fatal[_i].size);
        bucket.script = script;
        bucket.steps = way == NO_XML ? 2 : 1;
        scene_write(&scene);
        check_failed(fatal[_i].code, fatal[_i].text);
        ck_assert_msg(strstr(scene.text, "gs://bucket/") != NULL, "%s", scene.text);
        check_old(way);
        ck_assert_uint_eq(scene_open_uploads(), 0);
        scene_close(&scene);
    }
}
END_TEST

/* The store does not say whether it began it: that is waited for, and where it takes too long a record says so. */
START_TEST(an_upload_that_does_not_begin)
{
    static const struct bucket_step script[] = {{OP_INITIATE, STALL_AFTER, 0, 0, NULL}};
    open_way(NEW_NAME, 9 * SCENE_PART);
    bucket.script = script;
    bucket.steps = 1;
    scene.hold = true;
    scene_start(&scene);
    while (bucket.count[OP_INITIATE] == 0)
        scene_step(&scene, 1);
    mr_write_lane_abort(scene.worker);
    scene_step(&scene, 1);
    ck_assert(!mr_write_lane_is_ended(scene.worker));
    mr_write_lane_step(scene.worker, INT64_MAX);
    scene_run(&scene);
    scene_leave(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    ck_assert_uint_eq(scene_open_uploads(), 1);
    scene_close(&scene);
}
END_TEST

START_TEST(somebody_else_writes_it)
{
    enum way way = (enum way)(1 + _i % 3);
    open_way(way, _i < 3 ? 5 * SCENE_PART : 36 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (mr_counter_get(scene.counters, MR_WC_PARTS) == 0)
        scene_step(&scene, 20);
    pthread_mutex_lock(&bucket.lock);
    fault_bucket_put(&bucket, NAME, "somebody's", 10);
    pthread_mutex_unlock(&bucket.lock);
    scene.hold = false;
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(way == IF_ABSENT ? MR_E_EXISTS : MR_E_CHANGED, "gs://bucket/" NAME);
    ck_assert_uint_eq(fault_bucket_find(&bucket, NAME)->size, 10);
    scene_close(&scene);
}
END_TEST

START_TEST(it_must_not_be_there)
{
    static const uint64_t some[] = {0, SCENE_PART, 40 * SCENE_PART};
    scene_open(&scene, fault_server_host(server), URI, data, some[_i]);
    scene.if_absent = true;
    fault_bucket_put(&bucket, NAME, "the old one", 11);
    scene_start(&scene);
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(MR_E_EXISTS, URI ": it exists already");
    ck_assert_uint_eq(bucket.count[OP_INSERT] + bucket.count[OP_PART], 0); /* nothing is sent in vain */
    check_old(OLD_NAME);
    scene_close(&scene);
}
END_TEST

/* The store has other bytes of a part than were sent: that part again; and not for ever. */
START_TEST(a_damaged_part)
{
    static const struct bucket_step script[] = {
        {OP_INSERT, WRONG_CRC, 0, 0, NULL}, {OP_INSERT, WRONG_CRC, 0, 0, NULL}, {OP_INSERT, WRONG_CRC, 0, 0, NULL}};
    open_way(OLD_NAME, 2 * SCENE_PART);
    bucket.script = script;
    bucket.steps = 2;
    scene_write(&scene);
    check_stored(scene.size);
    check_nothing_left();
    scene_close(&scene);
    fault_bucket_close(&bucket);
    fault_bucket_init(&bucket);
    open_way(OLD_NAME, SCENE_PART + 1);
    bucket.script = script;
    bucket.steps = 3;
    scene.data = data;
    scene.config.fetch.connections = 1; /* so that it is the same part each time */
    scene_start(&scene);
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(MR_E_CORRUPT, "damages data");
    check_old(OLD_NAME);
    scene_close(&scene);
}
END_TEST

/* ---- a token that ends in the middle ---- */

static _Atomic unsigned tokens, good_token, refusals, refuse_at, seen;

/* The bucket, which wants a token, and from its refuse_at-th request on a newer one. */
static bool with_token(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    char body[100];
    if (strcmp(request->target, "/token") == 0) {
        snprintf(body, sizeof body, "{\"access_token\":\"token-%u\",\"expires_in\":3600}", ++tokens);
        fault_answer(conn, 200, "", body, strlen(body));
        return true;
    }
    if (++seen == refuse_at)
        good_token = tokens + 1;
    const char *line = fault_header(request, "Authorization");
    unsigned number;
    if (!line || sscanf(line, "Bearer token-%u", &number) != 1 || number < good_token) {
        refusals++;
        fault_answer(conn, 401, "", "", 0);
        return true;
    }
    return fault_bucket_handle(arg, conn, request);
}

START_TEST(a_token_that_ends)
{
    static const unsigned at[] = {2, 4, 7};
    struct fault_server *guarded = fault_server_start(with_token, &bucket);
    char path[] = "/tmp/mr-write-token-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    dprintf(fd,
            "{\"type\":\"authorized_user\",\"client_id\":\"i\",\"client_secret\":\"s\",\"refresh_token\":\"r\","
            "\"token_uri\":\"http://%s/token\"}",
            fault_server_host(guarded));
    unsetenv("STORAGE_EMULATOR_HOST");
    setenv("GOOGLE_APPLICATION_CREDENTIALS", path, 1);
    char endpoint[80];
    snprintf(endpoint, sizeof endpoint, "http://%s", fault_server_host(guarded));
    tokens = good_token = refusals = seen = 0;
    refuse_at = at[_i % 3];
    scene_open(&scene, endpoint, URI, data, 5 * SCENE_PART);
    scene.config.gcs.auth = MR_AUTH_DEFAULT;
    scene.if_absent = _i >= 3; /* the other way */
    scene_write(&scene);
    check_stored(scene.size);
    check_nothing_left();
    ck_assert_uint_ge(refusals, 1);
    ck_assert_uint_eq(tokens, 2);
    scene_close(&scene);
    fault_server_stop(guarded);
    close(fd);
    unlink(path);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* the leak checker looks into the process */
}
END_TEST

/* ---- given up ---- */

START_TEST(given_up)
{
    enum way way = (enum way)(_i % WAYS);
    bool dies = _i >= WAYS;
    open_way(way, 9 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (mr_counter_get(scene.counters, MR_WC_PARTS) < 3)
        scene_step(&scene, 20);
    if (dies) {
        scene_die(&scene);
        ck_assert_int_eq(mr_ckpt_part_recover_trainer(&scene.lane), MR_FATE_ABORTED);
        scene_start(&scene);
    } else {
        ck_assert_int_eq(mr_ckpt_part_abort(&scene.lane), MR_FATE_ABORTED);
    }
    scene_run(&scene);
    scene_leave(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    ck_assert_msg(strstr(scene.text, URI) != NULL, "%s", scene.text);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_UPLOADS_ABORTED), 1);
    check_nothing_left_later();
    check_old(way);
    ck_assert_uint_eq(bucket.count[OP_ABORT], way == NEW_NAME ? 2 : 0); /* the second time for parts that came late */
    scene_close(&scene);
    ck_assert_uint_eq(scene_open_uploads(), dies && way == NEW_NAME ? 1 : 0); /* the dead one's own */
}
END_TEST

/* A process that ends before the second time leaves it to another. */
START_TEST(given_up_at_the_end)
{
    open_way(NEW_NAME, 9 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    scene.context.late_s = 100;
    while (mr_counter_get(scene.counters, MR_WC_PARTS) < 3)
        scene_step(&scene, 20);
    mr_write_lane_abort(scene.worker);
    scene_run(&scene);
    scene_leave(&scene);
    ck_assert_uint_eq(bucket.count[OP_ABORT], 1);
    ck_assert_uint_eq(scene_open_uploads(), 1);
    scene_close(&scene);
}
END_TEST

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool at_gate;

/* The bucket, which does not begin an upload while the gate is closed. */
static bool behind_gate(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    if (strcmp(request->method, "POST") == 0 && strstr(request->target, "?uploads")) {
        at_gate = true;
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    return fault_bucket_handle(arg, conn, request);
}

/* What the store has begun by then has no parts, and would be nobody's; where it says that it has not, there is nothing
 * to remove, and no record of it is left. */
START_TEST(given_up_while_it_begins)
{
    static const struct bucket_step refused[] = {{OP_INITIATE, ANSWER_STATUS, 403, 0, NULL}};
    struct fault_server *gated = fault_server_start(behind_gate, &bucket);
    scene_open(&scene, fault_server_host(gated), URI, data, 9 * SCENE_PART);
    bucket.script = refused;
    bucket.steps = (unsigned)_i;
    scene.hold = true;
    at_gate = false;
    pthread_mutex_lock(&gate);
    scene_start(&scene);
    while (!at_gate)
        scene_step(&scene, 1);
    mr_write_lane_abort(scene.worker);
    ck_assert_int_eq(scene.worker->state, MR_WRITE_UNDOING); /* the answer is waited for */
    scene.worker->give_up_ns = INT64_MAX;                    /* and nothing else ends it */
    ck_assert_uint_eq(scene_open_uploads(), 1);
    pthread_mutex_unlock(&gate);
    scene_run(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    scene_leave(&scene);
    fault_server_settle(gated);
    ck_assert_uint_eq(bucket.count[OP_ABORT], _i == 0);
    for (unsigned i = 0; i < 16; i++)
        ck_assert(!bucket.sessions[i].used || bucket.sessions[i].gone);
    ck_assert_uint_eq(scene_open_uploads(), 0);
    scene_close(&scene);
    fault_server_stop(gated);
}
END_TEST

/* Behind the run's end there is no time left: a sealed one fails. */
START_TEST(no_time_left)
{
    enum way way = (enum way)_i;
    open_way(way, 9 * SCENE_PART);
    scene_start(&scene);
    while (mr_ckpt_part_fate(&scene.lane) != MR_FATE_SEALED)
        scene_step(&scene, 20);
    mr_write_lane_give_up(scene.worker, "no time left");
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(MR_E_TIMEOUT, URI ": no time left");
    check_old(way);
    scene_close(&scene);
}
END_TEST

START_TEST(given_up_before_anything)
{
    scene_open(&scene, fault_server_host(server), URI, data, 0);
    scene.hold = true;
    scene_start(&scene);
    scene_step(&scene, 1);
    mr_write_lane_abort(scene.worker);
    scene_run(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    ck_assert_uint_eq(requests(), 0);
    scene_close(&scene);
}
END_TEST

/* Another machine's temporary object is judged by its age, and that by the store's clock: this machine's may be an hour
 * off, and the object in use. */
START_TEST(a_clock_that_is_wrong)
{
    static const char other[] = MR_TEMPORARY_PREFIX "0f8fad5b-d9cb-469f-a165-70867728950e/0-1-1";
    int64_t off_s = _i ? 0 : -MR_TEMPORARY_AGE_S; /* we are an hour ahead of it */
    scene_open(&scene, fault_server_host(server), URI, data, 1);
    fault_bucket_put(&bucket, other, "in use", 6);
    fault_bucket_find(&bucket, other)->created_s += off_s - 100 - (_i ? MR_TEMPORARY_AGE_S : 0);
    bucket.clock_off_s = off_s;
    scene_look_again(&scene, "bucket");
    ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_LIST], "timeCreated"));
    ck_assert_int_eq(fault_bucket_find(&bucket, other) != NULL, _i == 0);
    scene_close(&scene);
}
END_TEST

/* Aborting has no end, so it is given up. */
START_TEST(what_cannot_be_undone)
{
    static const struct bucket_step script[] = {{OP_ABORT, ANSWER_STATUS, 403, 0, NULL}};
    open_way(NEW_NAME, 9 * SCENE_PART);
    bucket.script = script;
    bucket.steps = 1;
    scene.hold = true;
    scene_start(&scene);
    while (mr_counter_get(scene.counters, MR_WC_PARTS) < 3)
        scene_step(&scene, 20);
    mr_write_lane_abort(scene.worker);
    scene_run(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    scene_close(&scene);
}
END_TEST

START_TEST(no_such_uri)
{
    static const char *const uris[] = {"", "x://y/z", "gs://", "s3:///x", "gs://bucket/"};
    scene_open(&scene, fault_server_host(server), uris[_i], data, 5);
    scene_write(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_FAILED);
    ck_assert_uint_eq(requests(), 0);
    scene_close(&scene);
}
END_TEST

/* ---- a wild trainer ---- */

START_TEST(damaged_memory)
{
    open_way(NEW_NAME, 9 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (scene.next < 9)
        scene_step(&scene, 1);
    switch (_i) {
    case 0: /* fewer parts than it says */
        ck_assert_int_eq(mr_ckpt_part_seal(&scene.lane, 12, 9 * SCENE_PART), MR_FATE_SEALED);
        break;
    case 1: /* other bytes */
        ck_assert_int_eq(mr_ckpt_part_seal(&scene.lane, 9, 9 * SCENE_PART - 1), MR_FATE_SEALED);
        break;
    default: /* no sense at all */
        ck_assert_int_eq(mr_ckpt_part_seal(&scene.lane, 9, UINT64_MAX), MR_FATE_SEALED);
    }
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(MR_E_CORRUPT, "damaged");
    scene_close(&scene);
}
END_TEST

/* A slot that the worker uploads from is READY again: a stray store. It was taken once more, and freed while in use. */
START_TEST(a_part_in_work_is_published_again)
{
    open_way(NEW_NAME, 9 * SCENE_PART);
    scene_start(&scene);
    bool stored = false;
    while (!stored) {
        scene_step(&scene, 1);
        for (uint32_t i = 0; i < scene.lane.slots && !stored; i++) {
            uint64_t word = mr_ckpt_part_load(&scene.lane, i);
            if (mr_word_state(word) != MR_HELD)
                continue;
            atomic_store(&scene.lane.tickets[i].word, mr_word(MR_READY, 1, mr_word_attempt(word), mr_word_lap(word)));
            stored = true;
        }
    }
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(MR_E_CORRUPT, "published again");
    scene_close(&scene);
}
END_TEST

START_TEST(a_record_of_nonsense)
{
    open_way(NEW_NAME, 9 * SCENE_PART);
    ck_assert(mr_ckpt_part_set_upload(&scene.lane, _i ? 77 : 2, _i ? "0 x" : "nonsense"));
    scene_write(&scene);
    check_failed(MR_E_CORRUPT, "damaged");
    scene_close(&scene);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("write");
    TCase *tc = tcase_create("write");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, objects_of_all_sizes, 0, WAYS * COUNT(sizes));
    tcase_add_loop_test(tc, a_worker_that_dies, 0, WAYS * 50);
    tcase_add_loop_test(tc, somebody_elses_object_of_the_same_size, 0, 2 * WAYS);
    tcase_add_loop_test(tc, one_fault_is_repaired, 0, COUNT(repaired));
    tcase_add_loop_test(tc, a_storm, 0, 9);
    tcase_add_loop_test(tc, one_fault_is_fatal, 0, COUNT(fatal));
    tcase_add_test(tc, an_upload_that_does_not_begin);
    tcase_add_loop_test(tc, somebody_else_writes_it, 0, 6);
    tcase_add_loop_test(tc, it_must_not_be_there, 0, 3);
    tcase_add_test(tc, a_damaged_part);
    tcase_add_loop_test(tc, a_token_that_ends, 0, 6);
    tcase_add_loop_test(tc, given_up, 0, 2 * WAYS);
    tcase_add_loop_test(tc, no_time_left, 0, WAYS);
    tcase_add_test(tc, given_up_at_the_end);
    tcase_add_loop_test(tc, given_up_while_it_begins, 0, 2);
    tcase_add_test(tc, given_up_before_anything);
    tcase_add_loop_test(tc, a_clock_that_is_wrong, 0, 2);
    tcase_add_test(tc, what_cannot_be_undone);
    tcase_add_loop_test(tc, no_such_uri, 0, 5);
    tcase_add_loop_test(tc, damaged_memory, 0, 3);
    tcase_add_test(tc, a_part_in_work_is_published_again);
    tcase_add_loop_test(tc, a_record_of_nonsense, 0, 2);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
