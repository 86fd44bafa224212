#include "shm/control/runtime_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

int mr_private_folder(const char *path)
{
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        mr_error_set_errno(errno, "cannot make the run folder %s (set XDG_RUNTIME_DIR to a folder of yours)", path);
        return -1;
    }
    struct stat status;
    if (lstat(path, &status) != 0) {
        mr_error_set_errno(errno, "cannot examine the run folder %s", path);
        return -1;
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
        mr_error_set(
            MR_E_DENIED,
            "the run folder %s must be a folder of user %u that no other user may enter (mode 0700): remove it, "
            "or set XDG_RUNTIME_DIR",
            path, geteuid());
        return -1;
    }
    return 0;
}

int mr_runtime_folder(const char *kind, char path[PATH_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n;
    if (runtime && runtime[0] == '/')
        n = snprintf(path, PATH_MAX, "%s/millrace", runtime);
    else
        n = snprintf(path, PATH_MAX, "/tmp/millrace-%u", geteuid());
    if (n < PATH_MAX && kind) {
        if (mr_private_folder(path) != 0)
            return -1;
        n += snprintf(path + n, (size_t)(PATH_MAX - n), "/%s", kind);
    }
    if (n >= PATH_MAX) {
        mr_error_set(MR_E_CONFIG, "the path in XDG_RUNTIME_DIR is too long: set it to a shorter one");
        return -1;
    }
    return mr_private_folder(path);
}
