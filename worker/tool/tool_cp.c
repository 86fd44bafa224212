/*
 * tool_cp.c - `millrace cp SRC DST`: between files, standard input and output, and objects. Bytes stream in order from
 * a source to a target; the target becomes visible whole at the end, or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "worker/tool/download.h"
#include "worker/tool/out_file.h"
#include "worker/tool/out_pipe.h"
#include "worker/tool/progress.h"

#define READ_BYTES (1u << 20)

/* One side of the copy. */
struct place {
    const char *text;       /* as it was given */
    struct mr_store *store; /* NULL: a file, or a standard stream */
    struct mr_uri uri;
    const char *path; /* of a file; NULL: a standard stream */
    char *made;       /* a target's name with the source's last component appended */
};

struct copy {
    struct mr_tool tool;
    struct place from, to;
    bool if_absent;
    int fd; /* source: file or standard input */
    bool has_size, can_rewind;
    uint64_t size, done;
    struct mr_download *download; /* source: object */
    struct mr_download_object object;
    struct mr_tool second, *reading; /* between two objects the source has a loop of its own */
    char *buffer;
    struct mr_out_pipe out;     /* target: a file, a pipe */
    struct mr_transfer *upload; /* NULL: none is under way */
    const void *at;             /* what an upload has not taken yet */
    uint64_t left;
    struct mr_progress progress;
};

/* ---- places ---- */

/* "-" is a standard stream; file:// and text without a scheme name files. 0 or -1. */
static int parse_place(struct copy *copy, struct place *place, const char *text)
{
    place->text = text;
    if (strcmp(text, "-") == 0)
        return 0;
    if (strncmp(text, "file://", 7) != 0 && !strstr(text, "://")) {
        place->path = text;
        return 0;
    }
    if (mr_uri_init(&place->uri, text) != 0)
        return -1;
    if (place->uri.scheme == MR_SCHEME_FILE) {
        place->path = place->uri.key;
        return 0;
    }
    place->store = mr_net_store(&copy->tool.net, place->uri.scheme, place->uri.bucket);
    return place->store ? 0 : -1;
}

static const char *tool_cp_name_of(const struct place *place)
{
    return place->store ? place->uri.key : place->path;
}

/* Not for a standard stream. An existing local folder needs no slash. */
static bool is_folder(const struct place *place)
{
    const char *name = tool_cp_name_of(place);
    size_t length = strlen(name);
    struct stat st;
    return length == 0 || name[length - 1] == '/' || (!place->store && stat(name, &st) == 0 && S_ISDIR(st.st_mode));
}

/* Where the target is a folder or a prefix, appends the last component of the source's name to it. 0 or -1. */
static int tool_cp_complete(struct place *to, const struct place *from)
{
    if ((!to->store && !to->path) || !is_folder(to))
        return 0;
    const char *source = !from->store && !from->path ? NULL : tool_cp_name_of(from);
    const char *slash = source ? strrchr(source, '/') : NULL;
    const char *last = slash ? slash + 1 : source;
    const char *name = tool_cp_name_of(to);
    size_t length = strlen(name);
    if (!last || last[0] == '\0') {
        mr_error_set(MR_E_USAGE, "%s names no object or file, and %s has no name to take for it", to->text, from->text);
        return -1;
    }
    const char *between = length == 0 || name[length - 1] == '/' ? "" : "/";
    if (asprintf(&to->made, "%s%s%s", name, between, last) < 0) {
        to->made = NULL;
        mr_error_set(MR_E_NO_MEMORY, "no memory for a name");
        return -1;
    }
    return 0;
}

static const char *target_name(const struct place *to)
{
    return to->made ? to->made : tool_cp_name_of(to);
}

static void close_place(struct place *place)
{
    free(place->made);
    mr_uri_close(&place->uri);
}

/* ---- the source ---- */

/* To an object, the source is read in a loop of its own: read_source blocks within a callback of the target's loop. */
static int open_object(struct copy *copy)
{
    copy->reading = &copy->tool;
    if (copy->to.store) {
        copy->reading = &copy->second;
        if (mr_tool_init(copy->reading) != 0)
            return -1;
        copy->from.store = mr_net_store(&copy->reading->net, copy->from.uri.scheme, copy->from.uri.bucket);
    }
    if (!copy->from.store ||
        mr_download_look_up(copy->reading, copy->from.store, copy->from.uri.key, &copy->object) != 0)
        return -1;
    copy->has_size = copy->can_rewind = true;
    copy->size = copy->object.size;
    copy->download = mr_download_new(copy->reading, &copy->object, 0, copy->size);
    return copy->download ? 0 : -1;
}

/* Only a named regular file can be read a second time, and has a size: 0 may stand for one that is not known, as in
 * /proc. */
static int open_file(struct copy *copy)
{
    copy->fd = !copy->from.path ? STDIN_FILENO : open(copy->from.path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (copy->fd < 0 || fstat(copy->fd, &st) != 0) {
        mr_error_set_errno(errno, "%s", copy->from.text);
        return -1;
    }
    if (S_ISDIR(st.st_mode)) {
        mr_error_set(MR_E_USAGE, "%s is a folder: cp copies one object", copy->from.text);
        return -1;
    }
    copy->can_rewind = S_ISREG(st.st_mode) && copy->from.path;
    copy->has_size = copy->can_rewind && st.st_size > 0;
    copy->size = copy->has_size ? (uint64_t)st.st_size : 0;
    copy->buffer = malloc(READ_BYTES);
    if (copy->buffer)
        return 0;
    mr_error_set(MR_E_NO_MEMORY, "no memory for a buffer");
    return -1;
}

/* The next bytes: 1, 0 at the end, -1. Blocks. */
static int next_bytes(struct copy *copy, const void **data, uint64_t *length)
{
    if (copy->download)
        return mr_download_next(copy->download, data, length);
    ssize_t n = mr_tool_read(copy->fd, copy->buffer, READ_BYTES, copy->from.text);
    if (n < 0)
        return -1;
    *data = copy->buffer;
    *length = (uint64_t)n;
    return n > 0;
}

/* ---- to a file ---- */

static int write_to(struct copy *copy, int fd)
{
    const void *data;
    uint64_t length;
    int rc = mr_out_pipe_init(&copy->out, fd, copy->to.text);
    while (rc == 0 && (rc = next_bytes(copy, &data, &length)) > 0) {
        if (mr_out_pipe_write(&copy->out, &copy->tool, data, length) != 0)
            return -1;
        copy->done += length;
        if (!copy->download)
            mr_progress_update(&copy->progress, copy->done);
        rc = 0;
    }
    return rc;
}

static int copy_to_file(struct copy *copy)
{
    if (!copy->to.path)
        return write_to(copy, STDOUT_FILENO);
    struct mr_out_file file;
    if (mr_out_file_open(&file, target_name(&copy->to), copy->if_absent) != 0)
        return -1;
    /* Room for all of it, so that a full disk is known before the download. */
    if (copy->has_size && copy->size > 0 && !file.plain && fallocate(file.fd, 0, 0, (off_t)copy->size) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
        mr_error_set_errno(errno, "no room for the %" PRIu64 " bytes of %s", copy->size, file.path);
        mr_out_file_abort(&file);
        return -1;
    }
    int rc = write_to(copy, file.fd);
    if (rc == 0 && copy->has_size && copy->done != copy->size) {
        mr_error_set(MR_E_CHANGED, "%s: %" PRIu64 " bytes were read of the %" PRIu64 " that it had: it has changed",
                     copy->from.text, copy->done, copy->size);
        rc = -1;
    }
    if (rc == 0)
        return mr_out_file_commit(&file);
    mr_out_file_abort(&file);
    return -1;
}

/* ---- to an object ---- */

/*
 * The target's current generation as the precondition, so that a repeat is safe and another writer's new object is not
 * overwritten. Without permission to read there is no precondition. --if-absent looks first too: some S3 stores ignore
 * preconditions.
 */
static int precondition(struct copy *copy, const char *name, uint64_t *generation)
{
    struct mr_download_object target;
    int rc = mr_download_look_up(&copy->tool, copy->to.store, name, &target);
    bool missing = rc != 0 && mr_error_code() == MR_E_NOT_FOUND, denied = rc != 0 && mr_error_code() == MR_E_DENIED;
    if (rc != 0 && (mr_tool_interrupted() || (!missing && !denied)))
        return -1;
    if (rc == 0 && copy->if_absent) {
        char *uri = mr_uri_format(copy->to.uri.scheme, copy->to.uri.bucket, name);
        mr_error_set(MR_E_EXISTS, "%s: it exists already", uri ? uri : copy->to.text);
        free(uri);
        return -1;
    }
    *generation = copy->if_absent || missing ? 0 : denied ? MR_STORE_ANY : target.generation;
    return 0;
}

/* How many bytes were put into buffer, 0 at the end, -1. Blocks while the source has none. */
static int64_t read_source(void *arg, void *buffer, size_t size)
{
    struct copy *copy = arg;
    while (copy->left == 0) {
        int rc = next_bytes(copy, &copy->at, &copy->left);
        if (rc <= 0)
            return rc;
    }
    size_t n = copy->left < size ? (size_t)copy->left : size;
    memcpy(buffer, copy->at, n);
    copy->at = (const char *)copy->at + n;
    copy->left -= n;
    return (int64_t)n;
}

/* Back to the beginning: the store has lost the upload. 0 or -1. */
static int rewind_source(void *arg)
{
    struct copy *copy = arg;
    copy->left = 0;
    if (copy->from.store) {
        mr_download_destroy(copy->download);
        copy->download = mr_download_new(copy->reading, &copy->object, 0, copy->object.size);
        return copy->download ? 0 : -1;
    }
    if (lseek(copy->fd, 0, SEEK_SET) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot read %s a second time", copy->from.text);
    return -1;
}

static void sent(void *arg, uint64_t bytes)
{
    struct copy *copy = arg;
    mr_progress_update(&copy->progress, bytes);
}

static void uploaded(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct copy *copy = arg;
    (void)item;
    copy->upload = NULL;
    mr_tool_answer(&copy->tool, result);
}

/* After a signal or a failure: asks the store to drop the session, and waits up to about a second for that. */
static void drop_upload(struct copy *copy)
{
    if (copy->upload)
        mr_transfer_cancel(copy->tool.net.engine, copy->upload);
    copy->upload = NULL;
    for (unsigned i = 0; i < 10 && mr_http_in_flight(copy->tool.net.http) > 0; i++)
        if (mr_http_step(copy->tool.net.http, 100, -1) < 0)
            return;
}

/* 0, or -1 with the upload's error, after the session was dropped. */
static int copy_to_object(struct copy *copy)
{
    const char *name = target_name(&copy->to);
    struct mr_transfer_upload_request request = {.store = copy->to.store,
                                                 .name = name,
                                                 .name_length = strlen(name),
                                                 .size = copy->has_size ? copy->size : MR_STORE_ANY,
                                                 .read = read_source,
                                                 .rewind = copy->can_rewind ? rewind_source : NULL,
                                                 .fd = -1,
                                                 .progress = sent};
    if (precondition(copy, name, &request.generation_match) != 0)
        return -1;
    copy->upload = mr_transfer_upload(copy->tool.net.engine, &request, uploaded, copy);
    bool answered;
    int rc = copy->upload ? mr_tool_wait(&copy->tool, &answered) : -1;
    if (rc != 0) {
        struct mr_error why;
        mr_error_keep(&why);
        drop_upload(copy);
        mr_error_restore(&why);
    }
    return rc;
}

/* ---- the command ---- */

static int tool_cp_run(struct copy *copy, const char *from, const char *to)
{
    if (mr_tool_init(&copy->tool) != 0 || parse_place(copy, &copy->from, from) != 0 ||
        parse_place(copy, &copy->to, to) != 0 || tool_cp_complete(&copy->to, &copy->from) != 0)
        return -1;
    if ((copy->from.store ? open_object(copy) : open_file(copy)) != 0)
        return -1;
    mr_progress_begin(&copy->progress, to, copy->size, true);
    if (copy->download && !copy->to.store)
        copy->tool.received = &copy->progress;
    int rc = copy->to.store ? copy_to_object(copy) : copy_to_file(copy);
    mr_progress_end(&copy->progress);
    return rc;
}

static int cp_main(const struct mr_arguments *arguments)
{
    struct copy copy = {.fd = -1, .if_absent = mr_arguments_have(arguments, MR_OPT_IF_ABSENT)};
    int rc = tool_cp_run(&copy, arguments->operands[0], arguments->operands[1]);
    mr_download_destroy(copy.download);
    if (copy.fd > STDIN_FILENO)
        close(copy.fd);
    free(copy.buffer);
    close_place(&copy.from);
    close_place(&copy.to);
    mr_tool_close(&copy.second);
    mr_tool_close(&copy.tool);
    mr_out_pipe_close(&copy.out);
    return rc == 0 ? 0 : mr_tool_fail("cp");
}

int mr_tool_cp(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, cp_main);
}
