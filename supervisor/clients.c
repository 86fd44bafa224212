/* clients.c - see clients.h. Each request gets one answer, before the next one is read. No handler frees anything. */
#include "supervisor/clients.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/container.h"
#include "base/log.h"
#include "shm/control/msg.h"
#include "supervisor/requests.h"
#include "supervisor/run_impl.h"

#define PACKETS_AT_ONCE 16
#define FIRST_CLIENT_MS 30000 /* a private supervisor waits so long for its first client */
#define LAST_CLIENT_MS  2000  /* and so long after its last one */
#define ACCEPT_AGAIN_MS 100   /* after it could not even be refused */

#define OWNER(member, field) MR_CONTAINER_OF(member, mr_client_peer, field)

/* ---- life of a client ---- */

/* The connection is over: it can name no data set any more. The process may live on, with leases. */
static void disconnect(struct mr_client_peer *client)
{
    struct mr_supervisor *s = client->supervisor;
    mr_events_unwatch(&s->events, &client->messages);
    mr_batches_client_gone(s, client);
    mr_meters_client_gone(s, client);
    mr_tracing_client_gone(s, client);
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    for (unsigned i = 0; i < MR_DATASETS_MAX; i++) {
        if (s->datasets[i] && mr_requests_has_open(client, s->datasets[i]))
            mr_dataset_left(s->datasets[i]);
        client->opens[i] = 0;
    }
}

/* Closes and frees the client, which no lane may refer to any more. */
static void clients_forget(struct mr_client_peer *client)
{
    struct mr_supervisor *s = client->supervisor;
    struct mr_client_peer **at = &s->clients.first;
    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    disconnect(client);
    mr_events_unwatch(&s->events, &client->process);
    close(client->pidfd);
    free(client);
}

/* Ends the connection and records the process's end; settle takes the client off its lanes. */
static void clients_gone(struct mr_client_peer *client)
{
    mr_log_debug("client process %d has ended", (int)client->pid);
    disconnect(client);
    mr_events_unwatch(&client->supervisor->events, &client->process);
    client->gone = true;
}

static void process_ended(struct mr_watch *watch, uint32_t epoll_events)
{
    (void)epoll_events;
    clients_gone(OWNER(watch, process));
}

/* Whether the other end of the connection is closed, also where the event has not been handled yet. */
static bool has_hung_up(const struct mr_client_peer *client)
{
    struct pollfd end = {.fd = client->socket};
    return client->socket < 0 || (poll(&end, 1, 0) == 1 && (end.revents & (POLLHUP | POLLERR)));
}

/* Programs that ran in the process before this one have ended, as if the process had: their exec has closed their
 * connections. */
static void end_earlier_programs(const struct mr_client_peer *client)
{
    for (struct mr_client_peer *other = client->supervisor->clients.first; other; other = other->next)
        if (other->pid == client->pid && other->image != 0 && client->image != 0 && other->image != client->image &&
            !other->gone && has_hung_up(other))
            clients_gone(other);
}

/* Ends what one client had, as far as its connection or process has ended. True when anything has changed; the client
 * may be freed. */
static bool clients_settle_one(struct mr_supervisor *s, struct mr_client_peer *client)
{
    if (client->socket >= 0)
        return false;
    bool changed = !client->left;
    if (!client->left)
        mr_dataset_end_client_gone(s, client); /* it can open no more lanes; those that it has continue */
    client->left = true;
    if (client->gone) { /* its lanes no longer refer to it */
        mr_lanes_client_died(s, client);
        mr_ckpt_lanes_client_died(s, client);
        changed = true;
    }
    if (mr_lanes_of(s, client) == 0 && mr_ckpt_lanes_of(s, client) == 0) {
        clients_forget(client);
        changed = true;
    }
    return changed;
}

/* A private supervisor ends some time after the last process of its job. */
static void watch_use(struct mr_supervisor *s)
{
    struct mr_clients *clients = &s->clients;
    bool used = false;
    for (const struct mr_client_peer *client = clients->first; client; client = client->next)
        used |= client->of_job;
    if (used)
        mr_events_stop(&s->events, &clients->unused);
    else if (clients->any_yet && !clients->unused.active)
        mr_events_start(&s->events, &clients->unused, LAST_CLIENT_MS);
}

bool mr_clients_settle(struct mr_supervisor *s)
{
    bool changed = false;
    for (struct mr_client_peer *client = s->clients.first, *next; client; client = next) {
        next = client->next;
        changed |= clients_settle_one(s, client);
    }
    if (s->is_private)
        watch_use(s);
    return changed;
}

/* ---- packets ---- */

/* True when the connection continues. */
static bool serve_one(struct mr_client_peer *client, struct mr_msg_in *in)
{
    if (mr_requests_handle(client, in) == 0) {
        if (in->type == MR_MSG_HELLO)
            end_earlier_programs(client);
        return true;
    }
    bool broken = mr_error_code() == MR_E_PROTOCOL;
    if (broken)
        mr_log_warning("client process %d: %s", (int)client->pid, mr_error_text());
    return mr_requests_reply_error(client) == 0 && !broken;
}

/* Serves some packets at a time, so that a busy client does not keep the others waiting. */
static void messages_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_client_peer *client = OWNER(watch, messages);
    (void)epoll_events;
    for (unsigned i = 0; i < PACKETS_AT_ONCE; i++) {
        struct mr_msg_in in;
        int got = mr_msg_recv(client->socket, &in);
        if (got == 0)
            return;
        if (got < 0) {
            if (mr_error_code() != MR_E_GONE) {
                mr_log_warning("client process %d: %s", (int)client->pid, mr_error_text());
                mr_requests_reply_error(client);
            }
            disconnect(client);
            return;
        }
        bool goes_on = serve_one(client, &in);
        mr_msg_close(&in);
        if (!goes_on) {
            disconnect(client);
            return;
        }
    }
}

/* ---- the listening socket ---- */

static void no_descriptor(void)
{
    mr_error_set(MR_E_NO_MEMORY, "the supervisor has no descriptor for another client: raise its limit (ulimit -n)");
}

/* Who is it? Only our own user and root; the process must be visible, or its death could not be seen. */
static int identify(int socket, pid_t *pid, int *pidfd)
{
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        mr_error_set_errno(errno, "cannot find out who connects");
        return -1;
    }
    if (peer.uid != geteuid() && peer.uid != 0) {
        mr_error_set(MR_E_DENIED, "process %d of user %u may not connect to a supervisor of user %u", (int)peer.pid,
                     peer.uid, geteuid());
        return -1;
    }
    *pid = peer.pid;
    *pidfd = peer.pid > 0 ? (int)syscall(SYS_pidfd_open, peer.pid, 0) : -1;
    if (*pidfd < 0 && peer.pid > 0 && (errno == EMFILE || errno == ENFILE)) {
        no_descriptor();
        return -1;
    }
    if (*pidfd < 0 && peer.pid > 0 && errno == ESRCH) {
        mr_error_set(MR_E_GONE, "process %d has ended", (int)peer.pid);
        return -1;
    }
    if (*pidfd < 0) {
        mr_error_set(MR_E_DENIED, "the process that connects cannot be seen from the supervisor: both must be in one "
                                  "PID namespace (container)");
        return -1;
    }
    return 0;
}

/* Sends ERROR with this thread's mr_error, and closes the socket. */
static void clients_refuse(int socket)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_ERROR);
    mr_log(mr_error_code() == MR_E_GONE ? MR_LOG_DEBUG : MR_LOG_WARNING, "connection refused: %s", mr_error_text());
    mr_msg_put_u64(out, "code", mr_error_code());
    mr_msg_put_str(out, "text", mr_error_text());
    mr_msg_send(socket, out);
    close(socket);
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Accepts and refuses a client although no descriptor is free, with the spare one. 0 or -1: it is still in the queue. */
static int turn_away(struct mr_clients *clients)
{
    if (clients->spare >= 0)
        close(clients->spare);
    int socket = accept4(clients->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) {
        no_descriptor();
        clients_refuse(socket);
    }
    clients->spare = open_spare();
    return socket >= 0 ? 0 : -1;
}

/* A client that stays in the queue would wake the loop without end. */
static void accept_later(struct mr_supervisor *s)
{
    mr_log_error("nobody can connect at the moment: %s", mr_error_text());
    mr_events_unwatch(&s->events, &s->clients.accept);
    mr_events_start(&s->events, &s->clients.again, ACCEPT_AGAIN_MS);
}

static void again_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, clients.again);
    if (mr_events_watch(&s->events, &s->clients.accept, s->clients.listener, EPOLLIN) != 0)
        accept_later(s);
}

static void accept_ready(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(watch, mr_supervisor, clients.accept);
    (void)epoll_events;
    int socket = accept4(s->clients.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        int error = errno;
        if (error == EAGAIN || error == ECONNABORTED || error == EINTR)
            return;
        if ((error == EMFILE || error == ENFILE) && turn_away(&s->clients) == 0)
            return;
        mr_error_set_errno(error, "cannot accept a client");
        accept_later(s);
        return;
    }
    pid_t pid;
    int pidfd;
    if (identify(socket, &pid, &pidfd) != 0) {
        clients_refuse(socket);
        return;
    }
    struct mr_client_peer *client = calloc(1, sizeof *client);
    if (!client) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for another client");
        clients_refuse(socket);
        close(pidfd);
        return;
    }
    *client = (struct mr_client_peer){.next = s->clients.first,
                                      .supervisor = s,
                                      .socket = socket,
                                      .pidfd = pidfd,
                                      .pid = pid,
                                      .messages.ready = messages_ready,
                                      .process.ready = process_ended};
    memset(client->ids, 0xff, sizeof client->ids);
    s->clients.first = client;
    if (mr_events_watch(&s->events, &client->messages, socket, EPOLLIN) != 0 ||
        mr_events_watch(&s->events, &client->process, pidfd, EPOLLIN) != 0) {
        mr_log_error("client: %s", mr_error_text());
        clients_forget(client);
    }
}

static void unused_due(struct mr_timer *timer)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(timer, mr_supervisor, clients.unused);
    mr_run_end(s, s->clients.any_yet ? "its last client has gone" : "no client came");
}

static void starter_gone(struct mr_watch *watch, uint32_t epoll_events)
{
    struct mr_supervisor *s = MR_CONTAINER_OF(watch, mr_supervisor, clients.starter);
    (void)epoll_events;
    mr_events_unwatch(&s->events, watch);
    if (!s->clients.any_yet)
        mr_run_end(s, "whoever started it did not wait for it");
}

static int watch_starter(struct mr_supervisor *s)
{
    struct stat st;
    mr_events_start(&s->events, &s->clients.unused, FIRST_CLIENT_MS);
    s->clients.starter.ready = starter_gone;
    if (fstat(STDOUT_FILENO, &st) != 0 || !S_ISSOCK(st.st_mode))
        return 0;
    return mr_events_watch(&s->events, &s->clients.starter, STDOUT_FILENO, 0); /* its end is always reported */
}

int mr_clients_init(struct mr_supervisor *s, int listener)
{
    struct mr_clients *clients = &s->clients;
    clients->listener = listener;
    clients->spare = open_spare();
    if (clients->spare < 0 && (errno == EMFILE || errno == ENFILE)) {
        mr_error_set_errno(errno, "cannot keep a descriptor by which clients are refused");
        return -1;
    }
    clients->accept.ready = accept_ready;
    clients->again.run = again_due;
    clients->unused.run = unused_due;
    if (s->is_private && watch_starter(s) != 0)
        return -1;
    return mr_events_watch(&s->events, &clients->accept, listener, EPOLLIN);
}

void mr_clients_close(struct mr_supervisor *s)
{
    mr_events_stop(&s->events, &s->clients.unused);
    mr_events_stop(&s->events, &s->clients.again);
    mr_events_unwatch(&s->events, &s->clients.accept);
    mr_events_unwatch(&s->events, &s->clients.starter);
    if (s->clients.listener >= 0)
        close(s->clients.listener);
    if (s->clients.spare >= 0)
        close(s->clients.spare);
    s->clients.listener = s->clients.spare = -1;
    /* Their lanes have left the registry, untouched: trainers read what is READY. */
    for (struct mr_client_peer *client = s->clients.first, *next; client; client = next) {
        next = client->next;
        clients_forget(client);
    }
}
