/*
 * write_impl.h - a checkpoint lane and its method. Only write_*.c include it: write_lane.c decides, the methods make the
 * requests, and both do it by write_state.c.
 *
 * A checkpoint part is what the trainer has put into a slot of the lane. A method sends each one as an upload part, as
 * a temporary object, or with the last request.
 */
#ifndef MR_WORKER_WRITE_WRITE_IMPL_H
#define MR_WORKER_WRITE_WRITE_IMPL_H

#include "worker/store/upload_parts.h"
#include "worker/write/write_lane.h"

/* In the lane (mr_ckpt_part_set_upload), for a successor: append only. */
enum mr_write_method { MR_WRITE_SINGLE = 1, MR_WRITE_PARTS, MR_WRITE_COMPOSED, MR_WRITE_METHODS };

enum mr_write_state {
    MR_WRITE_WAITING,
    MR_WRITE_LOOKING_UP,
    MR_WRITE_BEGINNING,
    MR_WRITE_SENDING,
    MR_WRITE_ENDING,
    MR_WRITE_UNDOING,
    MR_WRITE_ENDED
};

/* A slot of the lane's memory, and the checkpoint part in it while we hold it (HELD). */
struct mr_write_slot {
    struct mr_write_lane *lane;
    bool held;
    uint64_t number, word, length;
    uint32_t crc32c;
    unsigned damaged;             /* how often the store had other bytes of it than were sent */
    uint64_t temporary;           /* composed: the object under way */
    struct mr_transfer *transfer; /* NULL: it is to be sent */
};

/*
 * A start (begin, send, complete) is 0, or -1 with mr_error: the upload fails. Its end is reported by one of the
 * mr_write_* below, later, from a callback of the loop; begin and undo may also report it at once.
 */
struct mr_write_ops {
    enum mr_write_method method;
    /* At once, for a lane whose upload a predecessor has begun: what it made is ours. NULL: nothing to do. */
    int (*resume)(struct mr_write_lane *lane);
    int (*begin)(struct mr_write_lane *lane);
    /* The answer to a begin under way is waited for where the lane is given up, and undone then: else what the store has
     * begun would be nobody's. Its lane is UNDOING then. */
    bool keeps_begin;
    int (*send)(struct mr_write_lane *lane, struct mr_write_slot *slot);
    int (*complete)(struct mr_write_lane *lane);
    /* slot->transfer has been cancelled. NULL: nothing to do. */
    void (*cancelled)(struct mr_write_lane *lane, struct mr_write_slot *slot);
    /* Cancels what is under way beside lane->transfer and those of the slots. NULL: nothing to do. */
    void (*stop)(struct mr_write_lane *lane);
    /* Nothing is under way: takes back what was begun, then mr_write_undone. */
    void (*undo)(struct mr_write_lane *lane);
    void (*ended)(struct mr_write_lane *lane); /* the outcome is stored, whatever it is. NULL: nothing to do */
    void (*close)(struct mr_write_lane *lane); /* frees `own`. NULL: nothing to do */
};
extern const struct mr_write_ops mr_write_single, mr_write_parts, mr_write_composed;

/* While the bytes under the name are read: write_verify.c. */
struct mr_write_verify {
    void *block; /* NULL: they are not */
    uint64_t generation, at, length;
    uint32_t crc32c;
};

struct mr_write_lane {
    struct mr_write_context *context;
    struct mr_ckpt_lane ckpt;
    struct mr_store *store; /* NULL: there is none, and the outcome says why */
    struct mr_uri uri;
    const char *name; /* in uri */
    size_t name_length;
    bool if_absent;
    enum mr_write_state state;
    const struct mr_write_ops *ops;  /* NULL until it is known */
    void *own;                       /* the method's */
    uint64_t generation;             /* that the object replaces; 0: none may be there (upload parts: none was) */
    char id[MR_CKPT_PART_UPLOAD_ID]; /* of the upload */
    uint64_t upload;                 /* its number in context->uploads; 0 */
    bool sent;                       /* an upload part of it may be under way */
    bool resumed;                    /* a predecessor had recorded its upload */
    bool maybe_done;                 /* and had sent the last request */
    uint32_t stored;                 /* checkpoint parts with a record */
    struct mr_transfer *transfer;    /* of the whole: look-up, begin, complete, undo */
    struct mr_write_verify verify;
    struct mr_write_slot slots[MR_CKPT_PART_SLOTS_MAX];
    uint64_t size; /* of the whole, once it is sealed and stored */
    uint32_t crc32c;
    int64_t begun_ns;
    /* how it ends */
    enum mr_ckpt_part_outcome outcome;
    enum mr_code code;
    char text[MR_CKPT_PART_TEXT];
    int64_t give_up_ns; /* of UNDOING */
};

/* ---- write_state.c: for write_lane.c ---- */

#define MR_WRITE_UNDO_S 30 /* for taking back what was begun; then `millrace clean` has to */

/* Its method begins. */
void mr_write_begin(struct mr_write_lane *lane);
/* The end, with this outcome: what is under way is cancelled, then undone. Does nothing if that is under way
 * already. */
void mr_write_stop(struct mr_write_lane *lane, enum mr_ckpt_part_outcome outcome, enum mr_code code, const char *text);
/* The same as failed, with this thread's error; or since the shared memory is damaged. */
void mr_write_fail_here(struct mr_write_lane *lane);
void mr_write_fail_damaged(struct mr_write_lane *lane, const char *what);
/* After this nothing of ours is under way. */
void mr_write_cancel(struct mr_write_lane *lane);
/* The outcome is stored: all parts are given back. */
void mr_write_drain(struct mr_write_lane *lane);

/* ---- what a method reports ---- */

/* The upload is ready for parts: records it, then SENDING. id: to continue with; "" where there is none. */
void mr_write_begun(struct mr_write_lane *lane, const char *id);
/* This method is not possible here; another one begins. */
void mr_write_switch(struct mr_write_lane *lane, const struct mr_write_ops *ops);
/* How a checkpoint part ended; etag and generation go into its record. */
void mr_write_part_stored(struct mr_write_slot *slot, const char *etag, uint64_t generation);
void mr_write_part_failed(struct mr_write_slot *slot, enum mr_code code, const char *text);
void mr_write_done(struct mr_write_lane *lane, uint64_t generation);
/* The end for good: what is under way is cancelled, then undone. */
void mr_write_failed(struct mr_write_lane *lane, enum mr_code code, const char *text);
void mr_write_undone(struct mr_write_lane *lane);

/* ---- what a method asks for ---- */

const unsigned char *mr_write_bytes(const struct mr_write_lane *lane, const struct mr_write_slot *slot);
/* Temporary objects in the lane's bucket; the first time, those of the dead will be removed. NULL with mr_error. */
struct mr_temporary_bucket *mr_write_bucket(const struct mr_write_lane *lane);
/* "gs://bucket/name", cut to fit. Returns out. */
const char *mr_write_uri(const struct mr_write_lane *lane, char *out, size_t size);

/* ---- what is there ---- */

/* Begins to read the item, which has lane->size bytes, and then says mr_write_verified. 0, or -1 with mr_error. */
int mr_write_verify(struct mr_write_lane *lane, const struct mr_store_item *item);
/* The object is there, complete, by a predecessor that died before it could say so. A folder's name is brought to the
 * disk first, since the predecessor may have died before that: done, or failed (IO). */
void mr_write_found(struct mr_write_lane *lane, uint64_t generation);
/* Its bytes are, or are not, those of the lane's parts. */
void mr_write_verified(struct mr_write_lane *lane, bool ours);
/* Frees what it has. Twice is harmless. */
void mr_write_verify_close(struct mr_write_lane *lane);

#endif
