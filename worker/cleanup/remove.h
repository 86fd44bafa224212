/*
 * remove.h - deletes in batches: names are collected and go out 100 to a request.
 *
 * In the worker's loop (mr_http_step); nothing here waits. An object that does not exist any more counts as removed.
 */
#ifndef MR_WORKER_CLEANUP_REMOVE_H
#define MR_WORKER_CLEANUP_REMOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/store/transfer.h"

struct mr_remover;
/* How one name ended: OK, also where it was gone already, else the store's code and text. */
typedef void mr_removed_fn(void *arg, const char *name, uint64_t bytes, enum mr_code code, const char *text);

/* Nothing is under way any more. It may destroy the remover. */
typedef void mr_remover_idle_fn(void *arg);

/* store and engine must outlive it. idle may be NULL. NULL with mr_error. */
struct mr_remover *mr_remover_new(struct mr_transfer_engine *engine, struct mr_store *store, mr_removed_fn *done,
                                  mr_remover_idle_fn *idle, void *arg);
/* Cancels what is under way, without calling back. NULL is allowed. */
void mr_remover_destroy(struct mr_remover *remover);
/* The name is copied; bytes: what `done` is to be told. A full batch goes out at once. 0, or -1 (NO_MEMORY): done was
 * not and will not be called. */
int mr_remover_add(struct mr_remover *remover, const char *name, uint64_t generation, uint64_t bytes);
/* Sends what waits. 0, or -1: `done` has been called for them. */
int mr_remover_flush(struct mr_remover *remover);
/* Names that wait for their batch; and those whose batch is under way. */
unsigned mr_remover_waiting(const struct mr_remover *remover);
unsigned mr_remover_under_way(const struct mr_remover *remover);

#endif
