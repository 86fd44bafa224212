/* fuzz_index_file.c - a damaged saved index: refused, or a whole image. Its hashes are made right again, so that what
 * lies after them is reached. */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "fuzz.h"
#include "shm/index/index_build.h"
#include "shm/index/index_file.h"

/* What was read is written again and read back: the same image. */
static void check_again(const struct mr_index *index)
{
    const struct mr_index_file_extra extra = {1, NULL};
    struct mr_index_file file;
    int saved = memfd_create("again", MFD_CLOEXEC), out = memfd_create("image", MFD_CLOEXEC);
    struct mr_index same;
    if (mr_index_file_write(saved, index, &extra) != 0 || mr_index_file_open(&file, saved) != 0 ||
        mr_index_file_unpack(&file, saved, out) != 0 || mr_index_map(&same, out) != 0)
        abort();
    if (same.length != index->length || memcmp(same.image, index->image, same.length) != 0)
        abort();
    mr_index_close(&same);
    mr_index_file_close(&file);
    close(saved);
    close(out);
}

static void try_it(int fd)
{
    uint64_t head;
    (void)mr_index_file_head(fd, &head);

    struct mr_index_file file;
    if (mr_index_file_open(&file, fd) != 0)
        return;
    if (strlen(file.digest) != MR_INDEX_DIGEST_SIZE - 1 || !file.bucket || !file.endpoint)
        abort();
    int out = memfd_create("image", MFD_CLOEXEC);
    if (file.image_bytes < (64u << 20) && mr_index_file_unpack(&file, fd, out) == 0) {
        struct mr_index index;
        if (mr_index_map(&index, out) != 0 || index.info.count != file.objects)
            abort();
        check_again(&index);
        mr_index_close(&index);
    }
    close(out);
    mr_index_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("saved", MFD_CLOEXEC);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    try_it(fd);
    size_t header = size > 16 ? 16 + ((size_t)data[8] | (size_t)data[9] << 8 | (size_t)data[10] << 16) : 0;
    if (header == 0 || header + 32 > size)
        return 0;
    uint8_t hash[32];
    EVP_Digest(data, header, hash, NULL, EVP_sha256(), NULL);
    if (pwrite(fd, hash, sizeof hash, (off_t)header) != sizeof hash)
        abort();
    try_it(fd);
    return 0;
}

/* Seed n: an index of some objects. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const unsigned counts[] = {0, 1, 70, 3000};
    static const char *const prefixes[] = {"train/", "val/"};
    if (n >= sizeof counts / sizeof counts[0])
        return 0;
    const struct mr_index_source source = {
        .scheme = MR_SCHEME_GS, .bucket = "b", .endpoint = "http://x", .prefixes = prefixes, .prefix_count = n % 3};
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    const struct mr_index_file_extra extra = {n, NULL};
    for (unsigned i = 0; i < counts[n]; i++) {
        char name[64];
        int l = snprintf(name, sizeof(name), "train/%05u", i);
        if (mr_index_builder_add(b, name, (size_t)l, mr_mix64(i) % 100000, mr_mix64(i), i, true) != 0)
            abort();
    }
    struct mr_index index;
    void *image = NULL;
    size_t length = 0;
    if (mr_index_builder_finish(b, &image, &length) != 0 || mr_index_attach(&index, image, length) != 0)
        abort();
    mr_index_builder_destroy(b);
    int fd = memfd_create("seed", MFD_CLOEXEC);
    if (mr_index_file_write(fd, &index, &extra) != 0)
        abort();
    free(image);
    length = (size_t)lseek(fd, 0, SEEK_END);
    *data = malloc(length);
    if (!*data || pread(fd, *data, length, 0) != (ssize_t)length)
        abort();
    close(fd);
    return length;
}
