/*
 * CRC64NVME. ISA-L has this polynomial from 2.31 on only, so: slicing by eight with tables, and on x86-64 folding with
 * carry-less multiplication (V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel 2009). Tables and constants are computed from the polynomial when they are needed first.
 */
#include "base/crc64nvme.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define REFLECTED UINT64_C(0x9a6c9329ac4bc9b5) /* the coefficient of x^63 in bit 0; that of x^64 is 1 and left out */
#define FOLD_MIN  128                          /* bytes from which on folding is worth it */

static uint64_t tables[8][256];
static bool has_clmul;
static uint64_t far_low, far_high, near_low, near_high; /* factors for 512 and for 128 bits */

/* x times a, modulo the polynomial. */
static uint64_t times_x(uint64_t a)
{
    return a >> 1 ^ (a & 1 ? REFLECTED : 0);
}

static uint64_t power_of_x(unsigned n)
{
    uint64_t a = UINT64_C(1) << 63; /* x^0 */
    while (n-- > 0)
        a = times_x(a);
    return a;
}

static void crc64nvme_init(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t a = i;
        for (unsigned bit = 0; bit < 8; bit++)
            a = times_x(a);
        tables[0][i] = a;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned i = 0; i < 256; i++)
            tables[k][i] = tables[k - 1][i] >> 8 ^ tables[0][tables[k - 1][i] & 255];
    /* A product of two reflected numbers has one factor x too many in the 128 bits of a register: hence the "- 1". */
    far_low = power_of_x(512 + 64 - 1);
    far_high = power_of_x(512 - 1);
    near_low = power_of_x(128 + 64 - 1);
    near_high = power_of_x(128 - 1);
#if defined(__x86_64__)
    has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse2");
#endif
}

static uint64_t load(const unsigned char *at)
{
    uint64_t word = 0;
    for (unsigned i = 0; i < 8; i++)
        word |= (uint64_t)at[i] << (8 * i);
    return word;
}

/* Without the complements. */
static uint64_t by_tables(uint64_t crc, const unsigned char *at, size_t length)
{
    for (; length >= 8; at += 8, length -= 8) {
        crc ^= load(at);
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^
              tables[4][crc >> 24 & 255] ^ tables[3][crc >> 32 & 255] ^ tables[2][crc >> 40 & 255] ^
              tables[1][crc >> 48 & 255] ^ tables[0][crc >> 56];
    }
    for (; length > 0; at++, length--)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return crc;
}

#if defined(__x86_64__)
/* The 16 bytes of `block` moved by the distance of the factors, and added to those that lie there. */
__attribute__((target("pclmul,sse2"))) static inline __m128i fold(__m128i block, __m128i factors, __m128i there)
{
    __m128i low = _mm_clmulepi64_si128(block, factors, 0x00), high = _mm_clmulepi64_si128(block, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

__attribute__((target("pclmul,sse2"))) static uint64_t by_folding(uint64_t crc, const unsigned char *at, size_t length)
{
    const __m128i far = _mm_set_epi64x((long long)far_high, (long long)far_low);
    const __m128i near = _mm_set_epi64x((long long)near_high, (long long)near_low);
    __m128i blocks[4];
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i));
    blocks[0] = _mm_xor_si128(blocks[0], _mm_cvtsi64_si128((long long)crc));
    for (at += 64, length -= 64; length >= 64; at += 64, length -= 64) {
        for (unsigned i = 0; i < 4; i++)
            blocks[i] = fold(blocks[i], far, _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i)));
    }
    __m128i all = blocks[0];
    for (unsigned i = 1; i < 4; i++)
        all = fold(all, near, blocks[i]);
    for (; length >= 16; at += 16, length -= 16)
        all = fold(all, near, _mm_loadu_si128((const __m128i *)(const void *)at));
    unsigned char rest[16];
    _mm_storeu_si128((__m128i *)(void *)rest, all);
    return by_tables(by_tables(0, rest, sizeof rest), at, length);
}
#endif

static void prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, crc64nvme_init);
}

uint64_t mr_crc64nvme_by_tables(uint64_t crc, const void *data, size_t length)
{
    prepare();
    return ~by_tables(~crc, data, length);
}

uint64_t mr_crc64nvme(uint64_t crc, const void *data, size_t length)
{
    prepare();
#if defined(__x86_64__)
    if (has_clmul && length >= FOLD_MIN)
        return ~by_folding(~crc, data, length);
#endif
    return ~by_tables(~crc, data, length);
}

/* ---- combined ---- */

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
    return mr_crc_combine(REFLECTED, crc_a, crc_b, length_b);
}
