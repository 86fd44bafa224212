#include "shm/control/run_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/runtime_folder.h"

#define FOLDER    "runs"
#define MODE_DEAD 0400
#define PAUSE_NS  1000000
#define TRIES     20
#define OLD_S     (8 * 86400) /* by then no process looks for what the run has left: worker/cleanup/lock_file.c */

static int path_of(const char *run, char path[PATH_MAX])
{
    char folder[PATH_MAX];
    if (mr_runtime_folder(FOLDER, folder) != 0)
        return -1;
    if (snprintf(path, PATH_MAX, "%s/%s", folder, run) >= PATH_MAX) {
        mr_error_set(MR_E_CONFIG, "the path in XDG_RUNTIME_DIR is too long: set it to a shorter one");
        return -1;
    }
    return 0;
}

static bool has_name_of(const char *folder, const char *run)
{
    size_t length = strlen(run);
    bool found = false;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        found = strncmp(entry->d_name, run, length) == 0 && entry->d_name[length] == '.';
    if (dir)
        closedir(dir);
    return found;
}

/* A file "<run>.<...>" in a folder beside ours says what the run has begun. */
static bool has_records(const char *run)
{
    char base[PATH_MAX], folder[PATH_MAX];
    bool found = false;
    DIR *dir = mr_runtime_folder(NULL, base) == 0 ? opendir(base) : NULL;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        if (entry->d_name[0] != '.' &&
            snprintf(folder, sizeof folder, "%s/%s", base, entry->d_name) < (int)sizeof folder)
            found = has_name_of(folder, run);
    if (dir)
        closedir(dir);
    return found;
}

/* Removes the files of dead runs that no process asks for any more. */
static void sweep(void)
{
    char folder[PATH_MAX];
    DIR *dir = mr_runtime_folder(FOLDER, folder) == 0 ? opendir(folder) : NULL;
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat status;
        int fd = entry->d_name[0] != '.' ? openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
        if (fd >= 0 && fstat(fd, &status) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
            (time(NULL) - status.st_mtime > OLD_S || !has_records(entry->d_name)))
            unlinkat(dirfd(dir), entry->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    closedir(dir);
}

/* Takes the lock shared. Waits while a process that looks holds it exclusively, which is brief. */
static int hold(int fd)
{
    int rc;
    do
        rc = flock(fd, LOCK_SH);
    while (rc != 0 && errno == EINTR);
    return rc;
}

/* Makes the file and locks it. -1 with errno; ENOENT: another process swept it away before the lock, try again. */
static int make(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    bool held = hold(fd) == 0 && fstat(fd, &status) == 0;
    if (held && status.st_nlink > 0)
        return fd;
    int errnum = held ? ENOENT : errno;
    close(fd);
    errno = errnum;
    return -1;
}

int mr_run_lock_new(const char *run)
{
    char path[PATH_MAX];
    int fd = -1;
    sweep();
    errno = ENOENT;
    for (unsigned i = 0; i < TRIES && fd < 0 && errno == ENOENT; i++) { /* the folder goes with its last file */
        if (path_of(run, path) != 0)
            return -1;
        fd = make(path);
    }
    if (fd < 0)
        mr_error_set_errno(errno, "cannot make and lock %s", path);
    return fd;
}

void mr_run_lock_end(int lock, const char *run)
{
    char path[PATH_MAX];
    if (lock < 0)
        return;
    if (path_of(run, path) == 0)
        unlink(path);
    close(lock);
    if (mr_runtime_folder(FOLDER, path) == 0)
        rmdir(path); /* fails unless the file was the last one */
}

int mr_run_lock_hold(const char *run)
{
    char path[PATH_MAX];
    struct stat status;
    if (path_of(run, path) != 0)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        mr_error_set(MR_E_NOT_FOUND, "there is no %s", path);
    } else if (fd < 0 || hold(fd) != 0 || fstat(fd, &status) != 0) {
        mr_error_set_errno(errno, "cannot lock %s", path);
    } else if ((status.st_mode & 0777) == MODE_DEAD) {
        mr_error_set(MR_E_GONE, "the supervisor of this run had ended, and what the run had begun is being removed");
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* One attempt. If it gets the lock, the run is dead, and that is noted in the file's mode for good. */
static enum mr_run_state look(int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return MR_RUN_UNKNOWN;
    if ((status.st_mode & 0777) == MODE_DEAD)
        return MR_RUN_DEAD;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? MR_RUN_LIVES : MR_RUN_UNKNOWN; /* unknown: no locks here */
    return fchmod(fd, MODE_DEAD) == 0 ? MR_RUN_DEAD : MR_RUN_UNKNOWN;
}

bool mr_run_lock_cannot_tell(void)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
}

enum mr_run_state mr_run_lock_look(const char *run)
{
    char path[PATH_MAX];
    errno = 0; /* without a path there is none of open() */
    int fd = path_of(run, path) == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0)
        return mr_run_lock_cannot_tell() ? MR_RUN_LIVES : MR_RUN_UNKNOWN;
    enum mr_run_state state = look(fd);
    if (state == MR_RUN_LIVES) { /* or another process looks at this moment */
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        state = look(fd);
    }
    close(fd);
    return state;
}
