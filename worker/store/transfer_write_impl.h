/* transfer_write_impl.h - what transfers that make an object have in common. Only worker/store/transfer*.c include
 * it. */
#ifndef MR_WORKER_STORE_TRANSFER_WRITE_IMPL_H
#define MR_WORKER_STORE_TRANSFER_WRITE_IMPL_H

#include <stdbool.h>

#include "worker/store/transfer_impl.h"

/* What is asked of the store: to do it; what there is now; to delete what came out wrong. */
enum mr_write_phase { MR_WRITE_DO, MR_WRITE_LOOK, MR_WRITE_UNDO };

struct mr_write {
    struct mr_transfer base; /* its strings: the name, then whatever else, each with its NUL */
    struct mr_store_call *(*send)(struct mr_stream *stream); /* of MR_WRITE_DO; answered by mr_write_answer */
    enum mr_write_phase phase;
    bool lost;             /* an answer did not come: the work may have been done */
    bool check_refusal;    /* a refusal leads to a look-up even if no answer was lost: was it the destination? */
    bool takes_size_alone; /* has_size is enough to know one's own work by */
    size_t name_length;
    uint64_t generation_match, undo_generation;
    /* The generation of the object that this write makes, where the store derives it from bytes; 0: it cannot be told.
     * NULL: it never can. */
    uint64_t (*made)(struct mr_write *write);
    bool has_size, has_crc32c; /* what the object must be */
    uint64_t size;
    uint32_t crc32c;
    struct mr_store_result refused; /* the first answer, while a second question is asked */
    char text[1024];
};

/* A transfer of `bytes` bytes that begins with struct mr_write. NULL with mr_error. */
void *mr_write_make(struct mr_transfer_engine *engine, struct mr_store *store, const struct mr_transfer_ops *ops,
                    size_t bytes, const char *name, size_t name_length, uint64_t generation_match, void *arg);
/* Members of its ops. */
struct mr_store_call *mr_write_send(struct mr_stream *stream);
void mr_write_fail(struct mr_transfer *transfer, const struct mr_store_result *result);
/* string and a NUL after it. */
void mr_write_string(struct mr_text *strings, const char *string, size_t length);

/* The outcome is not known: it may have been done. */
bool mr_write_may_be_done(const struct mr_store_result *result);
/* A mr_store_stat_fn; arg is the stream. Calls back, repeats, looks the object up, or undoes. */
void mr_write_answer(void *arg, const struct mr_store_result *result, const struct mr_store_item *item);
/* The stream landed, and item is what the store has now: calls back or undoes. */
void mr_write_finish(struct mr_stream *stream, const struct mr_store_result *result, const struct mr_store_item *item);
/* The stream landed with this refusal: is the object that is there our own work? */
void mr_write_look(struct mr_stream *stream, const struct mr_store_result *refusal);
/* The stream landed, and item is not what was meant to be: deletes it and fails. */
void mr_write_undo(struct mr_stream *stream, const struct mr_store_item *item);

#endif
