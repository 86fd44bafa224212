/* join.c - one object out of several, in their order: what compose and the end of a multipart upload have in common. */
#include <stdlib.h>

#include "base/checksum.h"
#include "base/error.h"
#include "devstore/api.h"
#include "devstore/sink.h"

#define PIECES_MAX 16384 /* a composite of more is copied into one: composites of composites would grow without end */

/* Whether the result can point into its sources' memory. */
static bool can_share(struct mr_bucket *bucket, struct mr_object *const *sources, size_t n, size_t *pieces)
{
    *pieces = 0;
    for (size_t i = 0; i < n; i++) {
        if (sources[i]->path)
            return false;
        *pieces += sources[i]->n_pieces;
    }
    return *pieces <= PIECES_MAX && !mr_bucket_folder(bucket);
}

static int share(struct mr_object *const *sources, size_t n, struct mr_object *object, size_t pieces)
{
    object->pieces = calloc(pieces + 1, sizeof *object->pieces);
    if (!object->pieces) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a composite");
        return -1;
    }
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sources[i]->n_pieces; k++) {
            const struct mr_piece *piece = &sources[i]->pieces[k];
            if (piece->length == 0)
                continue;
            object->pieces[object->n_pieces] = *piece;
            mr_blob_ref(object->pieces[object->n_pieces++].owner);
        }
        uint32_t one;
        if (mr_object_crc(sources[i], &one) < 0)
            return -1;
        crc = mr_crc32c_combine(crc, one, sources[i]->size);
        object->size += sources[i]->size;
    }
    mr_object_set_crc(object, crc);
    return 0;
}

int mr_api_join(struct mr_bucket *bucket, struct mr_object *const *sources, size_t n, struct mr_object *object,
                const struct mr_conditions *conditions)
{
    uint64_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += sources[i]->size;
    size_t pieces;
    if (can_share(bucket, sources, n, &pieces))
        return share(sources, n, object, pieces) < 0 ? -1 : mr_bucket_put(bucket, object, NULL, conditions);
    struct mr_sink sink;
    int rc = mr_sink_open(&sink, mr_bucket_folder(bucket), size, false);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = mr_sink_append(&sink, sources[i]);
    if (rc == 0)
        rc = mr_sink_fill(&sink, object);
    if (rc == 0)
        rc = mr_sink_put(&sink, bucket, object, conditions);
    mr_sink_close(&sink);
    return rc;
}
