/* join.c - one object out of several, in their order: what compose and the end of a multipart upload have in common. */
#include <stdlib.h>

#include "base/checksum.h"
#include "base/error.h"
#include "devstore/api.h"
#include "devstore/sink.h"

#define PIECES_MAX 16384 /* a composite of more is copied into one: composites of composites would grow without end */

/* Whether the result can point into its sources' memory. */
static bool can_share(struct ds_bucket *bucket, struct ds_object *const *sources, size_t n, size_t *pieces)
{
    *pieces = 0;
    for (size_t i = 0; i < n; i++) {
        if (sources[i]->path)
            return false;
        *pieces += sources[i]->n_pieces;
    }
    return *pieces <= PIECES_MAX && !ds_bucket_folder(bucket);
}

/* Points the object into its sources' memory. 0, or -1 with an error: the object has some of it, and is to be
 * destroyed. */
static int share(struct ds_object *const *sources, size_t n, struct ds_object *object, size_t pieces)
{
    object->pieces = calloc(pieces + 1, sizeof *object->pieces);
    if (!object->pieces) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a composite");
        return -1;
    }
    uint32_t crc = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sources[i]->n_pieces; k++) {
            const struct ds_piece *piece = &sources[i]->pieces[k];
            if (piece->length == 0)
                continue;
            object->pieces[object->n_pieces] = *piece;
            ds_blob_ref(object->pieces[object->n_pieces++].owner);
        }
        uint32_t one;
        if (ds_object_crc(sources[i], &one) < 0)
            return -1;
        crc = mr_crc32c_combine(crc, one, sources[i]->size);
        object->size += sources[i]->size;
    }
    ds_object_set_crc(object, crc);
    return 0;
}

int ds_api_join(struct ds_bucket *bucket, struct ds_object *const *sources, size_t n, struct ds_object *object,
                const struct ds_conditions *conditions)
{
    uint64_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += sources[i]->size;
    size_t pieces;
    if (can_share(bucket, sources, n, &pieces))
        return share(sources, n, object, pieces) < 0 ? -1 : ds_bucket_put(bucket, object, NULL, conditions);
    struct ds_sink sink;
    int rc = ds_sink_open(&sink, ds_bucket_folder(bucket), size, false);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = ds_sink_append(&sink, sources[i]);
    if (rc == 0)
        rc = ds_sink_fill(&sink, object);
    if (rc == 0)
        rc = ds_sink_put(&sink, bucket, object, conditions);
    ds_sink_close(&sink);
    return rc;
}
