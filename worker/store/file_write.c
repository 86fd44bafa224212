/*
 * What writes to a local folder. A new file is written under a temporary name next to its own, which it gets once it is
 * complete and on disk: by rename(2), or by mr_durable_name_new if the name must not exist. So a reader sees either the
 * old bytes or the new ones. A symbolic link stays: what it leads to is written.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/durable.h"
#include "worker/store/file_impl.h"
#include "worker/store/leftovers.h"

#define LINKS_MAX  40 /* as the kernel follows */
#define TIME_TRIES 4  /* seconds that a time of modification is set ahead, at most */

struct file_write {
    struct mr_store_insert_request insert;
    uint64_t at; /* bytes written */
    uint32_t crc;
    int fd;
    unsigned source; /* compose: the one that is being copied */
    uint64_t source_at;
    struct mr_store_compose_request compose;
    unsigned char *buffer;       /* compose */
    struct mr_store_chunk chunk; /* upload */
    char temporary[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE];
};

/* Frees it, and removes its temporary file, unless `temporary` is "". */
static void close_write(struct file_call *call)
{
    struct file_write *write = call->write;
    if (!write)
        return;
    if (write->fd >= 0)
        close(write->fd);
    if (write->temporary[0])
        unlink(write->temporary);
    free(write->buffer);
    free(write);
}

static void file_write_fail(struct file_call *call)
{
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, -1, text);
    call->done.stat(call->arg, &result, NULL);
    mr_file_call_end(call);
}

void mr_file_follow(struct file_call *call)
{
    char target[MR_STORE_NAME_MAX];
    ssize_t length;
    for (unsigned i = 0; i < LINKS_MAX && (length = readlink(call->name, target, sizeof target)) > 0; i++) {
        const char *slash = target[0] == '/' ? NULL : strrchr(call->name, '/');
        size_t folder = slash ? (size_t)(slash - call->name) + 1 : 0;
        if (folder + (size_t)length >= sizeof call->name)
            break;
        memcpy(call->name + folder, target, (size_t)length);
        call->name[folder + (size_t)length] = '\0';
    }
}

int mr_file_check_kind(const struct file_call *call)
{
    struct stat st;
    if (stat(call->name, &st) != 0 || S_ISREG(st.st_mode))
        return 0;
    mr_error_set(MR_E_USAGE, "it is %s", S_ISDIR(st.st_mode) ? "a folder" : "no regular file");
    return -1;
}

/* Checks that the generation to be replaced is there. 0, or -1 with mr_error. */
static int check_target(const struct file_call *call)
{
    if (mr_file_check_kind(call) != 0)
        return -1;
    if (call->generation == MR_STORE_ANY)
        return 0;
    struct stat st;
    int rc = stat(call->name, &st);
    if (rc != 0 && errno != ENOENT) {
        mr_error_set_errno(errno, "cannot look it up");
        return -1;
    }
    if (call->generation == 0 && rc == 0) {
        mr_error_set(MR_E_EXISTS, "it exists already");
        return -1;
    }
    if (call->generation != 0 && (rc != 0 || mr_file_generation(&st) != call->generation)) {
        mr_error_set(MR_E_CHANGED, rc ? "it has been removed" : "its time of modification has changed");
        return -1;
    }
    return 0;
}

/* Checks the target first, so that a write that cannot succeed fails before its bytes are copied. */
static int open_temporary(struct file_call *call)
{
    struct file_write *write = call->write;
    const char *slash = strrchr(call->name, '/');
    int folder = slash ? (int)(slash - call->name) + 1 : 0;
    if (check_target(call) != 0)
        return -1;
    char name[MR_LEFTOVER_SIZE];
    mr_leftover_name(MR_LEFTOVER_PART, name);
    snprintf(write->temporary, sizeof write->temporary, "%.*s%s", folder, call->name, name);
    write->fd = open(write->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (write->fd >= 0) {
        mr_durable_keep_mode(call->name, write->fd, 0600); /* it is opened again for each chunk */
        (void)mr_leftover_lock(write->fd);                 /* no other process knows it yet */
        return 0;
    }
    mr_error_set_errno(errno, "cannot create a file in its folder");
    write->temporary[0] = 0;
    return -1;
}

void mr_file_set_write_error(int errnum)
{
    mr_error_set_errno(errnum, "cannot write it");
    if (errnum == ENOSPC || errnum == EDQUOT)
        mr_error_set(mr_error_code(), "%s: free some space, or write elsewhere", mr_error_text());
}

/* Writes all of data. crc and at include it even on -1 (mr_error), after which the write cannot continue. */
static int file_write_put(struct file_write *file, const unsigned char *data, size_t length)
{
    file->crc = mr_crc32c(file->crc, data, length);
    file->at += length;
    while (length > 0) {
        ssize_t n = write(file->fd, data, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            mr_file_set_write_error(errno);
            return -1;
        }
        data += n;
        length -= (size_t)n;
    }
    return 0;
}

/*
 * Gives the file a time of modification other than that of the file which it replaces. The kernel's own advances in
 * steps of milliseconds, and a file system may store whole seconds (exFAT through FUSE) or every second one (vfat): two
 * writes could have the same generation. 0 (st has what the file system stores), or -1 with mr_error.
 */
static int set_generation(const struct file_call *call, int fd, struct stat *st)
{
    struct stat old = {0};
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[1]);
    bool replaces = stat(call->name, &old) == 0;
    for (unsigned i = 0; i < TIME_TRIES; i++) {
        times[0] = times[1];
        (void)futimens(fd, times);
        struct statx fresh; /* what was set may be cached here and truncated by the server */
        (void)statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME, &fresh);
        if (fstat(fd, st) != 0) {
            mr_error_set_errno(errno, "cannot look it up");
            return -1;
        }
        if (!replaces || mr_file_generation(st) != mr_file_generation(&old))
            break;
        times[1].tv_sec++;
    }
    return 0;
}

int mr_file_publish(const struct file_call *call, int fd, const char *temporary, struct stat *st)
{
    if (set_generation(call, fd, st) != 0)
        return -1;
    if (fsync(fd) != 0) {
        mr_file_set_write_error(errno);
        mr_error_append("cannot bring it to the disk");
        return -1;
    }
    if (check_target(call) != 0)
        return -1;
    mr_durable_keep_mode(call->name, fd, 0); /* last: what may not be written could not be opened for another try */
    int rc = call->generation == 0 ? mr_durable_name_new(temporary, call->name) : rename(temporary, call->name);
    if (rc != 0 && errno == EEXIST) {
        mr_error_set(MR_E_EXISTS, "it exists already");
        return -1;
    }
    if (rc != 0) {
        mr_error_set_errno(errno, "cannot give it its name");
        return -1;
    }
    return mr_durable_sync_folder(call->name, fd);
}

/* On success close_write has nothing left to remove. */
static int publish(struct file_call *call, struct stat *st)
{
    struct file_write *write = call->write;
    if (mr_file_publish(call, write->fd, write->temporary, st) != 0)
        return -1;
    write->temporary[0] = 0;
    return 0;
}

static void file_write_finish(struct file_call *call)
{
    struct stat st;
    if (publish(call, &st) != 0) {
        file_write_fail(call);
        return;
    }
    struct mr_store_item item = mr_file_item(call, &st);
    item.crc32c = call->write->crc;
    item.has_crc32c = true;
    struct mr_store_result result = {.code = MR_OK, .text = ""};
    call->done.stat(call->arg, &result, &item);
    mr_file_call_end(call);
}

/* A call that writes. generation: as call->generation. NULL with mr_error. */
static struct file_call *write_call_new(struct mr_store *base, void (*run)(struct file_call *call), const char *name,
                                        size_t name_length, uint64_t generation, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run, name, name_length, arg);
    if (!call)
        return NULL;
    mr_file_follow(call);
    call->generation = generation;
    call->ended = close_write;
    call->write = calloc(1, sizeof *call->write);
    if (!call->write) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a file that is written");
        mr_file_call_end(call);
        return NULL;
    }
    call->write->fd = -1;
    return call;
}

/* ---- insert ---- */

static void run_insert(struct file_call *call)
{
    struct file_write *write = call->write;
    const struct mr_store_insert_request *insert = &write->insert;
    uint64_t left = insert->length - write->at;
    size_t slice = left < MR_FILE_SLICE ? (size_t)left : MR_FILE_SLICE;
    if (write->fd < 0 && open_temporary(call) != 0) {
        file_write_fail(call);
        return;
    }
    if (slice > 0) {
        if (file_write_put(write, (const unsigned char *)insert->body + write->at, slice) != 0)
            file_write_fail(call);
        else
            mr_file_call_go_on(call);
        return;
    }
    if (write->crc != insert->crc32c) {
        mr_error_set(MR_E_USAGE, "the crc32c of the bytes is not the one that came with them");
        file_write_fail(call);
        return;
    }
    file_write_finish(call);
}

struct mr_store_call *mr_file_insert(struct mr_store *base, const struct mr_store_insert_request *request,
                                     mr_store_stat_fn *done, void *arg)
{
    struct file_call *call =
        write_call_new(base, run_insert, request->name, request->name_length, request->generation_match, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    call->write->insert = *request;
    return &call->base;
}

/* ---- an upload in chunks: the session is the temporary file ---- */

static void run_begin(struct file_call *call)
{
    int rc = open_temporary(call);
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    call->done.begin(call->arg, &result, rc == 0 ? call->write->temporary : NULL);
    call->write->temporary[0] = 0; /* it stays */
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_upload_begin(struct mr_store *base, const struct mr_store_upload_request *request,
                                           mr_store_begin_fn *done, void *arg)
{
    struct file_call *call =
        write_call_new(base, run_begin, request->name, request->name_length, request->generation_match, arg);
    if (!call)
        return NULL;
    call->done.begin = done;
    return &call->base;
}

static int open_session(struct file_write *write)
{
    write->fd = open(write->temporary, O_WRONLY | O_CLOEXEC);
    if (write->fd >= 0 && lseek(write->fd, (off_t)write->chunk.offset, SEEK_SET) >= 0)
        return 0;
    mr_error_set_errno(errno, "cannot open its temporary file");
    return -1;
}

/* 1: a slice was written; 0: the chunk is complete; -1 with mr_error. */
static int send_slice(struct file_write *write)
{
    uint64_t left = write->chunk.length - write->at;
    if (left == 0)
        return 0;
    size_t slice = left < MR_FILE_SLICE ? (size_t)left : MR_FILE_SLICE;
    return file_write_put(write, (const unsigned char *)write->chunk.data + write->at, slice) == 0 ? 1 : -1;
}

static void run_send(struct file_call *call)
{
    struct file_write *write = call->write;
    const struct mr_store_chunk *chunk = &write->chunk;
    int rc = write->fd < 0 ? open_session(write) : 0;
    if (rc == 0)
        rc = send_slice(write);
    if (rc > 0) {
        mr_file_call_go_on(call);
        return;
    }
    struct mr_store_uploaded state = {0};
    struct mr_store_item item;
    struct stat st;
    if (rc == 0 && chunk->total != MR_STORE_ANY && !chunk->probe) {
        rc = publish(call, &st);
        if (rc == 0) {
            item = mr_file_item(call, &st);
            state.item = &item;
        }
    } else if (rc == 0) {
        rc = fstat(write->fd, &st);
    }
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    if (rc == 0)
        state.kept = (uint64_t)st.st_size;
    write->temporary[0] = 0; /* a failed session is dropped by its caller */
    call->done.upload(call->arg, &result, rc == 0 ? &state : NULL);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_upload_send(struct mr_store *base, const struct mr_store_chunk *chunk,
                                          mr_store_upload_fn *done, void *arg)
{
    struct file_call *call = write_call_new(base, run_send, chunk->upload->name, chunk->upload->name_length,
                                            chunk->upload->generation_match, arg);
    if (!call)
        return NULL;
    call->done.upload = done;
    call->write->chunk = *chunk;
    snprintf(call->write->temporary, sizeof call->write->temporary, "%s", chunk->session);
    return &call->base;
}

void mr_file_upload_drop(struct mr_store *base, const char *session)
{
    (void)base;
    unlink(session);
}

/* ---- names ---- */

static int copy_names(struct file_call *call, const struct mr_store_name *names, unsigned count)
{
    call->count = count;
    call->names = calloc(count, sizeof *call->names);
    if (call->names && mr_store_names_copy(call->names, names, count, &call->strings) == 0)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for %u names", count);
    return -1;
}

/* ---- compose ---- */

static int open_source(struct file_call *call)
{
    const struct mr_store_name *source = &call->names[call->write->source];
    call->fd = open(source->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (call->fd < 0 || fstat(call->fd, &st) != 0) {
        mr_error_set_errno(errno, "cannot open file://%s", source->name);
        return -1;
    }
    if (!S_ISREG(st.st_mode)) {
        mr_error_set(MR_E_NOT_FOUND, "file://%s is not a regular file", source->name);
        return -1;
    }
    if (mr_file_check_generation(mr_store_is_generation(source->generation) ? source->generation : 0, &st) == 0)
        return 0;
    mr_error_append("file://%s", source->name);
    return -1;
}

/* 1: a slice was copied, or a source ended; 0: all is copied; -1 with mr_error. */
static int copy_slice(struct file_call *call)
{
    struct file_write *write = call->write;
    if (write->source == call->count)
        return 0;
    if (call->fd < 0 && open_source(call) != 0)
        return -1;
    ssize_t n = pread(call->fd, write->buffer, MR_FILE_SLICE, (off_t)write->source_at);
    if (n < 0 && errno == EINTR)
        return 1;
    if (n < 0) {
        mr_error_set_errno(errno, "cannot read file://%s", call->names[write->source].name);
        return -1;
    }
    if (n > 0) {
        write->source_at += (uint64_t)n;
        return file_write_put(write, write->buffer, (size_t)n) == 0 ? 1 : -1;
    }
    close(call->fd);
    call->fd = -1;
    write->source++;
    write->source_at = 0;
    return 1;
}

static void run_compose(struct file_call *call)
{
    int rc = call->write->fd < 0 ? open_temporary(call) : 0;
    if (rc == 0)
        rc = copy_slice(call);
    if (rc > 0)
        mr_file_call_go_on(call);
    else if (rc < 0)
        file_write_fail(call);
    else
        file_write_finish(call);
}

struct mr_store_call *mr_file_compose(struct mr_store *base, const struct mr_store_compose_request *request,
                                      mr_store_stat_fn *done, void *arg)
{
    struct file_call *call =
        write_call_new(base, run_compose, request->name, request->name_length, request->generation_match, arg);
    if (!call)
        return NULL;
    call->done.stat = done;
    if (copy_names(call, request->sources, request->count) == 0) {
        call->write->buffer = malloc(MR_FILE_SLICE);
        if (call->write->buffer)
            return &call->base;
        mr_error_set(MR_E_NO_MEMORY, "no memory for a file that is written");
    }
    mr_file_call_end(call);
    return NULL;
}

/* ---- delete ---- */

/* 0, or -1 with mr_error. */
static int remove_one(const struct mr_store_name *name)
{
    struct stat st;
    if (stat(name->name, &st) != 0) {
        mr_error_set_errno(errno, "cannot look it up");
        return -1;
    }
    if (mr_store_is_generation(name->generation) && mr_file_generation(&st) != name->generation) {
        mr_error_set(MR_E_CHANGED, "its time of modification is another by now");
        return -1;
    }
    if (S_ISDIR(st.st_mode)) {
        mr_error_set(MR_E_NOT_FOUND, "it is a folder, and no object");
        return -1;
    }
    if (unlink(name->name) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot delete it");
    return -1;
}

static void run_delete(struct file_call *call)
{
    struct mr_store_name name = {call->name, strlen(call->name), call->generation, NULL};
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, remove_one(&name), text);
    call->done.remove(call->arg, &result);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_delete(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                     mr_store_delete_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_delete, name, name_length, arg);
    if (!call)
        return NULL;
    call->done.remove = done;
    call->generation = generation;
    return &call->base;
}

static void run_batch(struct file_call *call)
{
    static const struct mr_store_result good = {.code = MR_OK, .text = ""};
    struct mr_store_result each[MR_STORE_BATCH_MAX], result = good;
    char texts[MR_STORE_BATCH_MAX][400];
    for (unsigned i = 0; i < call->count; i++) {
        each[i] = good;
        if (remove_one(&call->names[i]) == 0)
            continue;
        char uri[200];
        mr_store_uri(call->base.store, uri, sizeof uri, call->names[i].name, call->names[i].name_length);
        snprintf(texts[i], sizeof texts[i], "%s: %s", uri, mr_error_text());
        each[i] = (struct mr_store_result){.code = mr_error_code(), .text = texts[i]};
    }
    call->done.batch(call->arg, &result, each);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_delete_batch(struct mr_store *base, const struct mr_store_name *names, unsigned count,
                                           mr_store_batch_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_batch, "", 0, arg);
    if (!call)
        return NULL;
    call->done.batch = done;
    if (copy_names(call, names, count) == 0)
        return &call->base;
    mr_file_call_end(call);
    return NULL;
}

/* ---- the bucket, which a folder does not have ---- */

static void run_bucket(struct file_call *call)
{
    static const struct mr_store_bucket bucket = {.storage_class = "", .location = "", .location_type = ""};
    struct mr_store_result result = {.code = MR_OK, .text = ""};
    call->done.bucket(call->arg, &result, &bucket);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_bucket(struct mr_store *base, mr_store_bucket_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_bucket, "", 0, arg);
    if (!call)
        return NULL;
    call->done.bucket = done;
    return &call->base;
}

static void run_permissions(struct file_call *call)
{
    struct mr_store_result result = {.code = MR_OK, .text = ""};
    call->done.permissions(call->arg, &result, (1u << call->count) - 1);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_permissions(struct mr_store *base, const char *const *names, unsigned count,
                                          mr_store_permissions_fn *done, void *arg)
{
    struct file_call *call = mr_file_call_new(base, run_permissions, "", 0, arg);
    (void)names;
    if (!call)
        return NULL;
    call->done.permissions = done;
    call->count = count;
    return &call->base;
}
