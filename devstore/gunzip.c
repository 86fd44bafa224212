#include "devstore/gunzip.h"

#include <isa-l/igzip_lib.h>
#include <stdlib.h>

#include "base/error.h"

#define BLOCK ((size_t)256 << 10)

/* Decompresses all of the state's input, and appends the result to the text. 0 or -1. */
static int inflate(struct inflate_state *state, uint8_t *block, uint64_t most, struct ds_text *out)
{
    do {
        state->next_out = block;
        state->avail_out = (uint32_t)BLOCK;
        if (isal_inflate(state) != ISAL_DECOMP_OK) {
            mr_error_set(MR_E_IO, "The object's bytes are not gzip, as its Content-Encoding says.");
            return -1;
        }
        ds_text_append(out, block, BLOCK - state->avail_out);
        if (out->length > most) {
            mr_error_set(MR_E_IO, "The object has over %llu bytes when decompressed.", (unsigned long long)most);
            return -1;
        }
        if (state->block_state == ISAL_BLOCK_FINISH && state->avail_in > 0) { /* another member follows */
            isal_inflate_reset(state);
            state->crc_flag = ISAL_GZIP;
        }
    } while (state->avail_in > 0 || state->avail_out == 0);
    return out->failed ? -1 : 0;
}

int ds_gunzip(const struct ds_object *object, int fd, uint64_t most, struct ds_text *out)
{
    struct inflate_state *state = malloc(sizeof *state);
    uint8_t *in = malloc(2 * BLOCK);
    int rc = -1;
    if (!state || !in) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to decompress an object");
        goto out;
    }
    isal_inflate_init(state);
    state->crc_flag = ISAL_GZIP;
    for (uint64_t at = 0; at < object->size;) {
        size_t n = object->size - at < BLOCK ? (size_t)(object->size - at) : BLOCK;
        if (ds_object_read(object, fd, at, in, n) < 0)
            goto out;
        state->next_in = in;
        state->avail_in = (uint32_t)n;
        if (inflate(state, in + BLOCK, most, out) < 0)
            goto out;
        at += n;
    }
    if (object->size > 0 && state->block_state != ISAL_BLOCK_FINISH)
        mr_error_set(MR_E_IO, "The object's gzip data end in the middle.");
    else
        rc = 0;
out:
    free(state);
    free(in);
    return rc;
}
