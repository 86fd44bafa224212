#include "cli/running.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/control/runtime_folder.h"

#define NAMED_MAX 4 /* in the message */

/* Reads a small file as a string. Returns how many bytes; 0: none, or it cannot be read. */
static size_t read_all(int fd, char *out, size_t size)
{
    ssize_t n = fd >= 0 ? read(fd, out, size - 1) : -1;
    out[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

void mr_running_command(pid_t pid, char *out, size_t size)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = read_all(fd, out, size);
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; i + 1 < length; i++)
        if (out[i] == '\0')
            out[i] = ' ';
    mr_error_make_printable(out);
}

pid_t mr_running_parent(pid_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    read_all(fd, text, sizeof text);
    if (fd >= 0)
        close(fd);
    const char *after = strrchr(text, ')'); /* a program's name may have any character */
    int parent = 0;
    return after && sscanf(after, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* The supervisor that holds the folder's file "pid"; 0: none, or one of another container, which has no number here.
 * Its record lock ends with the process; the folder's lock would last until the last child has called exec
 * (supervisor/run_folder.h). */
static pid_t holder(int folder)
{
    char text[16];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(folder, "pid", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool held = fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid != 0;
    pid_t pid = held && read_all(fd, text, sizeof text) > 0 ? atoi(text) : 0;
    if (fd >= 0)
        close(fd);
    return pid > 0 ? pid : 0;
}

/* Whether a supervisor holds this folder, and which. */
static bool look(const char *base, const char *name, struct mr_running *running)
{
    char path[PATH_MAX];
    if (strncmp(name, "run-", 4) != 0 || snprintf(path, sizeof path, "%s/%s", base, name) >= (int)sizeof path)
        return false;
    if (snprintf(running->socket_path, sizeof running->socket_path, "%s/socket", path) >=
        (int)sizeof running->socket_path)
        return false;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    running->pid = holder(fd);
    bool runs = running->pid > 0 && faccessat(fd, "socket", F_OK, 0) == 0;
    close(fd);
    if (runs)
        mr_running_command(running->pid, running->command, sizeof running->command);
    return runs;
}

static int by_pid(const void *a, const void *b)
{
    const struct mr_running *one = a, *two = b;
    return (one->pid > two->pid) - (one->pid < two->pid);
}

int mr_running_find(struct mr_running *out, unsigned max)
{
    char base[PATH_MAX];
    if (mr_runtime_folder(NULL, base) != 0)
        return -1;
    DIR *dir = opendir(base);
    if (!dir) {
        mr_error_set_errno(errno, "cannot look for supervisors in %s", base);
        return -1;
    }
    unsigned count = 0;
    struct mr_running running;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!look(base, entry->d_name, &running))
            continue;
        if (count < max)
            out[count] = running;
        count++;
    }
    closedir(dir);
    qsort(out, count < max ? count : max, sizeof *out, by_pid);
    return (int)count;
}

int mr_running_only(struct mr_running *out)
{
    struct mr_running found[NAMED_MAX];
    int count = mr_running_find(found, NAMED_MAX);
    if (count == 1)
        *out = found[0];
    if (count == 0)
        mr_error_set(MR_E_USAGE, "no supervisor of yours runs on this machine: start one with 'millrace run', or name "
                                 "its socket by MILLRACE_SOCKET or --socket PATH");
    if (count > 1) {
        char text[NAMED_MAX * 320], *at = text;
        for (int i = 0; i < count && i < NAMED_MAX; i++)
            at += snprintf(at, (size_t)(text + sizeof text - at), "%s--socket %s (pid %d: %s)", i > 0 ? ", " : "",
                           found[i].socket_path, (int)found[i].pid, found[i].command);
        mr_error_set(MR_E_USAGE, "%d supervisors of yours run on this machine: say which%s: %s", count,
                     count > NAMED_MAX ? ", for example" : "", text);
    }
    return count == 1 ? 0 : -1;
}
