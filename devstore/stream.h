/* stream.h - a reply's body that is sent slowly or wrongly: limited bandwidth, and the faults that happen in the middle
 * of a body. */
#ifndef MR_DEVSTORE_STREAM_H
#define MR_DEVSTORE_STREAM_H

#include <stdint.h>

struct MHD_Connection;
struct MHD_Response;
struct ds_fault;
struct ds_pace;
struct ds_reply;
struct ds_timers;

/* Aborts the connection: the client sees a reset. */
void ds_stream_reset(struct MHD_Connection *connection);
/*
 * A response for the reply's body or object, which it takes over. rate: bytes/s of this response, 0 for no limit. all:
 * the limit that it shares with others; outlives it. fault: NULL or one of the kinds RESET, STALL, SHORT, WRONG; must
 * outlive the response. NULL: no memory, nothing taken.
 */
struct MHD_Response *ds_stream_response(struct ds_timers *timers, struct MHD_Connection *connection,
                                        struct ds_reply *reply, double rate, struct ds_pace *all,
                                        const struct ds_fault *fault);

#endif
