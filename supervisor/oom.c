#include "supervisor/oom.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    if (n >= 0)
        text[n] = '\0';
    return n;
}

/* The number after "oom_kill " at the start of a line. */
static uint64_t count_in(const char *path)
{
    char text[2048];
    if (read_file(path, text, sizeof text) <= 0)
        return 0;
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "oom_kill ", 9) == 0)
            return strtoull(line + 9, NULL, 10);
    }
    return 0;
}

/* proc_cgroups: lines "id:controllers:path"; v2 is "0::path". In a container the path is often not below its mount, so
 * the mount's root is tried too. */
uint64_t mr_oom_kills(void)
{
    char text[4096];
    uint64_t most = 0;
    if (read_file("/proc/self/cgroup", text, sizeof text) <= 0)
        return 0;
    char *rest = text, *line;
    char path[PATH_MAX];
    while ((line = strsep(&rest, "\n"))) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        bool v2 = controllers[1] == '\0';
        if (!v2 && strcmp(controllers + 1, "memory") != 0)
            continue;
        const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        const char *file = v2 ? "memory.events" : "memory.oom_control";
        const char *const groups[] = {group, ""};
        for (unsigned i = 0; i < 2; i++) {
            if (snprintf(path, sizeof path, "%s%s/%s", root, groups[i], file) >= (int)sizeof path)
                continue;
            uint64_t count = count_in(path);
            most = count > most ? count : most;
        }
    }
    return most;
}
