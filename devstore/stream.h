/* stream.h - a reply's body that is sent slowly or wrongly: limited bandwidth, and the faults that happen in mid-body.
 */
#ifndef MR_DEVSTORE_STREAM_H
#define MR_DEVSTORE_STREAM_H

#include <stdint.h>

struct MHD_Connection;
struct MHD_Response;
struct mr_fault;
struct mr_pace;
struct mr_reply;
struct mr_timers;

/*
 * A response for the reply's body or object, which it takes over. rate: bytes/s of this response, 0 for no limit.
 * all: the limit that it shares with others, outlives it. fault: NULL or
 * one of the kinds RESET, STALL, SHORT, WRONG; must outlive the response. NULL: no memory, nothing taken.
 */
/* Aborts the connection: the client sees a reset. */
void mr_stream_reset(struct MHD_Connection *connection);
struct MHD_Response *mr_stream_response(struct mr_timers *timers, struct MHD_Connection *connection,
                                        struct mr_reply *reply, double rate, struct mr_pace *all,
                                        const struct mr_fault *fault);

#endif
