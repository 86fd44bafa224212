/* The counters of a loader: what a batch adds, and what a reader of a descriptor refuses. */
#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/meter/meter.h"
#include "tests/unit/suite.h"

static struct mr_meter meter;

static void setup(void)
{
    ck_assert_int_eq(mr_meter_new(&meter, 2, 3, 8), 0);
    mr_meter_begin(&meter, 5, 4, 2);
}

static void teardown(void)
{
    mr_meter_close(&meter);
}

/* 10 waiting for samples and 20 of transform, 3 for memory, 4 of collate, 5 of packing, from `began` on. */
static struct mr_meter_times batch(uint32_t worker, int64_t began)
{
    return (struct mr_meter_times){.worker = worker,
                                   .began = began,
                                   .fetched = began + 30,
                                   .reserved = began + 33,
                                   .collated = began + 37,
                                   .packed = began + 42,
                                   .sent = began + 43,
                                   .waited = 10,
                                   .cpu = 25,
                                   .thread = 20,
                                   .delay = 2};
}

START_TEST(test_the_first_batch_is_apart)
{
    struct mr_meter_sums sums;
    struct mr_meter_times made = batch(0, 100);
    mr_meter_take(&meter, 90, 150, 0, 7, &made);
    mr_meter_read(&meter, &sums);
    ck_assert_uint_eq(sums.first, 60);
    ck_assert_uint_eq(sums.batches + sums.wait + sums.step + sums.made + sums.save, 0);
    ck_assert_uint_eq(sums.epoch, 5);
    ck_assert_uint_eq(sums.rank, 3);
    ck_assert_uint_eq(sums.world, 8);
    ck_assert_uint_eq(sums.workers, 2);
    ck_assert_uint_eq(sums.cores, 4);
}
END_TEST

/* Asked at 200, packed at 242, sent from 243 on, on its way until 250, of which the copy to the device took 3. */
START_TEST(test_what_a_batch_adds)
{
    struct mr_meter_sums sums;
    struct mr_meter_times first = batch(1, 100), made = batch(1, 200);
    mr_meter_take(&meter, 90, 150, 0, 0, &first);
    mr_meter_ask(&meter, 200);
    mr_meter_read(&meter, &sums);
    ck_assert_int_eq(sums.asked, 200);
    mr_meter_take(&meter, 200, 250, 247, 7, &made);
    mr_meter_read(&meter, &sums);
    ck_assert_int_eq(sums.asked, 0);
    ck_assert_uint_eq(sums.batches, 1);
    ck_assert_uint_eq(sums.step, 50);
    ck_assert_uint_eq(sums.wait, 50);
    ck_assert_uint_eq(sums.late, 43);
    ck_assert_uint_eq(sums.device, 3);
    ck_assert_uint_eq(sums.transport, 4);
    ck_assert_uint_eq(sums.save, 7);
    ck_assert_uint_eq(sums.store, 10);
    ck_assert_uint_eq(sums.transform, 20);
    ck_assert_uint_eq(sums.extent, 3);
    ck_assert_uint_eq(sums.collate, 4);
    ck_assert_uint_eq(sums.pack, 5);
    ck_assert_uint_eq(sums.cpu, 25);
    ck_assert_uint_eq(sums.thread, 20);
    ck_assert_uint_eq(sums.delay, 2);
    ck_assert_uint_eq(sums.idle, 58); /* 142 to 200 */
    ck_assert_uint_eq(sums.queue, 8);
    struct mr_meter_sums since = sums;
    mr_meter_since(&since, &sums);
    ck_assert_uint_eq(since.wait + since.made + since.queue + since.first, 0);
    ck_assert_uint_eq(since.rank, 3);
}
END_TEST

/* Times of a clock that a sender makes up: nothing wraps, no block is out of range. */
START_TEST(test_times_that_cannot_be)
{
    struct mr_meter_sums sums;
    struct mr_meter_times first = batch(0, 100),
                          made = {.worker = 4000000000u, .began = 900, .packed = -5, .sent = -4, .waited = 99};
    mr_meter_take(&meter, 90, 150, 0, 0, &first);
    mr_meter_take(&meter, 300, 200, INT64_MAX, 0, &made);
    mr_meter_read(&meter, &sums);
    ck_assert_uint_eq(sums.wait + sums.late + sums.transport + sums.device + sums.store + sums.transform, 0);
    ck_assert_uint_eq(sums.batches, 1);
}
END_TEST

/* The supervisor's side: it sees the counters, writes nothing, and hears of the end. */
START_TEST(test_read_only)
{
    struct mr_meter seen;
    struct mr_meter_sums sums;
    struct mr_meter_times first = batch(0, 100), made = batch(0, 200);
    ck_assert_int_eq(mr_meter_map(&seen, meter.fd), 0);
    mr_meter_take(&meter, 90, 150, 0, 0, &first);
    mr_meter_take(&meter, 200, 250, 0, 0, &made);
    mr_meter_read(&seen, &sums);
    ck_assert_uint_eq(sums.batches, 1);
    ck_assert(!mr_meter_has_ended(&seen));
    mr_meter_close(&meter);
    ck_assert(mr_meter_has_ended(&seen));
    mr_meter_close(&seen);
}
END_TEST

static int sealed(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void expect_refused(int fd, enum mr_code code)
{
    struct mr_meter seen;
    ck_assert_int_eq(mr_meter_map(&seen, fd), -1);
    ck_assert_int_eq(mr_error_code(), code);
    ck_assert_ptr_null(seen.shared);
    if (fd != meter.fd)
        close(fd);
}

START_TEST(test_what_is_refused)
{
    expect_refused(sealed(8192, 0), MR_E_USAGE); /* it may shrink under a reader */
    expect_refused(sealed(64, F_SEAL_SHRINK), MR_E_USAGE);
    expect_refused(sealed((size_t)1 << 30, F_SEAL_SHRINK), MR_E_USAGE);
    expect_refused(sealed(8192, F_SEAL_SHRINK), MR_E_CORRUPT);
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    expect_refused(pipes[0], MR_E_USAGE);
    close(pipes[1]);
    meter.shared->blocks = 3; /* more than lie there */
    expect_refused(meter.fd, MR_E_USAGE);
    meter.shared->blocks = 0;
    expect_refused(meter.fd, MR_E_USAGE);
    meter.shared->blocks = 2;
    meter.shared->version++;
    expect_refused(meter.fd, MR_E_USAGE);
}
END_TEST

START_TEST(test_too_many_workers)
{
    struct mr_meter other;
    ck_assert_int_eq(mr_meter_new(&other, MR_METER_WORKERS_MAX + 1, 0, 1), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    mr_meter_close(&other); /* of zeroes: nothing */
    ck_assert_int_eq(mr_meter_new(&other, 0, 0, 1), 0);
    ck_assert_uint_eq(other.blocks, 1);
    mr_meter_close(&other);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("meter");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, test_the_first_batch_is_apart);
    tcase_add_test(tcase, test_what_a_batch_adds);
    tcase_add_test(tcase, test_times_that_cannot_be);
    tcase_add_test(tcase, test_read_only);
    tcase_add_test(tcase, test_what_is_refused);
    tcase_add_test(tcase, test_too_many_workers);
    return mr_suite_run("meter", tcase);
}
