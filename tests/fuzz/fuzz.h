/*
 * fuzz.h - a fuzz target: libFuzzer's entry point, and seeds for fuzz_driver.c, which ctest runs for about a second.
 *
 * With clang the same file makes a real fuzzer: clang -fsanitize=fuzzer,address without fuzz_driver.c.
 */
#ifndef MR_TESTS_FUZZ_H
#define MR_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Reads the bytes as the parser under test would; aborts where it breaks a promise. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Valid input n = 0, 1, ...: malloc'ed into *data, its size returned; 0 when there are no more. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data);

/* The body of mr_fuzz_seed where the seeds are strings. */
static inline size_t mr_fuzz_text_seed(const char *const *seeds, size_t count, unsigned n, uint8_t **data)
{
    if (n >= count)
        return 0;
    size_t size = strlen(seeds[n]);
    *data = malloc(size);
    if (!*data)
        abort();
    memcpy(*data, seeds[n], size);
    return size;
}

#endif
