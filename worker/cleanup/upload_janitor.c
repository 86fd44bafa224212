/* upload_janitor.c - reads the files of dead write workers, and aborts what they have left. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/error.h"
#include "shm/base/log.h"
#include "worker/cleanup/upload_log.h"
#include "worker/cleanup/upload_log_impl.h"
#include "worker/store/upload_parts.h"

#define FILE_MAX_BYTES (4 << 20)
#define AGAIN_S        30   /* after something that failed */
#define CLOCK_S        5    /* that the store's clock may differ */
#define FOUND_MAX      64u  /* uploads of one name that are aborted after one listing */
#define NAMES_MAX      256u /* files that are considered in one scan */

/* What is open in a file. */
struct entry {
    uint64_t number, begun_s;
    char *endpoint, *bucket, *name, *id; /* id: NULL where the answer was lost */
};

struct mr_upload_janitor {
    struct mr_net *net;
    int late_s;
    int64_t scan_ns; /* the next scan of the folder; 0: none */
    bool waits;      /* a file was seen whose time has not come */
    unsigned turn;   /* where the next scan begins: one file that cannot be dealt with does not hide the others */
    /* the file in work */
    int fd; /* -1: none */
    char path[MR_LOCK_FILE_PATH_SIZE];
    struct entry *entries;
    unsigned count, next;
    int64_t noticed_s; /* when its process was found dead */
    bool failed;
    struct mr_transfer *transfer;
    /* of an entry without an id: what was found under its name */
    char *found[FOUND_MAX];
    unsigned found_count;
    char *page_name, *page_id;
};

/* ---- a file ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place: NULL where it is not percent-encoded as it should be, or holds a NUL. */
static char *decode(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        int high, low;
        if ((high = hex(at[1])) < 0 || (low = hex(at[2])) < 0 || high + low == 0)
            return NULL;
        *to++ = (char)(high << 4 | low);
        at += 2;
    }
    *to = 0;
    return text;
}

static void entry_close(struct entry *entry)
{
    free(entry->endpoint);
    free(entry->bucket);
    free(entry->name);
    free(entry->id);
}

static struct entry *find(struct mr_upload_janitor *j, uint64_t number)
{
    for (unsigned i = 0; i < j->count; i++)
        if (j->entries[i].number == number)
            return &j->entries[i];
    return NULL;
}

/* A word of the line; NULL: there is none. */
static char *word(char **at)
{
    char *begin = strsep(at, " ");
    return begin && *begin ? begin : NULL;
}

static void add_entry(struct mr_upload_janitor *j, uint64_t number, char *rest)
{
    char *time = word(&rest), *endpoint = word(&rest), *bucket = word(&rest), *name = word(&rest);
    if (!name || !decode(name))
        return;
    struct entry *entries = realloc(j->entries, (j->count + 1) * sizeof *entries);
    if (!entries)
        return;
    j->entries = entries;
    struct entry entry = {.number = number,
                          .begun_s = strtoull(time, NULL, 10),
                          .endpoint = strdup(endpoint),
                          .bucket = strdup(bucket),
                          .name = strdup(name)};
    if (entry.endpoint && entry.bucket && entry.name)
        j->entries[j->count++] = entry;
    else
        entry_close(&entry);
}

static void read_line(struct mr_upload_janitor *j, char *line)
{
    char *rest = line, *kind = word(&rest), *number = word(&rest), *end = NULL;
    uint64_t n = number ? strtoull(number, &end, 10) : 0;
    struct entry *entry = n ? find(j, n) : NULL;
    if (n == 0 || *end)
        return;
    if (strcmp(kind, "B") == 0 && !entry && rest) {
        add_entry(j, n, rest);
    } else if (strcmp(kind, "I") == 0 && entry && rest) {
        char *id = word(&rest);
        free(entry->id);
        entry->id = id && decode(id) ? strdup(id) : NULL;
    } else if (strcmp(kind, "E") == 0 && entry) {
        entry_close(entry);
        *entry = j->entries[--j->count];
    }
}

static void forget_file(struct mr_upload_janitor *j, bool done)
{
    if (done)
        unlink(j->path);
    close(j->fd);
    j->fd = -1;
    for (unsigned i = 0; i < j->count; i++)
        entry_close(&j->entries[i]);
    free(j->entries);
    j->entries = NULL;
    j->count = j->next = 0;
}

static bool is_same(const void *one, const struct mr_maker *other)
{
    return mr_maker_equal(one, other);
}

/* Takes the file if it is a dead process's and its time has come. */
static bool take_file(struct mr_upload_janitor *j, const char *folder, const char *name)
{
    char *text = NULL;
    snprintf(j->path, sizeof j->path, "%s/%s", folder, name);
    struct mr_maker maker;
    struct stat status;
    j->fd = mr_maker_parse_file(name, &maker) ? mr_lock_file_take(j->path, &status) : -1;
    if (j->fd < 0)
        return false;
    if (!mr_lock_file_is_late(j->fd, &status, j->late_s) ||
        mr_lock_file_run_lives(MR_UPLOAD_LOG_KIND, maker.run, is_same, &maker)) {
        j->waits = true;
        goto not_now;
    }
    ssize_t length = status.st_size < FILE_MAX_BYTES ? (ssize_t)status.st_size : FILE_MAX_BYTES;
    text = malloc((size_t)length + 1);
    if (!text || pread(j->fd, text, (size_t)length, 0) != length)
        goto not_now;
    text[length] = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        read_line(j, line);
    }
    free(text);
    j->next = 0;
    j->noticed_s = status.st_ctime;
    j->failed = false;
    return true;
not_now:
    free(text);
    close(j->fd);
    j->fd = -1;
    return false;
}

static void scan_folder(struct mr_upload_janitor *j, int64_t now_ns)
{
    j->scan_ns = 0;
    j->waits = false;
    char folder[PATH_MAX];
    DIR *dir = mr_lock_file_folder(MR_UPLOAD_LOG_KIND, folder) == 0 ? opendir(folder) : NULL;
    if (!dir)
        return;
    unsigned count = 0;
    char names[NAMES_MAX][NAME_MAX + 1];
    for (struct dirent *entry; count < NAMES_MAX && (entry = readdir(dir));)
        if (entry->d_name[0] != '.')
            snprintf(names[count++], sizeof names[0], "%s", entry->d_name);
    closedir(dir);
    bool taken = false;
    for (unsigned i = 0; i < count && !taken; i++)
        taken = take_file(j, folder, names[j->turn++ % count]);
    if (!taken && j->waits)
        j->scan_ns = now_ns + (j->late_s + 1) * MR_SECOND_NS;
}

/* ---- its entries ---- */

static void go_on(struct mr_upload_janitor *j);

static void note_failure(struct mr_upload_janitor *j, const char *text)
{
    if (!j->failed)
        mr_log_warning("an unfinished upload of a dead run was not removed: %s", text);
    j->failed = true;
}

static void on_aborted(void *arg, const struct mr_store_result *result)
{
    struct mr_upload_janitor *j = arg;
    j->transfer = NULL;
    if (result->code != MR_OK)
        note_failure(j, result->text);
    else
        mr_log_info("an unfinished upload of a dead run was removed: gs://%s/%s", j->entries[j->next].bucket,
                    j->entries[j->next].name);
    if (j->found_count == 0)
        j->next++;
    go_on(j);
}

static void on_page(void *arg, const struct mr_store_result *result, const struct mr_store_pending_page *page)
{
    struct mr_upload_janitor *j = arg;
    const struct entry *entry = &j->entries[j->next];
    j->transfer = NULL;
    free(j->page_name);
    free(j->page_id);
    j->page_name = j->page_id = NULL;
    if (result->code != MR_OK) {
        note_failure(j, result->text);
        j->next++;
        go_on(j);
        return;
    }
    for (size_t i = 0; i < page->count && j->found_count < FOUND_MAX; i++) {
        const struct mr_store_pending *item = &page->items[i];
        int64_t begun = (int64_t)entry->begun_s;
        if (item->name_length == strlen(entry->name) && memcmp(item->name, entry->name, item->name_length) == 0 &&
            item->started_s >= begun - CLOCK_S && item->started_s <= j->noticed_s + CLOCK_S &&
            (j->found[j->found_count] = strdup(item->id)))
            j->found_count++;
    }
    if (page->next_name && page->next_id) {
        j->page_name = strdup(page->next_name);
        j->page_id = strdup(page->next_id);
    }
    if (!j->page_name && j->found_count == 0)
        j->next++;
    go_on(j);
}

/* Its store, if it is of the endpoint that we use. */
static struct mr_store *store_of(struct mr_upload_janitor *j, const struct entry *entry)
{
    struct mr_store *store = mr_net_store(j->net, MR_SCHEME_GS, entry->bucket);
    if (!store)
        return NULL;
    char endpoint[300], credentials[300];
    mr_store_describe(store, endpoint, sizeof endpoint, credentials, sizeof credentials);
    return strcmp(endpoint, entry->endpoint) == 0 ? store : NULL;
}

static struct mr_transfer *start_one(struct mr_upload_janitor *j, struct mr_store *store, const struct entry *entry)
{
    struct mr_transfer_engine *engine = j->net->engine;
    size_t length = strlen(entry->name);
    if (entry->id)
        return mr_transfer_parts_abort(engine, store, entry->name, length, entry->id, on_aborted, j);
    if (j->found_count == 0 || j->page_name)
        return mr_transfer_parts_list(engine, store, entry->name, j->page_name, j->page_id, on_page, j);
    char *id = j->found[--j->found_count];
    struct mr_transfer *transfer = mr_transfer_parts_abort(engine, store, entry->name, length, id, on_aborted, j);
    free(id); /* copied */
    return transfer;
}

/* The next request; at the end of the file, the next scan. */
static void go_on(struct mr_upload_janitor *j)
{
    while (j->next < j->count && !j->transfer) {
        const struct entry *entry = &j->entries[j->next];
        struct mr_store *store = store_of(j, entry);
        if (!store) { /* its file stays for a worker that uses that endpoint */
            j->failed = true;
            j->next++;
            continue;
        }
        j->transfer = start_one(j, store, entry);
        if (!j->transfer) {
            note_failure(j, mr_error_text());
            j->next++;
        }
    }
    if (j->transfer)
        return;
    bool failed = j->failed;
    forget_file(j, !failed);
    /* What failed, or is another endpoint's, comes again later; others at once. */
    j->scan_ns = mr_clock_mono_ns() + (failed ? AGAIN_S * MR_SECOND_NS : 0);
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
    j->fd = -1;
    j->scan_ns = 1; /* in the first step */
    return j;
}

void mr_upload_janitor_destroy(struct mr_upload_janitor *j)
{
    if (!j)
        return;
    if (j->transfer)
        mr_transfer_cancel(j->net->engine, j->transfer);
    while (j->found_count > 0)
        free(j->found[--j->found_count]);
    free(j->page_name);
    free(j->page_id);
    if (j->fd >= 0)
        forget_file(j, false);
    free(j);
}

void mr_upload_janitor_step(struct mr_upload_janitor *j, int64_t now_ns)
{
    if (j->fd >= 0 || j->scan_ns == 0 || j->scan_ns > now_ns)
        return;
    scan_folder(j, now_ns);
    if (j->fd >= 0)
        go_on(j);
}

bool mr_upload_janitor_busy(const struct mr_upload_janitor *j)
{
    return j->fd >= 0;
}
