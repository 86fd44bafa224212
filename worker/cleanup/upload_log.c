#include "worker/cleanup/upload_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "worker/cleanup/upload_log_impl.h"
#include "worker/store/text.h"

#define SHORTEN_BYTES (256 << 10) /* of a file in which nothing is open */

struct mr_upload_log {
    int fd;
    char path[PATH_MAX + 80];
    uint64_t next, open;
    uint64_t length;
    bool warned;
};

int mr_upload_log_folder(char path[PATH_MAX])
{
    if (mr_runtime_folder(path) != 0)
        return -1;
    size_t used = strlen(path);
    if (snprintf(path + used, PATH_MAX - used, "/uploads") >= (int)(PATH_MAX - used)) {
        mr_error_set(MR_E_CONFIG, "XDG_RUNTIME_DIR is too long");
        return -1;
    }
    return mr_private_folder(path);
}

struct mr_upload_log *mr_upload_log_new(const struct mr_maker *maker)
{
    char base[PATH_MAX];
    struct stat ours, there;
    if (mr_upload_log_folder(base) != 0)
        return NULL;
    struct mr_upload_log *log = calloc(1, sizeof *log);
    if (!log) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of uploads");
        return NULL;
    }
    snprintf(log->path, sizeof log->path, "%s/%s.%u.%" PRIu32, base, maker->run, maker->slot, maker->start);
    for (unsigned i = 0; i < 10; i++) {
        log->fd = open(log->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (log->fd < 0)
            break;
        /* A janitor may have taken the new file for a dead one's in the moment before the lock, and removed it. */
        if (flock(log->fd, LOCK_EX) == 0 && fstat(log->fd, &ours) == 0 && stat(log->path, &there) == 0 &&
            ours.st_ino == there.st_ino)
            return log;
        close(log->fd);
    }
    mr_error_set_errno(errno, "cannot lock %s", log->path);
    free(log);
    return NULL;
}

void mr_upload_log_destroy(struct mr_upload_log *log)
{
    if (!log)
        return;
    if (log->open == 0)
        unlink(log->path);
    close(log->fd);
    free(log);
}

/* A whole line at once: half of one, at a death, has no newline and is not looked at. 0 or -1. */
static int append(struct mr_upload_log *log, struct mr_text *line)
{
    int rc = -1;
    mr_text_puts(line, "\n");
    if (!line->failed && pwrite(log->fd, line->data, line->length, (off_t)log->length) == (ssize_t)line->length) {
        log->length += line->length;
        rc = 0;
    } else if (!log->warned) {
        log->warned = true;
        mr_log_warning("cannot write %s: %s. After a crash an unfinished upload may stay in the bucket until "
                       "`millrace clean` removes it",
                       log->path, line->failed ? "no memory" : strerror(errno));
    }
    mr_text_close(line);
    return rc;
}

static void start_line(struct mr_text *line, const char *kind, uint64_t number)
{
    mr_text_puts(line, kind);
    mr_text_put_u64(line, number);
}

void mr_upload_log_begin(struct mr_upload_log *log, const struct mr_store *store, const char *bucket, const char *name,
                         size_t name_length, uint64_t *number)
{
    char endpoint[300], credentials[300];
    struct mr_text line = {0};
    *number = 0;
    if (!log)
        return;
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    start_line(&line, "B ", log->next + 1);
    mr_text_puts(&line, " ");
    mr_text_put_u64(&line, (uint64_t)(mr_clock_wall_ns() / MR_SECOND_NS));
    mr_text_puts(&line, " ");
    mr_text_puts(&line, endpoint);
    mr_text_puts(&line, " ");
    mr_text_puts(&line, bucket);
    mr_text_puts(&line, " ");
    mr_text_put_encoded(&line, name, name_length);
    if (append(log, &line) != 0)
        return;
    *number = ++log->next;
    log->open++;
}

void mr_upload_log_id(struct mr_upload_log *log, uint64_t number, const char *id)
{
    struct mr_text line = {0};
    if (!log || number == 0)
        return;
    start_line(&line, "I ", number);
    mr_text_puts(&line, " ");
    mr_text_put_encoded(&line, id, strlen(id));
    (void)append(log, &line);
}

void mr_upload_log_end(struct mr_upload_log *log, uint64_t number)
{
    struct mr_text line = {0};
    if (!log || number == 0)
        return;
    start_line(&line, "E ", number);
    (void)append(log, &line);
    log->open--;
    if (log->open == 0 && log->length > SHORTEN_BYTES && ftruncate(log->fd, 0) == 0)
        log->length = 0;
}
