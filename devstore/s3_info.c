#include "devstore/s3_info.h"

#include <stdlib.h>

#include "base/error.h"

struct ds_s3_info *ds_s3_info_new(size_t n_parts)
{
    struct ds_s3_info *info = calloc(1, sizeof *info + n_parts * sizeof *info->parts);
    if (!info) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an object's metadata");
        return NULL;
    }
    atomic_init(&info->refs, 1);
    info->n_parts = n_parts;
    return info;
}

struct ds_s3_info *ds_s3_info_ref(struct ds_s3_info *info)
{
    if (info)
        atomic_fetch_add_explicit(&info->refs, 1, memory_order_relaxed);
    return info;
}

void ds_s3_info_unref(struct ds_s3_info *info)
{
    if (info && atomic_fetch_sub_explicit(&info->refs, 1, memory_order_acq_rel) == 1)
        free(info);
}
