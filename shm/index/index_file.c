#include "shm/index/index_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <lz4.h>
#include <msgpack.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/unpack.h"
#include "shm/index/index_image.h"
#include "shm/index/shards.h"

#define MAGIC       "MRINDEX\n"
#define HEAD_BYTES  MR_INDEX_FILE_HEAD_BYTES
#define HASH_BYTES  32u
#define HEADER_MAX  (UINT64_C(256) << 20)
#define BLOCK_BYTES (UINT64_C(1) << 20)
#define IMAGE_MAX   (UINT64_C(1) << 46)
#define THREADS_MAX 8

/* ---- files ---- */

static int read_at(int fd, void *data, size_t length, uint64_t offset)
{
    unsigned char *at = data;
    while (length > 0) {
        ssize_t n = pread(fd, at, length, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            mr_error_set_errno(errno, "saved index: cannot read");
            return -1;
        }
        if (n == 0) {
            mr_error_set(MR_E_CORRUPT, "saved index: cut short at byte %llu", (unsigned long long)offset);
            return -1;
        }
        at += n;
        length -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

static int hash_of(const void *data, size_t length, uint8_t hash[HASH_BYTES])
{
    if (EVP_Digest(data, length, hash, NULL, EVP_sha256(), NULL))
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "SHA-256 failed");
    return -1;
}

static uint32_t get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++, value >>= 8)
        at[i] = (uint8_t)value;
}

/* ---- writing ---- */

/* What is packed is checked once, at the end: a buffer that failed to grow would otherwise continue without that
 * piece. */
struct header {
    msgpack_sbuffer bytes;
    bool failed;
};

static int header_write(void *data, const char *bytes, size_t length)
{
    struct header *header = data;
    if (header->failed || msgpack_sbuffer_write(&header->bytes, bytes, length) != 0)
        header->failed = true;
    return header->failed ? -1 : 0;
}

static void pack_key(msgpack_packer *pk, const char *key)
{
    msgpack_pack_str(pk, strlen(key));
    msgpack_pack_str_body(pk, key, strlen(key));
}

static void pack_u64(msgpack_packer *pk, const char *key, uint64_t value)
{
    pack_key(pk, key);
    msgpack_pack_uint64(pk, value);
}

static void pack_str(msgpack_packer *pk, const char *key, const char *value)
{
    pack_key(pk, key);
    pack_key(pk, value);
}

static void pack_bin(msgpack_packer *pk, const char *key, const void *value, size_t length)
{
    pack_key(pk, key);
    msgpack_pack_bin(pk, length);
    msgpack_pack_bin_body(pk, value, length);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void set_no_memory(void)
{
    mr_error_set(MR_E_NO_MEMORY, "no memory for the header of a saved index");
}

/* Lower case, sorted: the order and case in a configuration do not matter. False without memory. */
static bool pack_classes(msgpack_packer *pk, const struct mr_strings *classes)
{
    size_t count = classes ? classes->count : 0, copied = 0;
    char **sorted = calloc(count + 1, sizeof *sorted);
    pack_key(pk, "exclude_classes");
    msgpack_pack_array(pk, count);
    while (sorted && copied < count && (sorted[copied] = strdup(classes->items[copied]))) {
        for (char *at = sorted[copied]; *at != '\0'; at++)
            *at = (char)tolower((unsigned char)*at);
        copied++;
    }
    bool whole = sorted && copied == count;
    if (whole)
        qsort(sorted, count, sizeof *sorted, by_text);
    for (size_t i = 0; i < copied; i++) {
        pack_key(pk, sorted[i]);
        free(sorted[i]);
    }
    free(sorted);
    return whole;
}

/* The 16 bytes, the map and room for the hash. 0, or -1 (NO_MEMORY). */
static int pack_header(struct header *out, const struct mr_index *index, const struct mr_index_file_extra *extra,
                       const uint8_t *lengths, const uint8_t *hashes, uint64_t blocks)
{
    const struct mr_index_info *info = &index->info;
    char digest[MR_INDEX_DIGEST_SIZE];
    uint8_t head[HEAD_BYTES] = MAGIC, none[HASH_BYTES] = {0};
    mr_index_digest_text(info->digest, digest);
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, header_write);
    out->bytes.size = 0;
    header_write(out, (const char *)head, sizeof head);
    uint64_t shards = mr_index_shard_count(index);
    msgpack_pack_map(&pk, shards > 0 ? 18 : 17);
    pack_u64(&pk, "version", MR_INDEX_FILE_VERSION);
    pack_str(&pk, "scheme", mr_scheme_name(info->scheme));
    pack_str(&pk, "endpoint", info->endpoint);
    pack_str(&pk, "bucket", info->bucket);
    pack_key(&pk, "prefixes");
    msgpack_pack_array(&pk, info->prefix_count);
    for (uint32_t i = 0; i < info->prefix_count; i++)
        pack_key(&pk, mr_index_prefix(index, i));
    out->failed |= !pack_classes(&pk, extra->exclude_classes);
    pack_str(&pk, "versions", mr_index_version_kind_name(info->version_kind));
    pack_u64(&pk, "objects", info->count);
    if (shards > 0)
        pack_u64(&pk, "shards", shards);
    pack_u64(&pk, "bytes", info->total_bytes);
    pack_u64(&pk, "largest", info->max_size);
    pack_key(&pk, "dropped");
    msgpack_pack_map(&pk, MR_DROP_KINDS);
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        pack_u64(&pk, mr_index_drop_name(kind), info->dropped[kind]);
    pack_u64(&pk, "requests", extra->requests);
    pack_u64(&pk, "created_ns", (uint64_t)info->created_wall_ns);
    pack_str(&pk, "digest", digest);
    pack_u64(&pk, "image_bytes", index->length);
    pack_bin(&pk, "lengths", lengths, blocks * 4);
    pack_bin(&pk, "hashes", hashes, blocks * HASH_BYTES);
    header_write(out, (const char *)none, sizeof none);
    if (out->failed) {
        set_no_memory();
        return -1;
    }
    put_u32((uint8_t *)out->bytes.data + 8, (uint32_t)(out->bytes.size - HEAD_BYTES - HASH_BYTES));
    return 0;
}

static int write_blocks(int fd, const struct mr_index *index, uint64_t offset, uint8_t *lengths, uint8_t *hashes)
{
    int room = LZ4_compressBound((int)BLOCK_BYTES), rc = 0;
    char *packed = malloc((size_t)room);
    if (!packed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a block of an index");
        return -1;
    }
    for (uint64_t at = 0, i = 0; rc == 0 && at < index->length; at += BLOCK_BYTES, i++) {
        uint64_t left = index->length - at;
        int n = LZ4_compress_default((const char *)index->image + at, packed,
                                     (int)(left < BLOCK_BYTES ? left : BLOCK_BYTES), room);
        if (n <= 0) {
            mr_error_set(MR_E_INTERNAL, "LZ4 cannot compress a block of an index");
            rc = -1;
            break;
        }
        put_u32(lengths + i * 4, (uint32_t)n);
        rc = hash_of(packed, (size_t)n, hashes + i * HASH_BYTES);
        if (rc == 0)
            rc = mr_index_write_at(fd, packed, (size_t)n, offset);
        offset += (uint64_t)n;
    }
    free(packed);
    return rc;
}

int mr_index_file_write(int fd, const struct mr_index *index, const struct mr_index_file_extra *extra)
{
    uint64_t blocks = (index->length + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint8_t *lengths = calloc(blocks, 4), *hashes = calloc(blocks, HASH_BYTES);
    struct header header = {.failed = false};
    int rc = -1;
    msgpack_sbuffer_init(&header.bytes);
    if (!lengths || !hashes) {
        set_no_memory();
        goto out;
    }
    /* Its length is known before its contents: the two lists have fixed sizes. */
    if (pack_header(&header, index, extra, lengths, hashes, blocks) != 0 ||
        write_blocks(fd, index, header.bytes.size, lengths, hashes) != 0 ||
        pack_header(&header, index, extra, lengths, hashes, blocks) != 0)
        goto out;
    size_t hashed = header.bytes.size - HASH_BYTES;
    if (hash_of(header.bytes.data, hashed, (uint8_t *)header.bytes.data + hashed) != 0)
        goto out;
    rc = mr_index_write_at(fd, header.bytes.data, header.bytes.size, 0);
out:
    msgpack_sbuffer_destroy(&header.bytes);
    free(lengths);
    free(hashes);
    return rc;
}

int mr_index_file_check_place(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) /* a folder fails by itself */
        return 0;
    mr_error_set(MR_E_USAGE, "%s is no regular file: an index cannot be saved there", path);
    return -1;
}

int mr_index_file_save(const char *path, const struct mr_index *index, const struct mr_index_file_extra *extra,
                       bool replace)
{
    int fd = -1, rc = -1;
    bool named = false;
    char target[PATH_MAX];
    if (replace && realpath(path, target)) /* not a link to it */
        path = target;
    if (mr_index_file_check_place(path) != 0 || mr_durable_make_folders(path, false) != 0)
        return -1;
    char temporary[PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX.tmp", path) >= sizeof temporary) {
        mr_error_set(MR_E_USAGE, "the path of a saved index is too long: %.100s...", path);
        return -1;
    }
    fd = mkostemps(temporary, 4, O_CLOEXEC);
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot save an index as %s", path);
        return -1;
    }
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(fd, 0666 & ~mask) != 0 || mr_index_file_write(fd, index, extra) != 0) {
        mr_error_append("%s", path);
        goto out;
    }
    if (fsync(fd) != 0) {
        mr_error_set_errno(errno, "%s: cannot sync", path);
        goto out;
    }
    if ((replace ? rename(temporary, path) : mr_durable_name_new(temporary, path)) != 0) {
        mr_error_set_errno(errno, "cannot save an index as %s", path);
        goto out;
    }
    named = true;
    rc = mr_durable_sync_folder(path, fd);
out:
    close(fd);
    if (!named)
        unlink(temporary);
    return rc;
}

/* ---- reading ---- */

static int index_file_corrupt(const char *what)
{
    mr_error_set(MR_E_CORRUPT, "damaged saved index: %s", what);
    return -1;
}

static int get_u64(const msgpack_object *map, const char *key, uint64_t max, uint64_t *value)
{
    const msgpack_object *found = mr_unpack_find(map, key);
    if (!found || found->type != MSGPACK_OBJECT_POSITIVE_INTEGER || found->via.u64 > max)
        return index_file_corrupt(key);
    *value = found->via.u64;
    return 0;
}

/* A copy of a value of that key, or NULL (CORRUPT, NO_MEMORY). */
static char *copy_text(const msgpack_object *object, const char *key)
{
    const char *at;
    size_t length;
    if (!object || !mr_unpack_bytes(object, &at, &length) || memchr(at, '\0', length)) {
        index_file_corrupt(key);
        return NULL;
    }
    char *text = strndup(at, length);
    if (!text)
        set_no_memory();
    return text;
}

static int get_text(const msgpack_object *map, const char *key, char **value)
{
    *value = copy_text(mr_unpack_find(map, key), key);
    return *value ? 0 : -1;
}

/* On failure the caller frees what was read so far. */
static int get_texts(const msgpack_object *map, const char *key, struct mr_strings *values)
{
    const msgpack_object *found = mr_unpack_find(map, key);
    if (!found || found->type != MSGPACK_OBJECT_ARRAY)
        return index_file_corrupt(key);
    values->items = calloc((size_t)found->via.array.size + 1, sizeof *values->items);
    if (!values->items) {
        set_no_memory();
        return -1;
    }
    for (uint32_t i = 0; i < found->via.array.size; i++) {
        char *text = copy_text(&found->via.array.ptr[i], key);
        if (!text)
            return -1;
        values->items[values->count++] = text;
    }
    return 0;
}

static int get_names(struct mr_index_file *file, const msgpack_object *map)
{
    static const enum mr_scheme schemes[] = {MR_SCHEME_FILE, MR_SCHEME_GS, MR_SCHEME_S3};
    char *scheme = NULL, *versions = NULL, *digest = NULL;
    int rc = -1;
    unsigned found = 0;
    if (get_text(map, "scheme", &scheme) != 0 || get_text(map, "versions", &versions) != 0 ||
        get_text(map, "digest", &digest) != 0 || get_text(map, "endpoint", &file->endpoint) != 0 ||
        get_text(map, "bucket", &file->bucket) != 0 || get_texts(map, "prefixes", &file->prefixes) != 0 ||
        get_texts(map, "exclude_classes", &file->exclude_classes) != 0)
        goto out;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(scheme, mr_scheme_name(schemes[i])) == 0) {
            file->scheme = schemes[i];
            found |= 1;
        }
    for (unsigned kind = 0; kind < MR_INDEX_VERSION_KINDS; kind++)
        if (strcmp(versions, mr_index_version_kind_name(kind)) == 0) {
            file->kind = (enum mr_index_version_kind)kind;
            found |= 2;
        }
    uint8_t parsed[MR_INDEX_DIGEST_BYTES];
    if (found != 3 || mr_index_digest_parse(digest, parsed) != 0) {
        index_file_corrupt("scheme, versions or digest");
        goto out;
    }
    mr_index_digest_text(parsed, file->digest);
    rc = 0;
out:
    free(scheme);
    free(versions);
    free(digest);
    return rc;
}

/* lengths and hashes, against the sizes of the image and of the file. */
static int get_blocks(struct mr_index_file *file, const msgpack_object *map)
{
    const msgpack_object *lengths = mr_unpack_find(map, "lengths"), *hashes = mr_unpack_find(map, "hashes");
    const char *length_at, *hash_at;
    size_t length_bytes, hash_bytes;
    if (!lengths || !hashes || !mr_unpack_bytes(lengths, &length_at, &length_bytes) ||
        !mr_unpack_bytes(hashes, &hash_at, &hash_bytes))
        return index_file_corrupt("no list of blocks");
    file->block_bytes = BLOCK_BYTES;
    file->blocks = (file->image_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    if (length_bytes != file->blocks * 4 || hash_bytes != file->blocks * HASH_BYTES)
        return index_file_corrupt("its list of blocks has another length than its image");
    file->lengths = calloc(file->blocks + 1, sizeof *file->lengths);
    file->hashes = malloc(hash_bytes + 1);
    if (!file->lengths || !file->hashes) {
        set_no_memory();
        return -1;
    }
    memcpy(file->hashes, hash_at, hash_bytes);
    uint64_t sum = file->data;
    for (uint64_t i = 0; i < file->blocks; i++) {
        file->lengths[i] = get_u32((const uint8_t *)length_at + i * 4);
        if (file->lengths[i] == 0 || file->lengths[i] > (uint32_t)LZ4_compressBound((int)BLOCK_BYTES))
            return index_file_corrupt("the length of a block");
        sum += file->lengths[i];
    }
    if (sum == file->file_bytes)
        return 0;
    mr_error_set(MR_E_CORRUPT, "damaged saved index: it has %llu bytes and should have %llu",
                 (unsigned long long)file->file_bytes, (unsigned long long)sum);
    return -1;
}

static int get_header(struct mr_index_file *file, const msgpack_object *map)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return index_file_corrupt("its header is not a map");
    uint64_t version;
    if (get_u64(map, "version", UINT64_MAX, &version) != 0)
        return -1;
    if (version != MR_INDEX_FILE_VERSION) {
        mr_error_set(MR_E_PROTOCOL,
                     "a saved index of version %llu; this millrace reads version %d: list again, or use the millrace "
                     "that wrote it",
                     (unsigned long long)version, MR_INDEX_FILE_VERSION);
        return -1;
    }
    uint64_t created;
    if (get_names(file, map) != 0 || get_u64(map, "objects", MR_INDEX_MAX_COUNT, &file->objects) != 0 ||
        get_u64(map, "bytes", INT64_MAX, &file->bytes) != 0 ||
        get_u64(map, "largest", INT64_MAX, &file->largest) != 0 ||
        get_u64(map, "requests", UINT64_MAX, &file->requests) != 0 ||
        get_u64(map, "created_ns", INT64_MAX, &created) != 0 ||
        get_u64(map, "image_bytes", IMAGE_MAX, &file->image_bytes) != 0)
        return -1;
    file->created_wall_ns = (int64_t)created;
    if (mr_unpack_find(map, "shards") && get_u64(map, "shards", MR_INDEX_MAX_COUNT, &file->shards) != 0)
        return -1;
    const msgpack_object *dropped = mr_unpack_find(map, "dropped");
    if (!dropped || dropped->type != MSGPACK_OBJECT_MAP)
        return index_file_corrupt("dropped");
    for (unsigned kind = 0; kind < MR_DROP_KINDS; kind++)
        if ((kind < MR_DROP_NO_SHARD || mr_unpack_find(dropped, mr_index_drop_name(kind))) && /* others came later */
            get_u64(dropped, mr_index_drop_name(kind), UINT64_MAX, &file->dropped[kind]) != 0)
            return -1;
    return get_blocks(file, map);
}

static int parse_header(struct mr_index_file *file, const uint8_t *header, size_t length)
{
    msgpack_zone zone;
    if (!msgpack_zone_init(&zone, 4096)) {
        set_no_memory();
        return -1;
    }
    msgpack_object map;
    int rc = mr_unpack(&zone, header, length, &map) != 0 ? index_file_corrupt("its header is not msgpack")
                                                         : get_header(file, &map);
    msgpack_zone_destroy(&zone);
    return rc;
}

/* Of a file of that many bytes. */
static int read_head(int fd, uint64_t file_bytes, uint64_t *bytes)
{
    uint8_t head[HEAD_BYTES];
    if (file_bytes >= HEAD_BYTES && read_at(fd, head, sizeof head, 0) != 0)
        return -1;
    if (file_bytes < HEAD_BYTES || memcmp(head, MAGIC, 8) != 0) {
        mr_error_set(MR_E_CORRUPT, "this is not a saved index");
        return -1;
    }
    uint64_t length = get_u32(head + 8);
    *bytes = HEAD_BYTES + length + HASH_BYTES;
    if (get_u32(head + 12) != 0 || length > HEADER_MAX || *bytes > file_bytes)
        return index_file_corrupt("the length of its header");
    return 0;
}

static int file_size(int fd, uint64_t *bytes)
{
    struct stat status;
    if (fstat(fd, &status) != 0) {
        mr_error_set_errno(errno, "saved index: cannot read");
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        mr_error_set(MR_E_CORRUPT, "this is not a saved index");
        return -1;
    }
    *bytes = (uint64_t)status.st_size;
    return 0;
}

int mr_index_file_head(int fd, uint64_t *bytes)
{
    uint64_t size;
    return file_size(fd, &size) == 0 ? read_head(fd, size, bytes) : -1;
}

int mr_index_file_open(struct mr_index_file *file, int fd)
{
    uint8_t *whole = NULL;
    int rc = -1;
    memset(file, 0, sizeof *file);
    if (file_size(fd, &file->file_bytes) != 0 || read_head(fd, file->file_bytes, &file->data) != 0)
        return -1;
    uint64_t hashed = file->data - HASH_BYTES;
    whole = malloc(hashed + HASH_BYTES);
    if (!whole) {
        set_no_memory();
        return -1;
    }
    uint8_t hash[HASH_BYTES];
    if (read_at(fd, whole, file->data, 0) != 0 || hash_of(whole, hashed, hash) != 0)
        goto out;
    if (memcmp(hash, whole + hashed, HASH_BYTES) != 0)
        index_file_corrupt("its header does not match its hash");
    else
        rc = parse_header(file, whole + HEAD_BYTES, hashed - HEAD_BYTES);
out:
    free(whole);
    if (rc != 0)
        mr_index_file_close(file);
    return rc;
}

void mr_index_file_close(struct mr_index_file *file)
{
    free(file->endpoint);
    free(file->bucket);
    mr_strings_close(&file->prefixes);
    mr_strings_close(&file->exclude_classes);
    free(file->lengths);
    free(file->hashes);
    memset(file, 0, sizeof *file);
}

int mr_index_file_open_path(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        mr_error_set_errno(errno, "saved index %s", path);
    return fd;
}

/* ---- blocks, by several threads ---- */

struct unpacking {
    const struct mr_index_file *file;
    const uint64_t *offsets; /* of the blocks in the file */
    int fd;
    unsigned char *image;
    _Atomic uint64_t next; /* next block to take: no thread has it yet */
    _Atomic int failed;    /* one thread that failed stops all */
    enum mr_code code;     /* of the first that failed; it alone writes, readers join it first */
    char text[256];
};

static int unpack_block(const struct unpacking *u, uint64_t i, char *packed)
{
    const struct mr_index_file *file = u->file;
    uint8_t hash[HASH_BYTES];
    uint64_t at = i * file->block_bytes, left = file->image_bytes - at;
    int room = (int)(left < file->block_bytes ? left : file->block_bytes);
    if (read_at(u->fd, packed, file->lengths[i], u->offsets[i]) != 0 || hash_of(packed, file->lengths[i], hash) != 0)
        return -1;
    if (memcmp(hash, file->hashes + i * HASH_BYTES, HASH_BYTES) != 0) {
        mr_error_set(MR_E_CORRUPT, "damaged saved index: block %llu of %llu does not match its hash",
                     (unsigned long long)(i + 1), (unsigned long long)file->blocks);
        return -1;
    }
    if (LZ4_decompress_safe(packed, (char *)u->image + at, (int)file->lengths[i], room) != room)
        return index_file_corrupt("a block of another size than it should have");
    return 0;
}

/* One thread's work: takes blocks until none is left or another thread has failed. The first error is kept for all. */
static void *unpack_some(void *arg)
{
    struct unpacking *u = arg;
    char *packed = malloc((size_t)LZ4_compressBound((int)u->file->block_bytes));
    int rc = packed ? 0 : -1;
    if (!packed)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a block of an index");
    uint64_t i;
    while (rc == 0 && !atomic_load_explicit(&u->failed, memory_order_relaxed) &&
           (i = atomic_fetch_add_explicit(&u->next, 1, memory_order_relaxed)) < u->file->blocks)
        rc = unpack_block(u, i, packed);
    if (rc != 0 && atomic_exchange_explicit(&u->failed, 1, memory_order_relaxed) == 0) {
        u->code = mr_error_code();
        snprintf(u->text, sizeof u->text, "%s", mr_error_text());
    }
    free(packed);
    return NULL;
}

/* The error of the first thread that failed becomes this thread's. */
static int unpack_all(struct unpacking *u)
{
    cpu_set_t cpus;
    unsigned wanted = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? (unsigned)CPU_COUNT(&cpus) : 1, started = 0;
    wanted = wanted > THREADS_MAX ? THREADS_MAX : wanted;
    wanted = wanted > u->file->blocks ? (unsigned)u->file->blocks : wanted;
    pthread_t threads[THREADS_MAX];
    /* This thread is one of them; where another cannot be started, those that run do its share. */
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, unpack_some, u) == 0)
        started++;
    unpack_some(u);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (!atomic_load_explicit(&u->failed, memory_order_relaxed))
        return 0;
    mr_error_set(u->code, "%s", u->text);
    return -1;
}

/* The image must agree with the header, and with its digest, by which a resume knows what its order was over. */
static int check_image(const struct mr_index_file *file, int out)
{
    struct mr_index index;
    if (mr_index_map(&index, out) != 0)
        return -1;
    const struct mr_index_info *info = &index.info;
    char digest[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(info->digest, digest);
    bool same = info->scheme == file->scheme && info->version_kind == file->kind && info->count == file->objects &&
                mr_index_shard_count(&index) == file->shards && info->total_bytes == file->bytes &&
                info->max_size == file->largest && info->prefix_count == file->prefixes.count &&
                strcmp(info->bucket, file->bucket) == 0 && strcmp(info->endpoint, file->endpoint) == 0 &&
                strcmp(digest, file->digest) == 0;
    for (uint32_t i = 0; same && i < info->prefix_count; i++)
        same = strcmp(mr_index_prefix(&index, i), file->prefixes.items[i]) == 0;
    int rc = same ? mr_index_check_digest(&index) : index_file_corrupt("its index is not the one that its header has");
    mr_index_close(&index);
    return rc;
}

int mr_index_file_unpack(const struct mr_index_file *file, int fd, int out)
{
    struct unpacking u = {.file = file, .fd = fd};
    uint64_t *offsets = calloc(file->blocks + 1, sizeof *offsets);
    int rc = -1;
    if (!offsets) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the blocks of a saved index");
        return -1;
    }
    offsets[0] = file->data;
    for (uint64_t i = 0; i < file->blocks; i++)
        offsets[i + 1] = offsets[i] + file->lengths[i];
    u.offsets = offsets;
    if (file->image_bytes == 0) {
        index_file_corrupt("an image of no bytes");
        goto out;
    }
    /* Reserved, so that too little memory is an error here and not a SIGBUS below. */
    int failed;
    do {
        failed = posix_fallocate(out, 0, (off_t)file->image_bytes);
    } while (failed == EINTR);
    if (failed != 0) {
        mr_error_set_errno(failed, "no room for an index of %llu bytes", (unsigned long long)file->image_bytes);
        goto out;
    }
    u.image = mmap(NULL, file->image_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
    if (u.image == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map an index of %llu bytes", (unsigned long long)file->image_bytes);
        goto out;
    }
    rc = unpack_all(&u);
    munmap(u.image, file->image_bytes);
    if (rc == 0)
        rc = check_image(file, out);
out:
    free(offsets);
    return rc;
}
