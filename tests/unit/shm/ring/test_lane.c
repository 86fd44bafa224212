/* test_lane.c - the transition table: every legal step, every refused one, close, recovery, wrap, garbage. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/ring/lane.h"
#include "tests/unit/suite.h"

static struct mr_lane lane;

static void make_lane(uint32_t window, uint32_t first_lap)
{
    size_t size = mr_lane_size(window);
    int fd = mr_segment_new(MR_BACKING_MEMFD, "a lane", size, true);

    ck_assert_int_ge(fd, 0);
    void *at = mr_segment_map(fd, size, true, NULL);
    ck_assert_ptr_nonnull(at);
    mr_lane_format(at, window, 3, 9, 1, 1000, first_lap, 0);
    mr_segment_unmap(at, size);
    ck_assert_int_eq(mr_lane_map(&lane, fd), 0);
    close(fd);
}

static void drop_lane(void)
{
    mr_lane_unmap(&lane);
}

static uint64_t word_of(uint64_t number)
{
    return mr_lane_load(&lane, mr_lane_slot(&lane, number));
}

static void post(uint64_t number)
{
    struct mr_request request = {.dataset = 1, .flags = 2, .object = number, .offset = 4, .length = 5};

    ck_assert(mr_lane_post(&lane, number, &request));
    ck_assert_int_eq(mr_word_state(word_of(number)), MR_PENDING);
    ck_assert_uint_eq(mr_word_lap(word_of(number)), mr_lane_lap(&lane, number));
}

static uint64_t claim(uint64_t number, unsigned producer)
{
    struct mr_request request;
    uint64_t filling;

    ck_assert(mr_lane_claim(&lane, mr_lane_slot(&lane, number), word_of(number), producer, &filling, &request));
    ck_assert_uint_eq(request.object, number);
    ck_assert_uint_eq(request.length, 5);
    ck_assert_uint_eq(word_of(number), filling);
    ck_assert_uint_eq(mr_word_owner(filling), producer);
    return filling;
}

static uint64_t publish(uint64_t number, uint64_t filling)
{
    struct mr_descriptor desc = {.extent_offset = 4096 * number, .extent_length = 10, .length = 7, .crc32c = 8};

    mr_lane_describe(&lane, mr_lane_slot(&lane, number), &desc);
    uint64_t ready;
    mr_lane_publish(&lane, mr_lane_slot(&lane, number), filling, &ready);
    return ready;
}

static uint64_t take(uint64_t number, struct mr_descriptor *desc, bool *failed)
{
    uint64_t word;

    ck_assert(mr_lane_take(&lane, number, &word, desc, failed));
    ck_assert_uint_eq(word_of(number), word);
    ck_assert_int_eq(mr_word_state(word), MR_HELD);
    ck_assert_uint_eq(mr_word_owner(word), 9);
    return word;
}

START_TEST(life_of_a_ticket)
{

    make_lane(4, 0);
    struct mr_descriptor desc;
    uint64_t filling, word;
    bool failed;
    for (uint64_t n = 0; n < 40; n++) {
        post(n);
        ck_assert(!mr_lane_take(&lane, n, &word, &desc, &failed));
        filling = claim(n, 5);
        ck_assert(!mr_lane_take(&lane, n, &word, &desc, &failed));
        publish(n, filling);
        ck_assert(!mr_lane_take(&lane, n + 4, &word, &desc, &failed)); /* another lap's number */
        word = take(n, &desc, &failed);
        ck_assert(!failed);
        ck_assert_uint_eq(desc.extent_offset, 4096 * n);
        ck_assert_uint_eq(desc.length, 7);
        ck_assert(!mr_lane_post(&lane, n + 4, &(struct mr_request){0})); /* HELD */
        ck_assert(mr_lane_release(&lane, mr_lane_slot(&lane, n), word));
        ck_assert(!mr_lane_release(&lane, mr_lane_slot(&lane, n), word)); /* only once */
        ck_assert_int_eq(mr_word_state(word_of(n)), MR_RELEASED);
    }
    drop_lane();
}
END_TEST

START_TEST(failure_has_no_extent_and_bounded_text)
{

    make_lane(4, 0);
    char longer[500];
    memset(longer, 'x', sizeof longer);
    longer[499] = '\0';
    post(0);
    publish(0, claim(0, 1));
    struct mr_descriptor desc;
    bool failed;
    take(0, &desc, &failed);
    post(1);
    uint64_t filling = claim(1, 1);
    mr_lane_fail(&lane, 1, filling, MR_E_NOT_FOUND, longer);
    take(1, &desc, &failed);
    ck_assert(failed);
    ck_assert_uint_eq(desc.code, MR_E_NOT_FOUND);
    ck_assert_uint_eq(desc.extent_length, 0);
    char text[MR_FAIL_TEXT + 16];
    mr_lane_fail_reason(&lane, 1, &desc, text);
    ck_assert_uint_eq(strlen(text), MR_FAIL_TEXT + 15);

    post(2);
    ck_assert(!mr_lane_poison(&lane, 2, word_of(2) ^ 1, MR_E_IO, "no"));
    ck_assert(mr_lane_poison(&lane, 2, word_of(2), MR_E_IO, "three deaths"));
    take(2, &desc, &failed);
    ck_assert(failed);
    ck_assert_uint_eq(desc.code, MR_E_IO);
    mr_lane_fail_reason(&lane, 2, &desc, text);
    ck_assert_str_eq(text, "three deaths");
    ck_assert_uint_eq(mr_word_attempt(word_of(2)), MR_ATTEMPT_POISON);
    drop_lane();
}
END_TEST

START_TEST(give_back_and_take_back)
{

    make_lane(8, 0);
    post(0);
    mr_lane_give_back(&lane, 0, claim(0, 2));
    ck_assert_int_eq(mr_word_state(word_of(0)), MR_PENDING);
    uint64_t ready = publish(0, claim(0, 2));
    ck_assert(!mr_lane_take_back(&lane, 0, ready ^ UINT64_C(1) << 48)); /* another producer's word */
    ck_assert(mr_lane_take_back(&lane, 0, ready));
    ck_assert_int_eq(mr_word_state(word_of(0)), MR_PENDING);
    ready = publish(0, claim(0, 3));
    struct mr_descriptor desc;
    bool failed;
    uint64_t word = take(0, &desc, &failed);
    ck_assert(!mr_lane_take_back(&lane, 0, ready)); /* HELD */
    ck_assert(mr_lane_release(&lane, 0, word));
    drop_lane();
}
END_TEST

/* Slots 0..7 in every state: PENDING FILLING READY FAILED HELD RELEASED EMPTY EMPTY. */
static void every_state(uint64_t *filling, uint64_t *held)
{

    for (uint64_t n = 0; n < 6; n++)
        post(n);
    *filling = claim(1, 6);
    publish(2, claim(2, 6));
    mr_lane_fail(&lane, 3, claim(3, 6), MR_E_NET, "lost");
    publish(4, claim(4, 6));
    struct mr_descriptor desc;
    bool failed;
    *held = take(4, &desc, &failed);
    publish(5, claim(5, 6));
    ck_assert(mr_lane_release(&lane, 5, take(5, &desc, &failed)));
}

START_TEST(close_leaves_filling_and_held)
{
    static const enum mr_state left[8] = {MR_EMPTY, MR_FILLING, MR_EMPTY, MR_EMPTY, MR_HELD};

    make_lane(8, 7);
    mr_lane_unmap(&lane);
    make_lane(8, 0);
    uint64_t filling, held;
    every_state(&filling, &held);
    mr_lane_close(&lane, false);
    mr_lane_close(&lane, false);
    for (uint64_t n = 0; n < 8; n++)
        ck_assert_int_eq(mr_word_state(word_of(n)), left[n]);
    ck_assert(!mr_lane_is_empty(&lane));
    ck_assert(!mr_lane_post(&lane, 6, &(struct mr_request){0}));
    uint64_t ready;
    mr_lane_publish(&lane, 1, filling, &ready); /* its second look empties it */
    ck_assert_int_eq(mr_word_state(word_of(1)), MR_EMPTY);
    ck_assert(mr_lane_release(&lane, 4, held));
    ck_assert(mr_lane_is_empty(&lane));
    drop_lane();
}
END_TEST

START_TEST(second_look_after_each_step)
{
    uint64_t filling, held;

    for (int how = 0; how < 4; how++) {
        make_lane(8, 0);
        every_state(&filling, &held);
        mr_lane_close(&lane, false);
        if (how == 0)
            mr_lane_give_back(&lane, 1, filling);
        else if (how == 1)
            mr_lane_fail(&lane, 1, filling, MR_E_IO, "late");
        else if (how == 2)
            ck_assert_uint_eq(mr_lane_recover(&lane, 6), 1);
        else
            publish(1, filling);
        ck_assert_int_eq(mr_word_state(word_of(1)), MR_EMPTY);
        mr_lane_close(&lane, true); /* the owner has died: HELD goes too */
        ck_assert(mr_lane_is_empty(&lane));
        drop_lane();
    }
}
END_TEST

START_TEST(recovery_is_idempotent_and_counts_attempts)
{

    make_lane(8, 0);
    uint64_t filling, held;
    every_state(&filling, &held);
    ck_assert_uint_eq(mr_lane_recover(&lane, 5), 0); /* another producer */
    ck_assert_uint_eq(mr_lane_recover(&lane, 6), 1);
    ck_assert_uint_eq(word_of(1), mr_word(MR_PENDING, 0, 1, 0));
    uint64_t before[8];
    for (uint64_t n = 0; n < 8; n++)
        before[n] = word_of(n);
    ck_assert_uint_eq(mr_lane_recover(&lane, 6), 0);
    for (uint64_t n = 0; n < 8; n++)
        ck_assert_uint_eq(word_of(n), before[n]);
    /* attempts stop below the mark of poison */
    atomic_store(&lane.tickets[1].word, mr_word(MR_FILLING, 6, MR_ATTEMPT_MAX, 0));
    ck_assert_uint_eq(mr_lane_recover(&lane, 6), 1);
    ck_assert_uint_eq(word_of(1), mr_word(MR_PENDING, 0, MR_ATTEMPT_MAX, 0));
    drop_lane();
}
END_TEST

START_TEST(numbers_wrap)
{

    make_lane(8, UINT32_MAX);
    uint64_t n = (uint64_t)lane.first_lap << lane.shift;
    ck_assert_int_eq(mr_lane_distance(&lane, mr_lane_wrap(&lane, n + 8), n), 8);
    ck_assert_uint_eq(mr_lane_wrap(&lane, n + 8), 0);
    struct mr_descriptor desc;
    uint64_t word;
    bool failed;
    for (int i = 0; i < 24; i++, n = mr_lane_wrap(&lane, n + 1)) {
        uint64_t next = mr_lane_wrap(&lane, n + 1);
        ck_assert_int_eq(mr_lane_distance(&lane, next, n), 1);
        ck_assert_int_eq(mr_lane_distance(&lane, n, next), -1);
        ck_assert_uint_eq(mr_lane_number(&lane, mr_lane_slot(&lane, n), mr_lane_lap(&lane, n)), n);
        post(n);
        post(next);
        for (int k = 0; k < 2; k++) {
            uint64_t m = k ? next : n;
            publish(m, claim(m, 1));
            word = take(m, &desc, &failed);
            ck_assert(mr_lane_release(&lane, mr_lane_slot(&lane, m), word));
        }
    }
    drop_lane();
}
END_TEST

START_TEST(damaged_headers_are_refused)
{
    size_t size = mr_lane_size(8);
    unsigned char *at = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct mr_lane_shared *shared = (void *)at;

    mr_lane_format(at, 8, 1, 2, 3, 4, 5, 6);
    struct mr_lane out;
    ck_assert_int_eq(mr_lane_attach(&out, at, size), 0);
    ck_assert_int_eq(mr_lane_attach(&out, at, size - 1), -1);
    ck_assert_int_eq(mr_lane_attach(&out, at, 10), -1);
    shared->window = 9;
    ck_assert_int_eq(mr_lane_attach(&out, at, size), -1);
    shared->window = 1u << 31;
    ck_assert_int_eq(mr_lane_attach(&out, at, size), -1);
    shared->window = 8;
    shared->version++;
    ck_assert_int_eq(mr_lane_attach(&out, at, size), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    shared->version--;
    atomic_store(&shared->magic, 1);
    ck_assert_int_eq(mr_lane_attach(&out, at, size), -1);
    struct mr_lane again;
    memset(at, 0xa5, offsetof(struct mr_lane_shared, want));
    mr_lane_restate(&out);
    ck_assert_int_eq(mr_lane_attach(&again, at, size), 0);
    ck_assert(again.shared == out.shared && again.tickets == out.tickets && again.size == out.size);
    ck_assert(again.window == out.window && again.mask == out.mask && again.shift == out.shift);
    ck_assert(again.lane == out.lane && again.owner == out.owner && again.dataset == out.dataset);
    ck_assert(again.first_lap == out.first_lap && again.division == out.division && again.ahead == out.ahead);
    munmap(at, 2 * size);
}
END_TEST

/* Every function over tables of random bytes: nothing is read or written outside (asan), and a closed lane whose owner
 * and producers are gone always drains. */
START_TEST(garbage_words)
{
    make_lane(16, 0);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        for (size_t i = 0; i < 16 * sizeof(struct mr_ticket) / 8; i++)
            ((uint64_t *)lane.tickets)[i] =
                mr_mix64(seed << 20 | i) & (i % 2 ? UINT64_MAX : UINT64_C(0x70ff0001ffffffff));
        struct mr_descriptor desc;
        struct mr_request request;
        char text[MR_FAIL_TEXT + 16];
        uint64_t word, number;
        bool failed;
        for (uint32_t slot = 0; slot < 16; slot++) {
            uint64_t seen = mr_lane_load(&lane, slot);
            number = mr_lane_number(&lane, slot, mr_word_lap(seen));
            if (mr_lane_take(&lane, number, &word, &desc, &failed)) {
                ck_assert(failed || desc.length <= desc.extent_length);
                mr_lane_fail_reason(&lane, slot, &desc, text);
                ck_assert_uint_lt(strlen(text), sizeof text);
            }
            mr_lane_claim(&lane, slot, seen, 1, &word, &request);
            mr_lane_poison(&lane, slot, seen, 1, "x");
        }
        mr_lane_close(&lane, true);
        for (unsigned p = 0; p < 64; p++)
            mr_lane_recover(&lane, p);
        ck_assert(mr_lane_is_empty(&lane));
        atomic_store(&lane.shared->closed, 0);
    }
    drop_lane();
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("lane");
    tcase_add_test(tc, life_of_a_ticket);
    tcase_add_test(tc, failure_has_no_extent_and_bounded_text);
    tcase_add_test(tc, give_back_and_take_back);
    tcase_add_test(tc, close_leaves_filling_and_held);
    tcase_add_test(tc, second_look_after_each_step);
    tcase_add_test(tc, recovery_is_idempotent_and_counts_attempts);
    tcase_add_test(tc, numbers_wrap);
    tcase_add_test(tc, damaged_headers_are_refused);
    tcase_add_test(tc, garbage_words);
    return mr_suite_run("lane", tc);
}
