#include "devstore/synthetic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "devstore/object.h"
#include "devstore/shapes.h"

#define SLAB       (UINT64_C(1) << 24) /* bytes of the slab */
#define SPREAD     (UINT64_C(1) << 22) /* a window begins in [0, SPREAD) */
#define STEP       64u                 /* a prefix sum every so many bytes */
#define SIZE_LIMIT (UINT64_C(64) << 30)
#define SIZE_BITS  37 /* bits of SIZE_LIMIT + SPREAD */
#define COUNT_MAX  UINT64_C(1000000000)
/* Fixed, so that a synthetic object has the same generation in every run (2023-11-14 in microseconds). */
#define GENERATION INT64_C(1700000000000000)

struct ds_synthetic {
    struct ds_made_up made_up; /* what its objects point to */
    uint64_t count, size_min, size_max, seed;
    enum ds_shape shape;
    uint8_t *base; /* the slab, mapped `copies` times in a row */
    uint64_t copies;
    uint32_t *prefix;                  /* prefix[k]: crc of the slab's first k * STEP bytes */
    uint32_t *whole;                   /* whole[k]: crc of k slabs in a row */
    uint32_t shift[SIZE_BITS][4][256]; /* shift[k][i][b]: the crc b << 8 * i after 2^k zero bytes more */
};

/* Maps the slab `copies` times in a row, and fills it. 0 or -1; in either case ds_synthetic_destroy unmaps base. */
static int map_slab(struct ds_synthetic *synthetic)
{
    int rc = -1;
    int fd = memfd_create("devstore-slab", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)SLAB) < 0) {
        mr_error_set_errno(errno, "cannot create the memory of a synthetic bucket");
        goto out;
    }
    void *room = mmap(NULL, synthetic->copies * SLAB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map a synthetic bucket");
        goto out;
    }
    synthetic->base = room;
    for (uint64_t i = 0; i < synthetic->copies; i++) {
        int prot = i == 0 ? PROT_READ | PROT_WRITE : PROT_READ;
        if (mmap(synthetic->base + i * SLAB, SLAB, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
            mr_error_set_errno(errno, "cannot map a synthetic bucket");
            goto out;
        }
    }
    uint64_t *words = (uint64_t *)synthetic->base;
    for (uint64_t i = 0; i < SLAB / sizeof *words; i++)
        words[i] = mr_mix64(synthetic->seed + i * UINT64_C(0x9e3779b97f4a7c15));
    rc = 0;
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Computes the tables from which crc_of gets an object's crc32c without reading it. */
static void sum_slab(struct ds_synthetic *synthetic)
{
    uint32_t crc = 0;
    for (uint64_t k = 0; k <= SLAB / STEP; k++) {
        synthetic->prefix[k] = crc;
        if (k < SLAB / STEP)
            crc = mr_crc32c(crc, synthetic->base + k * STEP, STEP);
    }
    for (unsigned k = 0; k < SIZE_BITS; k++) {
        for (unsigned i = 0; i < 32; i++) {
            uint32_t *row = synthetic->shift[k][i / 8], bit = 1u << i % 8;
            row[bit] = mr_crc32c_combine(1u << i, 0, UINT64_C(1) << k);
            for (uint32_t low = 1; low < bit; low++)
                row[bit | low] = row[bit] ^ row[low];
        }
    }
    synthetic->whole[0] = 0;
    for (uint64_t k = 1; k <= synthetic->copies; k++)
        synthetic->whole[k] = mr_crc32c_combine(synthetic->whole[k - 1], crc, SLAB);
}

static uint32_t crc_of(const struct ds_made_up *made_up, const uint8_t *data, uint64_t size);

struct ds_synthetic *ds_synthetic_new(enum ds_shape shape, uint64_t count, uint64_t size_min, uint64_t size_max,
                                      uint64_t seed)
{
    struct ds_synthetic *synthetic = NULL;
    if (count > COUNT_MAX || size_min > size_max || size_max > SIZE_LIMIT) {
        mr_error_set(MR_E_USAGE, "a synthetic bucket has at most 1000000000 objects of at most 64GiB");
        return NULL;
    }
    synthetic = calloc(1, sizeof *synthetic);
    if (!synthetic)
        goto no_memory;
    synthetic->made_up.crc = crc_of;
    synthetic->shape = shape;
    synthetic->count = count;
    synthetic->size_min = size_min;
    synthetic->size_max = size_max;
    synthetic->seed = seed;
    synthetic->copies = (size_max + SPREAD) / SLAB + 1;
    synthetic->prefix = malloc((SLAB / STEP + 1) * sizeof *synthetic->prefix);
    synthetic->whole = malloc((synthetic->copies + 1) * sizeof *synthetic->whole);
    if (!synthetic->prefix || !synthetic->whole)
        goto no_memory;
    if (map_slab(synthetic) < 0)
        goto fail;
    sum_slab(synthetic);
    return synthetic;
no_memory:
    mr_error_set(MR_E_NO_MEMORY, "no memory for a synthetic bucket");
fail:
    ds_synthetic_destroy(synthetic);
    return NULL;
}

void ds_synthetic_destroy(struct ds_synthetic *synthetic)
{
    if (!synthetic)
        return;
    if (synthetic->base)
        munmap(synthetic->base, synthetic->copies * SLAB);
    free(synthetic->prefix);
    free(synthetic->whole);
    free(synthetic);
}

uint64_t ds_synthetic_seek(const struct ds_synthetic *synthetic, const char *key, bool after)
{
    uint64_t low = 0, high = synthetic->count;
    while (low < high) {
        char name[MR_NAME_MAX + 1];
        uint64_t middle = low + (high - low) / 2;
        ds_shape_name(synthetic->shape, synthetic->count, middle, name);
        int order = strcmp(name, key);
        if (order < 0 || (order == 0 && after))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* crc of (what has this crc, then length zero bytes), without the zeros: the linear part of mr_crc32c_combine. */
static uint32_t shifted(const struct ds_synthetic *synthetic, uint32_t crc, uint64_t length)
{
    for (unsigned k = 0; length != 0; k++, length >>= 1) {
        const uint32_t(*row)[256] = synthetic->shift[k];
        if (length & 1)
            crc = row[0][crc & 255] ^ row[1][crc >> 8 & 255] ^ row[2][crc >> 16 & 255] ^ row[3][crc >> 24];
    }
    return crc;
}

/* crc of the first `end` bytes of the endless row of slabs. */
static uint32_t prefix_crc(const struct ds_synthetic *synthetic, uint64_t end)
{
    uint64_t slabs = end / SLAB, rest = end % SLAB, block = rest / STEP;
    uint32_t crc = mr_crc32c(synthetic->prefix[block], synthetic->base + block * STEP, rest % STEP);
    return shifted(synthetic, synthetic->whole[slabs], rest) ^ crc;
}

static uint32_t crc_of(const struct ds_made_up *made_up, const uint8_t *data, uint64_t size)
{
    const struct ds_synthetic *synthetic = (const struct ds_synthetic *)made_up;
    uint64_t begin = (uint64_t)(data - synthetic->base);
    /* crc(ab) = shifted(crc(a), |b|) ^ crc(b), so crc(b) is the sum of the other two. */
    return prefix_crc(synthetic, begin + size) ^ shifted(synthetic, prefix_crc(synthetic, begin), size);
}

struct ds_object *ds_synthetic_object(const struct ds_synthetic *synthetic, uint64_t index)
{
    if (index >= synthetic->count)
        return NULL;
    char name[MR_NAME_MAX + 1];
    size_t length = ds_shape_name(synthetic->shape, synthetic->count, index, name);
    struct ds_object *object = ds_object_new_n(name, length);
    if (!object)
        return NULL;
    uint64_t spread = synthetic->size_max - synthetic->size_min;
    uint64_t size = synthetic->size_min + (spread ? mr_mix64(synthetic->seed ^ mr_mix64(index + 1)) % (spread + 1) : 0);
    if (ds_shape_is_empty(synthetic->shape, index))
        size = 0;
    /* An odd multiplier permutes the residues of a power of two; this one, 2^22 / golden ratio, spreads neighbours. */
    uint64_t begin = (index * 2592239 + mr_mix64(synthetic->seed)) % SPREAD;
    ds_object_set_piece(object, synthetic->base + begin, size, NULL);
    object->made_up = &synthetic->made_up;
    object->generation = (uint64_t)GENERATION;
    object->created_us = object->updated_us = GENERATION;
    const char *class = ds_shape_class(synthetic->shape, index);
    if (class && ds_object_set_attribute(object, MR_ATTR_STORAGE_CLASS, class) < 0) {
        ds_object_unref(object);
        return NULL;
    }
    return object;
}
