/*
 * dataset.h - the data sets of a run. The same URIs share one.
 *
 *     NEW --(a list worker takes a range)--> LISTING --> indexed --(arenas are there)--> READY
 *                                               |            |                              |
 *                                               +------------+-----------> FAILED <---------+
 *
 * "Indexed" is LISTING on the board still: READY there means that a reader can begin. Ranges of names lie between the
 * data set's URIs and its index: the name space is cut where list workers are idle (listing.c), each range gives one
 * part of the index, and the parts are put together in order.
 */
#ifndef MR_SUPERVISOR_DATASET_H
#define MR_SUPERVISOR_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/base/error.h"
#include "shm/board.h"
#include "shm/config.h"
#include "shm/index.h"
#include "shm/msg.h"
#include "supervisor/ranges.h"

struct mr_supervisor;
struct mr_child;

struct mr_dataset {
    struct mr_supervisor *supervisor;
    uint32_t number;
    enum mr_dataset_state state; /* as on the board */
    bool indexed;
    char *name;             /* in the TOML; NULL */
    struct mr_strings uris; /* sorted, none a prefix of another */
    int names;              /* an explicit list instead; -1 */
    struct mr_ranges ranges;
    struct mr_child *concat; /* who puts the parts together */
    int index;               /* read-only descriptor; -1 */
    uint64_t index_bytes, objects, bytes, largest;
    char digest[MR_INDEX_DIGEST_SIZE];
    int64_t opened_ns;
    char compose[500]; /* whether its objects are composed, and why, as a worker says; "" */
};

/* Opens by name in the configuration, by URIs, or by a file of names (taken over on success). Returns at once. NULL:
 * USAGE, CONFIG, NO_MEMORY. */
struct mr_dataset *mr_dataset_open_named(struct mr_supervisor *s, const char *name);
struct mr_dataset *mr_dataset_open_uris(struct mr_supervisor *s, const char *name, const char *const *uris,
                                        size_t count);
struct mr_dataset *mr_dataset_open_names(struct mr_supervisor *s, int fd);
/* NULL (USAGE) when there is none of that number. */
struct mr_dataset *mr_dataset_find(struct mr_supervisor *s, uint64_t number);
void mr_dataset_close(struct mr_dataset *dataset);

/* INDEX_DONE: fd is taken over. 0, or -1 (PROTOCOL) for an answer that makes no sense. */
int mr_dataset_indexed(struct mr_dataset *dataset, struct mr_msg_in *in);
/* Readers may begin. */
void mr_dataset_ready(struct mr_dataset *dataset);
/* For good: the board says so, and every waiting ticket of its lanes fails with it. */
void mr_dataset_fail(struct mr_dataset *dataset, enum mr_code code, const char *text);
/* Sets the mr_error to why it is FAILED. */
void mr_dataset_explain(const struct mr_dataset *dataset);
/* All that are not FAILED. */
void mr_dataset_fail_all(struct mr_supervisor *s, enum mr_code code, const char *text);
/* DATASET for a fetch worker. */
void mr_dataset_tell(const struct mr_dataset *dataset, struct mr_child *fetcher);
/* Objects and pages so far, for the board. */
void mr_dataset_progress(struct mr_dataset *dataset);
/* For log lines. */
const char *mr_dataset_label(const struct mr_dataset *dataset);

#endif
