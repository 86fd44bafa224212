/*
 * exchange.h - an HTTP server in the same thread as its client, on whose answers an input works its will.
 *
 * A handler of tests/server/ answers each request well. What it answers is then changed as the input says: status,
 * header lines, numbers, body, framing, pieces, and where it ends: by a cut, a reset, silence. Once the input is used up
 * every answer is a good one, so that whatever is repeated long enough ends.
 */
#ifndef MR_TESTS_FUZZ_EXCHANGE_H
#define MR_TESTS_FUZZ_EXCHANGE_H

#include <stdbool.h>

#include "fault_server.h"
#include "input.h"

/* "127.0.0.1:port" */
const char *exchange_host(void);
/* The next connections are answered by this handler, spoiled by this input. */
void exchange_begin(fault_handler *handler, void *arg, struct input *in);
/* Takes connections and requests and sends what is next. True when there was anything to do. */
bool exchange_step(void);
/* Resets all connections. */
void exchange_end(void);

#endif
