/*
 * write_scene.h - a checkpoint lane in memory with both its ends in one process: a trainer that writes `data`, and a write
 * worker, which can die at any time and be started again. Each step that fails aborts the test.
 */
#ifndef MR_TESTS_WRITE_SCENE_H
#define MR_TESTS_WRITE_SCENE_H

#include "worker/write/write_lane.h"

#define SCENE_PART  4096u
#define SCENE_SLOTS 4u
#define SCENE_RUN   "5d7f9f2c-3a4e-4c1b-9a51-0c6a5d2f9b10" /* of all workers */

struct scene {
    const char *uri;
    bool if_absent;
    const unsigned char *data;
    uint64_t size;
    bool hold; /* the trainer does not seal */
    bool stop; /* the worker stops where its last request is noted in the lane, and has not gone out */
    /* the trainer */
    struct mr_ckpt_lane lane;
    unsigned char *arena;
    uint64_t next; /* part to write */
    bool sealed;
    int fd;
    /* the worker: between scene_start and scene_die or scene_leave */
    struct mr_config config;
    struct mr_net net;
    struct mr_counters *counters;
    struct mr_write_context context;
    struct mr_write_lane *worker;
    /* how it ended */
    enum mr_ckpt_part_outcome outcome;
    uint32_t code, crc32c;
    uint64_t generation;
    char text[MR_CKPT_PART_TEXT];
};

/* A folder of its own for marks; once a test. */
void scene_make_runtime(void);
void scene_remove_runtime(void);
/* Workers that have ended and left an upload for others to remove. */
unsigned scene_open_uploads(void);

/* endpoint: of gs:// URIs. The scene, the lane and its memory; no worker yet. */
void scene_open(struct scene *scene, const char *endpoint, const char *uri, const unsigned char *data, uint64_t size);
void scene_close(struct scene *scene);

/* A worker begins, or goes on from what the last one left. */
void scene_start(struct scene *scene);
/* It dies, and the supervisor notices. */
void scene_die(struct scene *scene);
/* Another worker of the slot, which has no lane: looks for temporary objects that nobody uses. */
void scene_look_again(struct scene *scene, const char *bucket);
/* It leaves in good order: temporary objects are waited for. */
void scene_leave(struct scene *scene);

/* The trainer writes what there is room for, the worker what there is; waits at most ms for the network. */
void scene_step(struct scene *scene, unsigned ms);
/* Until the outcome is there; it is in the scene. */
void scene_run(struct scene *scene);
/* All of it: a worker from its beginning to its end. */
void scene_write(struct scene *scene);

#endif
