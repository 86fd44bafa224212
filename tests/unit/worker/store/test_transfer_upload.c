/* test_transfer_upload.c - uploads of any size, against a bucket that does each thing wrong, and into a folder. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "store_scene.h"
#include "worker/store/transfer_impl.h"

#define CHUNK MR_STORE_CHUNK
#define SIZE  (5u * CHUNK + 777)

static unsigned char data[SIZE];

/* What the upload reads from, and how far it is. */
static struct source {
    uint64_t size, at, most; /* most: bytes a read */
    int64_t takes_ns;        /* each read, as the deadline sees it */
    int fails_at, rewound;
    uint64_t progress;
    unsigned progress_calls;
} source;

static int64_t read_data(void *arg, void *buffer, size_t size)
{
    struct source *from = arg;
    uint64_t left = from->size - from->at, n = left < size ? left : size;
    if (from->fails_at && from->at >= (uint64_t)from->fails_at) {
        mr_error_set(MR_E_IO, "the disk is on fire");
        return -1;
    }
    if (from->most && n > from->most)
        n = from->most;
    memcpy(buffer, data + from->at, n);
    from->at += n;
    engine->transfers->progress_ns -= from->takes_ns;
    return (int64_t)n;
}

static int rewind_data(void *arg)
{
    struct source *from = arg;
    from->at = 0;
    from->rewound++;
    return 0;
}

static void on_progress(void *arg, uint64_t sent)
{
    struct source *from = arg;
    ck_assert(sent > from->progress || bucket.count[OP_BEGIN] > 1);
    from->progress = sent;
    from->progress_calls++;
}

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    scene_root_make();
    scene_bucket_setup();
}

static void teardown(void)
{
    scene_bucket_teardown();
    scene_root_remove();
}

static struct mr_transfer_upload_request an_upload(uint64_t size, uint64_t match)
{
    memset(&source, 0, sizeof source);
    source.size = size;
    return (struct mr_transfer_upload_request){.store = store,
                                               .name = "x",
                                               .name_length = 1,
                                               .generation_match = match,
                                               .size = MR_STORE_ANY,
                                               .chunk_bytes = CHUNK,
                                               .read = read_data,
                                               .progress = on_progress};
}

static void run(const struct mr_transfer_upload_request *request)
{
    wait_for(mr_transfer_upload(engine, request, on_item, &source));
}

static void upload(uint64_t size, uint64_t match)
{
    struct mr_transfer_upload_request request = an_upload(size, match);
    run(&request);
}

static void check_good(uint64_t size)
{
    struct bucket_object *object = fault_bucket_find(&bucket, "x");
    check_code(MR_OK, "");
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, size);
    ck_assert_mem_eq(object->data, data, size);
    ck_assert_uint_eq(last.size, size);
    ck_assert_uint_eq(last.crc32c, mr_crc32c(0, data, size));
}

static unsigned sessions(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < 16; i++)
        count += bucket.sessions[i].used && !bucket.sessions[i].gone && !bucket.sessions[i].finished;
    return count;
}

/* Requests that nobody waits for have ended. */
static void settle(void)
{
    while (mr_http_in_flight(http) > 0)
        ck_assert_int_ge(mr_http_step(http, 100, -1), 0);
}

/* ---- sizes ---- */

static const struct {
    uint64_t size;
    unsigned inserts, chunks;
} sizes[] = {
    {0, 1, 0},         {1, 1, 0},         {CHUNK - 1, 1, 0}, {CHUNK, 1, 0},
    {CHUNK + 1, 0, 2}, {2 * CHUNK, 0, 2}, {SIZE, 0, 6},      {5 * CHUNK, 0, 5},
};

START_TEST(all_sizes)
{
    uint64_t size = sizes[_i].size;
    for (int known = 0; known <= 1; known++) {
        struct mr_transfer_upload_request request = an_upload(size, MR_STORE_ANY);
        source.most = known ? 0 : 100003; /* a pipe gives what it has */
        request.size = known ? size : MR_STORE_ANY;
        memset(bucket.count, 0, sizeof bucket.count);
        run(&request);
        check_good(size);
        ck_assert_uint_eq(bucket.count[OP_INSERT], sizes[_i].inserts);
        ck_assert_uint_eq(bucket.count[OP_BEGIN], !sizes[_i].inserts);
        ck_assert_uint_eq(bucket.count[OP_CHUNK], sizes[_i].chunks);
        ck_assert_uint_eq(bucket.count[OP_DROP] + bucket.count[OP_PROBE], 0);
        ck_assert_uint_eq(source.progress_calls, sizes[_i].chunks);
        if (sizes[_i].chunks) {
            ck_assert_uint_eq(source.progress, size);
            ck_assert_ptr_nonnull(strstr(bucket.last_target[OP_BEGIN], "uploadType=resumable&name=x"));
        }
    }
    ck_assert_uint_eq(sessions(), 0);
}
END_TEST

START_TEST(from_a_file_and_a_pipe)
{
    char path[100];
    snprintf(path, sizeof path, "%s/data", root);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(fd, "skip", 4), 4);
    ck_assert_int_eq(write(fd, data, SIZE), SIZE);
    ck_assert_int_eq(lseek(fd, 4, SEEK_SET), 4); /* from where it stands */
    struct mr_transfer_upload_request request = an_upload(SIZE, 0);
    static const struct bucket_step script[] = {{OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, FORGET, 410, 0, NULL}};
    play(STEPS(script)); /* a file can be read again */
    request.read = NULL;
    request.fd = fd;
    run(&request);
    check_good(SIZE);
    ck_assert_uint_eq(bucket.count[OP_BEGIN], 2);
    close(fd);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], data, 5000), 5000);
    close(ends[1]);
    request = an_upload(5000, MR_STORE_ANY);
    request.read = NULL;
    request.fd = ends[0];
    run(&request);
    check_good(5000);
    close(ends[0]);
}
END_TEST

START_TEST(a_source_that_fails)
{
    struct mr_transfer_upload_request request = an_upload(SIZE, 0);
    source.fails_at = 3 * CHUNK;
    run(&request);
    check_code(MR_E_IO, "gs://bucket/x: the disk is on fire");
    settle();
    ck_assert_uint_eq(sessions(), 0); /* dropped */
    request = an_upload(SIZE - 1, 0);
    request.size = SIZE;
    run(&request);
    check_code(MR_E_CHANGED, "ends after");
    ck_assert_ptr_null(fault_bucket_find(&bucket, "x"));
    request = an_upload(SIZE, 0);
    for (unsigned chunks = 1; chunks <= 2; chunks++) {
        request.size = chunks * CHUNK;
        run(&request);
        check_code(MR_E_CHANGED, "has more than");
        ck_assert_ptr_null(fault_bucket_find(&bucket, "x"));
    }
    request.chunk_bytes = CHUNK + 1;
    ck_assert_ptr_null(mr_transfer_upload(engine, &request, on_item, &source));
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
}
END_TEST

/* ---- one fault ---- */

#define FIVE_CHUNKS                                                                           \
    {OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, WELL, 0, 0, NULL}, \
        {OP_CHUNK, WELL, 0, 0, NULL},                                                         \
    {                                                                                         \
        OP_CHUNK, WELL, 0, 0, NULL                                                            \
    }

/* What happens at the n-th request, and how many probes and sessions it takes. */
static const struct {
    struct bucket_step script[6];
    unsigned begins, probes, looks;
} repaired[] = {
    {{{OP_BEGIN, ANSWER_STATUS, 503, 0, NULL}}, 2, 0, 0},
    {{{OP_BEGIN, RESET_AFTER, 0, 0, NULL}}, 2, 0, 0},
    {{{OP_BEGIN, STALL_AFTER, 0, 0, NULL}}, 2, 0, 0},
    {{{OP_CHUNK, ANSWER_STATUS, 503, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, ANSWER_STATUS, 429, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, ANSWER_STATUS, 408, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, RESET_BEFORE, 0, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, RESET_AFTER, 0, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, STALL_AFTER, 0, 0, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, KEEP_LESS, 0, CHUNK / 2, NULL}}, 1, 0, 0},
    {{{OP_CHUNK, KEEP_LESS, 0, 1, NULL}}, 1, 0, 0},
    {{{OP_CHUNK, KEEP_LESS, 0, 0, NULL}}, 1, 0, 0},
    {{{OP_CHUNK, KEEP_THEN_RESET, 0, 70000, NULL}}, 1, 1, 0},
    {{{OP_CHUNK, RESET_AFTER, 0, 0, NULL},
      {OP_PROBE, ANSWER_STATUS, 500, 0, NULL},
      {OP_PROBE, RESET_AFTER, 0, 0, NULL}},
     1,
     3,
     0},
    {{{OP_CHUNK, FORGET, 404, 0, NULL}}, 2, 0, 0},
    {{{OP_CHUNK, FORGET, 410, 0, NULL}}, 2, 0, 0},
    {{{OP_CHUNK, RESET_AFTER, 0, 0, NULL}, {OP_PROBE, FORGET, 410, 0, NULL}}, 2, 1, 0},
    {{{OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, FORGET_BYTES, 0, 100, NULL}}, 2, 0, 0},
    /* the last of six chunks */
    {{FIVE_CHUNKS, {OP_CHUNK, RESET_AFTER, 0, 0, NULL}}, 1, 1, 0},
    {{FIVE_CHUNKS, {OP_CHUNK, KEEP_LESS, 0, 5, NULL}}, 1, 0, 0},
    {{FIVE_CHUNKS, {OP_CHUNK, SHORT_ANSWER, 0, 0, NULL}}, 1, 1, 0},
    {{FIVE_CHUNKS, {OP_CHUNK, RESET_BEFORE, 0, 0, NULL}}, 1, 1, 0},
};

START_TEST(one_fault_is_repaired)
{
    if (repaired[_i].script[0].fault == STALL_AFTER)
        open_stalling(fault_server_host(server), 100000, 3000);
    for (int any = 0; any <= 1; any++) { /* a session is safe to repeat with and without a precondition */
        struct mr_transfer_upload_request request = an_upload(SIZE, any ? MR_STORE_ANY : 0);
        request.rewind = rewind_data;
        memset(bucket.count, 0, sizeof bucket.count);
        play(repaired[_i].script, 6);
        run(&request);
        check_good(SIZE);
        ck_assert_uint_eq(bucket.count[OP_BEGIN], repaired[_i].begins);
        ck_assert_uint_eq(bucket.count[OP_PROBE], repaired[_i].probes);
        ck_assert_uint_eq(bucket.count[OP_STAT], repaired[_i].looks);
        ck_assert_uint_eq(bucket.count[OP_INSERT], 0);
        fault_bucket_remove(&bucket, "x");
    }
}
END_TEST

/* The time that a pipe takes is not the store's: its first failure is repeated. */
START_TEST(a_slow_source)
{
    static const struct bucket_step script[] = {
        {OP_INSERT, ANSWER_STATUS, 503, 0, NULL},
        {OP_BEGIN, ANSWER_STATUS, 503, 0, NULL},
        {OP_CHUNK, WELL, 0, 0, NULL},
        {OP_CHUNK, ANSWER_STATUS, 503, 0, NULL},
    };
    play(STEPS(script));
    for (unsigned i = 0; i < 2; i++) {
        uint64_t size = i == 0 ? 100 : 2 * CHUNK;
        struct mr_transfer_upload_request request = an_upload(size, 0);
        source.takes_ns = 200 * MR_SECOND_NS; /* the deadline is 100 s */
        run(&request);
        check_good(size);
        fault_bucket_remove(&bucket, "x");
    }
    ck_assert_uint_eq(bucket.count[OP_INSERT], 2);
    ck_assert_uint_eq(bucket.count[OP_BEGIN], 2);
}
END_TEST

START_TEST(a_lost_end_of_a_session_that_is_gone)
{
    static const struct bucket_step script[] = {
        {OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, RESET_AFTER, 0, 0, NULL}, {OP_PROBE, FORGET, 410, 0, NULL}};
    play(STEPS(script));
    struct mr_transfer_upload_request request = an_upload(CHUNK + 1, 0);
    run(&request); /* it is done: the object is there, and is what was read */
    check_good(CHUNK + 1);
    ck_assert_uint_eq(bucket.count[OP_BEGIN], 1);
    ck_assert_uint_eq(bucket.count[OP_STAT], 1);
}
END_TEST

START_TEST(a_session_that_is_gone_for_good)
{
    static const struct bucket_step script[] = {{OP_CHUNK, FORGET, 404, 0, NULL}, {OP_CHUNK, FORGET, 404, 0, NULL},
                                                {OP_CHUNK, FORGET, 404, 0, NULL}, {OP_CHUNK, FORGET, 404, 0, NULL},
                                                {OP_CHUNK, FORGET, 404, 0, NULL}, {OP_CHUNK, FORGET, 404, 0, NULL}};
    play(STEPS(script));
    upload(SIZE, 0);
    check_code(MR_E_NET, "cannot be read a second time");
    ck_assert_uint_eq(bucket.count[OP_BEGIN], 1);
    struct mr_transfer_upload_request request = an_upload(SIZE, 0);
    request.rewind = rewind_data;
    run(&request);
    check_code(MR_E_NET, "again and again");
    ck_assert_int_eq(source.rewound, 3);
}
END_TEST

START_TEST(a_session_that_keeps_nothing)
{
    static struct bucket_step script[2000];
    for (int i = 0; i < 2000; i++)
        script[i] = (struct bucket_step){OP_CHUNK, KEEP_LESS, 0, 0, NULL};
    open_store(fault_server_host(server), 100);
    play(STEPS(script));
    upload(SIZE, 0);
    check_code(MR_E_BUSY, "gs://bucket/x: the upload session keeps nothing");
    for (int i = 0; i < 2000; i++)
        script[i].fault = RESET_BEFORE;
    memset(bucket.count, 0, sizeof bucket.count);
    upload(SIZE, 0); /* probes that are answered do not keep it alive for ever */
    check_code(MR_E_NET, "");
    settle();
    ck_assert_uint_eq(sessions(), 0);
}
END_TEST

static const struct {
    struct bucket_step step;
    enum mr_code code;
    const char *text;
} fatal[] = {
    {{OP_BEGIN, ANSWER_STATUS, 400, 0, NULL}, MR_E_USAGE, "400"},
    {{OP_BEGIN, ANSWER_STATUS, 403, 0, NULL}, MR_E_DENIED, "storage.objects.create"},
    {{OP_BEGIN, ANSWER_STATUS, 404, 0, NULL}, MR_E_NOT_FOUND, "404"},
    {{OP_BEGIN, ANSWER_STATUS, 412, 0, NULL}, MR_E_EXISTS, "exists already"},
    {{OP_BEGIN, GARBAGE, 0, 0, NULL}, MR_E_PROTOCOL, "without a usable Location"},
    {{OP_CHUNK, ANSWER_STATUS, 400, 0, NULL}, MR_E_USAGE, "400"},
    {{OP_CHUNK, ANSWER_STATUS, 403, 0, NULL}, MR_E_DENIED, "403"},
    {{OP_CHUNK, ANSWER_STATUS, 412, 0, NULL}, MR_E_EXISTS, "exists already"},
    {{OP_CHUNK, GARBAGE, 0, 0, NULL}, MR_E_PROTOCOL, "not JSON"},
    {{OP_CHUNK, ANSWER_STATUS, 308, 0, "Range: bytes=0-99999999\r\n"}, MR_E_PROTOCOL, "were sent"},
};

START_TEST(one_fault_is_fatal)
{
    play(&fatal[_i].step, 1);
    upload(SIZE, 0);
    check_code(fatal[_i].code, fatal[_i].text);
    ck_assert_uint_eq(bucket.count[OP_BEGIN], 1);
    ck_assert_uint_eq(bucket.count[OP_CHUNK], fatal[_i].step.op == OP_CHUNK);
    ck_assert_ptr_null(fault_bucket_find(&bucket, "x"));
    settle();
    if (fatal[_i].step.fault != GARBAGE || fatal[_i].step.op != OP_BEGIN)
        ck_assert_uint_eq(sessions(), 0);
}
END_TEST

START_TEST(exists_at_the_end)
{
    /* Another writer was faster: the session's end is refused, and what is there is not ours. */
    static const struct bucket_step script[] = {{OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, ANSWER_STATUS, 412, 0, NULL}};
    play(STEPS(script));
    upload(CHUNK + 5, 0);
    check_code(MR_E_EXISTS, "exists already");
    static const struct bucket_step twice[] = {
        {OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, DONE_TWICE, 0, 0, NULL}, {OP_PROBE, FORGET, 404, 0, NULL}};
    memset(bucket.count, 0, sizeof bucket.count);
    play(STEPS(twice));
    upload(CHUNK + 5, 0);
    check_code(MR_E_EXISTS, "exists already");
}
END_TEST

START_TEST(other_bytes_than_were_sent)
{
    static const struct bucket_step script[] = {{OP_CHUNK, WELL, 0, 0, NULL}, {OP_CHUNK, WRONG_CRC, 0, 0, NULL}};
    play(STEPS(script));
    upload(CHUNK + 5, MR_STORE_ANY);
    check_code(MR_E_CORRUPT, "deleted again");
    ck_assert_ptr_null(fault_bucket_find(&bucket, "x"));
    ck_assert_uint_eq(bucket.count[OP_DELETE], 1);
}
END_TEST

START_TEST(cancelled)
{
    struct mr_transfer_upload_request request = an_upload(SIZE, 0);
    struct mr_transfer *transfer = mr_transfer_upload(engine, &request, on_item, &source);
    while (source.progress < 2 * CHUNK)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    mr_transfer_cancel(engine, transfer);
    settle();
    ck_assert_int_eq(last.done, 0);
    ck_assert_uint_eq(sessions(), 0);
    ck_assert_ptr_null(fault_bucket_find(&bucket, "x"));
    ck_assert_ptr_nonnull(mr_transfer_upload(engine, &request, on_item, &source)); /* ended by teardown */
}
END_TEST

/* ---- into a folder ---- */

START_TEST(into_a_folder)
{
    static unsigned char back[SIZE + 1];
    scene_open((struct mr_store_options){.scheme = MR_SCHEME_FILE, .bucket = ""}, 1000);
    char path[100];
    snprintf(path, sizeof path, "%s/x", root);
    struct mr_transfer_upload_request request = an_upload(SIZE, 0);
    request.name = path;
    request.name_length = strlen(path);
    run(&request);
    check_code(MR_OK, "");
    ck_assert_uint_eq(last.size, SIZE);
    int fd = open(path, O_RDONLY);
    ck_assert_int_eq(read(fd, back, sizeof back), SIZE);
    close(fd);
    ck_assert_mem_eq(back, data, SIZE);
    ck_assert_uint_eq(scene_root_files(), 1);
    source.at = 0;
    last.done = 0;
    source.progress = 0;
    run(&request);
    check_code(MR_E_EXISTS, "exists already");
    request.generation_match = MR_STORE_ANY;
    source.at = source.progress = 0;
    last.done = 0;
    source.fails_at = 2 * CHUNK;
    run(&request);
    check_code(MR_E_IO, "on fire");
    ck_assert_uint_eq(scene_root_files(), 1); /* nothing half-done is left */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store_upload");
    TCase *tc = tcase_create("upload");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, all_sizes, 0, COUNT(sizes));
    tcase_add_test(tc, from_a_file_and_a_pipe);
    tcase_add_test(tc, a_source_that_fails);
    tcase_add_test(tc, a_slow_source);
    tcase_add_loop_test(tc, one_fault_is_repaired, 0, COUNT(repaired));
    tcase_add_test(tc, a_lost_end_of_a_session_that_is_gone);
    tcase_add_test(tc, a_session_that_is_gone_for_good);
    tcase_add_test(tc, a_session_that_keeps_nothing);
    tcase_add_loop_test(tc, one_fault_is_fatal, 0, COUNT(fatal));
    tcase_add_test(tc, exists_at_the_end);
    tcase_add_test(tc, other_bytes_than_were_sent);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, into_a_folder);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
