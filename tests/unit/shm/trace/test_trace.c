/* The ring of spans: all that fits comes out whole and in order, writers never wait, deaths lose a slot at most. */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/trace/trace.h"
#include "tests/unit/suite.h"

#define WRITERS 4
#define EACH    50000

static struct mr_trace_shared *shared;
static struct mr_trace_reader reader;
static int fd;

static void setup(void)
{
    fd = mr_segment_new(MR_BACKING_MEMFD, "trace", sizeof *shared, true);
    ck_assert_int_ge(fd, 0);
    shared = mr_segment_map(fd, sizeof *shared, true, NULL);
    ck_assert_ptr_nonnull(shared);
    mr_trace_format(shared);
    ck_assert_int_eq(mr_trace_attach(fd), 0);
    ck_assert_int_eq(mr_trace_reader_open(&reader, fd), 0);
}

static void teardown(void)
{
    mr_trace_reader_close(&reader);
    munmap(shared, sizeof *shared);
    close(fd);
}

static void emit(uint64_t object)
{
    mr_trace_emit(&(struct mr_trace_record){.kind = MR_SPAN_TICKET, .object = object, .bytes = ~object}, "text");
}

static unsigned read_all(int64_t now_ns, uint64_t *first, uint64_t *last)
{
    struct mr_trace_record record;
    unsigned count = 0;
    while (mr_trace_read(&reader, now_ns, &record)) {
        ck_assert_uint_eq(record.bytes, ~record.object);
        ck_assert_str_eq(record.text, "text");
        ck_assert_uint_eq(record.pid, (uint32_t)getpid());
        if (count++ == 0)
            *first = record.object;
        *last = record.object;
    }
    return count;
}

START_TEST(test_nothing_is_written_while_nobody_reads)
{
    ck_assert(!mr_trace_is_on());
    emit(1);
    mr_trace_begin(shared);
    ck_assert(mr_trace_is_on());
    emit(2);
    mr_trace_end(shared);
    ck_assert(!mr_trace_is_on());
    emit(3);
    uint64_t first = 0, last = 0;
    ck_assert_uint_eq(read_all(0, &first, &last), 1);
    ck_assert_uint_eq(first, 2);
}
END_TEST

START_TEST(test_a_full_ring_loses_the_newest)
{
    uint64_t first = 0, last = 0;
    mr_trace_begin(shared);
    for (unsigned lap = 0; lap < 3; lap++) {
        for (uint64_t i = 0; i < MR_TRACE_SLOTS + 5; i++)
            emit(i);
        ck_assert_uint_eq(mr_trace_reader_lost(&reader), 5 * (lap + 1));
        ck_assert_uint_eq(read_all(0, &first, &last), MR_TRACE_SLOTS);
        ck_assert_uint_eq(first, 0);
        ck_assert_uint_eq(last, MR_TRACE_SLOTS - 1);
    }
}
END_TEST

/* A writer took the next position, and nothing came of it. */
static void die_in_the_middle(void)
{
    atomic_fetch_add(&shared->head, 1);
}

START_TEST(test_a_dead_writer_is_passed_over_after_a_second)
{
    uint64_t first = 0, last = 0;
    mr_trace_begin(shared);
    for (uint64_t lap = 0; lap < 2; lap++) {
        emit(1);
        die_in_the_middle();
        die_in_the_middle();
        emit(2);
        int64_t now = (int64_t)(10 * lap) * MR_SECOND_NS + 1;
        ck_assert_uint_eq(read_all(now, &first, &last), 1);
        ck_assert_uint_eq(read_all(now + MR_SECOND_NS / 2, &first, &last), 0);
        ck_assert_uint_eq(read_all(now + MR_SECOND_NS, &first, &last), 0); /* the first of them */
        ck_assert_uint_eq(read_all(now + 2 * MR_SECOND_NS, &first, &last), 1);
        ck_assert_uint_eq(first, 2);
        ck_assert_uint_eq(reader.passed, 2 * (lap + 1));
        for (uint64_t i = 0; i < MR_TRACE_SLOTS - 4; i++) /* round the ring: the slots are used again */
            emit(i);
        ck_assert_uint_eq(read_all(now, &first, &last), MR_TRACE_SLOTS - 4);
    }
    ck_assert_uint_eq(mr_trace_reader_lost(&reader), 0);
}
END_TEST

START_TEST(test_a_writer_that_was_passed_over_publishes_nothing)
{
    struct mr_trace_record record;
    mr_trace_begin(shared);
    die_in_the_middle();
    ck_assert(!mr_trace_read(&reader, 1, &record));
    ck_assert(!mr_trace_read(&reader, 1 + MR_SECOND_NS, &record));
    uint32_t empty = 0; /* what the writer would do now (T2) */
    ck_assert(!atomic_compare_exchange_strong(&shared->slot[0].turn, &empty, 1));
    ck_assert_uint_eq(reader.at, 1);
}
END_TEST

START_TEST(test_another_reader_goes_on)
{
    struct mr_trace_record record;
    uint64_t first = 0, last = 0;
    mr_trace_begin(shared);
    for (uint64_t i = 0; i < 3; i++)
        emit(i);
    ck_assert(mr_trace_read(&reader, 0, &record));
    ck_assert(mr_trace_read(&reader, 0, &record));
    atomic_store(&shared->tail, 1); /* as if it had died between the two stores */
    mr_trace_reader_close(&reader);
    ck_assert_int_eq(mr_trace_reader_open(&reader, fd), 0);
    ck_assert_uint_eq(read_all(0, &first, &last), 1);
    ck_assert_uint_eq(first, 2);
}
END_TEST

START_TEST(test_a_text_is_cut_at_its_front)
{
    char text[200];
    struct mr_trace_record record;
    memset(text, 'a', sizeof text);
    memcpy(text + 190, "/name.jpg", 10);
    mr_trace_begin(shared);
    mr_trace_emit(&(struct mr_trace_record){.kind = MR_SPAN_KINDS + 7}, text);
    ck_assert(mr_trace_read(&reader, 0, &record));
    ck_assert_uint_eq(strlen(record.text), MR_TRACE_TEXT - 1);
    ck_assert_str_eq(record.text + MR_TRACE_TEXT - 10, "/name.jpg");
    ck_assert_uint_eq(record.kind, MR_SPAN_NONE); /* not one of ours */
    memset(text, 'b', sizeof text);
    memcpy(text + 135, "\u00e4", 2); /* its first byte does not fit */
    text[199] = '\0';
    mr_trace_emit(&(struct mr_trace_record){.kind = MR_SPAN_SAVE}, text);
    ck_assert(mr_trace_read(&reader, 0, &record));
    ck_assert_uint_eq(strlen(record.text), MR_TRACE_TEXT - 2);
    ck_assert_int_eq(record.text[0], 'b');
}
END_TEST

/* A ring that is attached already stays where it is; another one takes its place. */
START_TEST(test_rings_of_two_supervisors)
{
    struct mr_trace_shared *before = mr_trace_attached;
    ck_assert_int_eq(mr_trace_attach(fd), 0);
    ck_assert_ptr_eq(mr_trace_attached, before);
    int other = mr_segment_new(MR_BACKING_MEMFD, "trace", sizeof *shared, true);
    struct mr_trace_shared *mapped = mr_segment_map(other, sizeof *shared, true, NULL);
    ck_assert_ptr_nonnull(mapped);
    mr_trace_format(mapped);
    ck_assert_int_eq(mr_trace_attach(other), 0);
    mr_trace_begin(shared);
    ck_assert(!mr_trace_is_on());
    mr_trace_begin(mapped);
    ck_assert(mr_trace_is_on());
    mr_segment_unmap(mapped, sizeof *mapped);
    close(other);
}
END_TEST

START_TEST(test_memory_of_another_kind_is_refused)
{
    int other = memfd_create("other", MFD_CLOEXEC);
    ck_assert_int_eq(mr_trace_attach(other), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    ck_assert_int_eq(ftruncate(other, sizeof *shared), 0);
    ck_assert_int_eq(mr_trace_attach(other), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    close(other);
}
END_TEST

static void *write_many(void *arg)
{
    for (uint64_t i = 0; i < EACH; i++)
        emit((uint64_t)(uintptr_t)arg << 32 | i);
    return NULL;
}

/* Each writer's records come in their order; what is missing was counted. */
START_TEST(test_many_writers)
{
    pthread_t threads[WRITERS];
    uint64_t next[WRITERS] = {0}, got = 0;
    struct mr_trace_record record;
    mr_trace_begin(shared);
    for (uintptr_t i = 0; i < WRITERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_many, (void *)i), 0);
    while (got + mr_trace_reader_lost(&reader) < WRITERS * EACH) {
        while (mr_trace_read(&reader, 1, &record)) {
            uint64_t writer = record.object >> 32, number = record.object & UINT32_MAX;
            ck_assert_uint_lt(writer, WRITERS);
            ck_assert_uint_eq(record.bytes, ~record.object);
            ck_assert_uint_ge(number, next[writer]);
            next[writer] = number + 1;
            got++;
        }
    }
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    ck_assert(!mr_trace_read(&reader, 1, &record));
    ck_assert_uint_eq(reader.passed, 0);
}
END_TEST

START_TEST(test_a_forked_child_writes_too)
{
    struct mr_trace_record record;
    mr_trace_begin(shared);
    pid_t child = fork();
    if (child == 0) {
        emit(7);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert(mr_trace_read(&reader, 0, &record));
    ck_assert_uint_eq(record.pid, (uint32_t)child);
}
END_TEST

/* Bytes that no rule explains: both sides come back. */
START_TEST(test_wild_bytes)
{
    struct mr_trace_record record;
    mr_trace_begin(shared);
    for (unsigned byte = 0; byte < 256; byte += 15) {
        memset(&shared->head, (int)byte, sizeof *shared - offsetof(struct mr_trace_shared, head));
        for (unsigned i = 0; i < 100; i++)
            emit(i);
        for (unsigned i = 0; i < 100; i++)
            if (mr_trace_read(&reader, i * MR_SECOND_NS, &record))
                ck_assert(record.kind < MR_SPAN_KINDS && memchr(record.text, '\0', MR_TRACE_TEXT));
    }
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("trace");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_nothing_is_written_while_nobody_reads);
    tcase_add_test(tcase, test_a_full_ring_loses_the_newest);
    tcase_add_test(tcase, test_a_dead_writer_is_passed_over_after_a_second);
    tcase_add_test(tcase, test_a_writer_that_was_passed_over_publishes_nothing);
    tcase_add_test(tcase, test_another_reader_goes_on);
    tcase_add_test(tcase, test_a_text_is_cut_at_its_front);
    tcase_add_test(tcase, test_rings_of_two_supervisors);
    tcase_add_test(tcase, test_memory_of_another_kind_is_refused);
    tcase_add_test(tcase, test_many_writers);
    tcase_add_test(tcase, test_a_forked_child_writes_too);
    tcase_add_test(tcase, test_wild_bytes);
    return mr_suite_run("trace", tcase);
}
