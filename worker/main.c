/*
 * main.c - millrace-worker: every part of millrace that touches the network or a credential.
 *
 * `millrace` starts it; there is no reason to do so by hand. Roles: list, fetch (children of the supervisor, on
 * descriptor 3). Tools: the table below.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/log.h"
#include "shm/base/process.h"
#include "worker/fetch/fetch.h"
#include "worker/list/list.h"
#include "worker/tool/tool.h"
#include "worker/write/write.h"

/* clang-format off */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"ls", mr_tool_ls},
    {"cat", mr_tool_cat},
    {"cp", mr_tool_cp},
    {"rm", mr_tool_rm},
    {"compose", mr_tool_compose},
    {"doctor", mr_tool_doctor},
    {"clean", mr_tool_clean},
};
/* clang-format on */

static int usage(void)
{
    fprintf(stderr, "usage: millrace-worker list|fetch|write --slot N   (started by millrace)\n"
                    "       millrace-worker TOOL ...              (see millrace --help)\n");
    return 2;
}

static int parse_slot(int argc, char **argv, unsigned *slot)
{
    if (argc != 4 || strcmp(argv[2], "--slot") != 0)
        return -1;
    errno = 0;
    char *end;
    unsigned long n = strtoul(argv[3], &end, 10);
    if (errno || *end || end == argv[3] || n > 4095)
        return -1;
    *slot = (unsigned)n;
    return 0;
}

int main(int argc, char **argv)
{
    mr_process_begin();
    if (argc < 2)
        return usage();
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++)
        if (strcmp(argv[1], tools[i].name) == 0)
            return tools[i].run(argc - 1, argv + 1);
    unsigned slot;
    if (parse_slot(argc, argv, &slot) != 0)
        return usage();
    if (strcmp(argv[1], "list") == 0)
        return mr_list_main(slot);
    if (strcmp(argv[1], "fetch") == 0)
        return mr_fetch_main(slot);
    if (strcmp(argv[1], "write") == 0)
        return mr_write_main(slot);
    return usage();
}
