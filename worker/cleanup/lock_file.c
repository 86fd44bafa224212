#include "worker/cleanup/lock_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/run_lock.h"
#include "shm/control/runtime_folder.h"

#define ABANDONED_S  (7 * 86400) /* that bucket is no longer read, or may not be */
#define MODE_NOTICED 0400
#define TRIES        10

/* The name still is this file's. */
static bool has_name(int fd, const char *path, struct stat *status)
{
    struct stat there;
    return fstat(fd, status) == 0 && stat(path, &there) == 0 && status->st_ino == there.st_ino;
}

int mr_lock_file_new(const char *kind, const struct mr_maker *maker, char path[MR_LOCK_FILE_PATH_SIZE])
{
    char folder[PATH_MAX];
    if (mr_runtime_folder(kind, folder) != 0)
        return -1;
    snprintf(path, MR_LOCK_FILE_PATH_SIZE, "%s/%s.%u.%" PRIu32, folder, maker->run, maker->slot, maker->start);
    for (unsigned i = 0; i < TRIES; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            break;
        struct stat status;
        /* Another process may have taken the new file for a dead one's just before the lock, and removed it. */
        if (flock(fd, LOCK_EX) == 0 && has_name(fd, path, &status))
            return fd;
        close(fd);
    }
    mr_error_set_errno(errno, "cannot lock %s", path);
    return -1;
}

int mr_lock_file_take(const char *path, struct stat *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && has_name(fd, path, status)) {
        bool abandoned = mr_lock_file_is_noticed(status) && time(NULL) - status->st_ctime > ABANDONED_S;
        if (status->st_size > 0 && !abandoned)
            return fd;
        unlink(path);
    }
    close(fd);
    return -1;
}

bool mr_lock_file_is_noticed(const struct stat *status)
{
    return (status->st_mode & 0777) == MODE_NOTICED;
}

bool mr_lock_file_is_late(int fd, struct stat *status, int late_s)
{
    if (!mr_lock_file_is_noticed(status)) {
        if (fchmod(fd, MODE_NOTICED) != 0 || fstat(fd, status) != 0)
            return false;
    }
    return time(NULL) - status->st_ctime > late_s;
}

static bool is_locked(DIR *dir, const char *name)
{
    int fd = openat(dirfd(dir), name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return mr_run_lock_cannot_tell();
    struct stat status; /* a noticed file is a dead process's, even if one that cleans up holds it now */
    bool locked = fstat(fd, &status) != 0 || !mr_lock_file_is_noticed(&status);
    locked = locked && flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return locked;
}

bool mr_lock_file_run_lives(const char *kind, const char *run,
                            bool (*ours)(const void *arg, const struct mr_maker *maker), const void *arg)
{
    char folder[PATH_MAX];
    bool lives = mr_run_lock_look(run) == MR_RUN_LIVES; /* its supervisor starts a successor of the dead one */
    DIR *dir = !lives && mr_runtime_folder(kind, folder) == 0 ? opendir(folder) : NULL;
    if (!dir)
        return lives || mr_run_lock_cannot_tell();
    for (struct dirent *entry; !lives && (entry = readdir(dir));) {
        struct mr_maker maker;
        if (mr_maker_parse_file(entry->d_name, &maker) && strcmp(maker.run, run) == 0 && !ours(arg, &maker))
            lives = is_locked(dir, entry->d_name);
    }
    closedir(dir);
    return lives;
}
