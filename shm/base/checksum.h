/*
 * checksum.h - crc32c (Castagnoli), the checksum that GCS and S3 keep of each object, and base64 for its header form.
 *
 * A crc is a plain uint32_t: 0 is the crc of no bytes, and mr_crc32c(mr_crc32c(0, a), b) is that of a followed by b.
 */
#ifndef MR_SHM_BASE_CHECKSUM_H
#define MR_SHM_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

uint32_t mr_crc32c(uint32_t crc, const void *data, size_t length);
/* The crc of a followed by b, from crc(a), crc(b) and the length of b in bytes. O(log length). */
uint32_t mr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* base64 of the big-endian crc, as in `x-goog-hash: crc32c=`: always 8 characters ("AAAAAA=="). out: 9 bytes. */
void mr_crc32c_to_base64(uint32_t crc, char out[9]);
/* 0, or -1 (PROTOCOL) when text is not 8 characters of base64 that stand for 4 bytes. */
int mr_crc32c_from_base64(const char *text, size_t length, uint32_t *crc);

#endif
