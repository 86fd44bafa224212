/*
 * fault_server.h - an HTTP/1.1 server inside a test: a thread a connection, each request answered by the test's own
 * function, which can send anything, in any size, at any time, or nothing at all.
 */
#ifndef MR_TESTS_FAULT_SERVER_H
#define MR_TESTS_FAULT_SERVER_H

#include <stdbool.h>
#include <stddef.h>

struct fault_server;
struct fault_conn;

struct fault_request {
    char method[16];
    char target[8192]; /* path and query, as sent */
    char head[8192];   /* all header lines, NUL-terminated */
    char *body;        /* NUL-terminated, of at least 4 KiB */
    size_t body_length;
    unsigned on_conn; /* requests on this connection before this one */
};

/* Answers one request. Returns true to keep the connection, false to close it. Runs in a thread of its own. */
typedef bool fault_handler(void *arg, struct fault_conn *conn, const struct fault_request *request);

/* On 127.0.0.1 and a free port. Aborts the test where it cannot. */
struct fault_server *fault_server_start(fault_handler *handler, void *arg);
/* "127.0.0.1:port" */
const char *fault_server_host(const struct fault_server *server);
unsigned fault_server_connections(struct fault_server *server);
/* Until every request that has been sent is dealt with, and every connection that was closed is: no client is left. */
void fault_server_settle(struct fault_server *server);
/* Ends waits, closes all connections and joins all threads. */
void fault_server_stop(struct fault_server *server);

/* Of a handler. A send to a connection that is gone does nothing. */
void fault_send(struct fault_conn *conn, const void *data, size_t length);
void fault_printf(struct fault_conn *conn, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Status line, "Content-Length", extra header lines ("" or "A: b\r\n"), body. */
void fault_answer(struct fault_conn *conn, int status, const char *extra, const char *body, size_t length);
/* Until the server stops, the client hangs up, or ms have passed. */
void fault_wait(struct fault_conn *conn, unsigned ms);
/* The next close sends RST. */
void fault_reset(struct fault_conn *conn);
/* The value of a header of the request, or NULL. Valid until the next call in this thread. */
const char *fault_header(const struct fault_request *request, const char *name);
/* The value of a query parameter, percent-decoded, or NULL. Valid until the next call in this thread. */
const char *fault_query(const struct fault_request *request, const char *name);

#endif
