/*
 * run_folder.c - see run_folder.h. The folder is ours while we hold its lock, and is removed only by its owner or by a
 * process that has got the lock. The path is checked again after locking, because another start may have removed it in
 * between.
 */
#include "supervisor/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "shm/control/runtime_folder.h"

#define BACKLOG        128
#define LOCK_ATTEMPTS  20
#define LOCK_PAUSE_NS  5000000
#define PLACE_ATTEMPTS 600

/* Removes the folder of a run; what is in it is known. */
static void remove_folder(const char *path)
{
    static const char *const names[] = {"socket", "pid"};
    char name[PATH_MAX + 16];
    for (unsigned i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/%s", path, names[i]);
        unlink(name);
    }
    rmdir(path);
}

/* Removes folders whose lock no process holds: they belong to supervisors that were killed. */
static void sweep(const char *base)
{
    DIR *dir = opendir(base);
    if (!dir)
        return;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        char path[PATH_MAX];
        if (strncmp(entry->d_name, "run-", 4) != 0 ||
            snprintf(path, sizeof path, "%s/%s", base, entry->d_name) >= (int)sizeof path)
            continue;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            mr_log_debug("removing %s, left by a supervisor that was killed", path);
            remove_folder(path);
        }
        close(fd);
    }
    closedir(dir);
}

/* Whether the path still is what we have locked: a process that starts at the same time may have swept it away in
 * between. */
static bool is_there(const struct mr_run_folder *folder)
{
    struct stat ours, named;
    return fstat(folder->lock, &ours) == 0 && stat(folder->path, &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

/* One attempt to make and lock the folder. -1 also if another process swept it away in between: worth another
 * attempt. */
static int lock_once(struct mr_run_folder *folder)
{
    if (mr_private_folder(folder->path) != 0)
        return -1;
    folder->lock = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder->lock >= 0 && flock(folder->lock, LOCK_EX | LOCK_NB) == 0) {
        if (is_there(folder))
            return 0;
        errno = ENOENT;
    }
    mr_error_set_errno(errno, "cannot lock the run folder %s", folder->path);
    if (folder->lock >= 0)
        close(folder->lock);
    folder->lock = -1;
    return -1;
}

/* Makes the folder if it is not there, and locks it for the run's life: a folder without a lock is swept away, and that
 * may happen before we have it. */
static int make_locked(struct mr_run_folder *folder)
{
    for (unsigned attempt = 1; lock_once(folder) != 0; attempt++) {
        if (attempt == LOCK_ATTEMPTS)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    return 0;
}

/* A folder's name that nobody else has; -1 if it is too long. */
static int own_name(const char *base, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/run-%d-%08x", base, (int)getpid(), (unsigned)mr_random64()) < PATH_MAX ? 0 : -1;
}

/* A folder of our own, locked. Containers may share the base, and then have processes of the same number. */
static int make_own(struct mr_run_folder *folder)
{
    char base[PATH_MAX];
    if (mr_runtime_folder(NULL, base) != 0)
        return -1;
    sweep(base);
    if (own_name(base, folder->path) != 0) {
        folder->path[0] = '\0';
        mr_error_set(MR_E_CONFIG, "the run folder's path is too long: %s: set XDG_RUNTIME_DIR to a shorter one", base);
        return -1;
    }
    return make_locked(folder);
}

/* The folder that the Python package names, locked. It lies beside those that we make, and is swept like them. */
static int make_given(struct mr_run_folder *folder, const char *path)
{
    if (strlen(path) >= sizeof folder->path) {
        mr_error_set(MR_E_USAGE, "the run folder's path is too long: %s: set XDG_RUNTIME_DIR to a shorter one", path);
        return -1;
    }
    char base[PATH_MAX];
    if (mr_runtime_folder(NULL, base) == 0 && strncmp(path, base, strlen(base)) == 0)
        sweep(base);
    strcpy(folder->path, path);
    return make_locked(folder);
}

/* "pid": for people and for the process that elected this supervisor. Open and locked for life: see run_folder.h. */
static int write_pid(struct mr_run_folder *folder)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/pid", folder->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    char text[16];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fd < 0 || fcntl(fd, F_SETLK, &whole) != 0 || write(fd, text, (size_t)n) != n) {
        mr_error_set_errno(errno, "cannot write %s", path);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    folder->pid_lock = fd;
    folder->have_pid = true;
    return 0;
}

/* The path from the root: the command that gets it may go to another folder. False where that is too long for a socket,
 * or unknown. */
static bool from_root(const char *path, char absolute[PATH_MAX])
{
    struct sockaddr_un address;
    char here[PATH_MAX];
    return path[0] != '/' && path[0] != '\0' && getcwd(here, sizeof here) &&
           snprintf(absolute, PATH_MAX, "%s/%s", here, path) < (int)sizeof address.sun_path;
}

static int set_address(struct sockaddr_un *address, const char *path)
{
    if (strlen(path) == 0 || strlen(path) >= sizeof address->sun_path) {
        mr_error_set(MR_E_USAGE, "the socket's path has %zu characters, and 1 to %zu are allowed: %s", strlen(path),
                     sizeof address->sun_path - 1, path);
        return -1;
    }
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, strlen(path) + 1);
    return 0;
}

/* Whether the process that listens is dead, and only a child of it that has not come to its exec holds the socket. */
static bool is_orphaned(int probe)
{
    struct ucred who;
    socklen_t size = sizeof who;
    if (getsockopt(probe, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid <= 0)
        return false;
    int fd = (int)syscall(SYS_pidfd_open, who.pid, 0);
    if (fd < 0)
        return errno == ESRCH;
    struct pollfd end = {.fd = fd, .events = POLLIN}; /* readable also before it is reaped */
    bool gone = poll(&end, 1, 0) == 1;
    close(fd);
    return gone;
}

/* Removes a socket that no process listens on: it was left by one that was killed. -1 (EXISTS): it is in use, or not a
 * socket. */
static int remove_stale(const struct sockaddr_un *address)
{
    struct stat status;
    if (lstat(address->sun_path, &status) != 0)
        return 0;
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = probe >= 0 ? connect(probe, (const struct sockaddr *)address, sizeof *address) : -1;
    bool stale = rc == 0 ? is_orphaned(probe) : errno == ECONNREFUSED;
    if (probe >= 0)
        close(probe);
    if (S_ISSOCK(status.st_mode) && stale) {
        unlink(address->sun_path);
        return 0;
    }
    mr_error_set(MR_E_EXISTS, "%s exists%s: name another socket", address->sun_path,
                 rc == 0 ? " and a supervisor listens there" : "");
    return -1;
}

/* The folder of a socket that the user named, locked while that is made or removed: another supervisor may do the same.
 * Whoever may read the folder can lock it, so it is waited for only so long. -1: it is not locked, or is ours alone. */
static int lock_place(const struct mr_run_folder *folder)
{
    char place[sizeof folder->socket_path];
    memcpy(place, folder->socket_path, sizeof place);
    char *slash = strrchr(place, '/');
    if (folder->path[0] != '\0' || !slash)
        return -1;
    slash[1] = '\0';
    int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < PLACE_ATTEMPTS; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Whether the path is the socket that we have made there. */
static bool is_ours(const struct mr_run_folder *folder)
{
    struct stat ours, named;
    return fstat(folder->socket_file, &ours) == 0 && lstat(folder->socket_path, &named) == 0 &&
           ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

/* The listening socket, which only our user can connect to. A socket file that no supervisor listens at is replaced. */
static int listen_at(struct mr_run_folder *folder)
{
    struct sockaddr_un address;
    if (set_address(&address, folder->socket_path) != 0 || remove_stale(&address) != 0)
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot make a socket");
        return -1;
    }
    mode_t mask = umask(0177);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address);
    int why = errno;
    umask(mask);
    if (rc != 0 || listen(fd, BACKLOG) != 0) {
        mr_error_set_errno(rc != 0 ? why : errno, "cannot listen at %s", folder->socket_path);
        if (rc == 0)
            unlink(folder->socket_path);
        close(fd);
        return -1;
    }
    folder->have_socket = true;
    folder->socket_file = open(folder->socket_path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd;
}

int mr_run_folder_init(struct mr_run_folder *folder, const char *folder_path, const char *socket_path)
{
    *folder = (struct mr_run_folder){.lock = -1, .pid_lock = -1};
    if (folder_path) {
        if (make_given(folder, folder_path) != 0)
            goto fail;
    } else if (!socket_path && make_own(folder) != 0) {
        goto fail;
    }
    char path[PATH_MAX + 16];
    if (!socket_path) {
        snprintf(path, sizeof path, "%s/socket", folder->path);
        socket_path = path;
    }
    char absolute[PATH_MAX];
    if (from_root(socket_path, absolute))
        socket_path = absolute;
    struct sockaddr_un address;
    if (set_address(&address, socket_path) != 0 || (folder->path[0] != '\0' && write_pid(folder) != 0))
        goto fail;
    strcpy(folder->socket_path, socket_path);
    int place = lock_place(folder);
    int fd = listen_at(folder);
    if (place >= 0)
        close(place);
    if (fd >= 0)
        return fd;
fail:
    mr_run_folder_close(folder);
    return -1;
}

void mr_run_folder_make_way(struct mr_run_folder *folder)
{
    char base[PATH_MAX], path[PATH_MAX];
    memcpy(base, folder->path, sizeof base);
    char *slash = strrchr(base, '/');
    size_t length = strlen(folder->path);
    bool in_it = strncmp(folder->socket_path, folder->path, length) == 0 && folder->socket_path[length] == '/';
    if (!slash || !folder->have_socket || !in_it)
        return;
    *slash = '\0';
    struct sockaddr_un address;
    char socket_path[PATH_MAX + 16];
    if (own_name(base, path) != 0 ||
        snprintf(socket_path, sizeof socket_path, "%s/socket", path) >= (int)sizeof address.sun_path ||
        rename(folder->path, path) != 0)
        return;
    memcpy(folder->path, path, sizeof path);
    strcpy(folder->socket_path, socket_path);
}

void mr_run_folder_close(struct mr_run_folder *folder)
{
    if (folder->have_socket) {
        int place = lock_place(folder);
        if (is_ours(folder))
            unlink(folder->socket_path);
        if (folder->socket_file >= 0)
            close(folder->socket_file);
        if (place >= 0)
            close(place);
    }
    if (folder->have_pid) {
        char path[PATH_MAX + 16];
        snprintf(path, sizeof path, "%s/pid", folder->path);
        unlink(path);
    }
    if (folder->path[0] != '\0')
        rmdir(folder->path); /* fails if another process has put a file into it: then it stays */
    if (folder->pid_lock >= 0)
        close(folder->pid_lock);
    if (folder->lock >= 0)
        close(folder->lock);
    *folder = (struct mr_run_folder){.lock = -1, .pid_lock = -1};
}
