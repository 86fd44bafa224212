/*
 * store_scene.h - what the tests of transfers share: a store and an engine on a fault bucket, on the devstore program
 * or on a folder, and the last answer. Each step that fails aborts the test.
 */
#ifndef MR_TESTS_STORE_SCENE_H
#define MR_TESTS_STORE_SCENE_H

#include "fault_bucket.h"
#include "worker/store/transfer.h"

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))
#define STEPS(array) (array), sizeof(array) / sizeof *(array)

extern struct mr_http *http;
extern struct mr_store *store;
extern struct mr_transfer_engine *engine;
extern struct fault_bucket bucket; /* scene_bucket_setup */
extern struct fault_server *server;
extern char endpoint[128]; /* scene_devstore_start */
extern char root[64];      /* scene_root_make: a folder of the test */

extern struct answer {
    int done;
    enum mr_code code;
    char text[1300], word[400];
    uint64_t size, generation;
    uint32_t crc32c;
    unsigned granted;
    bool maybe_done;
    bool has_bucket;
    struct mr_store_bucket bucket;
    char storage_class[40];
    enum mr_code each[MR_STORE_BATCH_MAX];
    char first_text[1300]; /* of each[0] */
    char last_text[1300];  /* of the last one */
} last;

/* Callbacks: they fill in `last`. on_batch takes the number of names, an unsigned, as its argument; the others none. */
void keep(const struct mr_store_result *result);
void on_item(void *arg, const struct mr_store_result *result, const struct mr_store_item *item);
void on_delete(void *arg, const struct mr_store_result *result);
void on_batch(void *arg, const struct mr_store_result *result, const struct mr_store_result *each);
void on_bucket(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *seen);
void on_permissions(void *arg, const struct mr_store_result *result, unsigned granted);
void on_word(void *arg, const struct mr_store_result *result, const char *word);

/* The transfer to its end, alone on the engine; returns &last. */
struct answer *wait_for(struct mr_transfer *transfer);
void check_code(enum mr_code code, const char *text);

/* A new store and engine in place of those there are; adds the client, and no credentials. */
void scene_open(struct mr_store_options options, unsigned deadline_ms);
void scene_close(void);

/* A fixture: the fault bucket, and a store on it. */
void scene_bucket_setup(void);
void scene_bucket_teardown(void);
void open_store(const char *host, unsigned deadline_ms);
/* A short stall_ms only where a stall is what is tested: on a busy machine a good answer may take its time. */
void open_stalling(const char *host, unsigned deadline_ms, unsigned stall_ms);
void play(const struct bucket_step *script, size_t steps);

/* Starts the program and reads "listening on http://..." from it; options end with NULL. */
void scene_devstore_start(const char *program, const char *const *options);
void scene_devstore_stop(void);

void scene_root_make(void);
void scene_root_remove(void);
unsigned scene_root_files(void);

#endif
