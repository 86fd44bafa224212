/*
 * Upload parts in a local folder: a temporary file next to the final name, into which each part is written at its
 * place. Its fd is kept open and locked from begin to end, which tells other processes that it has an owner
 * (leftovers.h). The upload's id is the file's name, so that a restarted process can continue with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/container.h"
#include "base/durable.h"
#include "worker/store/file_impl.h"
#include "worker/store/leftovers.h"

struct file_upload {
    struct file_upload *next;
    int fd;
    char path[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE];
};

bool mr_file_has_parts(const struct mr_store *store)
{
    (void)store;
    return true;
}

/* ---- open uploads ---- */

static void path_of(char *path, size_t size, const char *name, const char *id)
{
    const char *slash = strrchr(name, '/');
    snprintf(path, size, "%.*s%s", slash ? (int)(slash - name) + 1 : 0, name, id);
}

/* Shows that the uploads are alive, however slowly their parts arrive. */
static void beat(struct mr_http_timer *timer)
{
    struct file_store *store = MR_CONTAINER_OF(timer, file_store, beat);
    for (const struct file_upload *upload = store->uploads; upload; upload = upload->next)
        (void)futimens(upload->fd, NULL);
    if (store->uploads)
        mr_http_timer_set(store->base.http, &store->beat,
                          mr_http_now_ns(store->base.http) + MR_LEFTOVER_BEAT_S * MR_SECOND_NS);
}

/* Takes ownership of fd, on failure too. NULL with mr_error. */
static struct file_upload *upload_add(struct file_store *store, int fd, const char *path)
{
    struct file_upload *upload = calloc(1, sizeof *upload);
    if (!upload) {
        close(fd);
        mr_error_set(MR_E_NO_MEMORY, "no memory for a file that is written");
        return NULL;
    }
    upload->fd = fd;
    snprintf(upload->path, sizeof upload->path, "%s", path);
    upload->next = store->uploads;
    store->uploads = upload;
    store->beat.run = beat;
    if (!upload->next)
        mr_http_timer_set(store->base.http, &store->beat,
                          mr_http_now_ns(store->base.http) + MR_LEFTOVER_BEAT_S * MR_SECOND_NS);
    return upload;
}

/* Closes the upload, if it is open. Its temporary file stays. */
static void upload_drop(struct file_store *store, const char *path)
{
    for (struct file_upload **at = &store->uploads; *at; at = &(*at)->next) {
        struct file_upload *upload = *at;
        if (strcmp(upload->path, path) != 0)
            continue;
        *at = upload->next;
        close(upload->fd);
        free(upload);
        return;
    }
}

void mr_file_uploads_close(struct file_store *store)
{
    while (store->uploads)
        upload_drop(store, store->uploads->path);
    mr_http_timer_stop(store->base.http, &store->beat);
}

/* The upload of that temporary file, which is opened again if necessary. NULL with mr_error. */
static struct file_upload *upload_find(struct file_store *store, const char *path)
{
    for (struct file_upload *upload = store->uploads; upload; upload = upload->next)
        if (strcmp(upload->path, path) == 0)
            return upload;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        mr_error_set_errno(errno, "its temporary file cannot be opened");
        return NULL;
    }
    if (!mr_leftover_lock(fd)) {
        close(fd);
        mr_error_set(MR_E_BUSY, "another process holds its temporary file");
        return NULL;
    }
    return upload_add(store, fd, path);
}

/* ---- begin ---- */

static int file_parts_begin(struct file_call *call, char id[MR_LEFTOVER_SIZE])
{
    mr_leftover_name(MR_LEFTOVER_PARTS, id);
    char path[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE];
    if (mr_file_check_kind(call) != 0) /* known before the parts are written */
        return -1;
    path_of(path, sizeof path, call->name, id);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot create a file in its folder");
        return -1;
    }
    mr_durable_keep_mode(call->name, fd, 0600);
    (void)mr_leftover_lock(fd); /* no other process knows it yet */
    if (upload_add((struct file_store *)call->base.store, fd, path))
        return 0;
    unlink(path);
    return -1;
}

static void run_begin(struct file_call *call)
{
    char id[MR_LEFTOVER_SIZE], text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, file_parts_begin(call, id), text);
    call->done.parts_begin(call->arg, &result, result.code == MR_OK ? id : NULL);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_parts_begin(struct mr_store *base, const char *name, size_t name_length,
                                          const char *content_type, mr_store_parts_begin_fn *done, void *arg)
{
    (void)content_type;
    struct file_call *call = mr_file_call_new(base, run_begin, name, name_length, arg);
    if (!call)
        return NULL;
    mr_file_follow(call);
    call->done.parts_begin = done;
    return &call->base;
}

/* ---- a part ---- */

/* -1 with mr_error: the call has been ended as well. */
static int put_id(struct file_call *call, const char *id)
{
    mr_file_follow(call);
    mr_text_add(&call->strings, id, strlen(id) + 1);
    if (!call->strings.failed && !strchr(id, '/') && mr_leftover_kind(id) != MR_LEFTOVER_NONE)
        return 0;
    mr_error_set(call->strings.failed ? MR_E_NO_MEMORY : MR_E_USAGE, "%.60s is not an upload of a folder", id);
    mr_file_call_end(call);
    return -1;
}

static struct file_upload *find_call(struct file_call *call)
{
    char path[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE];
    path_of(path, sizeof path, call->name, call->strings.data);
    return upload_find((struct file_store *)call->base.store, path);
}

/* 1: a slice was written; 0: the part is complete; -1 with mr_error. */
static int write_slice(struct file_call *call)
{
    const struct mr_upload_part_request *part = &call->part;
    const struct file_upload *upload = find_call(call);
    uint64_t left = part->length - call->part_at;
    size_t slice = left < MR_FILE_SLICE ? (size_t)left : MR_FILE_SLICE;
    if (!upload)
        return -1;
    if (left == 0) { /* writeback may begin: less is left for the final fsync */
        (void)sync_file_range(upload->fd, (off_t)part->offset, (off_t)part->length, SYNC_FILE_RANGE_WRITE);
        return 0;
    }
    ssize_t n = pwrite(upload->fd, (const unsigned char *)part->data + call->part_at, slice,
                       (off_t)(part->offset + call->part_at));
    if (n < 0 && errno != EINTR) {
        mr_file_set_write_error(errno);
        return -1;
    }
    call->part_at += n > 0 ? (uint64_t)n : 0;
    return 1;
}

static void run_part(struct file_call *call)
{
    int rc = write_slice(call);
    if (rc > 0) {
        mr_file_call_go_on(call);
        return;
    }
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    call->done.part(call->arg, &result, rc == 0 ? "" : NULL);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_part_send(struct mr_store *base, const struct mr_upload_part_request *request,
                                        mr_upload_part_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_part, request->name, request->name_length, arg);
    if (!call || put_id(call, request->id) != 0)
        return NULL;
    call->done.part = done;
    call->part = *request;
    return &call->base;
}

/* ---- complete, abort ---- */

/* Whether a predecessor gave it its name and died before it removed the temporary one. */
static bool has_its_name(const struct file_call *call, const struct stat *st)
{
    struct stat there;
    return st->st_nlink > 1 && stat(call->name, &there) == 0 && there.st_ino == st->st_ino &&
           there.st_dev == st->st_dev;
}

static int file_parts_complete(struct file_call *call, struct stat *st)
{
    struct file_upload *upload = find_call(call);
    if (!upload)
        return -1;
    if (fstat(upload->fd, st) != 0) {
        mr_error_set_errno(errno, "its temporary file cannot be looked at");
        return -1;
    }
    if ((uint64_t)st->st_size != call->part.length) {
        mr_error_set(MR_E_CORRUPT, "its temporary file has %llu bytes, and not the %llu that were written",
                     (unsigned long long)st->st_size, (unsigned long long)call->part.length);
        return -1;
    }
    if (has_its_name(call, st)) {
        (void)unlink(upload->path);
        if (mr_durable_sync_folder(call->name, upload->fd) != 0)
            return -1;
    } else if (mr_file_publish(call, upload->fd, upload->path, st) != 0)
        return -1;
    upload_drop((struct file_store *)call->base.store, upload->path);
    return 0;
}

static void run_complete(struct file_call *call)
{
    struct stat st = {0};
    int rc = file_parts_complete(call, &st);
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    call->done.complete(call->arg, &result, rc == 0 ? mr_file_generation(&st) : 0);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_parts_complete(struct mr_store *base, const struct mr_store_complete_request *request,
                                             mr_store_complete_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_complete, request->name, request->name_length, arg);
    if (!call || put_id(call, request->id) != 0)
        return NULL;
    call->done.complete = done;
    call->generation = request->generation_match;
    call->part.length = request->size;
    return &call->base;
}

static void run_abort(struct file_call *call)
{
    char path[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE];
    path_of(path, sizeof path, call->name, call->strings.data);
    upload_drop((struct file_store *)call->base.store, path);
    int rc = unlink(path);
    if (rc != 0)
        mr_error_set_errno(errno, "cannot remove its temporary file");
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    call->done.remove(call->arg, &result);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_parts_abort(struct mr_store *base, const char *name, size_t name_length, const char *id,
                                          mr_store_delete_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_abort, name, name_length, arg);
    if (!call || put_id(call, id) != 0)
        return NULL;
    call->done.remove = done;
    return &call->base;
}
