#include "shm/index/index.h"

#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "shm/index/index_image.h"
#include "shm/index/shards.h"

/* A block whose header has been checked: every column lies inside of [0, length). */
struct block {
    const unsigned char *bytes;
    uint64_t length;
    struct mr_index_block_header h;
    uint64_t versions; /* offsets in the block */
    uint64_t crcs;
    uint64_t names;
    uint64_t bitmap; /* bit k: entry k has a crc32c */
};

static int index_corrupt(const char *what, uint64_t value)
{
    mr_error_set(MR_E_CORRUPT, "index image is damaged: %s %llu", what, (unsigned long long)value);
    return -1;
}

static uint64_t load64(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* width <= 8 bytes, little-endian. */
static uint64_t load_width(const unsigned char *p, unsigned width)
{
    uint64_t v = 0;
    memcpy(&v, p, width);
    return v;
}

/* Strings are bucket, endpoint and the prefixes, each ended by a NUL, and nothing else. */
static int attach_strings(struct mr_index *index, uint64_t bytes)
{
    const char *at = (const char *)index->image + sizeof(struct mr_index_header);
    uint64_t nuls = 0;
    for (uint64_t i = 0; i < bytes; i++)
        nuls += at[i] == '\0';
    if (bytes == 0 || at[bytes - 1] != '\0' || nuls != (uint64_t)index->info.prefix_count + 2)
        return index_corrupt("strings", nuls);
    index->info.bucket = at;
    index->info.endpoint = at + strlen(at) + 1;
    index->prefixes = index->info.endpoint + strlen(index->info.endpoint) + 1;
    return 0;
}

/* Every offset follows from the others; a header in which they do not fit is refused. */
static int check_header(const struct mr_index_header *h, size_t length)
{
    if (h->magic != MR_INDEX_MAGIC) {
        mr_error_set(MR_E_CORRUPT, "not an index image, or one that was not completed");
        return -1;
    }
    if ((h->format != MR_INDEX_IMAGE_FORMAT && h->format != MR_INDEX_IMAGE_SHARDS) || h->header_bytes != sizeof(*h)) {
        mr_error_set(MR_E_CORRUPT, "index image has format %u, this program reads %u and %u: build it again", h->format,
                     MR_INDEX_IMAGE_FORMAT, MR_INDEX_IMAGE_SHARDS);
        return -1;
    }
    if (h->length != length)
        return index_corrupt("length", h->length);
    if (h->count > MR_INDEX_MAX_COUNT || h->blocks != (h->count + MR_INDEX_BLOCK - 1) / MR_INDEX_BLOCK)
        return index_corrupt("count", h->count);
    if (h->strings_bytes > length - sizeof(*h) || h->data != sizeof(*h) + h->strings_bytes)
        return index_corrupt("offset of the blocks", h->data);
    if (h->directory < h->data || h->directory > length || (length - h->directory) / 8 != h->blocks + 1 ||
        (length - h->directory) % 8 != 0)
        return index_corrupt("offset of the directory", h->directory);
    bool shards = h->format == MR_INDEX_IMAGE_SHARDS;
    uint64_t rows = shards && h->shards <= h->directory ? h->directory - h->shards : 0;
    if (shards != (h->shard_count > 0) || (shards && (h->shards < h->data || h->shards > h->directory)) ||
        h->shard_count > rows / sizeof(struct mr_index_shard_row) || (!shards && h->shards != 0))
        return index_corrupt("place of the table of shards", h->shards);
    if (h->scheme > MR_SCHEME_S3 || h->version_kind >= MR_INDEX_VERSION_KINDS || h->max_name > MR_INDEX_NAME_MAX)
        return index_corrupt("scheme", h->scheme);
    return 0;
}

int mr_index_attach(struct mr_index *index, const void *image, size_t length)
{
    memset(index, 0, sizeof(*index));
    struct mr_index_header h;
    if (length < sizeof(h))
        return index_corrupt("length", length);
    memcpy(&h, image, sizeof(h));
    if (check_header(&h, length) != 0)
        return -1;
    index->image = image;
    index->length = length;
    index->blocks = h.blocks;
    index->directory = h.directory;
    index->data = h.data;
    struct mr_index_info *info = &index->info;
    info->count = h.count;
    info->total_bytes = h.total_bytes;
    info->max_size = h.max_size;
    memcpy(info->dropped, h.dropped, sizeof(info->dropped));
    info->created_wall_ns = h.created_wall_ns;
    info->scheme = (enum mr_scheme)h.scheme;
    info->version_kind = (enum mr_index_version_kind)h.version_kind;
    info->max_name = h.max_name;
    info->prefix_count = h.prefix_count;
    memcpy(info->digest, h.digest, sizeof(info->digest));
    if (attach_strings(index, h.strings_bytes) != 0) {
        memset(index, 0, sizeof(*index));
        return -1;
    }
    return 0;
}

int mr_index_map(struct mr_index *index, int fd)
{
    memset(index, 0, sizeof(*index));
    struct stat st;
    if (fstat(fd, &st) != 0) {
        mr_error_set_errno(errno, "cannot look at an index image");
        return -1;
    }
    if (st.st_size < (off_t)sizeof(struct mr_index_header))
        return index_corrupt("length", (uint64_t)st.st_size);
    size_t length = (size_t)st.st_size;
    void *image = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (image == MAP_FAILED) {
        mr_error_set_errno(errno, "index image: cannot map %zu bytes", length);
        return -1;
    }
    if (mr_index_attach(index, image, length) != 0) {
        munmap(image, length);
        return -1;
    }
    index->mapped = true;
    return 0;
}

void mr_index_close(struct mr_index *index)
{
    if (index->mapped)
        munmap((void *)index->image, index->length);
    memset(index, 0, sizeof(*index));
}

/* Finds block b and checks that its columns fit into it. */
static int block_open(const struct mr_index *index, uint64_t b, struct block *out)
{
    const unsigned char *entry = index->image + index->directory + b * 8;
    uint64_t start = load64(entry), end = load64(entry + 8);
    if (start < index->data || start > end || end > index->directory || end - start < MR_INDEX_BLOCK_HEADER)
        return index_corrupt("block", b);
    out->bytes = index->image + start;
    out->length = end - start;
    memcpy(&out->h, out->bytes, MR_INDEX_BLOCK_HEADER);
    uint64_t last = index->info.count - b * MR_INDEX_BLOCK;
    unsigned entries = last < MR_INDEX_BLOCK ? (unsigned)last : MR_INDEX_BLOCK;
    if (out->h.entries != entries || out->h.size_width > 8 || out->h.version_width > 8 ||
        out->h.crc_mode >= MR_CRC_MODES)
        return index_corrupt("header of block", b);
    out->versions = MR_INDEX_BLOCK_HEADER + (uint64_t)entries * out->h.size_width;
    out->crcs = out->versions + (uint64_t)entries * out->h.version_width;
    uint64_t bitmap = out->crcs;
    out->crcs += out->h.crc_mode == MR_CRC_SOME ? 8 : 0;
    out->names = out->crcs + (out->h.crc_mode == MR_CRC_NONE ? 0 : (uint64_t)entries * 4);
    if (out->names > out->length)
        return index_corrupt("columns of block", b);
    out->bitmap = out->h.crc_mode == MR_CRC_SOME  ? load64(out->bytes + bitmap)
                  : out->h.crc_mode == MR_CRC_ALL ? ~UINT64_C(0)
                                                  : 0;
    return 0;
}

static void block_entry(const struct block *block, unsigned k, struct mr_index_entry *entry)
{
    const struct mr_index_block_header *h = &block->h;
    entry->size =
        h->size_base + load_width(block->bytes + MR_INDEX_BLOCK_HEADER + (size_t)k * h->size_width, h->size_width);
    entry->version =
        h->version_base + load_width(block->bytes + block->versions + (size_t)k * h->version_width, h->version_width);
    entry->has_crc32c = block->bitmap >> k & 1;
    entry->crc32c = entry->has_crc32c ? (uint32_t)load_width(block->bytes + block->crcs + (size_t)k * 4, 4) : 0;
    entry->name_length = 0;
}

/* A varint of up to 14 bits, all that a name's length needs. */
static int load_varint(const struct block *block, uint64_t *at, uint32_t *value)
{
    if (*at >= block->length)
        return -1;
    uint32_t v = block->bytes[(*at)++];
    if (v >= 0x80) {
        if (*at >= block->length || block->bytes[*at] >= 0x80)
            return -1;
        v = (v & 0x7f) | (uint32_t)block->bytes[(*at)++] << 7;
    }
    *value = v;
    return 0;
}

/* Turns `name` into the next one: *at is the offset of its code in the block. The caller adds the NUL. */
static int name_next(const struct block *block, uint64_t *at, char *name, uint32_t *length)
{
    uint32_t shared, more;
    if (load_varint(block, at, &shared) != 0 || load_varint(block, at, &more) != 0 || shared > *length ||
        shared + more > MR_INDEX_NAME_MAX || more > block->length - *at)
        return index_corrupt("name at byte of its block", *at);
    memcpy(name + shared, block->bytes + *at, more);
    *at += more;
    *length = shared + more;
    return 0;
}

/* Entry k's name, by way of those before it; *at ends after its code. */
static int block_name(const struct block *block, unsigned k, char *name, uint32_t *length, uint64_t *at)
{
    *at = block->names;
    *length = 0;
    for (unsigned i = 0; i <= k; i++) {
        if (name_next(block, at, name, length) != 0)
            return -1;
    }
    name[*length] = '\0';
    return 0;
}

int mr_index_get(const struct mr_index *index, uint64_t i, struct mr_index_entry *entry, char *name)
{
    if (i >= index->info.count) {
        mr_error_set(MR_E_USAGE, "there is no object %llu: the index has %llu, counted from 0", (unsigned long long)i,
                     (unsigned long long)index->info.count);
        return -1;
    }
    struct block block;
    if (block_open(index, i / MR_INDEX_BLOCK, &block) != 0)
        return -1;
    block_entry(&block, i % MR_INDEX_BLOCK, entry);
    uint64_t at;
    return name ? block_name(&block, i % MR_INDEX_BLOCK, name, &entry->name_length, &at) : 0;
}

/* The last block whose first name is not above the name: *b, or blocks (none) when the name is before all. */
static int find_block(const struct mr_index *index, const char *name, size_t length, uint64_t *b)
{
    char first[MR_INDEX_NAME_SIZE];
    uint64_t low = 0, high = index->blocks; /* blocks below low begin at or before the name, from high on after it */
    while (low < high) {
        struct block block;
        uint32_t first_length;
        uint64_t at, middle = low + (high - low) / 2;
        if (block_open(index, middle, &block) != 0 || block_name(&block, 0, first, &first_length, &at) != 0)
            return -1;
        if (mr_index_compare_names(first, first_length, name, length) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    *b = low ? low - 1 : index->blocks;
    return 0;
}

static int not_found(const char *name, size_t length)
{
    mr_error_set(MR_E_NOT_FOUND, "no object named %.*s in the index", (int)(length < 512 ? length : 512), name);
    return -1;
}

/* Keys of samples are in no order. */
static int find_key(const struct mr_index *index, const char *key, size_t length, uint64_t *i)
{
    struct mr_index_iter it;
    mr_index_iter_init(&it, index, 0);
    struct mr_index_entry entry;
    int rc;
    while ((rc = mr_index_iter_next(&it, &entry)) > 0) {
        if (it.name_length == length && memcmp(it.name, key, length) == 0) {
            *i = it.next - 1;
            return 0;
        }
    }
    return rc < 0 ? -1 : not_found(key, length);
}

int mr_index_lower_bound(const struct mr_index *index, const char *name, size_t length, uint64_t *i, bool *is_there)
{
    uint32_t have_length = 0;
    uint64_t b;
    *i = 0;
    *is_there = false;
    if (find_block(index, name, length, &b) != 0)
        return -1;
    if (b == index->blocks)
        return 0;
    char have[MR_INDEX_NAME_SIZE];
    struct block block;
    if (block_open(index, b, &block) != 0)
        return -1;
    uint64_t at = block.names;
    unsigned k = 0;
    for (; k < block.h.entries; k++) {
        if (name_next(&block, &at, have, &have_length) != 0)
            return -1;
        int order = mr_index_compare_names(have, have_length, name, length);
        *is_there = order == 0;
        if (order >= 0)
            break;
    }
    *i = b * MR_INDEX_BLOCK + k;
    return 0;
}

uint64_t mr_index_shard_count(const struct mr_index *index)
{
    struct mr_index_header h;
    memcpy(&h, index->image, sizeof h); /* checked when the image was attached */
    return h.shard_count;
}

int mr_index_find(const struct mr_index *index, const char *name, size_t length, uint64_t *i)
{
    bool is_there;
    if (mr_index_shard_count(index) > 0)
        return find_key(index, name, length, i);
    if (mr_index_lower_bound(index, name, length, i, &is_there) != 0)
        return -1;
    return is_there ? 0 : not_found(name, length);
}

const char *mr_index_prefix(const struct mr_index *index, uint32_t n)
{
    const char *at = index->prefixes;
    if (n >= index->info.prefix_count)
        return NULL;
    while (n-- > 0)
        at += strlen(at) + 1;
    return at;
}

void mr_index_iter_init(struct mr_index_iter *it, const struct mr_index *index, uint64_t first)
{
    it->index = index;
    it->next = first;
    it->at = 0;
    it->name_length = 0;
    it->primed = false;
    it->name[0] = '\0';
}

int mr_index_iter_next(struct mr_index_iter *it, struct mr_index_entry *entry)
{
    unsigned k = it->next % MR_INDEX_BLOCK;
    if (it->next >= it->index->info.count)
        return 0;
    struct block block;
    if (block_open(it->index, it->next / MR_INDEX_BLOCK, &block) != 0)
        return -1;
    if (it->primed && k > 0) {
        if (name_next(&block, &it->at, it->name, &it->name_length) != 0)
            return -1;
        it->name[it->name_length] = '\0';
    } else if (block_name(&block, k, it->name, &it->name_length, &it->at) != 0) {
        return -1;
    }
    it->primed = true;
    it->next++;
    block_entry(&block, k, entry);
    entry->name_length = it->name_length;
    return 1;
}

int mr_index_check_digest(const struct mr_index *index)
{
    EVP_MD_CTX *all = EVP_MD_CTX_new();
    int rc = -1;
    if (!all || !EVP_DigestInit_ex(all, EVP_sha256(), NULL)) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 cannot start");
        goto out;
    }
    uint8_t hash[MR_INDEX_DIGEST_BYTES];
    for (uint64_t b = 0; b < index->blocks; b++) {
        struct block block;
        if (block_open(index, b, &block) != 0)
            goto out;
        if (!EVP_Digest(block.bytes, block.length, hash, NULL, EVP_sha256(), NULL) ||
            !EVP_DigestUpdate(all, hash, sizeof(hash))) {
            mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
            goto out;
        }
    }
    struct mr_index_header h;
    memcpy(&h, index->image, sizeof h);
    if (h.shard_count > 0 &&
        (!EVP_Digest(index->image + h.shards, h.directory - h.shards, hash, NULL, EVP_sha256(), NULL) ||
         !EVP_DigestUpdate(all, hash, sizeof(hash)))) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
        goto out;
    }
    if (!EVP_DigestFinal_ex(all, hash, NULL)) {
        mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
        goto out;
    }
    rc = memcmp(hash, index->info.digest, sizeof(hash)) == 0 ? 0 : index_corrupt("digest; blocks", index->blocks);
out:
    EVP_MD_CTX_free(all);
    return rc;
}

void mr_index_digest_text(const uint8_t digest[MR_INDEX_DIGEST_BYTES], char out[MR_INDEX_DIGEST_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < MR_INDEX_DIGEST_BYTES; i++) {
        out[2 * i] = digits[digest[i] >> 4];
        out[2 * i + 1] = digits[digest[i] & 15];
    }
    out[MR_INDEX_DIGEST_SIZE - 1] = '\0';
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int mr_index_digest_parse(const char *text, uint8_t digest[MR_INDEX_DIGEST_BYTES])
{
    size_t n = strnlen(text, MR_INDEX_DIGEST_SIZE);
    for (size_t i = 0; n == MR_INDEX_DIGEST_SIZE - 1 && i < n; i += 2) {
        int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
        if (high < 0 || low < 0)
            n = 0;
        else
            digest[i / 2] = (uint8_t)(high << 4 | low);
    }
    if (n == MR_INDEX_DIGEST_SIZE - 1)
        return 0;
    mr_error_set(MR_E_USAGE, "an index digest is 64 hex digits, not \"%.80s\"", text);
    return -1;
}

const char *mr_index_version_kind_name(unsigned kind)
{
    static const char *const names[] = {"generation", "etag", "mtime"};
    _Static_assert(sizeof(names) / sizeof(names[0]) == MR_INDEX_VERSION_KINDS, "a name for each kind");
    return kind < MR_INDEX_VERSION_KINDS ? names[kind] : "unknown";
}

const char *mr_index_drop_name(unsigned kind)
{
    static const char *const names[] = {"folder", "temporary", "class", "special", "no_shard", "damaged"};
    _Static_assert(sizeof(names) / sizeof(names[0]) == MR_DROP_KINDS, "a name for each kind");
    return kind < MR_DROP_KINDS ? names[kind] : "unknown";
}
