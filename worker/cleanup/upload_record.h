/*
 * upload_record.h - reads the logs of uploads (upload_log.h): what is open in one, what the living have under way, and
 * what the dead have left.
 */
#ifndef MR_WORKER_CLEANUP_UPLOAD_RECORD_H
#define MR_WORKER_CLEANUP_UPLOAD_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/uri.h"
#include "worker/cleanup/lock_file.h"

#define MR_UPLOAD_LOG_KIND "uploads" /* of lock file */

#define MR_UPLOAD_FILE       "-" /* in place of a bucket: a temporary file, which the sweep of its folder removes */
#define MR_UPLOAD_PLACE_SIZE 300

/* What an entry has for a bucket: the name of one of gs://, and "s3://" and the name. Returns out. */
const char *mr_upload_place(enum mr_scheme scheme, const char *bucket, char out[MR_UPLOAD_PLACE_SIZE]);

/* An upload that was begun and has not ended. */
struct mr_upload_entry {
    uint64_t number;
    int64_t begun_s;
    char *endpoint, *bucket, *name; /* bucket: as mr_upload_place has it */
    char *id;                       /* NULL: the store's answer is not known */
};
struct mr_upload_entries {
    struct mr_upload_entry *items;
    unsigned count;
    bool partial; /* there was no memory for all, or the log is too long */
};

/* Those of a log of `size` bytes; what is no line of one is passed over. 0, or -1 with mr_error. */
int mr_upload_entries_read(struct mr_upload_entries *entries, int fd, off_t size);
void mr_upload_entries_close(struct mr_upload_entries *entries);
/* Of a bucket's upload: its scheme; *bucket: in the entry. */
enum mr_scheme mr_upload_scheme(const struct mr_upload_entry *entry, const char **bucket);
/* "gs://bucket/name", cut to fit. Returns out. */
const char *mr_upload_uri(const struct mr_upload_entry *entry, char *out, size_t size);

/* Has a living process of this machine that upload under way? */
bool mr_upload_is_live(const char *place, const char *id);

/* An upload that a dead process of this machine has left, and its log. */
typedef void mr_upload_dead_fn(void *arg, const struct mr_upload_entry *entry, const char *path);
/* Calls it for each one with an id that no process can continue, or is dealing with just now. Notes no worker's
 * death. */
void mr_upload_each_dead(mr_upload_dead_fn *found, void *arg);

#endif
