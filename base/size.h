/* size.h - numbers of bytes as text: as a configuration has them, and for people. */
#ifndef MR_BASE_SIZE_H
#define MR_BASE_SIZE_H

#include <stdint.h>

/* "512MiB", "1.5 GB", "100_000_000", "64k": bytes. KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB of 1000; K, M,
 * G, T of 1024. 0, or -1 (CONFIG). */
int mr_size_parse(const char *text, uint64_t *bytes);
/* "512MiB" where that is exact, else the number: what mr_size_parse reads back as the same. */
void mr_size_format(uint64_t bytes, char out[32]);
/* "12 B", "18.6 KiB", "1.5 GiB": for people. Returns out. */
const char *mr_size_text(double bytes, char out[32]);

#endif
