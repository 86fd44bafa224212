#include "base/checksum.h"

#include <isa-l/crc.h>
#include <string.h>

#include "base/crc64nvme.h"
#include "base/error.h"

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

/* The low `bytes` bytes of value, the highest first. */
static void to_base64(uint64_t value, unsigned bytes, char *out)
{
    unsigned bits = 8 * bytes, digits = (bits + 5) / 6;
    for (unsigned i = 0; i < digits; i++) {
        unsigned end = 6 * (i + 1);
        uint64_t six = end <= bits ? value >> (bits - end) : value << (end - bits);
        out[i] = base64_digits[six & 63];
    }
    memset(out + digits, '=', (4 - digits % 4) % 4);
    out[(digits + 3) / 4 * 4] = 0;
}

/* The number whose big-endian bytes the text encodes. Unused bits must be zero, so that one number has one text. */
static int from_base64(const char *text, size_t length, unsigned bytes, uint64_t *value)
{
    unsigned bits = 8 * bytes, digits = (bits + 5) / 6;
    uint64_t sum = 0;
    if (length != (digits + 3) / 4 * 4)
        return -1;
    for (unsigned i = 0; i < digits; i++) {
        const char *digit = text[i] ? strchr(base64_digits, text[i]) : NULL;
        if (!digit)
            return -1;
        unsigned more = 6 * (i + 1) <= bits ? 6 : bits - 6 * i, six = (unsigned)(digit - base64_digits);
        if (six & ((1u << (6 - more)) - 1))
            return -1;
        sum = sum << more | six >> (6 - more);
    }
    for (size_t i = digits; i < length; i++) {
        if (text[i] != '=')
            return -1;
    }
    *value = sum;
    return 0;
}

void mr_crc32c_to_base64(uint32_t crc, char out[9])
{
    to_base64(crc, 4, out);
}

int mr_crc32c_from_base64(const char *text, size_t length, uint32_t *crc)
{
    struct mr_checksum sum;
    if (mr_checksum_from_base64(&sum, MR_CHECKSUM_CRC32C, text, length) != 0)
        return -1;
    *crc = (uint32_t)sum.value;
    return 0;
}

/* ---- of either kind ---- */

const char *mr_checksum_name(enum mr_checksum_kind kind)
{
    static const char *const names[] = {"none", "crc32c", "crc64nvme"};
    return names[kind];
}

void mr_checksum_add(struct mr_checksum *sum, const void *data, size_t length)
{
    if (sum->kind == MR_CHECKSUM_CRC32C)
        sum->value = mr_crc32c((uint32_t)sum->value, data, length);
    else if (sum->kind == MR_CHECKSUM_CRC64NVME)
        sum->value = mr_crc64nvme(sum->value, data, length);
}

const char *mr_checksum_to_base64(const struct mr_checksum *sum, char out[MR_CHECKSUM_TEXT_SIZE])
{
    out[0] = 0;
    if (sum->kind != MR_CHECKSUM_NONE)
        to_base64(sum->value, sum->kind == MR_CHECKSUM_CRC32C ? 4 : 8, out);
    return out;
}

int mr_checksum_from_base64(struct mr_checksum *sum, enum mr_checksum_kind kind, const char *text, size_t length)
{
    uint64_t value;
    if (from_base64(text, length, kind == MR_CHECKSUM_CRC32C ? 4 : 8, &value) != 0) {
        mr_error_set(MR_E_PROTOCOL, "\"%.*s\" is not a base64 %s", (int)(length > 16 ? 16 : length), text,
                     mr_checksum_name(kind));
        return -1;
    }
    *sum = (struct mr_checksum){kind, value};
    return 0;
}
