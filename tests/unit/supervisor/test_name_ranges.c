/*
 * test_name_ranges.c - who lists what, and where ranges are cut: whole listings of made-up names by several workers.
 *
 * The store and the workers are simulated (a turn is a page of each busy worker), the cuts are worker/list/split.c's
 * and the decisions are ranges.c's. Each shape of names must be listed once, with hardly more requests than one worker
 * needs, and with most workers at work.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "supervisor/name_ranges.h"
#include "worker/list/split.h"

enum { PAGE = 50, WORKERS_MAX = 16 };

struct names {
    char **at;
    size_t count;
};

struct lister {
    struct mr_name_range *range;
    struct mr_shape shape;
    size_t first, next; /* names of this range that were listed: [first, next) */
};

static uint64_t mixed(uint64_t i)
{
    return mr_mix64(i + 1);
}

/* ---- shapes of names ---- */

typedef void shape_fn(uint64_t i, char *out);

static void flat_padded(uint64_t i, char *out)
{
    sprintf(out, "obj-%09" PRIu64, i);
}
static void flat_bare(uint64_t i, char *out)
{
    sprintf(out, "%" PRIu64 ".jpg", i);
}
static void hashes(uint64_t i, char *out)
{
    sprintf(out, "%016" PRIx64 "%016" PRIx64, mixed(i), mixed(i + (1 << 30)));
}
static void folders(uint64_t i, char *out)
{
    sprintf(out, "train/n%08" PRIu64 "/n%08" PRIu64 "_%" PRIu64 ".JPEG", mixed(i / 300) % 100000000,
            mixed(i / 300) % 100000000, i);
}
static void deep(uint64_t i, char *out)
{
    sprintf(out, "a/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "/x/y/z/data.bin", i / 10000 % 10,
            i / 1000 % 10, i / 100 % 10, i / 10 % 10, i);
}
static void unicode(uint64_t i, char *out)
{
    static const char *const places[] = {"東京", "大阪", "名古屋", "京都", "Zürich", "Ålesund", "São Paulo", "😀"};
    sprintf(out, "写真/%s/画像%06" PRIu64 "é.png", places[i % 8], i);
}
static void han(uint64_t i, char *out) /* characters alone: no digits anywhere */
{
    uint64_t v = mixed(i);
    out[0] = '\0';
    for (int n = 0; n < 6; n++, v /= 1000) {
        unsigned c = 0x4e00 + (unsigned)(v % 1000) * 7;
        sprintf(out + strlen(out), "%c%c%c", 0xe0 | c >> 12, 0x80 | (c >> 6 & 63), 0x80 | (c & 63));
    }
}
static void shared_prefix(uint64_t i, char *out) /* 1,010 equal bytes before what differs */
{
    memset(out, '7', 1010);
    sprintf(out + 1010, "%014" PRIu64, i);
}
static void runs(uint64_t i, char *out) /* runs of equal characters, up to 1,024 bytes */
{
    unsigned length = (unsigned)(mixed(i) % 1000);
    memset(out, 'a' + (int)(mixed(i) / 1000 % 3), length);
    sprintf(out + length, "b%" PRIu64, i);
}
static void skewed(uint64_t i, char *out) /* 99% under one folder */
{
    if (i % 100 == 0)
        sprintf(out, "%c%" PRIu64 "/file", 'a' + (int)(mixed(i) % 26), i);
    else
        sprintf(out, "mnist/part-%05" PRIu64 "-of-99999/%" PRIu64, i / 1000, i);
}
static void dates(uint64_t i, char *out)
{
    sprintf(out, "logs/2023-%02" PRIu64 "-%02" PRIu64 "T%02" PRIu64 "/%s.gz", 1 + i % 12, 1 + i / 12 % 28, i / 336 % 24,
            &"0123456789abcdef"[mixed(i) % 8]);
    sprintf(out + strlen(out), ".%" PRIu64, i);
}
static void bytes_any(uint64_t i, char *out) /* no UTF-8: file names may be anything but NUL and slash */
{
    uint64_t v = mixed(i);
    for (int n = 0; n < 8; n++, v >>= 8)
        out[n] = (char)(v & 255 ? v & 255 : 1);
    sprintf(out + 8, "%" PRIu64, i);
}
static void two_folders(uint64_t i, char *out)
{
    sprintf(out, "%s/%07" PRIu64, i % 2 ? "train" : "validation", i);
}
static void letters(uint64_t i, char *out) /* a folder a letter, each some pages */
{
    sprintf(out, "%c/%06" PRIu64, 'a' + (int)(i % 26), i);
}

static const struct {
    const char *name;
    shape_fn *make;
} shapes[] = {
    {"flat padded", flat_padded},
    {"flat bare", flat_bare},
    {"hashes", hashes},
    {"folders", folders},
    {"deep", deep},
    {"unicode", unicode},
    {"han", han},
    {"shared", shared_prefix},
    {"runs", runs},
    {"skewed", skewed},
    {"dates", dates},
    {"any bytes", bytes_any},
    {"two folders", two_folders},
    {"letters", letters},
};
#define SHAPES (sizeof shapes / sizeof shapes[0])

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct names make_names(shape_fn *make, size_t count)
{
    struct names names = {calloc(count, sizeof *names.at), 0};
    char text[2048];
    for (size_t i = 0; i < count; i++) {
        make(i, text);
        names.at[names.count++] = strdup(text);
    }
    qsort(names.at, names.count, sizeof *names.at, by_bytes);
    size_t kept = 0;
    for (size_t i = 0; i < names.count; i++) {
        if (kept > 0 && strcmp(names.at[kept - 1], names.at[i]) == 0)
            free(names.at[i]);
        else
            names.at[kept++] = names.at[i];
    }
    names.count = kept;
    return names;
}

static void free_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
}

/* ---- the simulation ---- */

struct world {
    struct names names;
    struct mr_name_ranges ranges;
    struct lister listers[WORKERS_MAX];
    unsigned workers;
    uint64_t next_id, turns, busy;
    size_t prefix;
};

static size_t seek(const struct names *names, const char *key)
{
    size_t low = 0, high = names->count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (strcmp(names->at[mid], key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void answer_split(struct world *w, struct lister *l)
{
    static char mid[MR_SPLIT_MAX];
    uint64_t level;
    struct mr_split_place place = {.first = w->names.at[l->first],
                                   .last = w->names.at[l->next - 1],
                                   .end = l->range->end,
                                   .prefix = w->prefix,
                                   .level = l->range->level};
    if (mr_split(&l->shape, &place, mid, &level))
        ck_assert_ptr_nonnull(mr_name_range_cut(&w->ranges, l->range, w->next_id++, mid, level, l->shape.deepest));
    else
        mr_name_range_uncut(l->range);
}

static void one_page(struct world *w, struct lister *l)
{
    struct mr_name_range *range = l->range;
    size_t from = l->next, end = range->end ? seek(&w->names, range->end) : w->names.count;
    while (l->next < end && l->next < from + PAGE) {
        mr_shape_add(&l->shape, l->next > l->first ? w->names.at[l->next - 1] : NULL, w->names.at[l->next]);
        l->next++;
    }
    if (l->next > from)
        mr_shape_page(&l->shape, w->names.at[from], w->names.at[l->next - 1]);
    mr_name_range_page(&w->ranges, range, l->next - l->first, range->pages + 1);
    w->busy++;
    if (l->next >= end) {
        mr_name_range_done(&w->ranges, range, l->next - l->first);
        l->range = NULL;
    } else if (range->splitting) {
        answer_split(w, l);
    }
}

/* As listing.c does it. */
static void dispatch(struct world *w)
{
    unsigned idle = 0;
    for (unsigned i = 0; i < w->workers; i++) {
        struct lister *l = &w->listers[i];
        if (l->range)
            continue;
        struct mr_name_range *range = mr_name_ranges_waiting(&w->ranges);
        if (!range) {
            idle++;
            continue;
        }
        mr_name_range_begin(range, l);
        memset(l, 0, sizeof *l);
        l->range = range;
        l->first = l->next = seek(&w->names, range->start);
    }
    while (idle > mr_name_ranges_promised(&w->ranges)) {
        struct mr_name_range *range = mr_name_ranges_busiest(&w->ranges);
        if (!range)
            break;
        range->splitting = true;
    }
}

static void simulate(struct world *w, shape_fn *make, size_t count, unsigned workers)
{
    *w = (struct world){.names = make_names(make, count), .workers = workers, .next_id = 1};
    ck_assert_ptr_nonnull(mr_name_ranges_add(&w->ranges, w, w->next_id++, "gs://b/"));
    while (!mr_name_ranges_complete(&w->ranges)) {
        dispatch(w);
        for (unsigned i = 0; i < workers; i++)
            if (w->listers[i].range)
                one_page(w, &w->listers[i]);
        ck_assert_uint_lt(w->turns++, 1000000);
    }
}

/* Every name once: the ranges lie side by side and their counts are those of the names. */
static void check_complete(const struct world *w)
{
    const char *at = "";
    size_t sum = 0;
    for (const struct mr_name_range *range = w->ranges.first; range; range = range->next) {
        ck_assert_str_eq(range->start, at);
        size_t end = range->end ? seek(&w->names, range->end) : w->names.count;
        ck_assert_uint_eq(range->objects, end - seek(&w->names, range->start));
        sum += range->objects;
        at = range->end ? range->end : "";
    }
    ck_assert_uint_eq(sum, w->names.count);
}

static void close_world(struct world *w)
{
    mr_name_ranges_clear(&w->ranges);
    free_names(&w->names);
}

START_TEST(one_worker_needs_no_request_more)
{
    static const size_t counts[] = {1, 49, 50, 51, 100, 5000, 5001};
    struct world w;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        simulate(&w, shapes[_i].make, counts[i], 1);
        check_complete(&w);
        ck_assert_uint_eq(w.ranges.requests, (w.names.count + PAGE - 1) / PAGE);
        ck_assert_uint_eq(w.ranges.cuts, 0);
        close_world(&w);
    }
}
END_TEST

START_TEST(several_workers_need_few_more)
{
    static const unsigned workers[] = {2, 4, 16};
    struct world w;
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++) {
        simulate(&w, shapes[_i].make, 40000, workers[i]);
        check_complete(&w);
        uint64_t least = (w.names.count + PAGE - 1) / PAGE;
        printf("%-12s %2u workers: %" PRIu64 " requests for %" PRIu64 " pages, %u cuts, %.1f at work\n",
               shapes[_i].name, workers[i], w.ranges.requests, least, w.ranges.cuts, (double)w.busy / (double)w.turns);
        fflush(stdout);
        ck_assert_uint_le(w.ranges.requests * 10, least * 11);
        if (workers[i] <= 4)
            ck_assert_uint_ge(w.busy * 10, w.turns * workers[i] * 6);
        close_world(&w);
    }
}
END_TEST

START_TEST(small_listings_are_not_cut_to_pieces)
{
    struct world w;
    for (size_t count = 50; count <= 1000; count += 190) {
        simulate(&w, shapes[_i].make, count, 8);
        check_complete(&w);
        ck_assert_uint_le(w.ranges.requests, (w.names.count + PAGE - 1) / PAGE + 4);
        close_world(&w);
    }
}
END_TEST

START_TEST(cut_outside_is_refused)
{
    struct mr_name_ranges ranges = {0};
    struct mr_name_range *range = mr_name_ranges_add(&ranges, NULL, 1, "gs://b/");
    mr_name_range_begin(range, &ranges);
    ck_assert_ptr_nonnull(mr_name_range_cut(&ranges, range, 2, "m", 0, 0));
    ck_assert_ptr_null(mr_name_range_cut(&ranges, range, 3, "m", 0, 0));
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_ptr_null(mr_name_range_cut(&ranges, range, 3, "n", 0, 0));
    ck_assert_ptr_null(mr_name_range_cut(&ranges, range->next, 3, "m", 0, 0));
    ck_assert_uint_eq(ranges.count, 2);
    mr_name_ranges_clear(&ranges);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ranges");
    TCase *tc = tcase_create("ranges");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, one_worker_needs_no_request_more, 0, (int)SHAPES);
    tcase_add_loop_test(tc, several_workers_need_few_more, 0, (int)SHAPES);
    tcase_add_loop_test(tc, small_listings_are_not_cut_to_pieces, 0, (int)SHAPES);
    tcase_add_test(tc, cut_outside_is_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
