/*
 * proc.c - see proc.h. The text is always terminated and is "" when a file cannot be read: callers need no other
 * check.
 */
#include "supervisor/proc.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int mr_proc_read(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0 ? 0 : -1;
}

int mr_proc_read_of(pid_t pid, const char *file, char *text, size_t size)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    return mr_proc_read(path, text, size);
}

/* The list of v1's controllers at a line has this one. */
static bool has(const char *controllers, const char *controller)
{
    size_t length = strlen(controller);

    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, controller, length) == 0 && (at[length] == '\0' || at[length] == ','))
            return true;
    }
    return false;
}

/* /proc/self/cgroup: lines "id:controllers:path"; v2 is "0::path". In a container the path is often not below its
 * mount, so the mount's root is tried too. */
int mr_proc_read_cgroup(const char *controller, const char *file, const char *v1_file, char *text, size_t size)
{
    char groups[4096], path[PATH_MAX];
    char *rest = groups, *line;

    text[0] = '\0';
    mr_proc_read("/proc/self/cgroup", groups, sizeof groups);
    while ((line = strsep(&rest, "\n"))) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(++controllers, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        bool v2 = controllers[0] == '\0';
        if (!v2 && !has(controllers, controller))
            continue;
        const char *const places[] = {group, ""};
        for (unsigned i = 0; i < 2; i++) {
            int length = snprintf(path, sizeof path, "/sys/fs/cgroup/%s%s/%s", v2 ? "" : controller, places[i],
                                  v2 ? file : v1_file);
            if (length < (int)sizeof path && mr_proc_read(path, text, size) == 0)
                return v2 ? 2 : 1;
        }
    }
    return -1;
}

uint64_t mr_proc_keyed(const char *text, const char *key)
{
    size_t length = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
    }
    return 0;
}
