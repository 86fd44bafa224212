/* test_sidecar.c - lists of members that others wrote beside a shard: read, compared with headers, followed. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/unit/suite.h"
#include "worker/list/sidecar.h"

#define SHARD 8192u /* bytes */

static int init(struct mr_sidecar *sidecar, const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, strlen(text));
    return mr_sidecar_init(sidecar, copy, strlen(text), SHARD);
}

static void expect(const struct mr_sidecar_member *m, const char *name, uint64_t data, uint64_t size)
{
    ck_assert_str_eq(m->name, name);
    ck_assert_uint_eq(m->name_length, strlen(name));
    ck_assert_uint_eq(m->data, data);
    ck_assert_uint_eq(m->size, size);
}

START_TEST(both_kinds_are_read)
{
    struct mr_sidecar s;
    ck_assert_int_eq(init(&s, "v1.2 2\njpg 512 10 d/a.jpg cls 1536 1 d/a.cls\njpg 2560 700 b.jpg\n"), 0);
    ck_assert_uint_eq(s.count, 3);
    expect(&s.members[0], "d/a.jpg", 512, 10);
    expect(&s.members[1], "d/a.cls", 1536, 1);
    expect(&s.members[2], "b.jpg", 2560, 700);
    mr_sidecar_close(&s);
    ck_assert_int_eq(init(&s, "d/a picture.jpg 512 10\nb 1536 0"), 0); /* no line feed at the end */
    ck_assert_uint_eq(s.count, 2);
    expect(&s.members[0], "d/a picture.jpg", 512, 10);
    expect(&s.members[1], "b", 1536, 0);
    mr_sidecar_close(&s);
}
END_TEST

START_TEST(what_is_neither_is_refused_with_its_line)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "no members are in it"},
        {"v1.2 0\n", "no members are in it"},
        {"v1.2 two\njpg 512 10 a.jpg\n", "line 1: a number of samples that is none"},
        {"v1.2 2\njpg 512 10 a.jpg\n", "1 samples where its first line says 2"},
        {"v1.1 1\njpg 512 10\n", "line 1:"},
        {"v1.2 1\njpg 512 10\n", "line 2: a member without an offset, a size or a name"},
        {"v1.2 1\njpg 512 10 a picture.jpg\n", "line 2: a member without"},
        {"v1.2 1\njpg 512 10 one picture too.jpg 5 d.jpg\n", "line 2: an offset or a size that is not a number"},
        {"a 512 10\nb 1000 1\n", "line 2: an offset where no member"},
        {"a 0 10\n", "line 1: an offset where no member"},
        {"a 1024 10\nb 512 1\n", "line 2: an offset where no member"},
        {"a 512 513\nb 1536 1\n", "line 2: an offset where no member"}, /* its header would lie in the data of a */
        {"a 512 10\nb 1536 6657\n", "line 2: a member that lies behind the end of the shard"},
        {"a 512 99999999999999999999\n", "line 1: an offset or a size that is not a number"},
        {"a 512\n", "line 1: neither DALI"},
        {"\x80\x02]q\n", "line 1: neither DALI's v1.2 nor"},
        {"{\"files\": {}}\n", "line 1: neither DALI"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mr_sidecar s;
        ck_assert_msg(init(&s, cases[i].text) == -1, "%s", cases[i].text);
        ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
        ck_assert_msg(strstr(mr_error_text(), cases[i].error), "%s: %s", cases[i].text, mr_error_text());
        ck_assert_ptr_null(s.text);
    }
    struct mr_sidecar s;
    char *text = malloc(12);
    ck_assert_ptr_nonnull(text);
    memcpy(text, "a\0b 512 10\n", 11);
    ck_assert_int_eq(mr_sidecar_init(&s, text, 11, SHARD), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "not text"));
}
END_TEST

static struct mr_tar_member header(const char *name, uint64_t begin, uint64_t data, uint64_t size)
{
    return (struct mr_tar_member){
        .begin = begin, .data = data, .size = size, .regular = true, .name = name, .name_length = strlen(name)};
}

/* Headers of 512 bytes, then with 1,024 more before each, as a writer of pax headers has them. */
START_TEST(members_follow_where_nothing_else_can_lie)
{
    struct mr_sidecar s;
    struct mr_tar_member m;
    ck_assert_int_eq(init(&s, "a 512 512\nb 1536 512\nc 3584 512\nd 5632 512\nd\\303 6656 1\ne 7680 0\n"), 0);
    ck_assert(mr_sidecar_next(&s, 0, &m));
    expect(&s.members[0], m.name, m.data, m.size);
    ck_assert_uint_eq(m.begin, 0);
    ck_assert(m.regular);
    m = header("b", 1024, 1536, 512);
    ck_assert_int_eq(mr_sidecar_compare(&s, &m), 0);
    ck_assert(!mr_sidecar_next(&s, 2048, &m)); /* 1,024 bytes that nobody knows */
    m = header("c", 2048, 3584, 512);
    ck_assert_int_eq(mr_sidecar_compare(&s, &m), 0);
    ck_assert_uint_eq(s.extended, 1024);
    ck_assert_uint_eq(s.next, s.count / 2);
    ck_assert(!mr_sidecar_next(&s, 4096, &m)); /* the middle one is always read */
    m = header("d", 4096, 5632, 512);
    ck_assert_int_eq(mr_sidecar_compare(&s, &m), 0);
    ck_assert(!mr_sidecar_next(&s, 6144, &m)); /* a name in escapes */
    m = header("d\xc3", 6144, 6656, 1);
    ck_assert_int_eq(mr_sidecar_compare(&s, &m), 0);
    ck_assert_int_eq(mr_sidecar_end(&s), -1);
    ck_assert(!mr_sidecar_next(&s, 7168, &m)); /* the last one is always read */
    m = header("e", 7168, 7680, 0);
    ck_assert_int_eq(mr_sidecar_compare(&s, &m), 0);
    ck_assert(!mr_sidecar_next(&s, 7680, &m));
    ck_assert_int_eq(mr_sidecar_end(&s), 0);
    mr_sidecar_close(&s);
}
END_TEST

START_TEST(what_the_headers_contradict_is_named)
{
    static const struct {
        const char *name, *error;
        uint64_t data, size;
        bool regular;
    } cases[] = {
        {"a", NULL, 512, 10, true},
        {"a", "of 11", 512, 11, true},
        {"b", "there should be a, of 10 bytes, and there is b, of 10", 512, 10, true},
        {"b", "a should lie at byte 512, and does not", 1536, 10, true},
        {"d", NULL, 512, 0, false}, /* a folder that is listed too */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mr_sidecar s;
        ck_assert_int_eq(init(&s, "a 512 10\nb 2560 10\n"), 0);
        struct mr_tar_member m = header(cases[i].name, cases[i].data - 512, cases[i].data, cases[i].size);
        m.regular = cases[i].regular;
        ck_assert_int_eq(mr_sidecar_compare(&s, &m), cases[i].error ? -1 : 0);
        ck_assert(!cases[i].error || strstr(mr_error_text(), cases[i].error));
        mr_sidecar_close(&s);
    }
    struct mr_sidecar s;
    ck_assert_int_eq(init(&s, "b 2560 10\n"), 0);
    struct mr_tar_member hidden = header("x/.hidden", 0, 512, 1), folder = header("x", 512, 1024, 0);
    folder.regular = false;
    ck_assert_int_eq(mr_sidecar_compare(&s, &hidden), 0); /* wds2idx leaves these out */
    ck_assert_int_eq(mr_sidecar_compare(&s, &folder), 0);
    struct mr_tar_member other = header("x/a", 1024, 1536, 1);
    ck_assert_int_eq(mr_sidecar_compare(&s, &other), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "x/a, at byte 1536, is not in it"));
    mr_sidecar_close(&s);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("sidecar");
    tcase_add_test(tc, both_kinds_are_read);
    tcase_add_test(tc, what_is_neither_is_refused_with_its_line);
    tcase_add_test(tc, members_follow_where_nothing_else_can_lie);
    tcase_add_test(tc, what_the_headers_contradict_is_named);
    return mr_suite_run("sidecar", tc);
}
