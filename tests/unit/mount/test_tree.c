/* test_tree.c - names as files and folders, against a walk over all names. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mount/tree.h"
#include "shm/index/index_build.h"
#include "tests/unit/suite.h"

static struct mr_index built;
static struct mr_tree tree;

static void build(const char *const *names, size_t count, const char *top)
{
    const struct mr_index_source source = {.scheme = MR_SCHEME_GS,
                                           .version_kind = MR_INDEX_GENERATION,
                                           .bucket = "bucket",
                                           .endpoint = "http://127.0.0.1:1",
                                           .prefixes = (const char *const[]){""},
                                           .prefix_count = 1};
    int fd = memfd_create("index", 0);
    struct mr_index_builder *builder = mr_index_builder_new(&source, fd);
    ck_assert_ptr_nonnull(builder);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(mr_index_builder_add(builder, names[i], strlen(names[i]), 100 + i, 1 + i, 0, false), 0);
    ck_assert_int_eq(mr_index_builder_finish(builder, NULL, NULL), 0);
    mr_index_builder_destroy(builder);
    ck_assert_int_eq(mr_index_map(&built, fd), 0);
    close(fd);
    tree = (struct mr_tree){.index = &built, .top = top, .top_length = strlen(top)};
}

static void close_tree(void)
{
    mr_index_close(&built);
}

/* "file folder/ ...", read in steps: each entry by a walk of its own from the place that the last one gave. */
static const char *list(const char *path)
{
    static char out[4096];
    struct mr_tree_walk walk;
    struct mr_tree_entry found;
    uint64_t place = 0;
    int rc;
    out[0] = '\0';
    for (;;) {
        ck_assert_int_eq(mr_tree_walk_init(&walk, &tree, path, place), 0);
        if ((rc = mr_tree_next(&walk, &found, &place)) <= 0)
            break;
        strcat(strcat(strcat(out, out[0] ? " " : ""), found.part), found.kind == MR_TREE_FOLDER ? "/" : "");
    }
    ck_assert_int_eq(rc, 0);
    char again[4096] = "";
    ck_assert_int_eq(mr_tree_walk_init(&walk, &tree, path, 0), 0);
    while (mr_tree_next(&walk, &found, &place) > 0)
        strcat(strcat(strcat(again, again[0] ? " " : ""), found.part), found.kind == MR_TREE_FOLDER ? "/" : "");
    ck_assert_str_eq(out, again);
    return out;
}

static enum mr_tree_kind kind(const char *path)
{
    struct mr_tree_entry found;
    ck_assert_int_eq(mr_tree_find(&tree, path, &found), 0);
    return found.kind;
}

#define BUILD(top, ...)                                    \
    do {                                                   \
        static const char *const names[] = {__VA_ARGS__};  \
        build(names, sizeof names / sizeof names[0], top); \
    } while (0)

START_TEST(files_and_folders)
{
    BUILD("", "a", "b/1", "b/2", "b/c/d", "b0", "z/");
    ck_assert_str_eq(list("/"), "a b/ b0 z/");
    ck_assert_str_eq(list("/b"), "1 2 c/");
    ck_assert_str_eq(list("/b/c"), "d");
    ck_assert_str_eq(list("/nothing"), "");
    ck_assert_int_eq(kind("/"), MR_TREE_FOLDER);
    ck_assert_int_eq(kind("/a"), MR_TREE_FILE);
    ck_assert_int_eq(kind("/b"), MR_TREE_FOLDER);
    ck_assert_int_eq(kind("/b/c"), MR_TREE_FOLDER);
    ck_assert_int_eq(kind("/b/c/d"), MR_TREE_FILE);
    ck_assert_int_eq(kind("/b/c/d/e"), MR_TREE_NONE);
    ck_assert_int_eq(kind("/b/"), MR_TREE_NONE);
    ck_assert_int_eq(kind("/A"), MR_TREE_NONE);
    struct mr_tree_entry found;
    ck_assert_int_eq(mr_tree_find(&tree, "/b/2", &found), 0);
    ck_assert_uint_eq(found.number, 2);
    ck_assert_uint_eq(found.entry.size, 102);
    close_tree();
}
END_TEST

START_TEST(below_a_folder)
{
    BUILD("train/", "train/x/1", "train/y");
    ck_assert_str_eq(list("/"), "x/ y");
    ck_assert_str_eq(list("/x"), "1");
    ck_assert_int_eq(kind("/x/1"), MR_TREE_FILE);
    ck_assert_int_eq(kind("/train"), MR_TREE_NONE);
    close_tree();
}
END_TEST

START_TEST(names_that_are_no_paths)
{
    char long_name[300];
    memset(long_name, 'x', 256);
    strcpy(long_name + 256, "/y");
    const char *sorted[] = {".", "..", "../up", "./here", "//two", "/root", "a", "a//b", "a/../b", "b//", long_name};
    for (size_t i = 0; i < sizeof sorted / sizeof sorted[0]; i++)
        for (size_t k = i + 1; k < sizeof sorted / sizeof sorted[0]; k++)
            if (strcmp(sorted[i], sorted[k]) > 0) {
                const char *swap = sorted[i];
                sorted[i] = sorted[k];
                sorted[k] = swap;
            }
    build(sorted, sizeof sorted / sizeof sorted[0], "");
    ck_assert_str_eq(list("/"), "a/ b/");
    ck_assert_str_eq(list("/a"), "");
    uint64_t hidden;
    ck_assert_int_eq(mr_tree_hidden(&tree, &hidden), 0);
    ck_assert_uint_eq(hidden, sizeof sorted / sizeof sorted[0]);
    close_tree();
}
END_TEST

START_TEST(an_object_that_a_folder_hides)
{
    BUILD("", "a", "a-b", "a/x", "b", "b0", "c", "c!", "c/d/e");
    ck_assert_str_eq(list("/"), "a-b a/ b b0 c! c/");
    ck_assert_int_eq(kind("/a"), MR_TREE_FOLDER);
    uint64_t hidden;
    ck_assert_int_eq(mr_tree_hidden(&tree, &hidden), 0);
    ck_assert_uint_eq(hidden, 2);
    close_tree();
}
END_TEST

START_TEST(nothing_at_all)
{
    build(NULL, 0, "");
    ck_assert_str_eq(list("/"), "");
    ck_assert_int_eq(kind("/"), MR_TREE_FOLDER);
    ck_assert_int_eq(kind("/a"), MR_TREE_NONE);
    close_tree();
}
END_TEST

START_TEST(many)
{
    char *names[3000];
    for (unsigned i = 0; i < 3000; i++)
        ck_assert_int_ge(asprintf(&names[i], "%02u/%02u/%u", i / 100, i % 100 / 10, i % 10), 0);
    build((const char *const *)names, 3000, "");
    for (unsigned i = 0; i < 3000; i++) {
        char path[40];
        struct mr_tree_entry found;
        snprintf(path, sizeof path, "/%s", names[i]);
        ck_assert_int_eq(mr_tree_find(&tree, path, &found), 0);
        ck_assert_int_eq(found.kind, MR_TREE_FILE);
        ck_assert_uint_eq(found.number, i);
        free(names[i]);
    }
    ck_assert_str_eq(list("/29"), "00/ 01/ 02/ 03/ 04/ 05/ 06/ 07/ 08/ 09/");
    ck_assert_str_eq(list("/07/03"), "0 1 2 3 4 5 6 7 8 9");
    close_tree();
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("tree");
    tcase_add_test(tcase, files_and_folders);
    tcase_add_test(tcase, below_a_folder);
    tcase_add_test(tcase, names_that_are_no_paths);
    tcase_add_test(tcase, an_object_that_a_folder_hides);
    tcase_add_test(tcase, nothing_at_all);
    tcase_add_test(tcase, many);
    return mr_suite_run("tree", tcase);
}
