/*
 * upload_janitor.c - takes the logs of dead write workers, and aborts what is open in them.
 *
 * Each log has a clock of its own: one that cannot be dealt with now (its store does not answer or refuses, is another
 * endpoint's, or its run lives) is put back, for longer each time, and others continue meanwhile.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/control/run_lock.h"
#include "shm/control/runtime_folder.h"
#include "worker/cleanup/upload_log.h"
#include "worker/cleanup/upload_record.h"
#include "worker/store/upload_parts.h"

#define JOBS        4u /* logs that are dealt with side by side */
#define ANSWER_S    20 /* then a store does not answer */
#define AGAIN_S     30 /* after something that failed; twice as long each time */
#define AGAIN_MAX_S 3600
#define GIVE_UP_S   86400 /* after the notice of the death: a log that still fails is not tried again by this process */
#define SCAN_S      60    /* others on this machine may die at any time */
#define RECORDS_MAX 4096u
#define NEVER       INT64_MAX

/* A log that stays for now. */
struct record {
    struct record *next;
    char name[80];
    int64_t due_ns;
    unsigned failures; /* in a row */
    bool said;         /* what there is to say about it */
    bool seen, busy;
};

/* A log in work. */
struct job {
    struct mr_upload_janitor *janitor;
    struct record *record;
    int fd; /* -1: none */
    char path[MR_LOCK_FILE_PATH_SIZE];
    struct mr_upload_entries entries;
    unsigned next;
    bool late;         /* nothing of its process is under way any more */
    int64_t noticed_s; /* when its process was found dead */
    bool failed;
    struct mr_transfer *transfer;
    int64_t since_ns; /* of the transfer */
};

struct mr_upload_janitor {
    struct mr_net *net;
    int late_s;
    int64_t now_ns;  /* of the last step */
    int64_t scan_ns; /* the next look into the folder */
    struct record *records;
    unsigned count;
    struct job jobs[JOBS];
};

/* ---- its entries ---- */

static void upload_janitor_go_on(struct job *job);

static void note_failure(struct job *job, const char *text)
{
    if (!job->record->said)
        mr_log_warning("an unfinished upload of a dead run was not removed: %s", text);
    job->record->said = job->failed = true;
}

static void on_aborted(void *arg, const struct mr_store_result *result)
{
    struct job *job = arg;
    char uri[400];
    job->transfer = NULL;
    if (result->code != MR_OK)
        note_failure(job, result->text);
    else if (!job->record->said)
        mr_log_info("an unfinished upload of a dead run was removed: %s",
                    mr_upload_uri(&job->entries.items[job->next], uri, sizeof uri));
    job->next++;
    upload_janitor_go_on(job);
}

/*
 * An upload that may have been begun, by a request whose response was not seen. The store's list of uploads has names
 * and times, and nothing that says whose they are: another job's, or another machine's, of the same name may be among
 * them.
 */
static void leave_unknown(struct job *job, const struct mr_upload_entry *entry)
{
    char uri[400];
    if (!job->record->said)
        mr_log_info("a run ended while it began an upload of %s: whether the store has begun it is not known. If so, "
                    "millrace clean or a lifecycle rule of the bucket removes it when it is a day old",
                    mr_upload_uri(entry, uri, sizeof uri));
}

/* Its store, if it is of the endpoint that we use. */
static struct mr_store *store_of(struct mr_upload_janitor *j, const struct mr_upload_entry *entry)
{
    const char *bucket;
    enum mr_scheme scheme = mr_upload_scheme(entry, &bucket);
    struct mr_store *store = mr_net_store(j->net, scheme, bucket);
    if (!store)
        return NULL;
    char endpoint[300], credentials[300];
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    return strcmp(endpoint, entry->endpoint) == 0 ? store : NULL;
}

/* A request for it; NULL: none, and job->failed says whether there ought to be one. */
static struct mr_transfer *start_one(struct job *job, const struct mr_upload_entry *entry)
{
    struct mr_upload_janitor *j = job->janitor;
    if (strcmp(entry->bucket, MR_UPLOAD_FILE) == 0)
        return NULL;
    if (!entry->id) {
        leave_unknown(job, entry);
        return NULL;
    }
    struct mr_store *store = store_of(j, entry);
    if (!store || mr_upload_is_live(entry->bucket, entry->id)) { /* for a worker that uses that endpoint; for its own */
        job->failed = true;
        return NULL;
    }
    struct mr_transfer *transfer =
        mr_transfer_parts_abort(j->net->engine, store, entry->name, strlen(entry->name), entry->id, on_aborted, job);
    if (!transfer)
        note_failure(job, mr_error_text());
    return transfer;
}

/* Decides what becomes of the file: deleted where nothing more can come, or looked at again, later each time it
 * fails. */
static void end_job(struct job *job)
{
    struct record *record = job->record;
    int64_t now_ns = job->janitor->now_ns, wait_s = job->janitor->late_s + 1;
    bool known = false;
    for (unsigned i = 0; i < job->entries.count; i++)
        known |= job->entries.items[i].id && strcmp(job->entries.items[i].bucket, MR_UPLOAD_FILE) != 0;
    if (job->failed) {
        unsigned doublings = record->failures < 7 ? record->failures : 7;
        record->failures++;
        wait_s = (int64_t)AGAIN_S << doublings < AGAIN_MAX_S ? (int64_t)AGAIN_S << doublings : AGAIN_MAX_S;
    } else if (job->late || !known) {
        unlink(job->path);
    } else { /* once more, for what its process's last requests bring */
        record->failures = 0;
        record->said = true;
    }
    record->due_ns = now_ns + wait_s * MR_SECOND_NS;
    if (job->failed && time(NULL) - job->noticed_s > GIVE_UP_S)
        record->due_ns = NEVER;
    record->busy = false;
    close(job->fd);
    job->fd = -1;
    mr_upload_entries_close(&job->entries);
    job->janitor->scan_ns = now_ns; /* there is room for another one */
}

/* The next request; after the last one, the end of the log. */
static void upload_janitor_go_on(struct job *job)
{
    while (job->next < job->entries.count && !job->transfer) {
        job->transfer = start_one(job, &job->entries.items[job->next]);
        job->since_ns = job->janitor->now_ns;
        if (!job->transfer)
            job->next++;
    }
    if (!job->transfer)
        end_job(job);
}

/* ---- the folder ---- */

/* What is remembered of the file of that name; NULL where too many are remembered already. */
static struct record *record_of(struct mr_upload_janitor *j, const char *name)
{
    for (struct record *record = j->records; record; record = record->next)
        if (strcmp(record->name, name) == 0)
            return record;
    size_t length = strlen(name);
    struct record *record = NULL;
    if (j->count < RECORDS_MAX && length < sizeof record->name)
        record = calloc(1, sizeof *record);
    if (!record)
        return NULL;
    memcpy(record->name, name, length);
    record->next = j->records;
    j->records = record;
    j->count++;
    return record;
}

static bool is_same(const void *one, const struct mr_maker *other)
{
    return mr_maker_equal(one, other);
}

/* Takes the log if it is a dead process's and its time has come. */
static bool take_file(struct job *job, const char *folder, struct record *record)
{
    struct mr_maker maker;
    struct stat status;
    snprintf(job->path, sizeof job->path, "%s/%s", folder, record->name);
    job->fd = mr_maker_parse_file(record->name, &maker) ? mr_lock_file_take(job->path, &status) : -1;
    if (job->fd < 0)
        return false;
    job->late = mr_lock_file_is_late(job->fd, &status, job->janitor->late_s);
    /* If the whole run is known to be dead, no process can continue it. Else a successor may be on its way. */
    if (mr_lock_file_run_lives(MR_UPLOAD_LOG_KIND, maker.run, is_same, &maker) ||
        (!job->late && mr_run_lock_look(maker.run) != MR_RUN_DEAD) ||
        mr_upload_entries_read(&job->entries, job->fd, status.st_size) != 0) {
        close(job->fd);
        job->fd = -1;
        return false;
    }
    job->record = record;
    job->next = 0;
    job->noticed_s = status.st_ctime;
    job->failed = job->entries.partial;
    record->busy = true;
    return true;
}

static struct job *free_job(struct mr_upload_janitor *j)
{
    for (unsigned i = 0; i < JOBS; i++)
        if (j->jobs[i].fd < 0)
            return &j->jobs[i];
    return NULL;
}

/* Forgets the records of logs that no longer exist, and notes when the next one is due (where none is free, a job's end
 * is). */
static void tidy(struct mr_upload_janitor *j, int64_t now_ns)
{
    bool room = free_job(j) != NULL;
    j->scan_ns = now_ns + SCAN_S * MR_SECOND_NS;
    for (struct record **at = &j->records; *at;) {
        struct record *record = *at;
        if (!record->seen && !record->busy) {
            *at = record->next;
            free(record);
            j->count--;
            continue;
        }
        if (room && !record->busy && record->due_ns < j->scan_ns)
            j->scan_ns = record->due_ns;
        at = &record->next;
    }
}

/* Starts jobs for the files that are due, as far as there are free ones. */
static void scan_folder(struct mr_upload_janitor *j, int64_t now_ns)
{
    char folder[PATH_MAX];
    DIR *dir = mr_runtime_folder(MR_UPLOAD_LOG_KIND, folder) == 0 ? opendir(folder) : NULL;
    for (struct record *record = j->records; record; record = record->next)
        record->seen = false;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct mr_maker maker;
        struct record *record = mr_maker_parse_file(entry->d_name, &maker) ? record_of(j, entry->d_name) : NULL;
        if (!record)
            continue;
        record->seen = true;
        struct job *job = free_job(j);
        if (record->busy || record->due_ns > now_ns || !job)
            continue;
        if (take_file(job, folder, record))
            upload_janitor_go_on(job);
        else
            record->due_ns = now_ns + (j->late_s + 1) * MR_SECOND_NS;
    }
    if (dir)
        closedir(dir);
    tidy(j, now_ns);
}

/* ---- life ---- */

struct mr_upload_janitor *mr_upload_janitor_new(struct mr_net *net, int late_s)
{
    struct mr_upload_janitor *j = calloc(1, sizeof *j);
    if (!j) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the unfinished uploads of dead runs");
        return NULL;
    }
    j->net = net;
    j->late_s = late_s;
    for (unsigned i = 0; i < JOBS; i++) {
        j->jobs[i].janitor = j;
        j->jobs[i].fd = -1;
    }
    return j;
}

void mr_upload_janitor_destroy(struct mr_upload_janitor *j)
{
    if (!j)
        return;
    for (unsigned i = 0; i < JOBS; i++) {
        struct job *job = &j->jobs[i];
        if (job->transfer)
            mr_transfer_cancel(j->net->engine, job->transfer);
        if (job->fd >= 0)
            close(job->fd);
        mr_upload_entries_close(&job->entries);
    }
    for (struct record *next; j->records; j->records = next) {
        next = j->records->next;
        free(j->records);
    }
    free(j);
}

void mr_upload_janitor_step(struct mr_upload_janitor *j, int64_t now_ns)
{
    j->now_ns = now_ns;
    for (unsigned i = 0; i < JOBS; i++) {
        struct job *job = &j->jobs[i];
        if (!job->transfer || now_ns - job->since_ns < ANSWER_S * MR_SECOND_NS)
            continue;
        mr_transfer_cancel(j->net->engine, job->transfer);
        job->transfer = NULL;
        const struct mr_upload_entry *entry = &job->entries.items[job->next];
        char uri[400], text[800];
        snprintf(text, sizeof text, "%s: its store, %.300s, does not answer", mr_upload_uri(entry, uri, sizeof uri),
                 entry->endpoint);
        note_failure(job, text);
        job->next++;
        upload_janitor_go_on(job);
    }
    if (now_ns >= j->scan_ns)
        scan_folder(j, now_ns);
}

bool mr_upload_janitor_busy(const struct mr_upload_janitor *j)
{
    bool busy = false;
    for (unsigned i = 0; i < JOBS; i++)
        busy |= j->jobs[i].fd >= 0;
    return busy;
}
