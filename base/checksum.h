/*
 * checksum.h - crc32c (Castagnoli), which GCS keeps of each object and S3 where it is asked to; a checksum of this kind
 * or of CRC64NVME (crc64nvme.h), which AWS keeps of the others; and base64 for their header form.
 *
 * A crc is a plain number: 0 is the crc of no bytes, and mr_crc32c(mr_crc32c(0, a), b) is that of a followed by b.
 */
#ifndef MR_BASE_CHECKSUM_H
#define MR_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint32_t mr_crc32c(uint32_t crc, const void *data, size_t length);
/* The crc of a followed by b, from crc(a), crc(b) and the length of b in bytes. O(log length). */
uint32_t mr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* base64 of the big-endian crc, as in `x-goog-hash: crc32c=`: always 8 characters ("AAAAAA=="). out: 9 bytes. */
void mr_crc32c_to_base64(uint32_t crc, char out[9]);
/* 0, or -1 (PROTOCOL) when text is not 8 characters of base64 that stand for 4 bytes. */
int mr_crc32c_from_base64(const char *text, size_t length, uint32_t *crc);

enum mr_checksum_kind { MR_CHECKSUM_NONE, MR_CHECKSUM_CRC32C, MR_CHECKSUM_CRC64NVME };

/* A checksum of one of the kinds that stores name. */
struct mr_checksum {
    enum mr_checksum_kind kind;
    uint64_t value;
};

/* "crc32c", "crc64nvme", "none". */
const char *mr_checksum_name(enum mr_checksum_kind kind);
/* length bytes more. Of kind NONE nothing is computed. */
void mr_checksum_add(struct mr_checksum *sum, const void *data, size_t length);
/* base64 of the big-endian value: 8 characters of a crc32c, 12 of a CRC64NVME, none of NONE. Returns out. */
#define MR_CHECKSUM_TEXT_SIZE 13
const char *mr_checksum_to_base64(const struct mr_checksum *sum, char out[MR_CHECKSUM_TEXT_SIZE]);
/* Sets sum to the value in text. 0, or -1 (PROTOCOL), and *sum is as it was. */
int mr_checksum_from_base64(struct mr_checksum *sum, enum mr_checksum_kind kind, const char *text, size_t length);

#endif
