/* fuzz_index.c - a damaged index image: refused, or read to its end within its bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "fuzz.h"
#include "shm/index/index.h"
#include "shm/index/index_build.h"
#include "shm/index/shards.h"

/* What an accepted entry may look like, whatever the bytes were. */
static void check(const struct mr_index_entry *entry, const char *name)
{
    if (entry->name_length > MR_INDEX_NAME_MAX || name[entry->name_length] != '\0' ||
        (!entry->has_crc32c && entry->crc32c != 0))
        abort();
}

/* A digest is read back from its text; any other text is refused or means itself in lower case. */
static void check_digest(const uint8_t *data, size_t size)
{
    uint8_t digest[MR_INDEX_DIGEST_BYTES], again[MR_INDEX_DIGEST_BYTES];
    char text[MR_INDEX_DIGEST_SIZE], out[MR_INDEX_DIGEST_SIZE];
    memset(digest, 0, sizeof digest);
    memcpy(digest, data, size < sizeof digest ? size : sizeof digest);
    mr_index_digest_text(digest, text);
    if (mr_index_digest_parse(text, again) != 0 || memcmp(digest, again, sizeof digest) != 0)
        abort();
    if (size < sizeof text)
        return;
    memcpy(text, data, sizeof text - 1);
    if (mr_index_digest_parse(text, again) == 0) {
        mr_index_digest_text(again, out);
        if (strcasecmp(text, out) != 0)
            abort();
    }
}

/* The same out of a file. */
static void check_mapped(const uint8_t *data, size_t size, bool accepted)
{
    static int fd = -1;
    struct mr_index index;
    if (fd < 0)
        fd = memfd_create("index", MFD_CLOEXEC);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    if ((mr_index_map(&index, fd) == 0) != accepted)
        abort();
    mr_index_close(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_index index;
    check_digest(data, size);
    bool accepted = mr_index_attach(&index, data, size) == 0;
    check_mapped(data, size, accepted);
    if (!accepted)
        return 0;
    if (!mr_index_version_kind_name((unsigned)size % 5)[0] || !mr_index_drop_name((unsigned)size % 6)[0])
        abort();
    size_t strings = strlen(index.info.bucket) + strlen(index.info.endpoint);
    for (uint32_t i = 0; i < index.info.prefix_count; i++)
        strings += strlen(mr_index_prefix(&index, i));
    if (strings > size)
        abort();
    struct mr_index_iter it;
    mr_index_iter_init(&it, &index, 0);
    struct mr_index_entry entry;
    char name[MR_INDEX_NAME_SIZE];
    while (mr_index_iter_next(&it, &entry) > 0) {
        check(&entry, it.name);
        struct mr_index_entry same;
        /* Both ways to a name give the same bytes: none of them is left over from another name. */
        if (mr_index_get(&index, it.next - 1, &same, name) != 0 || same.name_length != entry.name_length ||
            memcmp(name, it.name, entry.name_length) != 0 || same.size != entry.size)
            abort();
    }
    struct mr_index_shard shard;
    struct mr_index_range range;
    for (uint64_t n = 0; n < mr_index_shard_count(&index) && n < 64; n++)
        if (mr_index_shard(&index, n, &shard) == 0 &&
            (strlen(shard.name) != shard.name_length || shard.first + shard.count > index.info.count))
            abort();
    for (uint64_t i = 0; i < 20; i++)
        if (mr_index_locate(&index, mr_mix64(i) % (index.info.count + 1), &entry, name, &range) == 0 &&
            (range.offset > range.object_size || entry.size > range.object_size - range.offset))
            abort();
    uint64_t found;
    for (uint64_t i = 0; i < 20; i++) {
        if (mr_index_get(&index, mr_mix64(i) % (index.info.count + 1), &entry, name) == 0) {
            check(&entry, name);
            (void)mr_index_find(&index, name, entry.name_length, &found);
        }
    }
    if (mr_index_get(&index, index.info.count, &entry, name) == 0)
        abort();
    (void)mr_index_verify(&index);
    mr_index_close(&index);
    return 0;
}

#define SEEDS  6 /* of objects */
#define SHARDS 3 /* of the last one */

/* Seed n: `count` objects; the last one has the longest names there are, alike but for their ends. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const unsigned counts[SEEDS] = {0, 1, 64, 65, 200, 9};
    static const int digits[SEEDS] = {5, 5, 5, 5, 30, MR_INDEX_NAME_MAX - 6};
    static const char *const prefixes[] = {"train/", "val/"};
    const struct mr_index_source source = {
        .scheme = MR_SCHEME_GS, .bucket = "b", .endpoint = "http://x", .prefixes = prefixes, .prefix_count = n % 3};
    if (n > SEEDS)
        return 0;
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    for (unsigned i = 0; n == SEEDS && i < SHARDS * 40; i++) {
        char name[64], key[64];
        snprintf(name, sizeof name, "train/%u.tar", i / 40);
        snprintf(key, sizeof key, "%llx", (unsigned long long)mr_mix64(i));
        if ((i % 40 == 0 && mr_index_builder_shard(b, name, strlen(name), 100000, i) != 0) ||
            mr_index_builder_sample(b, key, strlen(key), i % 40 * 1000, 512 + i, i, i % 2) != 0)
            abort();
    }
    for (unsigned i = 0; n < SEEDS && i < counts[n]; i++) {
        char name[MR_INDEX_NAME_SIZE];
        int l = snprintf(name, sizeof(name), "train/%0*u", digits[n], i);
        if (mr_index_builder_add(b, name, (size_t)l, mr_mix64(i) % 100000, mr_mix64(i), i, n == 2 || i % 2) != 0)
            abort();
    }
    void *image = NULL;
    size_t length = 0;
    if (mr_index_builder_finish(b, &image, &length) != 0)
        abort();
    mr_index_builder_destroy(b);
    *data = image;
    return length;
}
