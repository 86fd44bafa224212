#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/ring/counters.h"
#include "tests/unit/suite.h"

START_TEST(starts_empty_and_adds)
{
    static _Alignas(64) struct mr_counters block;
    memset(&block, 0xff, sizeof(block));
    mr_counters_init(&block, MR_ROLE_FETCH, 5);
    mr_counters_adopt(&block, 2, 1234, 99);
    mr_counter_add(&block, MR_WC_BYTES, UINT64_C(1) << 40);
    mr_counter_add(&block, MR_WC_BYTES, 1);
    mr_counter_add(&block, MR_COUNTERS_SLOTS, 1); /* out of range: nothing */
    struct mr_counters_snapshot got;
    ck_assert_int_eq(mr_counters_read(&block, &got), 0);
    ck_assert_int_eq(got.role, MR_ROLE_FETCH);
    ck_assert_uint_eq(got.slot, 5);
    ck_assert_uint_eq(got.generation, 2);
    ck_assert_int_eq(got.pid, 1234);
    ck_assert_int_eq(got.started_mono_ns, 99);
    ck_assert_uint_eq(got.count, MR_WC_COUNT);
    for (unsigned i = 0; i < MR_COUNTERS_SLOTS; i++)
        ck_assert_uint_eq(got.values[i], i == MR_WC_BYTES ? (UINT64_C(1) << 40) + 1 : 0);
    ck_assert_uint_eq(mr_counter_get(&block, MR_WC_BYTES), (UINT64_C(1) << 40) + 1);
    ck_assert_uint_eq(mr_counter_get(&block, MR_COUNTERS_SLOTS), 0);
    mr_counters_adopt(&block, 3, 1235, 100); /* a restarted worker goes on */
    ck_assert_uint_eq(mr_counter_get(&block, MR_WC_BYTES), (UINT64_C(1) << 40) + 1);
}
END_TEST

START_TEST(garbage_is_refused)
{
    static _Alignas(64) struct mr_counters block;
    struct mr_counters_snapshot got;
    ck_assert_int_eq(mr_counters_read(&block, &got), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    mr_counters_init(&block, MR_ROLE_CONSUMER, 0);
    for (uint32_t role = 0; role < 300; role++) {
        block.role = role == 299 ? UINT32_MAX : role;
        int good = role > 0 && role < MR_COUNTER_ROLES;
        ck_assert_int_eq(mr_counters_read(&block, &got), good ? 0 : -1);
    }
}
END_TEST

/* What a process counted is there after it was killed, in a mapping that cannot write. */
START_TEST(readable_after_a_kill)
{
    int status, fd = memfd_create("counters", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, MR_COUNTERS_BYTES), 0);
    struct mr_counters *rw = mmap(NULL, MR_COUNTERS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const struct mr_counters *ro = mmap(NULL, MR_COUNTERS_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(rw, MAP_FAILED);
    ck_assert_ptr_ne(ro, MAP_FAILED);
    mr_counters_init(rw, MR_ROLE_CONSUMER, 9);
    pid_t pid = fork();
    if (pid == 0) {
        mr_counters_adopt(rw, 1, getpid(), 0);
        for (int i = 0; i < 1000; i++)
            mr_counter_add(rw, MR_CC_SAMPLES, 1);
        raise(SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    struct mr_counters_snapshot got;
    ck_assert_int_eq(mr_counters_read(ro, &got), 0);
    ck_assert_int_eq(got.pid, pid);
    ck_assert_uint_eq(got.values[MR_CC_SAMPLES], 1000);
    munmap(rw, MR_COUNTERS_BYTES);
    munmap((void *)ro, MR_COUNTERS_BYTES);
    close(fd);
}
END_TEST

static void *count_up(void *block)
{
    for (int i = 0; i < 50000; i++)
        mr_counter_add(block, MR_CC_COPIES, 1);
    return NULL;
}

START_TEST(threads_of_the_owner_lose_nothing)
{
    static _Alignas(64) struct mr_counters block;
    uint64_t last = 0;
    mr_counters_init(&block, MR_ROLE_CONSUMER, 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count_up, &block), 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = mr_counter_get(&block, MR_CC_COPIES);
        ck_assert_uint_ge(now, last);
        last = now;
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(mr_counter_get(&block, MR_CC_COPIES), 100000);
}
END_TEST

/* Names are fit for Prometheus, and no two of a role are the same. */
START_TEST(labels_are_fit_to_print)
{
    unsigned count;
    for (unsigned role = 1; role < MR_COUNTER_ROLES; role++) {
        const struct mr_counter_label *labels = mr_counter_labels(role, &count);
        ck_assert_uint_gt(count, 0);
        for (unsigned i = 0; i < count; i++) {
            ck_assert_uint_gt(strlen(labels[i].name), 0);
            ck_assert_uint_eq(strspn(labels[i].name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(labels[i].name));
            ck_assert_ptr_null(strchr(labels[i].help, '\n'));
            ck_assert_ptr_null(strchr(labels[i].help, '\\'));
            ck_assert_uint_gt(strlen(labels[i].unit), 0);
            for (unsigned k = 0; k < i; k++)
                ck_assert_str_ne(labels[i].name, labels[k].name);
        }
    }
    ck_assert_str_eq(mr_counter_labels(MR_ROLE_FETCH, &count)[MR_WC_IDLE_NS].name, "idle_ns");
    unsigned of_list;
    ck_assert_str_eq(mr_counter_labels(MR_ROLE_LIST, &of_list)[MR_WC_DROPPED_SPECIAL].name, "dropped_special");
    ck_assert_str_eq(mr_counter_labels(MR_ROLE_CONSUMER, &count)[MR_CC_REPLACED].name, "replaced_samples");
    ck_assert_ptr_null(mr_counter_labels(0, &count));
    ck_assert_ptr_null(mr_counter_labels(MR_COUNTER_ROLES, &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_str_eq(mr_counter_role_name(MR_ROLE_LIST), "list");
    ck_assert_str_eq(mr_counter_role_name(77), "unknown");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("counters");
    tcase_add_test(tc, starts_empty_and_adds);
    tcase_add_test(tc, garbage_is_refused);
    tcase_add_test(tc, readable_after_a_kill);
    tcase_add_test(tc, threads_of_the_owner_lose_nothing);
    tcase_add_test(tc, labels_are_fit_to_print);
    return mr_suite_run("counters", tc);
}
