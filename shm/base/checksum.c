#include "shm/base/checksum.h"

#include <isa-l/crc.h>
#include <string.h>

#include "shm/base/error.h"

uint32_t mr_crc32c(uint32_t crc, const void *data, size_t length)
{
    /* ISA-L takes an int length and leaves the two complements of the standard definition to its caller. */
    const unsigned char *at = data;
    crc = ~crc;
    while (length > 0) {
        size_t n = length < (1u << 30) ? length : (1u << 30);
        crc = crc32_iscsi((unsigned char *)at, (int)n, crc);
        at += n;
        length -= n;
    }
    return ~crc;
}

/* Appending zero bytes is linear over GF(2): multiply the crc, taken as a column of bits, by a 32x32 bit matrix. */
static uint32_t times(const uint32_t matrix[32], uint32_t column)
{
    uint32_t sum = 0;
    for (unsigned i = 0; column != 0; i++, column >>= 1) {
        if (column & 1)
            sum ^= matrix[i];
    }
    return sum;
}

static void square(uint32_t out[32], const uint32_t matrix[32])
{
    for (unsigned i = 0; i < 32; i++)
        out[i] = times(matrix, matrix[i]);
}

uint32_t mr_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b)
{
    if (length_b == 0)
        return crc_a;
    uint32_t odd[32];
    odd[0] = 0x82f63b78u; /* Castagnoli, bit-reversed: one zero bit */
    for (unsigned i = 1; i < 32; i++)
        odd[i] = 1u << (i - 1);
    uint32_t even[32];
    square(even, odd); /* two zero bits */
    square(odd, even); /* four */
    for (;;) {
        square(even, odd);
        if (length_b & 1)
            crc_a = times(even, crc_a);
        length_b >>= 1;
        if (length_b == 0)
            break;
        memcpy(odd, even, sizeof odd);
    }
    return crc_a ^ crc_b;
}

static const char base64_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mr_crc32c_to_base64(uint32_t crc, char out[9])
{
    uint64_t bits = (uint64_t)crc << 4; /* 32 bits and 4 of padding: six digits */
    for (int i = 5; i >= 0; i--) {
        out[i] = base64_digits[bits & 63];
        bits >>= 6;
    }
    memcpy(out + 6, "==", 3);
}

int mr_crc32c_from_base64(const char *text, size_t length, uint32_t *crc)
{
    uint64_t bits = 0;
    if (length != 8 || text[6] != '=' || text[7] != '=')
        goto bad;
    for (unsigned i = 0; i < 6; i++) {
        const char *digit = text[i] ? strchr(base64_digits, text[i]) : NULL;
        if (!digit)
            goto bad;
        bits = bits << 6 | (uint64_t)(digit - base64_digits);
    }
    if (bits & 15)
        goto bad;
    *crc = (uint32_t)(bits >> 4);
    return 0;
bad:
    mr_error_set(MR_E_PROTOCOL, "\"%.*s\" is not a base64 crc32c", (int)(length > 16 ? 16 : length), text);
    return -1;
}
