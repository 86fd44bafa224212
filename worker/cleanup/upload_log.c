#include "worker/cleanup/upload_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "worker/cleanup/upload_record.h"
#include "worker/store/text.h"

#define SHORTEN_BYTES (256 << 10) /* of a file in which nothing is open */

struct mr_upload_log {
    int fd;
    char path[MR_LOCK_FILE_PATH_SIZE];
    uint64_t next, open;
    uint64_t length;
    bool warned;
};

struct mr_upload_log *mr_upload_log_new(const struct mr_maker *maker)
{
    struct mr_upload_log *log = calloc(1, sizeof *log);
    if (!log) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a list of uploads");
        return NULL;
    }
    log->fd = mr_lock_file_new(MR_UPLOAD_LOG_KIND, maker, log->path);
    if (log->fd >= 0)
        return log;
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

/* A whole line at once: half of one, at a death, has no newline and is ignored. 0 or -1. */
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
    struct mr_text line = {0};
    *number = 0;
    if (!log)
        return;
    char endpoint[300], credentials[300];
    char place[MR_UPLOAD_PLACE_SIZE];
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    mr_upload_place(mr_store_scheme(store), bucket, place);
    if (mr_store_scheme(store) == MR_SCHEME_FILE) {
        snprintf(endpoint, sizeof endpoint, "file");
        snprintf(place, sizeof place, MR_UPLOAD_FILE);
    }
    start_line(&line, "B ", log->next + 1);
    mr_text_puts(&line, " ");
    mr_text_put_u64(&line, (uint64_t)(mr_clock_wall_ns() / MR_SECOND_NS));
    mr_text_puts(&line, " ");
    mr_text_puts(&line, endpoint);
    mr_text_puts(&line, " ");
    mr_text_puts(&line, place);
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
