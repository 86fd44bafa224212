/*
 * requests.h - what a client asks for, and its answer (the messages: shm/control/msg.h).
 *
 * Nothing here waits, and no client is freed: an answer that cannot be sent leaves the connection to clients.c.
 */
#ifndef MR_SUPERVISOR_REQUESTS_H
#define MR_SUPERVISOR_REQUESTS_H

#include <stdbool.h>

struct mr_client_peer;
struct mr_dataset;
struct mr_msg_in;

/* Answers one request: 0 when an answer was sent, -1 with mr_error when ERROR is to be sent (mr_requests_reply_error),
 * of the code MR_E_PROTOCOL if the connection should end. The message stays the caller's. */
int mr_requests_handle(struct mr_client_peer *client, struct mr_msg_in *in);
/* Sends ERROR with this thread's mr_error. -1: it could not be sent. */
int mr_requests_reply_error(struct mr_client_peer *client);
/* Whether the client has this data set open, and not an earlier one of the same number. */
bool mr_requests_has_open(const struct mr_client_peer *client, const struct mr_dataset *dataset);

#endif
