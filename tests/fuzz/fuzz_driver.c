/*
 * fuzz_driver.c - damages valid inputs at random and feeds them to a fuzz target: fuzz_NAME [ROUNDS [FIRST]].
 * fuzz_NAME --seeds FOLDER writes the valid inputs into files, for libFuzzer.
 *
 * A round depends on its number alone. The rounds run in a child, so that its death still tells which one it was:
 * `fuzz_NAME 1 ROUND` does it again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "fuzz.h"

#define MAX_SEEDS      64
#define DEFAULT_ROUNDS 60000
#define HANG_S         120 /* a round takes milliseconds */

static uint8_t *seeds[MAX_SEEDS];
static size_t sizes[MAX_SEEDS];
static unsigned seed_count;
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    return below ? mr_mix64(state++) % below : 0;
}

/* Values at which parsers break: borders of widths, and near them. */
static uint64_t border(void)
{
    uint64_t value = draw(2) ? UINT64_MAX : UINT64_C(1) << draw(64);
    return value + draw(5) - 2;
}

/* One damage; never grows the input. Returns its new size. */
static size_t damage(uint8_t *data, size_t size)
{
    static const size_t widths[] = {1, 2, 4, 8};
    size_t at = draw(draw(3) ? size : size < 256 ? size : 256); /* the beginning more often */
    size_t width = widths[draw(4)], length = draw(size - at) + 1, from;
    uint64_t value;
    switch (draw(6)) {
    case 0:
        data[at] ^= (uint8_t)(1 << draw(8));
        return size;
    case 1:
        data[at] = (uint8_t)draw(256);
        return size;
    case 2:
        value = border();
        memcpy(data + at, &value, width < size - at ? width : size - at);
        return size;
    case 3: /* a small change of a number */
        value = 0;
        width = width < size - at ? width : size - at;
        memcpy(&value, data + at, width);
        value += draw(17) - 8;
        memcpy(data + at, &value, width);
        return size;
    case 4: /* bytes from elsewhere */
        from = draw(size - length + 1);
        memmove(data + at, data + from, length);
        return size;
    default:
        return draw(4) ? size : at;
    }
}

static void round_of(uint64_t round)
{
    state = mr_mix64(round);
    unsigned n = (unsigned)draw(seed_count);
    uint8_t *copy = malloc(sizes[n]);
    if (!copy)
        abort();
    memcpy(copy, seeds[n], sizes[n]);
    size_t size = sizes[n];
    for (uint64_t damages = draw(8); damages > 0 && size > 0; damages--)
        size = damage(copy, size);
    uint8_t *exact = malloc(size ? size : 1); /* so that the sanitizer sees a read past the end */
    if (!exact)
        abort();
    memcpy(exact, copy, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    free(copy);
}

static int write_seeds(const char *folder)
{
    for (unsigned i = 0; i < seed_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%u", folder, i);
        FILE *file = fopen(path, "w");
        if (!file || fwrite(seeds[i], 1, sizes[i], file) != sizes[i] || fclose(file) != 0) {
            perror(path);
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : DEFAULT_ROUNDS;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    volatile uint64_t *at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return EXIT_FAILURE;
    while (seed_count < MAX_SEEDS && (sizes[seed_count] = mr_fuzz_seed(seed_count, &seeds[seed_count])) > 0)
        seed_count++;
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
        return write_seeds(argv[2]);
    pid_t child = seed_count ? fork() : -1;
    if (child == 0) {
        for (uint64_t i = 0; i < seed_count; i++)
            LLVMFuzzerTestOneInput(seeds[i], sizes[i]);
        for (*at = first; *at < first + rounds; ++*at) {
            alarm(HANG_S);
            round_of(*at);
        }
        alarm(0);
    }
    for (unsigned i = 0; i < seed_count; i++)
        free(seeds[i]);
    if (child == 0)
        return EXIT_SUCCESS;
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "failed in round %" PRIu64 " (wait status %d); again: %s 1 %" PRIu64 "\n", *at, status, argv[0],
                *at);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
