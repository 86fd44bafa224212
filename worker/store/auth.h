/*
 * auth.h - where credentials enter a request.
 *
 * A store client asks for the header line of each request that it builds and knows nothing of where it comes from.
 * This version has anonymous access only; token sources become further modes here, without a change to the clients.
 */
#ifndef MR_STORE_AUTH_H
#define MR_STORE_AUTH_H

#include <stddef.h>

struct mr_auth;

/*
 * mode: "anonymous", or NULL or "default" for the credentials of the environment. `emulator` (the endpoint came from
 * STORAGE_EMULATOR_HOST) means anonymous whatever the mode. NULL with mr_error: CONFIG for an unknown mode, DENIED
 * where credentials would be needed.
 */
struct mr_auth *mr_auth_new(const char *mode, int emulator);
void mr_auth_destroy(struct mr_auth *auth);

/* The line for a request that is built now: 1 with "Authorization: ..." in line, 0 for none, -1 with mr_error. */
int mr_auth_header(struct mr_auth *auth, char *line, size_t size);

#endif
