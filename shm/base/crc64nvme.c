#include "shm/base/crc64nvme.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#define POLYNOMIAL UINT64_C(0x9a6c9329ac4bc9b5) /* bit-reversed */

static uint64_t tables[8][256]; /* [k][b]: byte b with k zero bytes behind it */

static void make_tables(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint64_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][b] = crc;
    }
    for (unsigned b = 0; b < 256; b++) {
        for (int k = 1; k < 8; k++)
            tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 255];
    }
}

uint64_t mr_crc64nvme(uint64_t crc, const void *data, size_t length)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_tables);
    const uint8_t *at = data;
    crc = ~crc;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (unsigned k = 0; k < 8; k++)
            crc ^= tables[7 - k][word >> (8 * k) & 255];
    }
    for (; length > 0; at++, length--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}

/* Appending zero bytes is linear over GF(2): multiply the crc, taken as a column of bits, by a 64x64 bit matrix. */
static uint64_t times(const uint64_t matrix[64], uint64_t column)
{
    uint64_t sum = 0;
    for (unsigned i = 0; column != 0; i++, column >>= 1) {
        if (column & 1)
            sum ^= matrix[i];
    }
    return sum;
}

static void square(uint64_t out[64], const uint64_t matrix[64])
{
    for (unsigned i = 0; i < 64; i++)
        out[i] = times(matrix, matrix[i]);
}

uint64_t mr_crc_combine(uint64_t polynomial, uint64_t crc_a, uint64_t crc_b, uint64_t length_b)
{
    uint64_t matrix[64], next[64];
    matrix[0] = polynomial; /* one zero bit */
    for (unsigned i = 1; i < 64; i++)
        matrix[i] = UINT64_C(1) << (i - 1);
    for (int doubled = 0; doubled < 3; doubled++) { /* eight */
        square(next, matrix);
        memcpy(matrix, next, sizeof matrix);
    }
    for (; length_b > 0; length_b >>= 1) {
        if (length_b & 1)
            crc_a = times(matrix, crc_a);
        square(next, matrix);
        memcpy(matrix, next, sizeof matrix);
    }
    return crc_a ^ crc_b;
}

uint64_t mr_crc64nvme_combine(uint64_t crc_a, uint64_t crc_b, uint64_t length_b)
{
    return mr_crc_combine(POLYNOMIAL, crc_a, crc_b, length_b);
}
