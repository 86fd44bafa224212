/*
 * crc64nvme.h - CRC-64/NVME, the checksum that S3 keeps of each new object, and what joins the crcs of neighbours.
 *
 * A crc is a plain uint64_t: 0 is the crc of no bytes, and mr_crc64nvme(mr_crc64nvme(0, a), b) is that of a followed by
 * b. ISA-L 2.30 does not have the polynomial, so this is our own: tables, and on x86-64 carry-less multiplication.
 */
#ifndef MR_BASE_CRC64NVME_H
#define MR_BASE_CRC64NVME_H

#include <stddef.h>
#include <stdint.h>

uint64_t mr_crc64nvme(uint64_t crc, const void *data, size_t length);
/* The same without the instructions that the processor may have for it. */
uint64_t mr_crc64nvme_by_tables(uint64_t crc, const void *data, size_t length);
/* The crc of a followed by b, from crc(a), crc(b) and the length of b in bytes. O(log length). */
uint64_t mr_crc64nvme_combine(uint64_t crc_a, uint64_t crc_b, uint64_t length_b);
/*
 * The same of any crc of up to 64 bits that begins and ends with its complement and takes the lowest bit of a byte
 * first. polynomial: bit-reversed, as 0xedb88320 is for CRC-32.
 */
uint64_t mr_crc_combine(uint64_t polynomial, uint64_t crc_a, uint64_t crc_b, uint64_t length_b);

#endif
