/* transfer_write_impl.h - what transfers that make an object have in common. Only worker/store/transfer*.c include
 * it. */
#ifndef MR_WORKER_STORE_TRANSFER_WRITE_IMPL_H
#define MR_WORKER_STORE_TRANSFER_WRITE_IMPL_H

#include <stdbool.h>

#include "worker/store/transfer_impl.h"

/* What is requested of the store: the write; a look-up; the delete of a damaged object. */
enum mr_write_phase { MR_WRITE_DO, MR_WRITE_LOOK, MR_WRITE_UNDO };

struct mr_write {
    struct mr_transfer base; /* its strings: the name, then any others, each with its NUL */
    struct mr_store_call *(*send)(struct mr_stream *stream); /* of MR_WRITE_DO; answered by mr_write_answer */
    enum mr_write_phase phase;
    bool lost;             /* a response did not come: the work may have been done */
    bool check_refusal;    /* a refusal leads to a look-up even if no response was lost: was it the destination? */
    bool takes_size_alone; /* has_size is enough to recognise our own work */
    size_t name_length;
    uint64_t generation_match, undo_generation;
    /* The generation of the object that this write makes, if the store derives it from bytes; 0: it is not known. NULL:
     * it never is. */
    uint64_t (*made)(struct mr_write *write);
    bool has_size, has_crc32c; /* what the object must be */
    uint64_t size;
    uint32_t crc32c;
    struct mr_store_result refused; /* the first result, during a look-up or delete */
    bool undone;                    /* a damaged object is gone again */
    char text[1024];
};

/* A transfer of `bytes` bytes that begins with struct mr_write. NULL with mr_error. */
void *mr_write_make(struct mr_transfer_engine *engine, struct mr_store *store, const struct mr_transfer_ops *ops,
                    size_t bytes, const char *name, size_t name_length, uint64_t generation_match, void *arg);
/* Members of its ops. */
struct mr_store_call *mr_write_send(struct mr_stream *stream);
void mr_write_fail(struct mr_transfer *transfer, const struct mr_store_result *result);
/* Appends string and a NUL. */
void mr_write_string(struct mr_text *strings, const char *string, size_t length);

/* Whether the outcome is unknown: it may have been done. */
bool mr_write_may_be_done(const struct mr_store_result *result);
/* A mr_store_stat_fn; arg is the stream. Calls back, repeats, looks the object up, or undoes. */
void mr_write_answer(void *arg, const struct mr_store_result *result, const struct mr_store_item *item);
/* The stream landed, and item is what the store has now: calls back or undoes. */
void mr_write_finish(struct mr_stream *stream, const struct mr_store_result *result, const struct mr_store_item *item);
/* The stream landed with this refusal: looks up whether the object that is there is our own work. */
void mr_write_look(struct mr_stream *stream, const struct mr_store_result *refusal);
/* The stream landed, and item is not what was sent: deletes it and fails. */
void mr_write_undo(struct mr_stream *stream, const struct mr_store_item *item);

#endif
