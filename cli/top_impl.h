/* top_impl.h - private to top.c and top_draw.c. */
#ifndef MR_CLI_TOP_IMPL_H
#define MR_CLI_TOP_IMPL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "shm/control/client.h"

struct mr_top {
    struct mr_client *client;
    bool screen, keys;    /* standard output is a terminal; standard input too, and is read key by key */
    struct termios saved; /* of the keys */
    json_t *now, *before; /* the supervisor's statistics; before: NULL at the first reading */
    int64_t now_ns, before_ns;
};

/* One line with the time. */
void mr_top_print_line(const struct mr_top *top);
/* The whole screen. 0 or -1. */
int mr_top_draw(const struct mr_top *top);

#endif
