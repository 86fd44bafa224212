/* Whether an image is what its header says: for those that come from a file, where anything may have been changed. */
#include <string.h>

#include "base/error.h"
#include "shm/index/index_image.h"
#include "shm/index/shards.h"

static int index_verify_corrupt(const char *what, uint64_t value)
{
    mr_error_set(MR_E_CORRUPT, "index image is damaged: %s %llu", what, (unsigned long long)value);
    return -1;
}

/* Shards ascend by name, and the samples of each by offset, without overlap and within its size. */
static int verify_shards(const struct mr_index *index)
{
    struct mr_index_shard before = {.name = ""}, shard;
    uint64_t count = mr_index_shard_count(index);
    for (uint64_t n = 0; n < count; n++, before = shard) {
        uint64_t end = 0;
        if (mr_index_shard(index, n, &shard) != 0)
            return -1;
        if (mr_index_compare_names(before.name, before.name_length, shard.name, shard.name_length) >= 0)
            return index_verify_corrupt("order of the shards at", n);
        for (uint64_t i = shard.first; i < shard.first + shard.count; i++) {
            struct mr_index_entry entry;
            struct mr_index_range range;
            if (mr_index_locate(index, i, &entry, NULL, &range) != 0)
                return -1;
            if (range.offset < end)
                return index_verify_corrupt("order of the samples at", i);
            end = range.offset + entry.size;
        }
    }
    return 0;
}

int mr_index_verify(const struct mr_index *index)
{
    bool samples = mr_index_shard_count(index) > 0;
    uint32_t before_length = 0, max_name = 0;
    uint64_t total = 0, max_size = 0;
    if (samples && verify_shards(index) != 0)
        return -1;
    if (mr_index_check_digest(index) != 0)
        return -1;
    struct mr_index_iter it;
    mr_index_iter_init(&it, index, 0);
    struct mr_index_entry entry;
    char before[MR_INDEX_NAME_SIZE];
    int rc;
    while ((rc = mr_index_iter_next(&it, &entry)) > 0) {
        if (!samples && mr_index_compare_names(before, before_length, it.name, it.name_length) >= 0)
            return index_verify_corrupt("order at object", it.next - 1);
        memcpy(before, it.name, it.name_length);
        before_length = it.name_length;
        total += entry.size;
        max_size = entry.size > max_size ? entry.size : max_size;
        max_name = it.name_length > max_name ? it.name_length : max_name;
    }
    if (rc < 0)
        return -1;
    if (total != index->info.total_bytes || max_size != index->info.max_size || max_name != index->info.max_name)
        return index_verify_corrupt("sum of the sizes", total);
    return 0;
}
