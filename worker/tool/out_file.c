#include "worker/tool/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "worker/store/leftovers.h"

/* An unused name in path's folder, which other processes remove some time after our death (leftovers.h). 0, or -1
 * (USAGE). */
static int temporary_name(const char *path, char out[PATH_MAX])
{
    char name[MR_LEFTOVER_SIZE];
    mr_leftover_name(MR_LEFTOVER_PART, name);
    const char *slash = strrchr(path, '/');
    int n = snprintf(out, PATH_MAX, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    if (n < PATH_MAX)
        return 0;
    out[0] = '\0';
    mr_error_set(MR_E_USAGE, "%s: the name is too long", path);
    return -1;
}

/* Creates a file with a temporary name in the path's folder. 0, or -1 with mr_error. */
static int open_named(struct mr_out_file *file)
{
    if (temporary_name(file->path, file->named) != 0)
        return -1;
    file->fd = open(file->named, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd >= 0) {
        (void)mr_leftover_lock(file->fd); /* no other process knows it yet */
        return 0;
    }
    file->named[0] = '\0';
    mr_error_set_errno(errno, "%s", file->path);
    return -1;
}

/* Creates a file without a name, or with a temporary one where the file system needs it. 0, or -1 with mr_error. */
static int open_regular(struct mr_out_file *file)
{
    char folder[PATH_MAX];
    if (mr_durable_folder_of(file->path, folder, sizeof folder) != 0)
        return -1;
    /* An unnamed file gets its name through /proc. */
    bool unnamed = access("/proc/self/fd", X_OK) == 0;
    file->fd = unnamed ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    if (file->fd >= 0)
        return 0;
    if (unnamed && errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT) {
        mr_error_set_errno(errno, "%s", file->path);
        return -1;
    }
    return open_named(file); /* a file system without O_TMPFILE, or no such folder */
}

int mr_out_file_open(struct mr_out_file *file, const char *path, bool absent)
{
    *file = (struct mr_out_file){.fd = -1, .absent = absent};
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (absent && exists) {
        mr_error_set(MR_E_EXISTS, "%s exists, and --if-absent was given", path);
        return -1;
    }
    char target[PATH_MAX];
    if (snprintf(file->path, PATH_MAX, "%s", exists && realpath(path, target) ? target : path) >= PATH_MAX) {
        mr_error_set(MR_E_USAGE, "%s: the name is too long", path);
        return -1;
    }
    if (!exists || S_ISREG(st.st_mode))
        return open_regular(file);
    file->plain = true;
    file->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (file->fd >= 0)
        return 0;
    mr_error_set_errno(errno, "%s", path);
    return -1;
}

/* Copies all of one file into another. 0, or -1 with errno. */
static int copy_all(int from, int to)
{
    enum { ONE = 1 << 20 };
    char *bytes = malloc(ONE);
    ssize_t n = bytes ? 1 : -1;
    while (n > 0 && (n = read(from, bytes, ONE)) > 0) {
        for (ssize_t at = 0, one = 0; at < n; at += one) {
            one = write(to, bytes + at, (size_t)(n - at));
            if (one < 0) {
                n = -1;
                break;
            }
        }
    }
    int errnum = errno;
    free(bytes);
    errno = errnum;
    return n < 0 ? -1 : 0;
}

/* For a file system that cannot give an unnamed file a name: copies its bytes into a file that has one. 0, or -1 with
 * errno. */
static int copy_to_named(struct mr_out_file *file, const char *open_file)
{
    int unnamed = file->fd, from = open(open_file, O_RDONLY | O_CLOEXEC), rc = -1, errnum = errno;
    file->fd = -1;
    if (from >= 0) {
        struct stat st;
        rc = open_named(file) == 0 && fstat(unnamed, &st) == 0 ? copy_all(from, file->fd) : -1;
        if (rc == 0) {
            (void)fchmod(file->fd, st.st_mode & 0777); /* such a file system may have no modes either */
            rc = fsync(file->fd);
        }
        errnum = errno;
        close(from);
    }
    close(unnamed);
    errno = errnum;
    return rc;
}

/* 0, or -1 with errno. */
static int give_name(struct mr_out_file *file)
{
    char open_file[64];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", file->fd);
    if (file->named[0] == '\0') {
        if (linkat(AT_FDCWD, open_file, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        bool exists = errno == EEXIST;
        if (exists && file->absent)
            return -1;
        /* A link does not replace a file: it gets a temporary name first. */
        if (exists && temporary_name(file->path, file->named) != 0)
            return -1;
        if (!exists || linkat(AT_FDCWD, open_file, AT_FDCWD, file->named, AT_SYMLINK_FOLLOW) != 0) {
            file->named[0] = '\0';
            if ((errno != EPERM && errno != EOPNOTSUPP && errno != EXDEV) || copy_to_named(file, open_file) != 0)
                return -1;
        }
    }
    int rc = file->absent ? mr_durable_name_new(file->named, file->path) : rename(file->named, file->path);
    if (rc == 0)
        file->named[0] = '\0';
    return rc;
}

int mr_out_file_commit(struct mr_out_file *file)
{
    int rc = 0;
    if (!file->plain) {
        if (!file->absent)
            mr_durable_keep_mode(file->path, file->fd, 0);
        if (fsync(file->fd) != 0 || give_name(file) != 0) {
            int errnum = errno;
            mr_out_file_abort(file);
            if (errnum == EEXIST)
                mr_error_set(MR_E_EXISTS, "%s has come to exist meanwhile, and --if-absent was given", file->path);
            else
                mr_error_set_errno(errnum, "%s", file->path);
            return -1;
        }
        rc = mr_durable_sync_folder(file->path, file->fd);
    }
    mr_out_file_abort(file);
    return rc;
}

void mr_out_file_abort(struct mr_out_file *file)
{
    if (file->named[0] != '\0')
        unlink(file->named);
    file->named[0] = '\0';
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}
