/* fault_request.c - what a handler does with a request, whatever the server behind it is. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fault_server.h"

void fault_printf(struct fault_conn *conn, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char text[16384];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text)
        abort();
    fault_send(conn, text, (size_t)n);
}

void fault_answer(struct fault_conn *conn, int status, const char *extra, const char *body, size_t length)
{
    fault_printf(conn, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n%s\r\n", status, length, extra);
    fault_send(conn, body, length);
}

const char *fault_header(const struct fault_request *request, const char *name)
{
    static _Thread_local char value[1024];
    size_t n = strlen(name);
    for (const char *line = request->head; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        line += n + 1;
        while (*line == ' ')
            line++;
        snprintf(value, sizeof value, "%.*s", (int)strcspn(line, "\r\n"), line);
        return value;
    }
    return NULL;
}

const char *fault_query(const struct fault_request *request, const char *name)
{
    static _Thread_local char value[8192];
    size_t n = strlen(name), at = 0;
    const char *p = strchr(request->target, '?');
    for (; p; p = strchr(p, '&')) {
        p++;
        if (strncmp(p, name, n) != 0 || p[n] != '=')
            continue;
        for (p += n + 1; *p && *p != '&'; p++) {
            unsigned byte;
            if (*p == '%' && sscanf(p + 1, "%2x", &byte) == 1) {
                value[at++] = (char)byte;
                p += 2;
            } else {
                value[at++] = *p;
            }
        }
        value[at] = 0;
        return value;
    }
    return NULL;
}
