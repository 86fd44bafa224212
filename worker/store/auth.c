#include "worker/store/auth.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/error.h"

enum auth_mode { AUTH_ANONYMOUS };

struct mr_auth {
    enum auth_mode mode;
};

struct mr_auth *mr_auth_new(const char *mode, int emulator)
{
    int by_default = !mode || !mode[0] || strcmp(mode, "default") == 0;
    if (!by_default && strcmp(mode, "anonymous") != 0) {
        mr_error_set(MR_E_CONFIG, "[gcs] auth = \"%s\" is not one of default, anonymous", mode);
        return NULL;
    }
    if (by_default && !emulator) {
        mr_error_set(MR_E_DENIED,
                     "only anonymous access is built into this version: set [gcs] auth = \"anonymous\" for a "
                     "public bucket, or STORAGE_EMULATOR_HOST for an emulator");
        return NULL;
    }
    struct mr_auth *auth = calloc(1, sizeof *auth);
    if (!auth) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    auth->mode = AUTH_ANONYMOUS;
    return auth;
}

void mr_auth_destroy(struct mr_auth *auth)
{
    free(auth);
}

int mr_auth_header(struct mr_auth *auth, char *line, size_t size)
{
    switch (auth->mode) {
    case AUTH_ANONYMOUS:
        if (size > 0)
            line[0] = 0;
        return 0;
    }
    mr_error_set(MR_E_INTERNAL, "credentials of an unknown kind");
    return -1;
}
