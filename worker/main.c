/*
 * main.c - millrace-worker: every part of millrace that touches the network or a credential.
 *
 * It becomes a role or a tool. `millrace` starts it: the supervisor in a role, with its socket at descriptor 3 and its
 * life pipe at 4 (link.h); a command such as `millrace cp` turns into the tool of its name, with the arguments it was
 * given.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/process.h"
#include "worker/fetch/fetch.h"
#include "worker/list/list.h"
#include "worker/tool/tool.h"
#include "worker/write/write.h"

#define SLOT_MAX 4095

/* clang-format off */
static const struct {
    const char *name;
    int (*run)(unsigned slot);
} roles[] = {
    {"list", mr_list_main},
    {"fetch", mr_fetch_main},
    {"write", mr_write_main},
};

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} tools[] = {
    {"ls", mr_tool_ls},
    {"cat", mr_tool_cat},
    {"cp", mr_tool_cp},
    {"rm", mr_tool_rm},
    {"pipe", mr_tool_pipe},
    {"compose", mr_tool_compose},
    {"doctor", mr_tool_doctor},
    {"clean", mr_tool_clean},
};
/* clang-format on */

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static int usage(void)
{
    fputs("usage: millrace-worker", stderr);
    for (size_t i = 0; i < COUNT(roles); i++)
        fprintf(stderr, "%s%s", i == 0 ? " " : "|", roles[i].name);
    fputs(" --slot N   (started by millrace)\n       millrace-worker", stderr);
    for (size_t i = 0; i < COUNT(tools); i++)
        fprintf(stderr, "%s%s", i == 0 ? " " : "|", tools[i].name);
    fputs(" ...   (see millrace --help)\n", stderr);
    return 2;
}

static int parse_slot(int argc, char **argv, unsigned *slot)
{
    if (argc != 4 || strcmp(argv[2], "--slot") != 0)
        return -1;
    errno = 0;
    char *end;
    unsigned long n = strtoul(argv[3], &end, 10);
    if (errno || *end || end == argv[3] || n > SLOT_MAX)
        return -1;
    *slot = (unsigned)n;
    return 0;
}

int main(int argc, char **argv)
{
    mr_process_begin();
    if (argc < 2)
        return usage();
    for (size_t i = 0; i < COUNT(tools); i++)
        if (strcmp(argv[1], tools[i].name) == 0)
            return tools[i].run(argc - 1, argv + 1);
    unsigned slot;
    if (parse_slot(argc, argv, &slot) != 0)
        return usage();
    for (size_t i = 0; i < COUNT(roles); i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return roles[i].run(slot);
    return usage();
}
