#include "fault_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNS_MAX 8192
#define BODY_MAX  (64u << 20)

struct fault_conn {
    struct fault_server *server;
    pthread_t thread;
    int fd;
    char buffer[32768];
    size_t filled;
};

struct fault_server {
    fault_handler *handler;
    void *arg;
    int fd;
    int stop_pipe[2]; /* readable: stop */
    char host[32];
    pthread_t thread;
    pthread_mutex_t lock;
    struct fault_conn *conns[CONNS_MAX];
    unsigned count;
};

static void die(const char *what)
{
    perror(what);
    abort();
}

void fault_send(struct fault_conn *conn, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        struct pollfd fds[2] = {{conn->fd, POLLOUT, 0}, {conn->server->stop_pipe[0], POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents)
            return;
        ssize_t n = send(conn->fd, at, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN)
            return;
        if (n > 0) {
            at += n;
            length -= (size_t)n;
        }
    }
}

void fault_wait(struct fault_conn *conn, unsigned ms)
{
    struct pollfd fds[2] = {{conn->fd, POLLRDHUP, 0}, {conn->server->stop_pipe[0], POLLIN, 0}};
    poll(fds, 2, (int)ms);
}

void fault_reset(struct fault_conn *conn)
{
    struct linger linger = {1, 0};
    setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

/* More bytes into the buffer. 0 at the end of the connection or of the server. */
static bool fill(struct fault_conn *conn)
{
    struct pollfd fds[2] = {{conn->fd, POLLIN, 0}, {conn->server->stop_pipe[0], POLLIN, 0}};
    if (conn->filled + 1 >= sizeof conn->buffer || poll(fds, 2, -1) < 0 || fds[1].revents)
        return false;
    ssize_t n = recv(conn->fd, conn->buffer + conn->filled, sizeof conn->buffer - 1 - conn->filled, 0);
    if (n <= 0)
        return false;
    conn->filled += (size_t)n;
    conn->buffer[conn->filled] = 0;
    return true;
}

/* What is not in the buffer yet. */
static bool read_body(struct fault_conn *conn, char *to, size_t length)
{
    while (length > 0) {
        struct pollfd fds[2] = {{conn->fd, POLLIN, 0}, {conn->server->stop_pipe[0], POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents)
            return false;
        ssize_t n = recv(conn->fd, to, length, 0);
        if (n <= 0)
            return false;
        to += n;
        length -= (size_t)n;
    }
    return true;
}

static bool read_request(struct fault_conn *conn, struct fault_request *request)
{
    conn->buffer[conn->filled] = 0;
    char *end;
    while (!(end = strstr(conn->buffer, "\r\n\r\n"))) {
        if (!fill(conn))
            return false;
    }
    size_t head = (size_t)(end + 4 - conn->buffer);
    char *line_end = strstr(conn->buffer, "\r\n");
    *line_end = 0;
    if (sscanf(conn->buffer, "%15s %8191s", request->method, request->target) != 2)
        return false;
    snprintf(request->head, sizeof request->head, "%.*s", (int)(end + 2 - (line_end + 2)), line_end + 2);
    const char *length = fault_header(request, "Content-Length");
    request->body_length = length ? strtoul(length, NULL, 10) : 0;
    if (request->body_length > BODY_MAX)
        return false;
    free(request->body);
    request->body = calloc(1, request->body_length + 4097);
    if (!request->body)
        die("calloc");
    size_t there = conn->filled - head, taken = there < request->body_length ? there : request->body_length;
    memcpy(request->body, conn->buffer + head, taken);
    conn->filled -= head + taken;
    memmove(conn->buffer, conn->buffer + head + taken, conn->filled);
    return read_body(conn, request->body + taken, request->body_length - taken);
}

static void *serve(void *arg)
{
    struct fault_conn *conn = arg;
    struct fault_request *request = calloc(1, sizeof *request);
    if (!request)
        die("calloc");
    while (read_request(conn, request) && conn->server->handler(conn->server->arg, conn, request))
        request->on_conn++;
    free(request->body);
    free(request);
    shutdown(conn->fd, SHUT_WR);
    struct linger linger;
    socklen_t size = sizeof linger;
    bool kept = getsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &linger, &size) == 0 && !linger.l_onoff;
    if (kept) /* unread bytes would turn the close into a reset, and could take the answer's end with them */
        while (fill(conn))
            conn->filled = 0;
    pthread_mutex_lock(&conn->server->lock);
    close(conn->fd);
    conn->fd = -1;
    pthread_mutex_unlock(&conn->server->lock);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct fault_server *server = arg;
    for (;;) {
        struct pollfd fds[2] = {{server->fd, POLLIN, 0}, {server->stop_pipe[0], POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 || fds[1].revents)
            return NULL;
        int fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct fault_conn *conn = calloc(1, sizeof *conn);
        if (!conn || server->count == CONNS_MAX)
            die("too many connections");
        conn->server = server;
        conn->fd = fd;
        pthread_mutex_lock(&server->lock);
        server->conns[server->count++] = conn;
        pthread_mutex_unlock(&server->lock);
        if (pthread_create(&conn->thread, NULL, serve, conn) != 0)
            die("pthread_create");
    }
}

struct fault_server *fault_server_start(fault_handler *handler, void *arg)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct fault_server *server = calloc(1, sizeof *server);
    if (!server)
        die("calloc");
    server->handler = handler;
    server->arg = arg;
    pthread_mutex_init(&server->lock, NULL);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->fd < 0 || bind(server->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server->fd, 64) != 0 || getsockname(server->fd, (struct sockaddr *)&address, &size) != 0 ||
        pipe(server->stop_pipe) != 0)
        die("listen");
    snprintf(server->host, sizeof server->host, "127.0.0.1:%u", ntohs(address.sin_port));
    if (pthread_create(&server->thread, NULL, accept_all, server) != 0)
        die("pthread_create");
    return server;
}

const char *fault_server_host(const struct fault_server *server)
{
    return server->host;
}

/* All connections before the one from this port are at their end. */
static bool settled(struct fault_server *server, in_port_t port)
{
    pthread_mutex_lock(&server->lock);
    unsigned open = 0;
    bool accepted = false;
    for (unsigned i = 0; i < server->count; i++) {
        struct sockaddr_in peer = {0};
        socklen_t size = sizeof peer;
        if (server->conns[i]->fd < 0)
            continue;
        open++;
        accepted |= getpeername(server->conns[i]->fd, (struct sockaddr *)&peer, &size) == 0 && peer.sin_port == port;
    }
    pthread_mutex_unlock(&server->lock);
    return accepted && open == 1;
}

void fault_server_settle(struct fault_server *server)
{
    struct sockaddr_in address, ours = {0};
    socklen_t size = sizeof address, ours_size = sizeof ours;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || getsockname(server->fd, (struct sockaddr *)&address, &size) != 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&ours, &ours_size) != 0)
        die("connect");
    while (!settled(server, ours.sin_port)) /* accepted in order: what came before is there too */
        poll(NULL, 0, 1);
    close(fd);
}

unsigned fault_server_connections(struct fault_server *server)
{
    pthread_mutex_lock(&server->lock);
    unsigned count = server->count;
    pthread_mutex_unlock(&server->lock);
    return count;
}

void fault_server_stop(struct fault_server *server)
{
    close(server->stop_pipe[1]); /* the read end is at its end: readable for all */
    pthread_join(server->thread, NULL);
    for (unsigned i = 0; i < server->count; i++) {
        pthread_join(server->conns[i]->thread, NULL);
        free(server->conns[i]);
    }
    close(server->fd);
    close(server->stop_pipe[0]);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
