/* test_tar.c - headers and the layout of samples. tests/property/compare_tar.py has whole archives of other programs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shm/index/sample.h"
#include "shm/index/tar.h"
#include "tests/unit/suite.h"

#define ROOM (1u << 20)

static unsigned char archive[ROOM];
static size_t filled;

static void setup(void)
{
    memset(archive, 0, sizeof archive);
    filled = 0;
}

static void sum_up(unsigned char *header)
{
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (unsigned i = 0; i < MR_TAR_BLOCK; i++)
        sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
}

/* A header and `size` bytes of data, padded. */
static unsigned char *add(const char *name, char type, const void *data, size_t size)
{
    unsigned char *header = archive + filled;
    memcpy(header, name, strlen(name));
    char digits[32];
    snprintf(digits, sizeof digits, "%011zo", size);
    memcpy(header + 124, digits, 12);
    header[156] = (unsigned char)type;
    memcpy(header + 257, "ustar\00000", 8);
    sum_up(header);
    if (data)
        memcpy(header + MR_TAR_BLOCK, data, size);
    filled += MR_TAR_BLOCK + (size + MR_TAR_BLOCK - 1) / MR_TAR_BLOCK * MR_TAR_BLOCK;
    return header;
}

static void add_text(const char *name, char type, const char *text)
{
    add(name, type, text, strlen(text));
}

static enum mr_tar_event next(struct mr_tar *tar, struct mr_tar_member *member)
{
    uint64_t at = tar->at < filled ? tar->at : filled;
    return mr_tar_next(tar, archive + at, filled - at, member);
}

static void expect_member(struct mr_tar *tar, const char *name, uint64_t begin, uint64_t data, uint64_t size)
{
    struct mr_tar_member member;
    ck_assert_msg(next(tar, &member) == MR_TAR_MEMBER, "%s", mr_error_text());
    ck_assert_str_eq(member.name, name);
    ck_assert_uint_eq(member.name_length, strlen(name));
    ck_assert_uint_eq(member.begin, begin);
    ck_assert_uint_eq(member.data, data);
    ck_assert_uint_eq(member.size, size);
}

static void expect_error(enum mr_code code, const char *words)
{
    struct mr_tar tar;
    struct mr_tar_member member;
    mr_tar_init(&tar, filled);
    enum mr_tar_event event = MR_TAR_MEMBER;
    while (event == MR_TAR_MEMBER)
        event = next(&tar, &member);
    ck_assert_int_eq(event, MR_TAR_ERROR);
    ck_assert_int_eq(mr_error_code(), code);
    ck_assert_msg(strstr(mr_error_text(), words) != NULL, "%s", mr_error_text());
}

START_TEST(members_and_the_end)
{
    struct mr_tar tar;
    struct mr_tar_member member;
    add_text("a.txt", '0', "hello");
    add_text("folder/", '5', "");
    unsigned char *header = add("b", '0', NULL, 512);
    memcpy(header + 345, "long/prefix", 11);
    sum_up(header);
    filled += 1024;
    mr_tar_init(&tar, filled);
    expect_member(&tar, "a.txt", 0, 512, 5);
    expect_member(&tar, "folder/", 1024, 1536, 0);
    expect_member(&tar, "long/prefix/b", 1536, 2048, 512);
    ck_assert_int_eq(next(&tar, &member), MR_TAR_END);
    ck_assert(!tar.unended);
    ck_assert_uint_eq(tar.at, 2560);
}
END_TEST

START_TEST(an_archive_without_its_end_is_accepted_and_said)
{
    struct mr_tar tar;
    struct mr_tar_member member;
    add_text("a", '0', "hello");
    size_t whole = filled, data = MR_TAR_BLOCK + 5;
    for (filled = data; filled <= whole; filled++) { /* with any part of the padding */
        mr_tar_init(&tar, filled);
        expect_member(&tar, "a", 0, 512, 5);
        ck_assert_int_eq(next(&tar, &member), MR_TAR_END);
        ck_assert(tar.unended);
    }
}
END_TEST

START_TEST(an_archive_that_is_cut_is_an_error)
{
    add_text("a", '0', "hello");
    add_text("b", '0', "hello");
    size_t whole = filled;
    for (filled = 1025; filled < 1536; filled += 73)
        expect_error(MR_E_CORRUPT, "byte 1024: the archive ends inside of a header: it is cut short");
    for (filled = 1536; filled < 1541; filled++)
        expect_error(MR_E_CORRUPT, "byte 1024: the archive ends inside of b, of 5 bytes");
    filled = whole;
}
END_TEST

START_TEST(more_is_asked_for_where_bytes_are_missing)
{
    struct mr_tar tar;
    struct mr_tar_member member;
    char path[700], record[800];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    snprintf(record, sizeof record, "%zu path=%s\n", strlen("709 path=\n") + strlen(path), path);
    add_text("PaxHeaders/x", 'x', record);
    add_text("short", '0', "hello");
    mr_tar_init(&tar, filled);
    ck_assert_int_eq(mr_tar_next(&tar, archive, 511, &member), MR_TAR_MORE);
    ck_assert_uint_eq(tar.need, 512);
    ck_assert_int_eq(mr_tar_next(&tar, archive, 512, &member), MR_TAR_MORE);
    ck_assert_uint_eq(tar.need, 512 + 1024);
    ck_assert_uint_eq(tar.at, 0);
    ck_assert_int_eq(mr_tar_next(&tar, archive, 512 + 1024, &member), MR_TAR_MORE);
    ck_assert_uint_eq(tar.need, 512);
    ck_assert_uint_eq(tar.at, 512 + 1024);
    expect_member(&tar, path, 0, 2048, 5);
    mr_tar_init(&tar, filled);
    ck_assert_int_eq(mr_tar_next(&tar, archive, 512, &member), MR_TAR_MORE);
    mr_tar_skip(&tar, &(struct mr_tar_member){.data = 2048, .size = 5}); /* by a sidecar */
    ck_assert_uint_eq(tar.need, 512);
}
END_TEST

START_TEST(pax_paths_and_sizes)
{
    struct mr_tar tar;
    add_text("g", 'g', "17 comment=hello\n");
    add_text("x", 'x', "12 path=a/b\n12 size=512\n");
    add("short", '0', NULL, 0);
    filled += 512;
    add_text("next", '0', "");
    mr_tar_init(&tar, filled);
    expect_member(&tar, "a/b", 1024, 2560, 512);
    expect_member(&tar, "next", 3072, 3584, 0);
}
END_TEST

START_TEST(gnu_long_names)
{
    struct mr_tar tar;
    char name[301];
    memset(name, 'n', 300);
    name[300] = '\0';
    add("././@LongLink", 'K', "target", 7);
    add("././@LongLink", 'L', name, sizeof name);
    memcpy(add("cut", '0', "x", 1) + 257, "ustar  ", 8);
    sum_up(archive + filled - 1024);
    mr_tar_init(&tar, filled);
    expect_member(&tar, name, 0, 2560, 1);
}
END_TEST

START_TEST(sizes_of_8_gib_and_more)
{
    struct mr_tar tar;
    unsigned char *header = add("large", '0', NULL, 0);
    memset(header + 124, 0, 12);
    header[124] = 0x80;
    header[131] = 0x03; /* 3 << 32 */
    sum_up(header);
    mr_tar_init(&tar, UINT64_C(1) << 40);
    expect_member(&tar, "large", 0, 512, UINT64_C(3) << 32);
    header[124] = 0xff; /* a negative one */
    sum_up(header);
    expect_error(MR_E_CORRUPT, "a header whose size is not a number");
    memset(header + 124, 0xff, 12);
    header[124] = 0x80;
    sum_up(header);
    expect_error(MR_E_CORRUPT, "a header whose size is not a number");
}
END_TEST

START_TEST(old_programs_added_signed_bytes)
{
    struct mr_tar tar;
    unsigned char *header = add("\xe9t\xe9", '0', "", 0);
    int sum = 0;
    memset(header + 148, ' ', 8);
    for (unsigned i = 0; i < MR_TAR_BLOCK; i++)
        sum += (signed char)header[i];
    snprintf((char *)header + 148, 8, "%06o", (unsigned)sum);
    mr_tar_init(&tar, filled);
    expect_member(&tar, "\xe9t\xe9", 0, 512, 0);
}
END_TEST

START_TEST(what_is_refused_says_what_it_is)
{
    static const struct {
        const char *bytes, *words;
    } other[] = {
        {"\x1f\x8b\x08", "it is compressed (gzip)"},    {"\x28\xb5\x2f\xfd", "it is compressed (zstd)"},
        {"BZh9", "it is compressed (bzip2)"},           {"\xfd\x37zXZ", "it is compressed (xz)"},
        {"\x04\x22\x4d\x18", "it is compressed (lz4)"}, {"PK\x03\x04", "it is a zip archive"},
    };
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        setup();
        memcpy(archive, other[i].bytes, strlen(other[i].bytes));
        filled = 2048;
        expect_error(MR_E_USAGE, other[i].words);
        expect_error(MR_E_USAGE, "Store it uncompressed");
    }
    setup();
    add_text("hole", 'S', "data");
    expect_error(MR_E_USAGE, "a sparse file: make the archive without --sparse");
    setup();
    add_text("x", 'x', "22 GNU.sparse.major=1\n");
    expect_error(MR_E_USAGE, "a sparse file: make the archive without --sparse");
    setup();
    add_text("g", 'g', "11 size=12\n");
    expect_error(MR_E_USAGE, "a global pax header with a path or a size: make the archive without it");
    setup();
    add("x", 'x', NULL, MR_TAR_EXTENDED_MAX + 1);
    expect_error(MR_E_USAGE, "a pax header of 131073 bytes: more than 131072 are not read");
    setup();
    add("L", 'L', NULL, MR_TAR_EXTENDED_MAX + 1);
    expect_error(MR_E_USAGE, "a long name header of 131073 bytes");
    setup();
    char *name = malloc(MR_TAR_NAME_MAX + 2);
    memset(name, 'n', MR_TAR_NAME_MAX + 1);
    add("L", 'L', name, MR_TAR_NAME_MAX + 1);
    free(name);
    expect_error(MR_E_USAGE, "a member's name is longer than 4096 bytes");
    setup(); /* together: whoever reads them from a window has to keep them all */
    for (unsigned i = 0; i < 5; i++)
        add("x", 'x', NULL, MR_TAR_EXTENDED_MAX - 4096);
    expect_error(MR_E_USAGE, "the extended headers of one member have more than 512 KiB");
}
END_TEST

START_TEST(what_is_damaged_is_an_error)
{
    static const char *const records[] = {
        "path=a\n",  "9 path=a",    "9 path=aX",  "99 path=a\n", "0 path=a\n",        "3 \n",
        "8 nokey\n", "1 path=ab\n", "9path=ab\n", "-1 a=b\n",    "99999999999 a=b\n", " 6 a=b\n",
    };
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        setup();
        add_text("x", 'x', records[i]);
        expect_error(MR_E_CORRUPT, "byte 0: a damaged pax header");
    }
    setup();
    add_text("x", 'x', "11 size=1x\n");
    expect_error(MR_E_CORRUPT, "a pax header has a size that is not a number");
    setup();
    add_text("x", 'x', "11 size=-1\n");
    expect_error(MR_E_CORRUPT, "a pax header has a size that is not a number");
    setup();
    add_text("x", 'x', "29 size=99999999999999999999\n");
    expect_error(MR_E_CORRUPT, "a pax header has a size that is not a number");
    setup();
    add("x", 'x', "12 path=a\0b\n", 12);
    expect_error(MR_E_CORRUPT, "a pax header has a path with a NUL");
    setup();
    add_text("x", 'x', "10 path=a\n");
    expect_error(MR_E_CORRUPT, "the archive ends after an extended header: it is cut short");
    filled += 1024;
    expect_error(MR_E_CORRUPT, "the archive ends after an extended header");
    setup();
    add_text("x", 'x', "10 path=a\n");
    filled -= 512;
    expect_error(MR_E_CORRUPT, "the archive ends inside of a header: it is cut short");
    setup();
    add_text("a", '0', "hello");
    add("b", '0', "hello", 5)[0] ^= 1;
    expect_error(MR_E_CORRUPT, "byte 1024: no tar header: its checksum does not fit");
    setup();
    unsigned char *header = add("a", '0', "", 0);
    header[124] = 'x';
    sum_up(header);
    expect_error(MR_E_CORRUPT, "byte 0: a header whose size is not a number");
}
END_TEST

/* Key and suffix as the regular expression of WebDataset gives them. */
START_TEST(keys_and_suffixes)
{
    static const struct {
        const char *name, *key; /* key NULL: none */
    } cases[] = {
        {"a.jpg", "a"},
        {"a.b/c.seg.png", "a.b/c"},
        {"d/.x", "d/"},
        {"a", NULL},
        {".x", NULL},
        {"a.b/.x", NULL},
        {"a.b/c/.x", "a.b/c/"},
        {"/a.x", "/a"},
        {"../a.x", "../a"},
        {"./a.x", "./a"},
        {"a.", "a"},
        {"a..b", "a"},
        {"a.b/c", NULL},
        {"", NULL},
        {"/.x", "/"},
        {"a//.x", "a//"},
        {"x/y/z.tar.gz", "x/y/z"},
        {"..", NULL},
        {"a/..", "a/"},
        {".a/b.c", ".a/b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length = 99;
        bool found = mr_sample_split(cases[i].name, strlen(cases[i].name), &length);
        ck_assert_msg(found == (cases[i].key != NULL), "%s", cases[i].name);
        if (found)
            ck_assert_msg(length == strlen(cases[i].key), "%s: %zu", cases[i].name, length);
    }
}
END_TEST

static struct mr_tar_member member_of(const char *name, uint64_t at, bool regular)
{
    return (struct mr_tar_member){
        .begin = at, .data = at + 512, .size = 100, .regular = regular, .name = name, .name_length = strlen(name)};
}

START_TEST(consecutive_members_of_one_key_are_a_sample)
{
    static const struct {
        const char *name;
        bool regular, ends, added;
    } members[] = {
        {"__meta__/a.jpg", true, false, false},
        {"a.jpg", true, false, true},
        {"folder.d", false, false, false},
        {"____", true, false, false},
        {"a.CLS", true, false, true},
        {"nosuffix", true, false, false},
        {"b.jpg", true, true, true},
        {"a.jpg", true, true, true},
        {"__a.jpg", true, true, true},
        {"c.__BAD__", true, true, true},
        {"__x__", true, false, false},
    };
    static struct mr_sample_group group;
    memset(&group, 0, sizeof group);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        struct mr_tar_member member = member_of(members[i].name, i * 1024, members[i].regular);
        ck_assert_msg(mr_sample_group_ends(&group, &member) == members[i].ends, "%s", members[i].name);
        if (i == 6) {
            ck_assert_str_eq(group.sample.key, "a");
            ck_assert_uint_eq(group.sample.begin, 1024);
            ck_assert_uint_eq(group.sample.end, 4096 + 512 + 100);
            ck_assert(!group.sample.bad);
        }
        ck_assert_msg(mr_sample_group_add(&group, &member) == members[i].added, "%s", members[i].name);
    }
    ck_assert_uint_eq(group.skipped, 5);
    ck_assert_str_eq(group.sample.key, "c");
    ck_assert(group.sample.bad);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("tar");
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, members_and_the_end);
    tcase_add_test(tc, an_archive_without_its_end_is_accepted_and_said);
    tcase_add_test(tc, an_archive_that_is_cut_is_an_error);
    tcase_add_test(tc, more_is_asked_for_where_bytes_are_missing);
    tcase_add_test(tc, pax_paths_and_sizes);
    tcase_add_test(tc, gnu_long_names);
    tcase_add_test(tc, sizes_of_8_gib_and_more);
    tcase_add_test(tc, old_programs_added_signed_bytes);
    tcase_add_test(tc, what_is_refused_says_what_it_is);
    tcase_add_test(tc, what_is_damaged_is_an_error);
    tcase_add_test(tc, keys_and_suffixes);
    tcase_add_test(tc, consecutive_members_of_one_key_are_a_sample);
    return mr_suite_run("tar", tc);
}
