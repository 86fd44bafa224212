/* input.h - what a structure-aware target reads its decisions from: numbers out of the input, 0 beyond its end. */
#ifndef MR_TESTS_FUZZ_INPUT_H
#define MR_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
    const uint8_t *data;
    size_t size, at;
};

static inline uint8_t input_byte(struct input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

static inline unsigned input_below(struct input *in, unsigned bound)
{
    return input_byte(in) % bound;
}

static inline uint32_t input_16(struct input *in)
{
    uint32_t low = input_byte(in);
    return low | (uint32_t)input_byte(in) << 8;
}

/* A position in something of so many bytes, its end included. */
static inline size_t input_position(struct input *in, size_t length)
{
    return (size_t)((uint64_t)input_16(in) * length / 65535);
}

/* Borders of widths, and near them; small ones more often. */
static inline uint64_t input_number(struct input *in)
{
    uint8_t kind = input_byte(in);
    if (kind < 128)
        return kind % 32;
    uint64_t border = kind >= 250 ? UINT64_MAX : UINT64_C(1) << (kind % 64);
    return border + input_byte(in) % 5 - 2;
}

/* The next bytes, at most `length`: *data points into the input. */
static inline size_t input_bytes(struct input *in, size_t length, const uint8_t **data)
{
    size_t left = in->size - in->at;
    size_t got = length < left ? length : left;
    *data = in->data + in->at;
    in->at += got;
    return got;
}

#endif
