/* The client of local folders as a store: its life, and the table of its operations. */
#include <stdlib.h>

#include "worker/store/file_impl.h"

static void file_cancel(struct mr_store_call *base)
{
    mr_file_call_end((struct file_call *)base);
}

static void file_destroy(struct mr_store *base)
{
    struct file_store *store = (struct file_store *)base;
    mr_file_walk_close(store);
    mr_file_uploads_close(store);
    free(store);
}

static const struct mr_store_ops file_ops = {
    .list = mr_file_list,
    .get = mr_file_get,
    .stat = mr_file_stat,
    .insert = mr_file_insert,
    .remove = mr_file_delete,
    .remove_batch = mr_file_delete_batch,
    .compose = mr_file_compose,
    .upload_begin = mr_file_upload_begin,
    .upload_send = mr_file_upload_send,
    .upload_drop = mr_file_upload_drop,
    .has_parts = mr_file_has_parts,
    .parts_begin = mr_file_parts_begin,
    .part_send = mr_file_part_send,
    .parts_complete = mr_file_parts_complete,
    .parts_abort = mr_file_parts_abort,
    .parts_list = mr_file_parts_list,
    .bucket = mr_file_bucket,
    .permissions = mr_file_permissions,
    .cancel = file_cancel,
    .destroy = file_destroy,
};

struct mr_store *mr_store_file_new(const struct mr_store_options *options)
{
    struct file_store *store = calloc(1, sizeof *store);
    (void)options;
    if (!store) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a store");
        return NULL;
    }
    store->base.ops = &file_ops;
    return &store->base;
}
