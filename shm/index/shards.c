#include "shm/index/shards.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shm/index/index_image.h"

static int shards_corrupt(uint64_t shard)
{
    mr_error_set(MR_E_CORRUPT, "index image is damaged: shard %llu", (unsigned long long)shard);
    return -1;
}

/* The header has been checked when the image was attached: the rows lie inside of the image. */
static struct mr_index_header header_of(const struct mr_index *index)
{
    struct mr_index_header h;
    memcpy(&h, index->image, sizeof h);
    return h;
}

static struct mr_index_shard_row row_of(const struct mr_index *index, const struct mr_index_header *h, uint64_t n)
{
    struct mr_index_shard_row row;
    memcpy(&row, index->image + h->shards + n * sizeof row, sizeof row);
    return row;
}

/* Names follow the rows, each with its NUL, up to the directory. */
static int shard_at(const struct mr_index *index, const struct mr_index_header *h, uint64_t n,
                    struct mr_index_shard *shard)
{
    uint64_t names = h->shards + h->shard_count * sizeof(struct mr_index_shard_row), room = h->directory - names;
    struct mr_index_shard_row row = row_of(index, h, n);
    uint64_t end = n + 1 < h->shard_count ? row_of(index, h, n + 1).first : h->count;
    if (row.name_length > MR_INDEX_NAME_MAX || row.name >= room || row.name_length >= room - row.name ||
        row.first > end || end > h->count || (n == 0 && row.first != 0))
        return shards_corrupt(n);
    shard->name = (const char *)index->image + names + row.name;
    shard->name_length = row.name_length;
    if (strnlen(shard->name, row.name_length + 1) != row.name_length)
        return shards_corrupt(n);
    shard->size = row.size;
    shard->version = row.version;
    shard->first = row.first;
    shard->count = end - row.first;
    return 0;
}

int mr_index_shard(const struct mr_index *index, uint64_t n, struct mr_index_shard *shard)
{
    struct mr_index_header h = header_of(index);
    if (n < h.shard_count)
        return shard_at(index, &h, n, shard);
    mr_error_set(MR_E_USAGE, "there is no shard %llu: the index has %llu, counted from 0", (unsigned long long)n,
                 (unsigned long long)h.shard_count);
    return -1;
}

int mr_index_shard_of(const struct mr_index *index, uint64_t i, struct mr_index_shard *shard)
{
    struct mr_index_header h = header_of(index);
    uint64_t low = 0, high = h.shard_count; /* shards below low begin at or before i, from high on after it */
    if (i >= h.count) {
        mr_error_set(MR_E_USAGE, "there is no sample %llu: the index has %llu, counted from 0", (unsigned long long)i,
                     (unsigned long long)h.count);
        return -1;
    }
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (row_of(index, &h, middle).first <= i)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || shard_at(index, &h, low - 1, shard) != 0)
        return shards_corrupt(low);
    return i - shard->first < shard->count ? 0 : shards_corrupt(low - 1); /* rows that are not ascending */
}

int mr_index_find_shard(const struct mr_index *index, const char *name, size_t length, struct mr_index_shard *shard)
{
    struct mr_index_header h = header_of(index);
    uint64_t low = 0, high = h.shard_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (shard_at(index, &h, middle, shard) != 0)
            return -1;
        int order = memcmp(shard->name, name, shard->name_length < length ? shard->name_length : length);
        if (order == 0 && shard->name_length == length)
            return 0;
        if (order < 0 || (order == 0 && shard->name_length < length))
            low = middle + 1;
        else
            high = middle;
    }
    mr_error_set(MR_E_NOT_FOUND, "there is no shard named %.*s in the index", (int)(length < 512 ? length : 512), name);
    return -1;
}

int mr_index_locate(const struct mr_index *index, uint64_t i, struct mr_index_entry *entry, char *name,
                    struct mr_index_range *range)
{
    bool samples = mr_index_shard_count(index) > 0;
    if (mr_index_get(index, i, entry, samples ? NULL : name) != 0)
        return -1;
    *range = (struct mr_index_range){.offset = 0, .object_size = entry->size, .first = i};
    if (!samples)
        return 0;
    struct mr_index_shard shard;
    if (mr_index_shard_of(index, i, &shard) != 0)
        return -1;
    range->offset = entry->version; /* the column of an index of samples */
    range->object_size = shard.size;
    range->first = shard.first;
    range->damaged = entry->size == 0;
    if (range->offset > shard.size || entry->size > shard.size - range->offset) {
        mr_error_set(MR_E_CORRUPT, "index image is damaged: sample %llu lies outside of its shard",
                     (unsigned long long)i);
        return -1;
    }
    entry->version = shard.version;
    if (name) {
        memcpy(name, shard.name, shard.name_length + 1);
        entry->name_length = (uint32_t)shard.name_length;
    }
    return 0;
}

char *mr_index_describe(const struct mr_index *index, uint64_t i, const char **uri)
{
    char name[MR_INDEX_NAME_SIZE], key[MR_INDEX_NAME_SIZE], before[MR_INDEX_NAME_SIZE + 100] = "";
    char root[MR_URI_PLACE_SIZE];
    struct mr_index_entry entry;
    struct mr_index_range range;
    if (mr_index_locate(index, i, &entry, name, &range) != 0)
        return NULL;
    if (mr_index_shard_count(index) > 0 && !range.damaged) {
        if (mr_index_get(index, i, &entry, key) != 0)
            return NULL;
        snprintf(before, sizeof before, "sample %s, which begins at byte %llu of its shard: ", key,
                 (unsigned long long)range.offset);
    }
    char *text;
    if (asprintf(&text, "%s%s%s", before, mr_uri_root(index->info.scheme, index->info.bucket, root), name) < 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a message");
        return NULL;
    }
    if (uri)
        *uri = text + strlen(before);
    return text;
}
