/*
 * index_file.h - a saved index: the file around an image (index.h; its layout is in index_image.h), which is
 * compressed, with every byte under a hash.
 *
 *     magic (8 bytes) | bytes of the header (u32) | 0 (u32) | header: msgpack map | SHA-256 of all before | blocks
 *
 * Integers are little-endian. The header has what was listed (scheme, endpoint, bucket, prefixes, storage classes that
 * were left out), what it gave (objects, bytes, largest, dropped, digest, requests, created), and of the blocks their
 * compressed lengths and SHA-256. A block is block_bytes of the image (the last one fewer) as one LZ4 block; the file
 * ends with the last. docs/listing.md has the keys.
 *
 * Everything here blocks on files and takes time by the size of the index: for list workers and commands, never for the
 * supervisor's loop.
 */
#ifndef MR_SHM_INDEX_INDEX_FILE_H
#define MR_SHM_INDEX_INDEX_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strings.h"
#include "shm/index/index.h"

#define MR_INDEX_FILE_VERSION    1 /* of this layout; the image in it has MR_INDEX_IMAGE_FORMAT */
#define MR_INDEX_FILE_SUFFIX     ".mri"
#define MR_INDEX_FILE_HEAD_BYTES 16u

/* What the image itself does not know. */
struct mr_index_file_extra {
    uint64_t requests;                        /* that the listing took */
    const struct mr_strings *exclude_classes; /* NULL: none */
};

/* An opened file: the contents of its header. Strings are NUL-terminated and its own. */
struct mr_index_file {
    enum mr_scheme scheme;
    enum mr_index_version_kind kind; /* of the objects' versions */
    char *endpoint, *bucket;
    struct mr_strings prefixes, exclude_classes; /* classes in lower case, sorted */
    uint64_t objects, bytes, largest, requests;
    uint64_t shards; /* 0: of whole objects; else `objects` are samples in that many shards */
    uint64_t dropped[MR_DROP_KINDS];
    int64_t created_wall_ns; /* when the listing began */
    char digest[MR_INDEX_DIGEST_SIZE];
    uint64_t image_bytes, file_bytes;
    /* for index_file.c */
    uint64_t data, block_bytes, blocks;
    uint32_t *lengths;
    uint8_t *hashes;
};

/* Writes into an empty file or memfd, from offset 0. 0 or -1 (IO, NO_MEMORY). */
int mr_index_file_write(int fd, const struct mr_index *index, const struct mr_index_file_extra *extra);
/* Whether an index can be saved under that name, as far as that can be told before it is listed: -1 (USAGE) where it is
 * a device or a pipe. */
int mr_index_file_check_place(const char *path);
/*
 * The same under a name: written to a temporary name beside it, synced, then given its name, so that the name is never
 * that of half a file. replace: an older file of that name goes, or the one that a symbolic link leads to; else EXISTS.
 * Missing folders are made.
 */
int mr_index_file_save(const char *path, const struct mr_index *index, const struct mr_index_file_extra *extra,
                       bool replace);

/* Checks the first MR_INDEX_FILE_HEAD_BYTES of a file or memfd, and says how many bytes stand before the blocks: what
 * mr_index_file_open reads. 0, or -1: CORRUPT, IO. */
int mr_index_file_head(int fd, uint64_t *bytes);
/* Reads and checks the header of a file or memfd. 0, or -1: CORRUPT (no saved index, damaged, cut short), PROTOCOL
 * (of a newer version), IO, NO_MEMORY. The descriptor stays the caller's. */
int mr_index_file_open(struct mr_index_file *file, int fd);
/* Safe on a zeroed one and twice. */
void mr_index_file_close(struct mr_index_file *file);
/* The image into `out`, an empty memfd or file, by several threads. Each block's hash is checked before it is
 * unpacked, the image's header against the file's after. 0, or -1 as open. */
int mr_index_file_unpack(const struct mr_index_file *file, int fd, int out);

/* A path opened for reading; -1 with mr_error that names it (NOT_FOUND, DENIED, IO). */
int mr_index_file_open_path(const char *path);

#endif
