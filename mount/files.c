#include "mount/files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/index/shards.h"
#include "shm/ring/range_reader.h"

#define BLOCK_BYTES (UINT64_C(8) << 20)
#define SLICE_MS    100 /* between two checks for what else ends a wait */
#define BUSY_US     2000
#define BUSY_S      10
#define CONNECT_MS  2000
#define LANES_MAX   128 /* more only where as many files are being read: a job beside the mount needs lanes too */
#define RESTED_S    10  /* without a read */

struct mr_file {
    struct mr_files *files;
    struct mr_range_reader *reader;
    pthread_mutex_t lock; /* reads take turns */
    struct mr_file *newer, *older;
    char *path;
    int64_t read_ns; /* when it was read last */
    uint32_t lane;
    bool has_lane;
};

/* ---- the data set ---- */

/* Waits for room at the supervisor where there will be some. */
static int open_listing(struct mr_files *files, const char *const *uri, const volatile int *ended,
                        struct mr_opened *opened)
{
    const struct mr_to_open what = {
        .names_fd = -1, .uris = uri, .uri_count = 1, .format = "objects", .nth = 1, .block_bytes = BLOCK_BYTES};
    while (mr_client_open_dataset(files->client, &what, opened) != 0) {
        if (mr_error_code() != MR_E_BUSY || *ended)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 10 * MR_MILLISECOND_NS}, NULL);
    }
    return 0;
}

/* 0 once the data set is READY and the client has its views; -1 with mr_error, also once *ended is set. */
static int await_listing(struct mr_files *files, const volatile int *ended)
{
    for (;;) {
        enum mr_dataset_state state = mr_client_dataset_state(files->client, files->dataset);
        if (state == MR_DATASET_FAILED)
            return -1;
        if (state == MR_DATASET_READY) {
            if (mr_client_views(files->client))
                return 0;
            if (mr_error_code() != MR_E_BUSY)
                return -1;
        }
        if (*ended) {
            mr_error_set(MR_E_GONE, "ended while %s was being listed", files->label);
            return -1;
        }
        if (mr_client_check(files->client) != 0)
            return -1;
        usleep(BUSY_US);
    }
}

int mr_files_init(struct mr_files *files, const char *socket_path, const char *uri, const volatile int *ended,
                  int (*interrupted)(void))
{
    int fd;
    uint64_t size;
    struct mr_opened opened;
    *files = (struct mr_files){.label = uri, .interrupted = interrupted};
    pthread_mutex_init(&files->lock, NULL);
    files->client = mr_client_connect(socket_path, "job", CONNECT_MS);
    if (!files->client || open_listing(files, &uri, ended, &opened) != 0)
        return -1;
    files->dataset = opened.dataset;
    if (await_listing(files, ended) != 0 || mr_client_index(files->client, files->dataset, &fd, &size) != 0)
        return -1;
    files->block_bytes = mr_client_dataset_block(files->client, files->dataset);
    int rc = mr_index_map(&files->index, fd);
    close(fd);
    return rc;
}

void mr_files_close(struct mr_files *files)
{
    mr_index_close(&files->index);
    if (files->client)
        mr_client_destroy(files->client);
    pthread_mutex_destroy(&files->lock);
}

/* ---- a file ---- */

struct mr_file *mr_file_open(struct mr_files *files, uint64_t number, const char *path)
{
    struct mr_index_entry entry;
    struct mr_file *file = calloc(1, sizeof *file);
    char *uri = mr_index_describe(&files->index, number, NULL);
    if (file && uri && mr_index_get(&files->index, number, &entry, NULL) == 0) {
        file->files = files;
        file->path = strdup(path);
        pthread_mutex_init(&file->lock, NULL);
        struct mr_range_source source = {.label = uri,
                                         .dataset = mr_dataset_number(files->dataset),
                                         .object = number,
                                         .size = entry.size,
                                         .block_bytes = files->block_bytes,
                                         .exact = true,
                                         .crc32c = entry.crc32c,
                                         .has_crc32c = entry.has_crc32c};
        file->reader = file->path ? mr_range_reader_new(&source) : NULL;
        if (file->reader) {
            free(uri);
            return file;
        }
        pthread_mutex_destroy(&file->lock);
        free(file->path);
    }
    free(uri);
    free(file);
    if (mr_error_code() == MR_OK)
        mr_error_set(MR_E_NO_MEMORY, "no memory for an open file");
    return NULL;
}

/* ---- lanes: call what ends in _locked with files->lock held ---- */

static void take_out_locked(struct mr_file *file)
{
    struct mr_files *files = file->files;
    *(file->newer ? &file->newer->older : &files->newest) = file->older;
    *(file->older ? &file->older->newer : &files->oldest) = file->newer;
    files->lanes--;
}

static void put_first_locked(struct mr_file *file)
{
    struct mr_files *files = file->files;
    file->newer = NULL;
    file->older = files->newest;
    *(file->older ? &file->older->newer : &files->oldest) = file;
    files->newest = file;
    files->lanes++;
}

/* The file's lock is held, too. */
static void close_lane_locked(struct mr_file *file)
{
    take_out_locked(file);
    mr_client_close_lane(file->files->client, file->lane);
    file->has_lane = false;
}

static void let_lane_go(struct mr_file *file)
{
    if (!file->has_lane)
        return;
    pthread_mutex_lock(&file->files->lock);
    close_lane_locked(file);
    pthread_mutex_unlock(&file->files->lock);
}

/* Of the file that was read longest ago, before a time, and that nobody reads now: it takes another one at its next
 * read. false: there is none. */
static bool take_lane_back_locked(struct mr_files *files, int64_t before_ns)
{
    for (struct mr_file *file = files->oldest; file; file = file->newer) {
        if (pthread_mutex_trylock(&file->lock) != 0)
            continue;
        bool rests = file->read_ns < before_ns;
        if (rests) {
            mr_range_reader_rest(file->reader);
            close_lane_locked(file);
        }
        pthread_mutex_unlock(&file->lock);
        return rests;
    }
    return false;
}

void mr_file_close(struct mr_file *file)
{
    pthread_mutex_lock(&file->lock);
    mr_range_reader_destroy(file->reader);
    let_lane_go(file);
    pthread_mutex_unlock(&file->lock);
    pthread_mutex_destroy(&file->lock);
    free(file->path);
    free(file);
}

/* NULL with mr_error. */
static struct mr_consumer *open_lane_locked(struct mr_files *files, uint32_t *number)
{
    struct mr_lane lane;
    if (!mr_client_views(files->client) || mr_client_open_lane(files->client, files->dataset, MR_RANGE_LANE_WINDOW,
                                                               MR_RANGE_LANE_WINDOW, NULL, &lane, NULL, NULL) != 0)
        return NULL;
    struct mr_views *views = mr_client_views(files->client); /* the lane's */
    struct mr_consumer *consumer = views ? mr_consumer_new(&lane, views) : NULL;
    *number = lane.lane;
    if (!consumer) {
        mr_lane_unmap(&lane);
        mr_client_close_lane(files->client, *number);
    }
    return consumer;
}

/* The same, if need be with the lane of another file. */
static struct mr_consumer *get_lane_locked(struct mr_file *file)
{
    struct mr_files *files = file->files;
    int64_t rested_ns = mr_clock_mono_ns() - RESTED_S * MR_SECOND_NS;
    while (take_lane_back_locked(files, files->lanes < LANES_MAX ? rested_ns : INT64_MAX))
        ;
    struct mr_consumer *consumer = open_lane_locked(files, &file->lane);
    while (!consumer && mr_error_code() == MR_E_NO_MEMORY && take_lane_back_locked(files, INT64_MAX))
        consumer = open_lane_locked(files, &file->lane);
    file->has_lane = consumer != NULL;
    if (consumer)
        put_first_locked(file);
    return consumer;
}

static bool is_ending(const struct mr_files *files)
{
    return atomic_load(&files->ending) || files->interrupted();
}

/* Gives the reader a new lane, in place of the one that it had. BUSY lasts only while the memory is divided again. 0,
 * EINTR, or -1. */
static int files_open_lane(struct mr_file *file)
{
    int64_t deadline_ns = mr_clock_mono_ns() + BUSY_S * MR_SECOND_NS;
    let_lane_go(file);
    for (;;) {
        pthread_mutex_lock(&file->files->lock);
        struct mr_consumer *consumer = get_lane_locked(file);
        pthread_mutex_unlock(&file->files->lock);
        if (consumer) {
            mr_range_reader_give(file->reader, consumer);
            return 0;
        }
        if (mr_error_code() != MR_E_BUSY || mr_clock_mono_ns() > deadline_ns)
            return -1;
        if (is_ending(file->files))
            return EINTR;
        usleep(BUSY_US);
    }
}

/* 0 to go on waiting; EINTR; -1 with mr_error. */
static int check_wait(struct mr_files *files, struct mr_silence *silence)
{
    if (is_ending(files))
        return EINTR;
    pthread_mutex_lock(&files->lock);
    int rc = mr_client_check_wait(files->client, silence);
    pthread_mutex_unlock(&files->lock);
    return rc;
}

static int to_errno(enum mr_code code)
{
    switch (code) {
    case MR_E_NOT_FOUND:
        return ENOENT;
    case MR_E_DENIED:
        return EACCES;
    case MR_E_CHANGED:
        return ESTALE;
    case MR_E_NO_MEMORY:
        return ENOMEM;
    default:
        return EIO;
    }
}

/* Logs mr_error, and returns it as -errno. */
static ssize_t files_fail(const struct mr_file *file)
{
    enum mr_code code = mr_error_code();
    mr_log_limited(&file->files->failed[code], MR_LOG_ERROR, "%s: %s", file->path, mr_error_text());
    return -to_errno(code);
}

/* The file's lock is held. How many bytes, or -errno. */
static ssize_t read_locked(struct mr_file *file, uint64_t offset, char *buffer, size_t length)
{
    uint64_t done = 0, got;
    struct mr_silence silence = {0};
    for (;;) {
        enum mr_range_result result =
            mr_range_reader_read(file->reader, offset + done, buffer + done, length - done, SLICE_MS, &got);
        done += got;
        if (got > 0)
            silence = (struct mr_silence){0};
        if (result == MR_RANGE_OK)
            return (ssize_t)done;
        int rc = result == MR_RANGE_FAILED ? -1 : 0;
        if (result == MR_RANGE_LANE)
            rc = files_open_lane(file);
        else if (result == MR_RANGE_WAIT)
            rc = check_wait(file->files, &silence);
        if (rc != 0)
            return rc == EINTR ? -EINTR : files_fail(file);
    }
}

ssize_t mr_file_read(struct mr_file *file, uint64_t offset, void *buffer, size_t length)
{
    pthread_mutex_lock(&file->lock);
    file->read_ns = mr_clock_mono_ns();
    if (file->has_lane && pthread_mutex_trylock(&file->files->lock) == 0) { /* else it is not the newest now */
        take_out_locked(file);
        put_first_locked(file);
        pthread_mutex_unlock(&file->files->lock);
    }
    ssize_t got = read_locked(file, offset, buffer, length);
    pthread_mutex_unlock(&file->lock);
    return got;
}
