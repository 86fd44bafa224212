/* fuzz_sidecar.c - a sidecar of any bytes: refused, or members in order and within the shard, which can be followed. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "worker/list/sidecar.h"

#define SHARD ((uint64_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_sidecar sidecar;
    char *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    if (mr_sidecar_init(&sidecar, text, size, SHARD) != 0)
        return 0;
    uint64_t at = 0;
    struct mr_tar_member member = {0};
    for (size_t i = 0; i < sidecar.count; i++) {
        const struct mr_sidecar_member *m = &sidecar.members[i];
        if (m->data < at + MR_TAR_BLOCK || m->data % MR_TAR_BLOCK != 0 || m->size > SHARD - m->data ||
            strlen(m->name) != m->name_length)
            abort();
        if (mr_sidecar_next(&sidecar, at, &member) ? member.data != m->data : sidecar.next != i)
            abort();
        member = (struct mr_tar_member){.begin = at,
                                        .data = m->data,
                                        .size = m->size,
                                        .regular = true,
                                        .name = m->name,
                                        .name_length = m->name_length};
        if (sidecar.next == i && mr_sidecar_compare(&sidecar, &member) != 0)
            abort();
        at = m->data + (m->size + MR_TAR_BLOCK - 1) / MR_TAR_BLOCK * MR_TAR_BLOCK;
    }
    if (mr_sidecar_end(&sidecar) != 0)
        abort();
    mr_sidecar_close(&sidecar);
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "v1.2 2\njpg 512 10 d/a.jpg cls 1536 1 d/a.cls\njpg 2560 700 b.jpg\n",
        "d/a picture.jpg 512 10\nb 1536 0\nc 3072 5\n",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof seeds[0], n, data);
}
