/* file_impl.h - what the requests of the client of local folders have in common. Only worker/store/file*.c include
 * it. */
#ifndef MR_WORKER_STORE_FILE_IMPL_H
#define MR_WORKER_STORE_FILE_IMPL_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "worker/store/store_impl.h"
#include "worker/store/text.h"
#include "worker/store/walk.h"

#define MR_FILE_SLICE (1u << 20) /* moved at a time, before the loop's other work gets its turn */

struct file_write;
struct file_upload;

struct file_store {
    struct mr_store base;
    /* A listing continues where its previous page ended, unless its token names another place. */
    struct mr_walk *walk;
    char *walk_bounds; /* prefix and upper bound of that walk */
    char walk_token[MR_STORE_NAME_MAX];
    struct file_upload *uploads; /* of upload parts, under way */
    struct mr_http_timer beat;   /* while there are any */
};

struct file_call {
    struct mr_store_call base;
    struct mr_http_timer timer;
    void (*run)(struct file_call *call);   /* a slice of its work, each time that the timer runs */
    void (*ended)(struct file_call *call); /* frees what the request holds; NULL: nothing */
    void *arg;
    union mr_store_done done;
    char name[MR_STORE_NAME_MAX]; /* get, stat: the path; list: the prefix */
    char *start, *end, *token;    /* list */
    size_t max_results;
    bool no_links; /* list */
    struct mr_store_get_request get;
    struct mr_store_got got;
    uint64_t generation; /* stat, delete: the one wanted, or 0; insert, compose: generation_match */
    int fd;
    struct file_write *write; /* insert, compose */
    /* upload parts; the id lies in strings; length: also of the whole that is completed */
    struct mr_upload_part_request part;
    uint64_t part_at; /* bytes written */
    struct mr_store_name
        *names; /* compose: sources; batch: what is deleted. Their strings lie in strings, each with its NUL */
    struct mr_text strings;
    unsigned count;
};

static inline uint64_t mr_file_generation(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * (uint64_t)MR_SECOND_NS + (uint64_t)st->st_mtim.tv_nsec;
}

/* Returns it linked, with its `run` due in the next step. NULL with mr_error. */
struct file_call *mr_file_call_new(struct mr_store *store, void (*run)(struct file_call *call), const char *name,
                                   size_t length, void *arg);
/* Unlinks and frees it. Does not call back. */
void mr_file_call_end(struct file_call *call);
/* The file that the call names, as an item. */
struct mr_store_item mr_file_item(const struct file_call *call, const struct stat *st);
/* It runs again in the next step. */
void mr_file_call_go_on(struct file_call *call);
#define MR_FILE_TEXT 1024
/* MR_OK if rc is 0, else the thread's mr_error; the result's text points into text. */
struct mr_store_result mr_file_result(const struct file_call *call, int rc, char text[MR_FILE_TEXT]);
/* 0, or -1 with mr_error (CHANGED) if a generation is wanted and st has another. */
int mr_file_check_generation(uint64_t wanted, const struct stat *st);

/* ---- file_read.c ---- */

/* The end of the store. */
void mr_file_walk_close(struct file_store *store);
mr_store_list_op mr_file_list;
mr_store_get_op mr_file_get;
mr_store_stat_op mr_file_stat;

/* ---- file_write.c ---- */

/* The call writes what its name leads to, if that is a symbolic link, also one to nothing. A loop of them stays. */
void mr_file_follow(struct file_call *call);
/* 0, or -1 with mr_error (USAGE): a folder, a device or a pipe has that name. */
int mr_file_check_kind(const struct file_call *call);
/* The error of a write(2): for a full disk it names the remedy. */
void mr_file_set_write_error(int errnum);
/* Once all bytes of the temporary file are written: syncs it and gives it the call's name, if call->generation allows
 * that, with the owner and the mode of a file that it replaces. 0 (st is its final state, and `temporary` no longer
 * exists), or -1 with mr_error (EXISTS, CHANGED, IO). After an IO error of the folder's fsync it has its name already,
 * which a power failure may take back. */
int mr_file_publish(const struct file_call *call, int fd, const char *temporary, struct stat *st);
mr_store_insert_op mr_file_insert;
mr_store_delete_op mr_file_delete;
mr_store_batch_op mr_file_delete_batch;
mr_store_compose_op mr_file_compose;
mr_store_begin_op mr_file_upload_begin;
mr_store_send_op mr_file_upload_send;
mr_store_drop_op mr_file_upload_drop;
mr_store_bucket_op mr_file_bucket;
mr_store_permissions_op mr_file_permissions;

/* ---- file_parts.c ---- */

/* At the end of the store. Temporary files stay, for a process that continues with them. */
void mr_file_uploads_close(struct file_store *store);
mr_store_has_parts_op mr_file_has_parts;
mr_store_parts_begin_op mr_file_parts_begin;
mr_upload_part_op mr_file_part_send;
mr_store_complete_op mr_file_parts_complete;
mr_store_abort_op mr_file_parts_abort;

/* ---- file_list_parts.c ---- */

mr_store_parts_list_op mr_file_parts_list;

#endif
