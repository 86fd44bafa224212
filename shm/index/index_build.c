#include "shm/index/index_build.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/index/index_image.h"
#include "shm/index/shards.h"

#define FLUSH_BYTES     ((size_t)1 << 20) /* what a builder into a file keeps before it writes */
#define MAX_TOTAL_BYTES (UINT64_C(1) << 63)
#define SHOWN_NAME      300 /* bytes of a name in an error message */
#define CODED_NAME_MAX  (MR_INDEX_NAME_MAX + 4)

/* A growing run of bytes. */
struct bytes {
    unsigned char *at;
    size_t length;
    size_t capacity;
};

/* The block that is being filled. */
struct pending {
    unsigned entries;
    uint64_t sizes[MR_INDEX_BLOCK];
    uint64_t versions[MR_INDEX_BLOCK];
    uint32_t crcs[MR_INDEX_BLOCK];
    uint64_t bitmap; /* bit k: entry k has a crc32c */
    size_t names_length;
    unsigned char names[MR_INDEX_BLOCK * CODED_NAME_MAX];
};

struct mr_index_builder {
    int fd;             /* -1: in memory */
    uint64_t written;   /* bytes that lie in the file already */
    struct bytes image; /* what follows them */
    struct bytes directory;
    struct bytes strings; /* as in the image: bucket, endpoint, prefixes */
    struct mr_index_header h;
    struct pending block;
    char last[MR_INDEX_NAME_SIZE]; /* the last name added */
    size_t last_length;
    EVP_MD_CTX *block_hash;
    EVP_MD_CTX *digest;
    struct bytes rows, shard_names; /* of an index of samples */
    uint64_t shard_size, shard_end; /* of the last shard: its bytes, and where its last sample ends */
    bool broken;                    /* a call failed, or finish is done */
};

static int bytes_room(struct bytes *b, size_t more)
{
    size_t capacity = b->capacity ? b->capacity : 4096;
    if (more > SIZE_MAX / 4 - b->length) {
        mr_error_set(MR_E_NO_MEMORY, "an index of more bytes than a process can have");
        return -1;
    }
    while (capacity < b->length + more)
        capacity *= 2;
    if (capacity == b->capacity)
        return 0;
    unsigned char *at = realloc(b->at, capacity);
    if (!at) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an index of %zu bytes", capacity);
        return -1;
    }
    b->at = at;
    b->capacity = capacity;
    return 0;
}

static int bytes_add(struct bytes *b, const void *data, size_t length)
{
    if (bytes_room(b, length) != 0)
        return -1;
    memcpy(b->at + b->length, data, length);
    b->length += length;
    return 0;
}

int mr_index_write_at(int fd, const void *data, size_t length, uint64_t offset)
{
    const unsigned char *at = data;
    while (length > 0) {
        ssize_t n = pwrite(fd, at, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            mr_error_set_errno(n < 0 ? errno : EIO, "index: cannot write %zu bytes at %llu", length,
                               (unsigned long long)offset);
            return -1;
        }
        at += n;
        length -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Moves the image's tail into the file, once it is large enough or at the end. */
static int flush(struct mr_index_builder *b, size_t at_least)
{
    if (b->fd < 0 || b->image.length < at_least)
        return 0;
    if (mr_index_write_at(b->fd, b->image.at, b->image.length, b->written) != 0)
        return -1;
    b->written += b->image.length;
    b->image.length = 0;
    return 0;
}

static int add_string(struct mr_index_builder *b, const char *text)
{
    text = text ? text : "";
    return bytes_add(&b->strings, text, strlen(text) + 1);
}

struct mr_index_builder *mr_index_builder_new(const struct mr_index_source *source, int fd)
{
    static const struct mr_index_header empty; /* no magic: an image that is not completed is not valid */
    struct mr_index_builder *b = NULL;
    if ((unsigned)source->scheme > MR_SCHEME_S3 || (unsigned)source->version_kind >= MR_INDEX_VERSION_KINDS) {
        mr_error_set(MR_E_USAGE, "index: scheme %u or version kind %u is unknown", source->scheme,
                     source->version_kind);
        return NULL;
    }
    b = calloc(1, sizeof(*b));
    if (!b) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an index builder");
        return NULL;
    }
    b->fd = fd;
    b->block_hash = EVP_MD_CTX_new();
    b->digest = EVP_MD_CTX_new();
    if (!b->block_hash || !b->digest || !EVP_DigestInit_ex(b->digest, EVP_sha256(), NULL)) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 cannot start");
        goto fail;
    }
    b->h.scheme = (uint32_t)source->scheme;
    b->h.version_kind = (uint32_t)source->version_kind;
    b->h.prefix_count = source->prefix_count;
    b->h.created_wall_ns = source->created_wall_ns;
    if (add_string(b, source->bucket) != 0 || add_string(b, source->endpoint) != 0)
        goto fail;
    for (uint32_t i = 0; i < source->prefix_count; i++) {
        if (add_string(b, source->prefixes[i]) != 0)
            goto fail;
    }
    if (bytes_add(&b->image, &empty, sizeof(empty)) != 0 || bytes_add(&b->image, b->strings.at, b->strings.length) != 0)
        goto fail;
    b->h.strings_bytes = b->strings.length;
    b->h.data = b->image.length;
    return b;
fail:
    mr_index_builder_destroy(b);
    return NULL;
}

void mr_index_builder_destroy(struct mr_index_builder *b)
{
    if (!b)
        return;
    EVP_MD_CTX_free(b->block_hash);
    EVP_MD_CTX_free(b->digest);
    free(b->image.at);
    free(b->directory.at);
    free(b->strings.at);
    free(b->rows.at);
    free(b->shard_names.at);
    free(b);
}

void mr_index_builder_drop(struct mr_index_builder *b, enum mr_index_drop kind, uint64_t names)
{
    if ((unsigned)kind < MR_DROP_KINDS)
        b->h.dropped[kind] += names;
}

uint64_t mr_index_builder_count(const struct mr_index_builder *b)
{
    return b->h.count;
}

/* Adds the SHA-256 of these bytes, not the bytes themselves, to the digest. */
static int hash_block(struct mr_index_builder *b, const void *data, size_t length)
{
    uint8_t hash[MR_INDEX_DIGEST_BYTES];
    if (!EVP_DigestInit_ex(b->block_hash, EVP_sha256(), NULL) || !EVP_DigestUpdate(b->block_hash, data, length) ||
        !EVP_DigestFinal_ex(b->block_hash, hash, NULL) || !EVP_DigestUpdate(b->digest, hash, sizeof(hash))) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
        return -1;
    }
    return 0;
}

/* The smallest of n values, and how many bytes the largest distance from it takes (0 when all are equal). */
static uint8_t column_width(const uint64_t *values, unsigned n, uint64_t *base)
{
    uint64_t low = values[0], high = values[0];
    uint8_t width = 0;
    for (unsigned i = 1; i < n; i++) {
        low = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    *base = low;
    for (uint64_t range = high - low; range; range >>= 8)
        width++;
    return width;
}

static unsigned char *put_column(unsigned char *at, const uint64_t *values, unsigned n, uint64_t base, uint8_t width)
{
    for (unsigned i = 0; i < n; i++, at += width) {
        uint64_t distance = values[i] - base;
        memcpy(at, &distance, width);
    }
    return at;
}

/* Codes the pending block at the image's end and records where it begins. */
static int close_block(struct mr_index_builder *b)
{
    struct pending *p = &b->block;
    struct mr_index_block_header h = {.entries = (uint8_t)p->entries};
    uint64_t all = p->entries == 64 ? ~UINT64_C(0) : (UINT64_C(1) << p->entries) - 1;
    uint64_t start = b->written + b->image.length;
    if (p->entries == 0)
        return 0;
    h.size_width = column_width(p->sizes, p->entries, &h.size_base);
    h.version_width = column_width(p->versions, p->entries, &h.version_base);
    h.crc_mode = p->bitmap == all ? MR_CRC_ALL : p->bitmap ? MR_CRC_SOME : MR_CRC_NONE;
    if (bytes_add(&b->directory, &start, sizeof(start)) != 0 ||
        bytes_room(&b->image, MR_INDEX_BLOCK_HEADER + (size_t)p->entries * 20 + 8 + p->names_length) != 0)
        return -1;
    unsigned char *begin = b->image.at + b->image.length, *at = begin;
    memcpy(at, &h, MR_INDEX_BLOCK_HEADER);
    at = put_column(at + MR_INDEX_BLOCK_HEADER, p->sizes, p->entries, h.size_base, h.size_width);
    at = put_column(at, p->versions, p->entries, h.version_base, h.version_width);
    if (h.crc_mode == MR_CRC_SOME) {
        memcpy(at, &p->bitmap, 8);
        at += 8;
    }
    if (h.crc_mode != MR_CRC_NONE) {
        memcpy(at, p->crcs, (size_t)p->entries * 4);
        at += (size_t)p->entries * 4;
    }
    memcpy(at, p->names, p->names_length);
    at += p->names_length;
    b->image.length += (size_t)(at - begin);
    b->h.blocks++;
    p->entries = 0;
    p->names_length = 0;
    p->bitmap = 0;
    if (hash_block(b, begin, (size_t)(at - begin)) != 0)
        return -1;
    return flush(b, FLUSH_BYTES);
}

static unsigned char *put_varint(unsigned char *at, size_t value)
{
    if (value >= 0x80)
        *at++ = (unsigned char)(0x80 | (value & 0x7f));
    *at++ = (unsigned char)(value >= 0x80 ? value >> 7 : value);
    return at;
}

static int shown(size_t length)
{
    return (int)(length < SHOWN_NAME ? length : SHOWN_NAME);
}

/* Refuses a name that an index may not hold. */
static int index_build_check_name(const char *name, size_t length)
{
    if (length > 0 && length <= MR_INDEX_NAME_MAX && !memchr(name, '\0', length))
        return 0;
    mr_error_set(MR_E_PROTOCOL, "listing: a name of %zu bytes%s cannot be indexed: %.*s", length,
                 length && length <= MR_INDEX_NAME_MAX ? " with a NUL" : "", shown(length), name);
    return -1;
}

/* How many bytes it shares with the one before it. */
static size_t shared_with_last(const struct mr_index_builder *b, const char *name, size_t length)
{
    size_t n = length < b->last_length ? length : b->last_length, i = 0;
    while (i < n && name[i] == b->last[i])
        i++;
    return i;
}

/* Refuses a name that is not above the one before it. */
static int check_order(const struct mr_index_builder *b, const char *name, size_t length)
{
    size_t n = length < b->last_length ? length : b->last_length, i = shared_with_last(b, name, length);
    /* Above: it is longer than the last one and begins with it, or has the greater byte where they differ. */
    bool above = i == n ? length > b->last_length : (unsigned char)name[i] > (unsigned char)b->last[i];
    if (!above) {
        mr_error_set(MR_E_PROTOCOL, "listing: %.*s comes after %.*s: %s", shown(length), name, shown(b->last_length),
                     b->last, i == n && length == b->last_length ? "listed twice" : "not in ascending byte order");
        return -1;
    }
    return 0;
}

/* Does not check the order of names: keys of samples have none. */
static int index_build_add(struct mr_index_builder *b, const char *name, size_t name_length, uint64_t size,
                           uint64_t version, uint32_t crc32c, bool has_crc32c)
{
    struct pending *p = &b->block;
    if (index_build_check_name(name, name_length) != 0)
        return -1;
    size_t shared = shared_with_last(b, name, name_length);
    if (size > MAX_TOTAL_BYTES - b->h.total_bytes) {
        mr_error_set(MR_E_PROTOCOL, "listing: %.*s has %llu bytes: the sum of all sizes passes 2^63",
                     shown(name_length), name, (unsigned long long)size);
        return -1;
    }
    if (b->h.count == MR_INDEX_MAX_COUNT) {
        mr_error_set(MR_E_PROTOCOL, "listing: more than 2^48 objects");
        return -1;
    }
    memcpy(b->last + shared, name + shared, name_length - shared);
    b->last_length = name_length;
    if (p->entries == 0)
        shared = 0; /* a block starts with a whole name */
    unsigned char *at = put_varint(put_varint(p->names + p->names_length, shared), name_length - shared);
    memcpy(at, name + shared, name_length - shared);
    p->names_length = (size_t)(at - p->names) + name_length - shared;
    p->sizes[p->entries] = size;
    p->versions[p->entries] = version;
    p->crcs[p->entries] = has_crc32c ? crc32c : 0;
    p->bitmap |= (uint64_t)has_crc32c << p->entries;
    p->entries++;
    b->h.count++;
    b->h.total_bytes += size;
    b->h.max_size = size > b->h.max_size ? size : b->h.max_size;
    b->h.max_name = name_length > b->h.max_name ? (uint32_t)name_length : b->h.max_name;
    return p->entries == MR_INDEX_BLOCK ? close_block(b) : 0;
}

static int check_open(const struct mr_index_builder *b)
{
    if (!b->broken)
        return 0;
    mr_error_set(MR_E_INTERNAL, "index builder used after it failed or finished");
    return -1;
}

int mr_index_builder_add(struct mr_index_builder *b, const char *name, size_t name_length, uint64_t size,
                         uint64_t version, uint32_t crc32c, bool has_crc32c)
{
    if (check_open(b) != 0)
        return -1;
    if (b->h.shard_count == 0 && check_order(b, name, name_length) == 0 &&
        index_build_add(b, name, name_length, size, version, crc32c, has_crc32c) == 0)
        return 0;
    if (b->h.shard_count > 0)
        mr_error_set(MR_E_INTERNAL, "an object for an index of samples");
    b->broken = true;
    return -1;
}

/* ---- samples ---- */

/* The name of the shard added last; "" before the first. */
static const char *last_shard(const struct mr_index_builder *b, size_t *length)
{
    struct mr_index_shard_row row = {0};
    if (b->h.shard_count > 0)
        memcpy(&row, b->rows.at + b->rows.length - sizeof row, sizeof row);
    *length = row.name_length;
    return b->h.shard_count > 0 ? (const char *)b->shard_names.at + row.name : "";
}

static int add_shard(struct mr_index_builder *b, const char *name, size_t name_length, uint64_t size, uint64_t version)
{
    struct mr_index_shard_row row = {.first = b->h.count,
                                     .size = size,
                                     .version = version,
                                     .name = b->shard_names.length,
                                     .name_length = name_length};
    if (b->h.shard_count == 0 && b->h.count > 0) {
        mr_error_set(MR_E_INTERNAL, "a shard for an index of objects");
        return -1;
    }
    if (index_build_check_name(name, name_length) != 0)
        return -1;
    size_t before_length;
    const char *before = last_shard(b, &before_length);
    int order = memcmp(before, name, before_length < name_length ? before_length : name_length);
    if (order > 0 || (order == 0 && before_length >= name_length)) {
        mr_error_set(MR_E_PROTOCOL, "shards: %.*s comes after %.*s: not in ascending byte order", shown(name_length),
                     name, shown(before_length), before);
        return -1;
    }
    if (bytes_add(&b->rows, &row, sizeof row) != 0 || bytes_add(&b->shard_names, name, name_length) != 0 ||
        bytes_add(&b->shard_names, "", 1) != 0)
        return -1;
    b->h.shard_count++;
    b->shard_size = size;
    b->shard_end = 0;
    return 0;
}

int mr_index_builder_shard(struct mr_index_builder *b, const char *name, size_t name_length, uint64_t size,
                           uint64_t version)
{
    if (check_open(b) != 0)
        return -1;
    if (add_shard(b, name, name_length, size, version) == 0)
        return 0;
    b->broken = true;
    return -1;
}

static int check_place(const struct mr_index_builder *b, uint64_t offset, uint64_t length)
{
    if (b->h.shard_count > 0 && offset >= b->shard_end && offset <= b->shard_size && length <= b->shard_size - offset)
        return 0;
    size_t name_length;
    const char *name = last_shard(b, &name_length);
    mr_error_set(MR_E_PROTOCOL, "shard %.*s: a sample of %llu bytes at %llu lies in another one or outside",
                 shown(name_length), name, (unsigned long long)length, (unsigned long long)offset);
    return -1;
}

int mr_index_builder_sample(struct mr_index_builder *b, const char *key, size_t key_length, uint64_t offset,
                            uint64_t length, uint32_t crc32c, bool has_crc32c)
{
    if (check_open(b) != 0)
        return -1;
    if (check_place(b, offset, length) == 0 &&
        index_build_add(b, key, key_length, length, offset, crc32c, has_crc32c) == 0) {
        b->shard_end = offset + length;
        return 0;
    }
    b->broken = true;
    return -1;
}

static int check_source(const struct mr_index_builder *b, const struct mr_index_info *range)
{
    const char *bucket = (const char *)b->strings.at, *endpoint = bucket + strlen(bucket) + 1;
    if ((uint32_t)range->scheme == b->h.scheme && (uint32_t)range->version_kind == b->h.version_kind &&
        strcmp(range->bucket, bucket) == 0 && strcmp(range->endpoint, endpoint) == 0)
        return 0;
    char from[MR_URI_PLACE_SIZE], to[MR_URI_PLACE_SIZE];
    mr_error_set(MR_E_PROTOCOL, "index of %s at \"%s\" (%s) cannot go into one of %s at \"%s\" (%s)",
                 mr_uri_place(range->scheme, range->bucket, from), range->endpoint,
                 mr_index_version_kind_name(range->version_kind), mr_uri_place((enum mr_scheme)b->h.scheme, bucket, to),
                 endpoint, mr_index_version_kind_name(b->h.version_kind));
    return -1;
}

/* Appends a range's shards and their samples. Both must follow those already added in name order. */
static int concat_samples(struct mr_index_builder *b, const struct mr_index *range)
{
    struct mr_index_iter it;
    mr_index_iter_init(&it, range, 0);
    struct mr_index_entry e;
    for (uint64_t n = 0; n < mr_index_shard_count(range); n++) {
        struct mr_index_shard shard;
        if (mr_index_shard(range, n, &shard) != 0 ||
            mr_index_builder_shard(b, shard.name, shard.name_length, shard.size, shard.version) != 0)
            return -1;
        for (uint64_t i = 0; i < shard.count; i++) {
            int rc = mr_index_iter_next(&it, &e);
            if (rc < 0 || (rc > 0 && mr_index_builder_sample(b, it.name, it.name_length, e.version, e.size, e.crc32c,
                                                             e.has_crc32c) != 0))
                return -1;
        }
    }
    return 0;
}

static int concat_objects(struct mr_index_builder *b, const struct mr_index *range)
{
    struct mr_index_iter it;
    mr_index_iter_init(&it, range, 0);
    struct mr_index_entry e;
    int rc;
    while ((rc = mr_index_iter_next(&it, &e)) > 0) {
        if (mr_index_builder_add(b, it.name, it.name_length, e.size, e.version, e.crc32c, e.has_crc32c) != 0)
            return -1;
    }
    return rc;
}

static int concat_range(struct mr_index_builder *b, const struct mr_index *range)
{
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        mr_index_builder_drop(b, (enum mr_index_drop)kind, range->info.dropped[kind]);
    return mr_index_shard_count(range) > 0 ? concat_samples(b, range) : concat_objects(b, range);
}

int mr_index_concat(struct mr_index_builder *b, const struct mr_index *const ranges[], size_t n)
{
    if (check_open(b) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (check_source(b, &ranges[i]->info) != 0 || concat_range(b, ranges[i]) != 0) {
            mr_error_append("range %zu of the listing's %zu", i + 1, n);
            b->broken = true;
            return -1;
        }
    }
    return 0;
}

/* After the last block; the digest covers them. */
static int put_shards(struct mr_index_builder *b)
{
    if (b->h.shard_count == 0)
        return 0;
    b->h.shards = b->written + b->image.length;
    size_t start = b->image.length;
    if (bytes_add(&b->image, b->rows.at, b->rows.length) != 0 ||
        bytes_add(&b->image, b->shard_names.at, b->shard_names.length) != 0)
        return -1;
    return hash_block(b, b->image.at + start, b->image.length - start);
}

/* The directory after the last block or the shards, and the header's last fields. */
static int index_build_complete(struct mr_index_builder *b)
{
    if (close_block(b) != 0)
        return -1;
    uint64_t end = b->written + b->image.length; /* of the last block */
    if (put_shards(b) != 0)
        return -1;
    b->h.directory = b->written + b->image.length;
    if (bytes_add(&b->directory, &end, sizeof end) != 0 ||
        bytes_add(&b->image, b->directory.at, b->directory.length) != 0)
        return -1;
    b->h.length = b->written + b->image.length;
    b->h.format = b->h.shard_count > 0 ? MR_INDEX_IMAGE_SHARDS : MR_INDEX_IMAGE_FORMAT;
    b->h.header_bytes = sizeof(b->h);
    if (!EVP_DigestFinal_ex(b->digest, b->h.digest, NULL)) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
        return -1;
    }
    return 0;
}

/* Writes everything but the magic, then the magic: a file that was abandoned in between is not an image. */
static int finish_file(struct mr_index_builder *b)
{
    uint64_t magic = MR_INDEX_MAGIC;
    if (flush(b, 0) != 0)
        return -1;
    if (ftruncate(b->fd, (off_t)b->h.length) != 0) {
        mr_error_set_errno(errno, "index image: cannot set its length");
        return -1;
    }
    if (mr_index_write_at(b->fd, &b->h, sizeof(b->h), 0) != 0)
        return -1;
    return mr_index_write_at(b->fd, &magic, sizeof(magic), 0);
}

int mr_index_builder_finish(struct mr_index_builder *b, void **image, size_t *length)
{
    if (check_open(b) != 0)
        return -1;
    b->broken = true;
    if (index_build_complete(b) != 0)
        return -1;
    if (b->fd >= 0) {
        if (finish_file(b) != 0)
            return -1;
        if (image)
            *image = NULL;
    } else {
        b->h.magic = MR_INDEX_MAGIC;
        memcpy(b->image.at, &b->h, sizeof(b->h));
        unsigned char *fit = realloc(b->image.at, b->image.length);
        *image = fit ? fit : b->image.at;
        b->image = (struct bytes){0};
    }
    if (length)
        *length = (size_t)b->h.length;
    return 0;
}
