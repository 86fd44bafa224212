#include "base/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

#define LOCK_TRIES   500
#define LOCK_WAIT_MS 10

int mr_durable_folder_of(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    int length = !slash ? 1 : slash == path ? 1 : (int)(slash - path);
    int n = snprintf(out, size, "%.*s", length, slash ? path : ".");
    if (n >= 0 && (size_t)n < size)
        return 0;
    mr_error_set(MR_E_USAGE, "the path is too long: %.100s...", path);
    return -1;
}

/* The call is not there: not in the kernel, not in this file system, or a sandbox's filter stands before it. */
static bool is_missing(int errnum)
{
    return errnum == EINVAL || errnum == ENOSYS || errnum == EPERM || errnum == EOPNOTSUPP || errnum == EMLINK;
}

/* A network file system may have done it although it says EEXIST: the answer was lost, and the request repeated. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat first, second;
    return lstat(a, &first) == 0 && lstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* 0, or -1 with errno. No process holds the lock for longer than two system calls. */
static int lock_folder(int fd)
{
    for (unsigned i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_WAIT_MS * 1000000L}, NULL);
    }
    errno = EBUSY;
    return -1;
}

/* rename(2) replaces what is there, so no other process may come between the look and the rename. */
static int rename_under_lock(const char *from, const char *to)
{
    char folder[PATH_MAX];
    struct stat st;
    if (mr_durable_folder_of(to, folder, sizeof folder) != 0) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int rc = lock_folder(fd);
    if (rc == 0 && lstat(to, &st) == 0) {
        errno = EEXIST;
        rc = -1;
    } else if (rc == 0) {
        rc = errno == ENOENT ? rename(from, to) : -1;
    }
    int errnum = errno;
    close(fd); /* and the lock with it */
    errno = errnum;
    return rc;
}

int mr_durable_name_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (!is_missing(errno))
        return -1;
    if (link(from, to) == 0 || (errno == EEXIST && is_same_file(from, to))) {
        (void)unlink(from);
        return 0;
    }
    return is_missing(errno) ? rename_under_lock(from, to) : -1;
}

int mr_durable_sync_folder(const char *path, int file)
{
    char folder[PATH_MAX];
    if (mr_durable_folder_of(path, folder, sizeof folder) != 0)
        return -1;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool by_file = fd < 0 && errno == EACCES && file >= 0; /* then all of its file system */
    int rc = by_file ? syncfs(file) : fd < 0 ? -1 : fsync(fd);
    int errnum = errno;
    if (fd >= 0)
        close(fd);
    if (rc == 0 || (fd >= 0 && (errnum == EINVAL || errnum == EOPNOTSUPP)))
        return 0;
    mr_error_set_errno(errnum, "cannot bring the names in %s to the disk", folder);
    return -1;
}

int mr_durable_make_folders(const char *path, bool lenient)
{
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder) {
        mr_error_set(MR_E_USAGE, "the path is too long: %.100s...", path);
        return -1;
    }
    for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(folder, 0777) == 0) {
            int made = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            int rc = mr_durable_sync_folder(folder, made);
            if (made >= 0)
                close(made);
            if (rc != 0)
                return -1;
        } else if (errno != EEXIST && !(lenient && (errno == EROFS || errno == EACCES))) {
            mr_error_set_errno(errno, "cannot make the folder %s", folder);
            return -1;
        }
        *at = '/';
    }
    return 0;
}

void mr_durable_keep_mode(const char *path, int fd, mode_t besides)
{
    struct stat old;
    if (stat(path, &old) != 0)
        return;
    bool kept = fchown(fd, old.st_uid, old.st_gid) == 0 || fchown(fd, (uid_t)-1, old.st_gid) == 0;
    (void)fchmod(fd, (old.st_mode & (kept ? 0777 : 0707)) | besides);
}
