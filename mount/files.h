/*
 * files.h - files that are open: each an object of a data set that is read by ranges (shm/ring/range_reader.h), through
 * lanes of this process. Used by the threads of libfuse, with one connection and a lock on it. A lane that its file does
 * not need just now goes to another one: any number may be open, or mapped.
 */
#ifndef MR_MOUNT_FILES_H
#define MR_MOUNT_FILES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/log.h"
#include "shm/control/client.h"
#include "shm/index/index.h"

struct mr_files {
    struct mr_client *client;
    pthread_mutex_t lock;            /* of the client */
    struct mr_file *newest, *oldest; /* under the lock: those with a lane, by their last read */
    unsigned lanes;                  /* how many they are */
    uint64_t dataset;
    uint64_t block_bytes;
    struct mr_index index;
    atomic_bool ending;       /* waits end with EINTR */
    int (*interrupted)(void); /* whether the process that reads is to end */
    const char *label;        /* the URI, for messages */
    struct mr_log_limit failed[MR_E_COUNT];
};

struct mr_file;

/* Connects, has what is under the URI listed, and waits for that, or until *ended is set (by a signal). 0 or -1; call
 * mr_files_close even then. */
int mr_files_init(struct mr_files *files, const char *socket_path, const char *uri, const volatile int *ended,
                  int (*interrupted)(void));
void mr_files_close(struct mr_files *files);
/* Object `number`, whose name in messages is `path`. NULL: NO_MEMORY, CORRUPT. */
struct mr_file *mr_file_open(struct mr_files *files, uint64_t number, const char *path);
/* Reads what there is of [offset, offset + length). Returns how much, or -errno, after a line in the log (none for
 * EINTR). Blocks. */
ssize_t mr_file_read(struct mr_file *file, uint64_t offset, void *buffer, size_t length);
void mr_file_close(struct mr_file *file);

#endif
