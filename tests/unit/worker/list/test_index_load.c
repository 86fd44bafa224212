/* test_index_load.c - a saved index that is too old, which several nodes replace: the first one to do so wins. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strings.h"
#include "shm/index/index_build.h"
#include "tests/unit/suite.h"
#include "worker/list/index_load.h"

static char folder[64], place[96];
static const char *const prefixes[] = {"data/"};
static const struct mr_strings no_classes;

static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/millrace-test-index-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(place, sizeof place, "%s/train.mri", folder);
}

static void teardown(void)
{
    unlink(place);
    rmdir(folder);
}

static struct mr_index listing(unsigned objects, int64_t age_s)
{
    struct mr_index_source source = {.scheme = MR_SCHEME_GS,
                                     .bucket = "bucket",
                                     .prefixes = prefixes,
                                     .prefix_count = 1,
                                     .created_wall_ns = mr_clock_wall_ns() - age_s * MR_SECOND_NS};
    struct mr_index index;
    int fd = mr_index_memfd();
    struct mr_index_builder *builder = mr_index_builder_new(&source, fd);
    ck_assert_ptr_nonnull(builder);
    for (unsigned i = 0; i < objects; i++) {
        char name[32];
        int length = snprintf(name, sizeof name, "data/%03u", i);
        ck_assert_int_eq(mr_index_builder_add(builder, name, (size_t)length, 10, 1, 0, false), 0);
    }
    ck_assert_int_eq(mr_index_builder_finish(builder, NULL, NULL), 0);
    mr_index_builder_destroy(builder);
    ck_assert_int_eq(mr_index_map(&index, fd), 0);
    close(fd);
    return index;
}

static struct mr_index_want wanted(uint64_t max_age_s)
{
    return (struct mr_index_want){.identity = {.scheme = MR_SCHEME_GS,
                                               .endpoint = "",
                                               .bucket = "bucket",
                                               .prefixes = prefixes,
                                               .prefix_count = 1,
                                               .exclude_classes = &no_classes},
                                  .place = place,
                                  .max_age_s = max_age_s,
                                  .digest = ""};
}

/* What another node saves, after it has removed the old one. The inode may be the old one's again: here it is. */
static void save_in_its_place(const struct mr_index *index)
{
    const struct mr_index_file_extra extra = {0};
    int fd = open(place, O_RDWR | O_TRUNC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(mr_index_file_write(fd, index, &extra), 0);
    close(fd);
}

START_TEST(the_first_to_replace_an_old_file_wins)
{
    bool late = _i == 1;
    const struct mr_index_file_extra extra = {0};
    struct mr_index old = listing(1, _i == 2 ? -86400 : 100), /* or while the clock was ahead */ ours = listing(2, 0),
                    theirs = listing(3, 0), used;
    ck_assert_int_eq(mr_index_file_save(place, &old, &extra, false), 0);

    struct mr_index_want want = wanted(10);
    struct mr_index_found found;
    int out = mr_index_memfd();
    ck_assert_int_eq(mr_index_load(&want, out, &found), 1);
    ck_assert_uint_ne(found.stale, 0);
    if (late)
        save_in_its_place(&theirs);
    uint64_t stale = found.stale;
    ck_assert_int_eq(mr_index_publish(&want, &ours, 1, stale, false, out, &found), late ? 1 : 0);
    close(out);

    out = mr_index_memfd();
    ck_assert_int_eq(mr_index_load(&want, out, &found), 0);
    ck_assert_int_eq(mr_index_map(&used, out), 0);
    ck_assert_uint_eq(used.info.count, late ? 3 : 2);
    close(out);
    mr_index_close(&used);
    mr_index_close(&theirs);
    mr_index_close(&ours);
    mr_index_close(&old);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("index_load");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, the_first_to_replace_an_old_file_wins, 0, 3);
    return mr_suite_run("index_load", tc);
}
