/* test_shards.c - an index of samples: built, put together of ranges, looked up, damaged. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/index/index.h"
#include "shm/index/index_build.h"
#include "shm/index/index_image.h"
#include "shm/index/shards.h"
#include "tests/unit/suite.h"

#define SHARDS 7

static const struct mr_index_source source = {.scheme = MR_SCHEME_GS,
                                              .version_kind = MR_INDEX_GENERATION,
                                              .bucket = "bucket",
                                              .endpoint = "",
                                              .prefixes = (const char *const[]){"train/{0..6}.tar"},
                                              .prefix_count = 1,
                                              .created_wall_ns = 1};

/* Some shards have none. */
static unsigned samples_of(unsigned shard)
{
    static const unsigned counts[SHARDS] = {3, 0, 64, 1, 0, 200, 0};
    return counts[shard];
}

static size_t key_of(unsigned shard, unsigned i, char *key)
{
    return (size_t)sprintf(key, "%u/%llx", shard, (unsigned long long)mr_mix64(shard * 1000 + i)); /* in no order */
}

static uint64_t offset_of(unsigned i)
{
    return (uint64_t)i * 5000 + i % 3;
}

static uint64_t length_of(unsigned shard, unsigned i)
{
    return 512 + mr_mix64(shard * 77 + i) % 4000;
}

static int add_shard(struct mr_index_builder *b, unsigned shard)
{
    char name[64], key[64];
    snprintf(name, sizeof name, "train/%u.tar", shard);
    if (mr_index_builder_shard(b, name, strlen(name), 2000000, 100 + shard) != 0)
        return -1;
    for (unsigned i = 0; i < samples_of(shard); i++) {
        size_t length = key_of(shard, i, key);
        if (mr_index_builder_sample(b, key, length, offset_of(i), length_of(shard, i), i, i % 2) != 0)
            return -1;
    }
    return 0;
}

static void *build(unsigned first, unsigned end, size_t *length)
{
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    void *image = NULL;
    for (unsigned shard = first; shard < end; shard++)
        ck_assert_msg(add_shard(b, shard) == 0, "%s", mr_error_text());
    ck_assert_int_eq(mr_index_builder_finish(b, &image, length), 0);
    mr_index_builder_destroy(b);
    return image;
}

START_TEST(every_sample_is_found_in_its_shard)
{
    size_t length;
    void *image = build(0, SHARDS, &length);
    struct mr_index index;
    struct mr_index_shard shard;
    ck_assert_int_eq(mr_index_attach(&index, image, length), 0);
    ck_assert_msg(mr_index_verify(&index) == 0, "%s", mr_error_text());
    ck_assert_uint_eq(mr_index_shard_count(&index), SHARDS);
    ck_assert_uint_eq(index.info.count, 268);
    uint64_t number = 0;
    char name[MR_INDEX_NAME_SIZE], key[64], want[64];
    for (unsigned s = 0; s < SHARDS; s++) {
        snprintf(want, sizeof want, "train/%u.tar", s);
        ck_assert_int_eq(mr_index_shard(&index, s, &shard), 0);
        ck_assert_str_eq(shard.name, want);
        ck_assert_uint_eq(shard.count, samples_of(s));
        ck_assert_uint_eq(shard.first, number);
        ck_assert_uint_eq(shard.version, 100 + s);
        ck_assert_int_eq(mr_index_find_shard(&index, want, strlen(want), &shard), 0);
        ck_assert_uint_eq(shard.first, number);
        for (unsigned i = 0; i < samples_of(s); i++, number++) {
            struct mr_index_entry entry;
            struct mr_index_range range;
            uint64_t found;
            ck_assert_int_eq(mr_index_locate(&index, number, &entry, name, &range), 0);
            ck_assert_str_eq(name, want);
            ck_assert_uint_eq(entry.name_length, strlen(want));
            ck_assert_uint_eq(entry.size, length_of(s, i));
            ck_assert_uint_eq(entry.version, 100 + s);
            ck_assert_uint_eq(entry.has_crc32c, i % 2);
            ck_assert_uint_eq(range.offset, offset_of(i));
            ck_assert_uint_eq(range.object_size, 2000000);
            ck_assert_int_eq(mr_index_get(&index, number, &entry, name), 0);
            size_t key_length = key_of(s, i, key);
            ck_assert_str_eq(name, key);
            ck_assert_int_eq(mr_index_find(&index, key, key_length, &found), 0);
            ck_assert_uint_eq(found, number);
            const char *uri;
            char *described = mr_index_describe(&index, number, &uri);
            ck_assert_ptr_nonnull(described);
            ck_assert_ptr_eq(uri, strstr(described, "gs://"));
            char whole[200];
            snprintf(whole, sizeof whole, "sample %s, which begins at byte %llu of its shard: %s", key,
                     (unsigned long long)offset_of(i), uri);
            ck_assert_str_eq(described, whole);
            ck_assert_str_eq(uri + strlen(uri) - strlen(want), want);
            free(described);
        }
    }
    ck_assert_ptr_null(mr_index_describe(&index, number, NULL));
    ck_assert_int_eq(mr_index_shard_of(&index, number, &shard), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_int_eq(mr_index_shard(&index, SHARDS, &shard), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_int_eq(mr_index_find_shard(&index, "train/9.tar", 11, &shard), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    ck_assert_str_eq(mr_error_text(), "there is no shard named train/9.tar in the index");
    ck_assert_int_eq(mr_index_find(&index, "no", 2, &number), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    free(image);
}
END_TEST

START_TEST(ranges_give_the_same_image)
{
    size_t length, lengths[3], joined_length;
    void *image = build(0, SHARDS, &length), *joined;
    void *parts[] = {build(0, 2, &lengths[0]), build(2, 3, &lengths[1]), build(3, SHARDS, &lengths[2])};
    struct mr_index indexes[3];
    const struct mr_index *ranges[3];
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(mr_index_attach(&indexes[i], parts[i], lengths[i]), 0);
        ranges[i] = &indexes[i];
    }
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    ck_assert_msg(mr_index_concat(b, ranges, 3) == 0, "%s", mr_error_text());
    ck_assert_int_eq(mr_index_builder_finish(b, &joined, &joined_length), 0);
    mr_index_builder_destroy(b);
    ck_assert_uint_eq(joined_length, length);
    ck_assert_mem_eq(joined, image, length);
    for (unsigned i = 0; i < 3; i++)
        free(parts[i]);
    free(joined);
    free(image);
}
END_TEST

/* The digest covers a shard's name, size and version as well as its samples. */
START_TEST(the_digest_is_of_the_shards_too)
{
    uint8_t digests[4][MR_INDEX_DIGEST_BYTES];
    for (unsigned i = 0; i < 4; i++) {
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        void *image;
        size_t length;
        ck_assert_int_eq(mr_index_builder_shard(b, i == 1 ? "b" : "a", 1, 1000 + (i == 2), 5 + (i == 3)), 0);
        ck_assert_int_eq(mr_index_builder_sample(b, "k", 1, 0, 600, 0, false), 0);
        ck_assert_int_eq(mr_index_builder_finish(b, &image, &length), 0);
        mr_index_builder_destroy(b);
        struct mr_index index;
        ck_assert_int_eq(mr_index_attach(&index, image, length), 0);
        memcpy(digests[i], index.info.digest, sizeof digests[i]);
        for (unsigned j = 0; j < i; j++)
            ck_assert_mem_ne(digests[i], digests[j], sizeof digests[i]);
        free(image);
    }
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
    static const struct {
        uint64_t offset, length;
    } places[] = {{0, 600}, {699, 10}, {900, 200}, {1001, 0}, {UINT64_MAX, 2}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        ck_assert_int_eq(mr_index_builder_shard(b, "a", 1, 1000, 1), 0);
        ck_assert_int_eq(mr_index_builder_sample(b, "k", 1, 100, 600, 0, false), 0);
        ck_assert_int_eq(mr_index_builder_sample(b, "k", 1, places[i].offset, places[i].length, 0, false), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
        ck_assert_msg(strstr(mr_error_text(), "lies in another one or outside") != NULL, "%s", mr_error_text());
        mr_index_builder_destroy(b);
    }
    static const char *const names[] = {"a", "b", "", "a/b"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        ck_assert_int_eq(mr_index_builder_shard(b, "b", 1, 1000, 1), 0);
        ck_assert_int_eq(mr_index_builder_shard(b, names[i], strlen(names[i]), 1000, 1), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
        mr_index_builder_destroy(b);
    }
    for (unsigned shard_first = 0; shard_first < 2; shard_first++) { /* samples and objects do not mix */
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        int first =
            shard_first ? mr_index_builder_shard(b, "b", 1, 1000, 1) : mr_index_builder_add(b, "a", 1, 10, 1, 0, false);
        ck_assert_int_eq(first, 0);
        int second =
            shard_first ? mr_index_builder_add(b, "c", 1, 10, 1, 0, false) : mr_index_builder_shard(b, "b", 1, 1000, 1);
        ck_assert_int_eq(second, -1);
        mr_index_builder_destroy(b);
    }
}
END_TEST

/* The bytes [at, at + 8) of the header or a row get another value. */
static void refused(size_t at, uint64_t value, const char *words)
{
    size_t length;
    unsigned char *image = build(0, SHARDS, &length);
    struct mr_index index;
    memcpy(image + at, &value, sizeof value);
    bool refused = mr_index_attach(&index, image, length) != 0 || mr_index_verify(&index) != 0;
    ck_assert(refused);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    ck_assert_msg(strstr(mr_error_text(), words) != NULL, "%s", mr_error_text());
    free(image);
}

START_TEST(a_damaged_table_says_what_is_wrong)
{
    size_t length;
    void *image = build(0, SHARDS, &length);
    struct mr_index_header h;
    struct mr_index_shard_row row;
    memcpy(&h, image, sizeof h);
    memcpy(&row, (char *)image + h.shards + sizeof row, sizeof row);
    size_t rows = h.shards;
    free(image);
    refused(8, 9 | (uint64_t)sizeof h << 32, "index image has format 9, this program reads 1 and 2: build it again");
    refused(offsetof(struct mr_index_header, shard_count), 0, "place of the table of shards");
    refused(offsetof(struct mr_index_header, shard_count), UINT64_MAX / 8, "place of the table of shards");
    refused(offsetof(struct mr_index_header, shards), h.directory + 8, "place of the table of shards");
    refused(rows + offsetof(struct mr_index_shard_row, name), row.name, "order of the shards at");
    refused(h.data, 2000, "order of the samples at"); /* the least size of the first block: they overlap */
}
END_TEST

/* Any byte changed: refused, or read within the image; verify finds all of it but what the header says of its own. */
START_TEST(damage_is_found)
{
    size_t length;
    unsigned char *image = build(0, 2, &length), *copy = malloc(length);
    for (size_t at = sizeof(struct mr_index_header); at < length; at++) {
        memcpy(copy, image, length);
        copy[at] ^= (unsigned char)(1 << at % 8);
        struct mr_index index;
        if (mr_index_attach(&index, copy, length) != 0)
            continue;
        struct mr_index_entry entry;
        struct mr_index_range range;
        struct mr_index_shard shard;
        char name[MR_INDEX_NAME_SIZE];
        for (uint64_t i = 0; i < 3; i++)
            if (mr_index_locate(&index, i, &entry, name, &range) == 0)
                ck_assert(range.offset <= range.object_size && entry.size <= range.object_size - range.offset);
        for (uint64_t n = 0; n < 2; n++)
            if (mr_index_shard(&index, n, &shard) == 0)
                ck_assert_uint_eq(strlen(shard.name), shard.name_length);
        bool string = at < sizeof(struct mr_index_header) + 25; /* bucket, endpoint, prefix: the digest has none */
        ck_assert_msg(string || mr_index_verify(&index) != 0, "byte %zu of %zu", at, length);
    }
    free(copy);
    free(image);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("shards");
    tcase_add_test(tc, every_sample_is_found_in_its_shard);
    tcase_add_test(tc, ranges_give_the_same_image);
    tcase_add_test(tc, the_digest_is_of_the_shards_too);
    tcase_add_test(tc, what_does_not_fit_is_refused);
    tcase_add_test(tc, a_damaged_table_says_what_is_wrong);
    tcase_add_test(tc, damage_is_found);
    return mr_suite_run("shards", tc);
}
