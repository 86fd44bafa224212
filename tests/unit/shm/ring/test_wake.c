/* test_wake.c - futex and eventfd: nobody is woken who did not ask, nobody who asked sleeps on. */
#include <check.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shm/ring/lane.h"
#include "shm/ring/wake.h"
#include "tests/unit/suite.h"

static struct mr_lane lane;

static void make_lane(void)
{
    size_t size = mr_lane_size(4);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    mr_lane_format(at, 4, 0, 0, 0, 0, 0, 0);
    ck_assert_int_eq(mr_lane_attach(&lane, at, size), 0);
}

static void *wake_after_a_while(void *arg)
{
    struct timespec a_while = {.tv_nsec = 20000000};

    nanosleep(&a_while, NULL);
    if (arg)
        mr_wake_consumer_always(&lane);
    else
        mr_wake_consumer(&lane);
    return NULL;
}

START_TEST(consumer_is_woken_only_if_it_wants)
{

    make_lane();
    uint32_t seen = mr_wake_seq(&lane);
    mr_wake_consumer(&lane);
    ck_assert_uint_eq(mr_wake_seq(&lane), seen); /* want is 0: no syscall, no change */
    ck_assert_int_eq(mr_wake_wait(&lane, seen, 1), MR_WAKE_TIMEOUT);
    mr_wake_set_want(&lane, 1);
    mr_wake_consumer(&lane);
    ck_assert_int_eq(mr_wake_wait(&lane, seen, 1000), MR_WAKE_CHANGED); /* it has changed already */
    seen = mr_wake_seq(&lane);
    pthread_t thread;
    pthread_create(&thread, NULL, wake_after_a_while, NULL);
    ck_assert_int_eq(mr_wake_wait(&lane, seen, 30000), MR_WAKE_CHANGED);
    pthread_join(thread, NULL);
    mr_wake_set_want(&lane, 0);
    seen = mr_wake_seq(&lane);
    pthread_create(&thread, NULL, wake_after_a_while, &lane);
    ck_assert_int_eq(mr_wake_wait(&lane, seen, 30000), MR_WAKE_CHANGED);
    pthread_join(thread, NULL);
}
END_TEST

static void on_signal(int number)
{
    (void)number;
}

START_TEST(a_signal_ends_the_wait)
{
    struct sigaction action = {.sa_handler = on_signal};
    struct itimerspec soon = {.it_value.tv_nsec = 20000000, .it_interval.tv_nsec = 20000000};

    make_lane();
    sigaction(SIGALRM, &action, NULL);
    timer_t timer;
    ck_assert_int_eq(timer_create(CLOCK_MONOTONIC, NULL, &timer), 0);
    timer_settime(timer, 0, &soon, NULL);
    ck_assert_int_eq(mr_wake_wait(&lane, mr_wake_seq(&lane), 30000), MR_WAKE_SIGNAL);
    timer_delete(timer);
}
END_TEST

START_TEST(producer_is_woken_only_if_asleep)
{
    struct mr_producer_line line;
    int fd = eventfd(0, EFD_NONBLOCK);
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    uint64_t full = UINT64_MAX - 1;

    memset(&line, 0, sizeof line);
    mr_wake_producer(&line, fd);
    ck_assert_int_eq(poll(&poll_fd, 1, 0), 0);
    mr_wake_producer_asleep(&line);
    mr_wake_producer(&line, fd);
    ck_assert_int_eq(poll(&poll_fd, 1, 0), 1);
    uint64_t n;
    ck_assert_int_eq(read(fd, &n, sizeof n), sizeof n);
    ck_assert_int_eq(write(fd, &full, sizeof full), sizeof full);
    mr_wake_producer(&line, fd); /* a full counter blocks nobody */
    mr_wake_producer_awake(&line);
    ck_assert_int_eq(read(fd, &n, sizeof n), sizeof n);
    mr_wake_producer(&line, fd);
    ck_assert_int_eq(poll(&poll_fd, 1, 0), 0);
    close(fd);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("wake");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, consumer_is_woken_only_if_it_wants);
    tcase_add_test(tc, a_signal_ends_the_wait);
    tcase_add_test(tc, producer_is_woken_only_if_asleep);
    return mr_suite_run("wake", tc);
}
