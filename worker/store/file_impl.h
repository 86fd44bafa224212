/* file_impl.h - what the requests of the client of local folders have in common. Only worker/store/file*.c include it. */
#ifndef MR_WORKER_STORE_FILE_IMPL_H
#define MR_WORKER_STORE_FILE_IMPL_H

#include <stdbool.h>
#include <sys/stat.h>

#include "shm/base/clock.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/walk.h"

#define MR_FILE_SLICE (1u << 20) /* moved in one go, before other work of the loop has its turn */

struct file_write;
struct file_upload;

struct file_store {
    struct mr_store base;
    /* A listing goes on where its page before ended, unless its token says otherwise. */
    struct mr_walk *walk;
    char *walk_bounds; /* prefix and upper bound of that walk */
    char walk_token[MR_STORE_NAME_MAX];
    struct file_upload *uploads; /* in parts, under way */
    struct mr_http_timer beat;   /* while there are any */
};

struct file_call {
    struct mr_store_call base;
    struct mr_http_timer timer;
    void (*run)(struct file_call *call); /* a slice of its work, each time that the timer runs */
    void *arg;
    union {
        mr_store_list_fn *list;
        mr_store_get_fn *get;
        mr_store_stat_fn *stat; /* and insert, compose */
        mr_store_delete_fn *remove;
        mr_store_batch_fn *batch;
        mr_store_begin_fn *begin;
        mr_store_upload_fn *upload;
        mr_store_bucket_fn *bucket;
        mr_store_permissions_fn *permissions;
        mr_store_parts_begin_fn *parts_begin;
        mr_upload_part_fn *part;
        mr_store_complete_fn *complete;
        mr_store_parts_list_fn *pending;
    } done;
    char name[MR_STORE_NAME_MAX]; /* get, stat: the path; list: the prefix */
    char *start, *end, *token;    /* list */
    size_t max_results;
    struct mr_store_get_request get;
    struct mr_store_got got;
    uint64_t generation; /* stat, delete: the one wanted, or 0; insert, compose: generation_match */
    int fd;
    struct file_write *write; /* insert, compose */
    /* uploads in parts; the id lies in strings; length: also of the whole that is completed */
    struct mr_upload_part_request part;
    uint64_t part_at; /* bytes written */
    struct mr_store_name
        *names; /* compose: sources; batch: what goes. Their strings lie in strings, each with its NUL */
    struct mr_text strings;
    unsigned count;
};

static inline uint64_t mr_file_generation(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * (uint64_t)MR_SECOND_NS + (uint64_t)st->st_mtim.tv_nsec;
}

/* Linked, and its `run` is due. NULL with mr_error. */
struct file_call *mr_file_call_new(struct mr_store *store, void (*run)(struct file_call *call), const char *name,
                                   size_t length, void *arg);
/* Ends it: unlinked and freed. */
void mr_file_call_end(struct file_call *call);
/* It runs again in the next step. */
void mr_file_call_go_on(struct file_call *call);
/* The thread's error as a result; text (size bytes) holds its text. */
struct mr_store_result mr_file_failure(const struct file_call *call, char *text, size_t size);
/* 0, or -1 with mr_error (CHANGED) when a generation is wanted and st has another. */
int mr_file_check_generation(uint64_t wanted, const struct stat *st);

/* ---- file_write.c ---- */

/* The error of a write(2): a full disk says what to do. */
void mr_file_set_write_error(int errnum);
/*
 * All bytes of the temporary file are written: on the disk with them, and it gets the call's name, by its generation. 0 (and st is
 * what it is now, `temporary` gone), or -1 with mr_error (EXISTS, CHANGED, IO).
 */
int mr_file_publish(const struct file_call *call, int fd, const char *temporary, struct stat *st);
/* Frees it, and removes its temporary file. NULL is allowed. */
void mr_file_write_close(struct file_write *write);
struct mr_store_call *mr_file_insert(struct mr_store *base, const struct mr_store_insert_request *request,
                                     mr_store_stat_fn *done, void *arg);
struct mr_store_call *mr_file_delete(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                     mr_store_delete_fn *done, void *arg);
struct mr_store_call *mr_file_delete_batch(struct mr_store *base, const struct mr_store_name *names, unsigned count,
                                           mr_store_batch_fn *done, void *arg);
struct mr_store_call *mr_file_compose(struct mr_store *base, const struct mr_store_compose_request *request,
                                      mr_store_stat_fn *done, void *arg);
struct mr_store_call *mr_file_upload_begin(struct mr_store *base, const struct mr_store_upload_request *request,
                                           mr_store_begin_fn *done, void *arg);
struct mr_store_call *mr_file_upload_send(struct mr_store *base, const struct mr_store_chunk *chunk,
                                          mr_store_upload_fn *done, void *arg);
void mr_file_upload_drop(struct mr_store *base, const char *session);
struct mr_store_call *mr_file_bucket(struct mr_store *base, mr_store_bucket_fn *done, void *arg);
struct mr_store_call *mr_file_permissions(struct mr_store *base, const char *const *names, unsigned count,
                                          mr_store_permissions_fn *done, void *arg);

/* ---- file_parts.c ---- */

/* The end of the store: temporary files stay, for who goes on with them. */
void mr_file_uploads_close(struct file_store *store);
bool mr_file_has_parts(const struct mr_store *store);
struct mr_store_call *mr_file_parts_begin(struct mr_store *base, const char *name, size_t name_length,
                                          const char *content_type, mr_store_parts_begin_fn *done, void *arg);
struct mr_store_call *mr_file_part_send(struct mr_store *base, const struct mr_upload_part_request *request,
                                        mr_upload_part_fn *done, void *arg);
struct mr_store_call *mr_file_parts_complete(struct mr_store *base, const struct mr_store_complete_request *request,
                                             mr_store_complete_fn *done, void *arg);
struct mr_store_call *mr_file_parts_abort(struct mr_store *base, const char *name, size_t name_length, const char *id,
                                          mr_store_delete_fn *done, void *arg);
struct mr_store_call *mr_file_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                         const char *from_id, mr_store_parts_list_fn *done, void *arg);

#endif
