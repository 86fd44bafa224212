#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/index/index.h"
#include "shm/index/index_build.h"
#include "shm/index/index_image.h"
#include "tests/unit/suite.h"

/* What an index is held against: plain arrays. */
struct object {
    char *name;
    size_t length;
    uint64_t size, version;
    uint32_t crc;
    bool has_crc;
};

struct model {
    struct object *objects;
    size_t n;
};

static uint64_t rng = 1;

static uint64_t pick(uint64_t below)
{
    rng++;
    return mr_mix64(rng) % below;
}

static const struct mr_index_source source = {.scheme = MR_SCHEME_GS,
                                              .version_kind = MR_INDEX_GENERATION,
                                              .bucket = "bucket",
                                              .endpoint = "http://127.0.0.1:1",
                                              .prefixes = (const char *const[]){"a/", "b/"},
                                              .prefix_count = 2,
                                              .created_wall_ns = 12345};

static int by_name(const void *a, const void *b)
{
    const struct object *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Names of all shapes: any bytes but NUL, long shared prefixes, names that are prefixes of others, very long ones. */
static struct model model_new(size_t n, uint64_t seed, int crc_percent)
{
    struct model m = {calloc(n ? n : 1, sizeof(struct object)), 0};
    rng = mr_mix64(seed);
    uint64_t shape = pick(4);
    for (size_t i = 0; i < n; i++) {
        struct object *o = &m.objects[i];
        size_t longest = shape == 0 ? 6 : shape == 1 ? 40 : shape == 2 && pick(50) == 0 ? MR_INDEX_NAME_MAX : 20;
        o->length = shape == 2 && longest == MR_INDEX_NAME_MAX ? longest : 1 + pick(longest);
        o->name = malloc(o->length + 1);
        for (size_t k = 0; k < o->length; k++)
            o->name[k] = (char)(shape == 0 ? 'a' + (char)pick(3) : shape == 3 && k < 12 ? 'p' : 1 + (int)pick(255));
        o->name[o->length] = '\0';
        o->size = pick(10) == 0 ? pick(UINT64_C(1) << 40) : pick(200000);
        o->version = pick(3) == 0 ? pick(UINT64_MAX) : 1700000000000000 + pick(1000000);
        o->has_crc = (int)pick(100) < crc_percent;
        o->crc = (uint32_t)pick(UINT64_C(1) << 32);
    }
    qsort(m.objects, n, sizeof(struct object), by_name);
    for (size_t i = 0; i < n; i++) {
        if (m.n > 0 && by_name(&m.objects[m.n - 1], &m.objects[i]) == 0)
            free(m.objects[i].name);
        else
            m.objects[m.n++] = m.objects[i];
    }
    return m;
}

static void model_free(struct model *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->objects[i].name);
    free(m->objects);
}

static int add(struct mr_index_builder *b, const struct object *o)
{
    return mr_index_builder_add(b, o->name, o->length, o->size, o->version, o->crc, o->has_crc);
}

static int add_name(struct mr_index_builder *b, const char *name)
{
    return mr_index_builder_add(b, name, strlen(name), 1, 1, 0, false);
}

/* Objects [from, to) of a model as an attached image, to be freed by the caller. */
static void *build(const struct model *m, size_t from, size_t to, struct mr_index *index)
{
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    ck_assert_ptr_nonnull(b);
    for (size_t i = from; i < to; i++)
        ck_assert_msg(add(b, &m->objects[i]) == 0, "%s", mr_error_text());
    mr_index_builder_drop(b, MR_DROP_FOLDER, 3);
    ck_assert_uint_eq(mr_index_builder_count(b), to - from);
    void *image;
    size_t length;
    ck_assert_msg(mr_index_builder_finish(b, &image, &length) == 0, "%s", mr_error_text());
    mr_index_builder_destroy(b);
    ck_assert_msg(mr_index_attach(index, image, length) == 0, "%s", mr_error_text());
    return image;
}

static void assert_entry(const struct object *o, const struct mr_index_entry *e, const char *name)
{
    ck_assert_uint_eq(e->size, o->size);
    ck_assert_uint_eq(e->version, o->version);
    ck_assert_int_eq(e->has_crc32c, o->has_crc);
    ck_assert_uint_eq(e->crc32c, o->has_crc ? o->crc : 0);
    if (name) {
        ck_assert_uint_eq(e->name_length, o->length);
        ck_assert_mem_eq(name, o->name, o->length + 1);
    }
}

static void assert_equal(const struct model *m, const struct mr_index *index)
{
    uint64_t total = 0, max = 0;
    ck_assert_uint_eq(index->info.count, m->n);
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry e;
    uint64_t found;
    for (size_t i = 0; i < m->n; i++) {
        ck_assert_int_eq(mr_index_get(index, i, &e, name), 0);
        assert_entry(&m->objects[i], &e, name);
        ck_assert_int_eq(mr_index_get(index, i, &e, NULL), 0);
        assert_entry(&m->objects[i], &e, NULL);
        ck_assert_int_eq(mr_index_find(index, m->objects[i].name, m->objects[i].length, &found), 0);
        ck_assert_uint_eq(found, i);
        total += e.size;
        max = e.size > max ? e.size : max;
    }
    ck_assert_uint_eq(index->info.total_bytes, total);
    ck_assert_uint_eq(index->info.max_size, max);
    size_t first = m->n ? pick(m->n) : 0;
    struct mr_index_iter it;
    mr_index_iter_init(&it, index, first);
    for (size_t i = first; i < m->n; i++) {
        ck_assert_int_eq(mr_index_iter_next(&it, &e), 1);
        assert_entry(&m->objects[i], &e, it.name);
    }
    ck_assert_int_eq(mr_index_iter_next(&it, &e), 0);
    ck_assert_int_eq(mr_index_get(index, m->n, &e, name), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    ck_assert_msg(mr_index_verify(index) == 0, "%s", mr_error_text());
}

START_TEST(holds_what_was_added)
{
    static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000};
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct model m = model_new(sizes[s], seed, (int)(seed % 3) * 50);
            struct mr_index index;
            void *image = build(&m, 0, m.n, &index);
            assert_equal(&m, &index);
            mr_index_close(&index);
            free(image);
            model_free(&m);
        }
    }
}
END_TEST

START_TEST(find_of_absent_names)
{
    struct model m = model_new(300, 5, 50);
    struct mr_index index;
    void *image = build(&m, 0, m.n, &index);
    uint64_t i;
    for (size_t k = 0; k < m.n; k++) {
        struct object longer = {.name = malloc(m.objects[k].length + 1), .length = m.objects[k].length + 1};
        memcpy(longer.name, m.objects[k].name, longer.length - 1);
        longer.name[longer.length - 1] = 1;
        int present = bsearch(&longer, m.objects, m.n, sizeof(longer), by_name) != NULL;
        ck_assert_int_eq(mr_index_find(&index, longer.name, longer.length, &i), present ? 0 : -1);
        free(longer.name);
    }
    ck_assert_int_eq(mr_index_find(&index, "", 0, &i), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    ck_assert_int_eq(mr_index_find(&index, "\xff\xff\xff", 3, &i), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    free(image);
    model_free(&m);
}
END_TEST

START_TEST(header_says_where_from)
{
    struct model m = model_new(10, 1, 100);
    struct mr_index index;
    void *image = build(&m, 0, m.n, &index);
    ck_assert_str_eq(index.info.bucket, "bucket");
    ck_assert_str_eq(index.info.endpoint, "http://127.0.0.1:1");
    ck_assert_int_eq(index.info.scheme, MR_SCHEME_GS);
    ck_assert_int_eq(index.info.version_kind, MR_INDEX_GENERATION);
    ck_assert_int_eq(index.info.created_wall_ns, 12345);
    ck_assert_str_eq(mr_index_prefix(&index, 0), "a/");
    ck_assert_str_eq(mr_index_prefix(&index, 1), "b/");
    ck_assert_ptr_null(mr_index_prefix(&index, 2));
    ck_assert_uint_eq(index.info.dropped[MR_DROP_FOLDER], 3);
    ck_assert_uint_eq(index.info.dropped[MR_DROP_TEMPORARY], 0);
    free(image);
    model_free(&m);
}
END_TEST

/* However a listing is cut into parts, the image and the digest are the same; so is the one written into a file. */
START_TEST(concat_is_canonical)
{
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct model m = model_new(700, seed, 70);
        struct mr_index whole, parts[4];
        void *whole_image = build(&m, 0, m.n, &whole), *images[4];
        const struct mr_index *list[4];
        size_t from = 0;
        for (int p = 0; p < 4; p++) {
            size_t to = p == 3 ? m.n : from + pick(m.n - from + 1);
            images[p] = build(&m, from, to, &parts[p]);
            list[p] = &parts[p];
            from = to;
        }
        int fd = memfd_create("index", MFD_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, 1 << 20), 0);
        struct mr_index_builder *b = mr_index_builder_new(&source, fd);
        ck_assert_msg(mr_index_concat(b, list, 4) == 0, "%s", mr_error_text());
        size_t length;
        ck_assert_int_eq(mr_index_builder_finish(b, NULL, &length), 0);
        mr_index_builder_destroy(b);
        struct mr_index joined;
        ck_assert_msg(mr_index_map(&joined, fd) == 0, "%s", mr_error_text());
        close(fd);
        assert_equal(&m, &joined);
        ck_assert_uint_eq(length, whole.length);
        ck_assert_mem_eq(joined.info.digest, whole.info.digest, MR_INDEX_DIGEST_BYTES);
        ck_assert_mem_eq(joined.image + sizeof(struct mr_index_header), whole.image + sizeof(struct mr_index_header),
                         length - sizeof(struct mr_index_header));
        ck_assert_uint_eq(joined.info.dropped[MR_DROP_FOLDER], 12);
        mr_index_close(&joined);
        for (int p = 0; p < 4; p++)
            free(images[p]);
        free(whole_image);
        model_free(&m);
    }
}
END_TEST

/* Larger than the builder's write buffer, so the file is written while it grows. */
START_TEST(large_file)
{
    char name[64];
    int fd = memfd_create("index", MFD_CLOEXEC);
    struct mr_index_builder *b = mr_index_builder_new(&source, fd);
    const unsigned n = 200000;
    for (unsigned i = 0; i < n; i++) {
        int l = snprintf(name, sizeof(name), "train/shard-%04u/image-%08u.jpeg", i / 1000, i);
        ck_assert_int_eq(mr_index_builder_add(b, name, (size_t)l, 100000 + mr_mix64(i) % 50000,
                                              1700000000000000 + mr_mix64(i) % 100000000000, (uint32_t)i, true),
                         0);
    }
    size_t length;
    ck_assert_int_eq(mr_index_builder_finish(b, NULL, &length), 0);
    mr_index_builder_destroy(b);
    ck_assert_uint_le(length, (size_t)n * 40);
    struct mr_index index;
    ck_assert_int_eq(mr_index_map(&index, fd), 0);
    ck_assert_int_eq(mr_index_verify(&index), 0);
    struct mr_index_entry e;
    uint64_t found;
    for (unsigned i = 0; i < n; i += 997) {
        snprintf(name, sizeof(name), "train/shard-%04u/image-%08u.jpeg", i / 1000, i);
        char got[MR_INDEX_NAME_SIZE];
        ck_assert_int_eq(mr_index_get(&index, i, &e, got), 0);
        ck_assert_str_eq(got, name);
        ck_assert_uint_eq(e.crc32c, i);
        ck_assert_int_eq(mr_index_find(&index, name, strlen(name), &found), 0);
        ck_assert_uint_eq(found, i);
    }
    mr_index_close(&index);
    mr_index_close(&index);
    close(fd);
}
END_TEST

/* ETags are random: 8 bytes each, and still within the budget. */
START_TEST(compact_with_random_versions)
{
    char name[64];
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    for (unsigned i = 0; i < 20000; i++) {
        int l = snprintf(name, sizeof(name), "train/%06u/part-%u.npy", i / 10, i % 10);
        ck_assert_int_eq(mr_index_builder_add(b, name, (size_t)l, mr_mix64(i) % 10000000, mr_mix64(i), 0, false), 0);
    }
    void *image;
    size_t length;
    ck_assert_int_eq(mr_index_builder_finish(b, &image, &length), 0);
    mr_index_builder_destroy(b);
    ck_assert_uint_le(length, (size_t)20000 * 40);
    free(image);
}
END_TEST

START_TEST(digest_sees_every_column)
{
    uint8_t before[MR_INDEX_DIGEST_BYTES];
    for (int change = 0; change <= 5; change++) {
        struct model m = model_new(100, 3, 100);
        struct object *o = &m.objects[77];
        o->size += change == 1;
        o->version += change == 2;
        o->crc += change == 3;
        o->has_crc = change != 4;
        o->name[o->length - 1] = (char)(o->name[o->length - 1] + (change == 5));
        struct mr_index index;
        void *image = build(&m, 0, m.n, &index);
        if (change == 0)
            memcpy(before, index.info.digest, sizeof(before));
        else
            ck_assert_mem_ne(before, index.info.digest, sizeof(before));
        free(image);
        model_free(&m);
    }
}
END_TEST

START_TEST(refuses_bad_order)
{
    static const struct {
        const char *first, *second, *says;
    } cases[] = {
        {"b", "a", "ascending"},        {"ab", "a", "ascending"},        {"a", "a", "twice"},
        {"\xc3\xa9", "z", "ascending"}, {"dir/x", "dir-x", "ascending"},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        ck_assert_int_eq(add_name(b, cases[i].first), 0);
        ck_assert_int_eq(add_name(b, cases[i].second), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
        ck_assert_ptr_nonnull(strstr(mr_error_text(), cases[i].first));
        ck_assert_ptr_nonnull(strstr(mr_error_text(), cases[i].second));
        ck_assert_ptr_nonnull(strstr(mr_error_text(), cases[i].says));
        ck_assert_int_eq(add_name(b, "zz"), -1);
        void *image;
        ck_assert_int_eq(mr_index_builder_finish(b, &image, NULL), -1);
        mr_index_builder_destroy(b);
    }
}
END_TEST

START_TEST(refuses_bad_names_and_sizes)
{
    char *longest = malloc(MR_INDEX_NAME_MAX + 1);
    memset(longest, 'x', MR_INDEX_NAME_MAX + 1);
    for (int i = 0; i < 4; i++) {
        struct mr_index_builder *b = mr_index_builder_new(&source, -1);
        int rc = i == 0   ? mr_index_builder_add(b, "", 0, 1, 1, 0, false)
                 : i == 1 ? mr_index_builder_add(b, "a\0b", 3, 1, 1, 0, false)
                 : i == 2 ? mr_index_builder_add(b, longest, MR_INDEX_NAME_MAX + 1, 1, 1, 0, false)
                          : mr_index_builder_add(b, "a", 1, UINT64_MAX, 1, 0, false);
        ck_assert_int_eq(rc, -1);
        ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
        mr_index_builder_destroy(b);
    }
    free(longest);
    mr_index_builder_destroy(NULL);
}
END_TEST

START_TEST(refuses_parts_that_overlap_or_differ)
{
    struct model m = model_new(200, 9, 50);
    struct mr_index low, high;
    void *a = build(&m, 0, 120, &low), *b = build(&m, 119, m.n, &high), *image;
    struct mr_index_source elsewhere = source;
    elsewhere.endpoint = "http://127.0.0.1:2";
    struct mr_index_builder *builder = mr_index_builder_new(&source, -1);
    ck_assert_int_eq(mr_index_concat(builder, (const struct mr_index *const[]){&low, &high}, 2), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "twice"));
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "range 2 of the listing's 2"));
    mr_index_builder_destroy(builder);

    builder = mr_index_builder_new(&elsewhere, -1);
    size_t length;
    ck_assert_int_eq(mr_index_builder_finish(builder, &image, &length), 0);
    struct mr_index other;
    ck_assert_int_eq(mr_index_attach(&other, image, length), 0);
    mr_index_builder_destroy(builder);
    builder = mr_index_builder_new(&source, -1);
    ck_assert_int_eq(mr_index_concat(builder, (const struct mr_index *const[]){&other}, 1), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "127.0.0.1:2"));
    mr_index_builder_destroy(builder);
    free(image);
    free(a);
    free(b);
    model_free(&m);
}
END_TEST

START_TEST(unfinished_or_short_files_are_refused)
{
    struct mr_index index;
    int fd = memfd_create("index", MFD_CLOEXEC);
    char byte = 'x';
    ck_assert_int_eq(mr_index_map(&index, fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    struct mr_index_builder *b = mr_index_builder_new(&source, fd);
    ck_assert_int_eq(add_name(b, "a"), 0);
    mr_index_builder_destroy(b);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    ck_assert_int_eq(mr_index_map(&index, fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    b = mr_index_builder_new(&source, fd);
    ck_assert_int_eq(add_name(b, "a"), 0);
    size_t length;
    ck_assert_int_eq(mr_index_builder_finish(b, NULL, &length), 0);
    mr_index_builder_destroy(b);
    ck_assert_int_eq(mr_index_map(&index, fd), 0);
    mr_index_close(&index);
    ck_assert_int_eq(ftruncate(fd, (off_t)length - 1), 0);
    ck_assert_int_eq(mr_index_map(&index, fd), -1);
    ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)length), 1);
    ck_assert_int_eq(mr_index_map(&index, fd), -1);
    ck_assert_int_eq(mr_index_map(&index, -1), -1);
    close(fd);
}
END_TEST

/* Every single byte of an image, damaged: refused, or readable to its end with no access outside (the sanitizers and
 * the exact allocation say so), and always found by verify unless it is a field of the header that verify has no
 * second source for. */
START_TEST(damage_is_found)
{
    struct model m = model_new(150, 2, 50);
    struct mr_index index;
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry e;
    unsigned char *image = build(&m, 0, m.n, &index);
    size_t length = index.length;
    uint64_t found;
    for (size_t i = 0; i < length; i++) {
        for (int bit = 0; bit < 8; bit += 7) {
            image[i] ^= (unsigned char)(1 << bit);
            if (mr_index_attach(&index, image, length) == 0) {
                if (i >= sizeof(struct mr_index_header) + strlen("bucket") + 1 + strlen("http://127.0.0.1:1") + 1 + 6)
                    ck_assert_msg(mr_index_verify(&index) == -1, "byte %zu of %zu", i, length);
                for (size_t k = 0; k < index.info.count && k < 200; k += 13)
                    mr_index_get(&index, k, &e, name);
                mr_index_find(&index, m.objects[50].name, m.objects[50].length, &found);
            }
            image[i] ^= (unsigned char)(1 << bit);
        }
    }
    ck_assert_int_eq(mr_index_attach(&index, image, length), 0);
    ck_assert_int_eq(mr_index_verify(&index), 0);
    free(image);
    model_free(&m);
}
END_TEST

/* Headers whose fields fit each other only because a sum wraps, or that claim more than there is. */
START_TEST(crafted_headers_are_refused)
{
    struct model m = model_new(70, 2, 50);
    struct mr_index index;
    unsigned char *image = build(&m, 0, m.n, &index);
    size_t length = index.length;
    struct mr_index_header good;
    memcpy(&good, image, sizeof(good));
    struct mr_index_header h;
    for (int i = 0; i < 12; i++) {
        h = good;
        h.strings_bytes = i == 0 ? UINT64_MAX - 99 : i == 1 ? 0 : h.strings_bytes;
        h.data = i == 0 ? sizeof(h) + h.strings_bytes : i == 1 ? sizeof(h) : h.data;
        h.directory = i == 2 ? length + 8 : i == 3 ? UINT64_MAX - 7 : h.directory;
        h.count = i == 4 ? UINT64_MAX : i == 5 ? 129 : h.count;
        h.blocks = i == 4 ? (UINT64_MAX - MR_INDEX_BLOCK + 1) / MR_INDEX_BLOCK + 1 : h.blocks;
        h.prefix_count = i == 6 ? 1 : i == 7 ? UINT32_MAX - 1 : h.prefix_count;
        h.scheme = i == 8 ? 3 : h.scheme;
        h.version_kind = i == 9 ? MR_INDEX_VERSION_KINDS : h.version_kind;
        h.max_name = i == 10 ? MR_INDEX_NAME_MAX + 1 : h.max_name;
        h.format = i == 11 ? MR_INDEX_IMAGE_FORMAT + 1 : h.format;
        memcpy(image, &h, sizeof(h));
        ck_assert_msg(mr_index_attach(&index, image, length) == -1, "case %d", i);
        ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    }
    memcpy(image, &good, sizeof(good));
    for (size_t shorter = 0; shorter < length; shorter++)
        ck_assert_int_eq(mr_index_attach(&index, image, shorter), -1);
    ck_assert_int_eq(mr_index_attach(&index, image, length), 0);
    free(image);
    model_free(&m);
}
END_TEST

START_TEST(digest_text)
{
    uint8_t digest[MR_INDEX_DIGEST_BYTES];
    struct model m = {NULL, 0};
    for (unsigned i = 0; i < sizeof(digest); i++)
        digest[i] = (uint8_t)(i * 9 + 3);
    char text[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(digest, text);
    ck_assert_uint_eq(strlen(text), 64);
    uint8_t back[MR_INDEX_DIGEST_BYTES];
    ck_assert_int_eq(mr_index_digest_parse(text, back), 0);
    ck_assert_mem_eq(digest, back, sizeof(digest));
    ck_assert_int_eq(mr_index_digest_parse("12", back), -1);
    text[10] = 'g';
    ck_assert_int_eq(mr_index_digest_parse(text, back), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    struct mr_index index;
    /* Of no blocks: SHA-256 of nothing. */
    void *image = build(&m, 0, 0, &index);
    mr_index_digest_text(index.info.digest, text);
    ck_assert_str_eq(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    free(image);
}
END_TEST

START_TEST(names_of_kinds)
{
    ck_assert_str_eq(mr_index_version_kind_name(MR_INDEX_ETAG), "etag");
    ck_assert_str_eq(mr_index_version_kind_name(99), "unknown");
    ck_assert_str_eq(mr_index_drop_name(MR_DROP_CLASS), "class");
    ck_assert_str_eq(mr_index_drop_name(99), "unknown");
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("index");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, holds_what_was_added);
    tcase_add_test(tc, find_of_absent_names);
    tcase_add_test(tc, header_says_where_from);
    tcase_add_test(tc, concat_is_canonical);
    tcase_add_test(tc, large_file);
    tcase_add_test(tc, compact_with_random_versions);
    tcase_add_test(tc, digest_sees_every_column);
    tcase_add_test(tc, refuses_bad_order);
    tcase_add_test(tc, refuses_bad_names_and_sizes);
    tcase_add_test(tc, refuses_parts_that_overlap_or_differ);
    tcase_add_test(tc, unfinished_or_short_files_are_refused);
    tcase_add_test(tc, damage_is_found);
    tcase_add_test(tc, crafted_headers_are_refused);
    tcase_add_test(tc, digest_text);
    tcase_add_test(tc, names_of_kinds);
    return mr_suite_run("index", tc);
}
