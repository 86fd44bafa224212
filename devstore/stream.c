#include "devstore/stream.h"

#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "devstore/faults.h"
#include "devstore/pace.h"
#include "devstore/request.h"
#include "devstore/timers.h"

#define BLOCK   (64u << 10)
#define LOOK_NS (50 * MR_MILLISECOND_NS) /* how often a stalled connection is checked for a client that has left */

/* What one response needs; used on the thread that runs its connection. */
struct stream {
    struct ds_timers *timers;
    struct MHD_Connection *connection;
    struct ds_reply reply; /* only the body: text, or object with fd, first and length */
    struct ds_pace own, *all;
    const struct ds_fault *fault;
    uint64_t cut;       /* RESET, STALL, SHORT: after so many bytes; UINT64_MAX: never */
    uint64_t flip;      /* WRONG: this byte; UINT64_MAX: none */
    int64_t stalled_ns; /* 0: not yet */
};

static int client_socket(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static bool client_left(struct stream *stream)
{
    struct pollfd look = {.fd = client_socket(stream->connection), .events = POLLRDHUP};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

/* Aborts the connection: the peer gets an RST (tcp(7), connect(2): AF_UNSPEC dissolves the association). */
void ds_stream_reset(struct MHD_Connection *connection)
{
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    if (connect(client_socket(connection), &nothing, sizeof nothing) < 0)
        mr_log_warning("a connection could not be reset");
}

/* At the cut. 0: wait, the connection is suspended; 1: go on; or MHD's code for a broken body. */
static ssize_t at_cut(struct stream *stream)
{
    int64_t now = mr_clock_mono_ns();
    if (stream->fault->kind == MR_FAULT_RESET)
        ds_stream_reset(stream->connection);
    if (stream->fault->kind != MR_FAULT_STALL)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (!stream->stalled_ns)
        stream->stalled_ns = now;
    if (stream->fault->has_arg && (double)(now - stream->stalled_ns) >= stream->fault->seconds * (double)MR_SECOND_NS) {
        stream->cut = UINT64_MAX;
        return 1;
    }
    if (client_left(stream) || ds_timers_suspend(stream->timers, stream->connection, now + LOOK_NS) < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    return 0;
}

/* How many of `most` bytes the bandwidth allows now; 0: the connection is suspended until it allows some. */
static size_t allowed(struct stream *stream, size_t most)
{
    int64_t now = mr_clock_mono_ns();
    int64_t own = ds_pace_ready(&stream->own), all = ds_pace_ready(stream->all), ready = own > all ? own : all;
    uint64_t piece = ds_pace_piece(&stream->own), shared = ds_pace_piece(stream->all);
    if (ready > now && ds_timers_suspend(stream->timers, stream->connection, ready) == 0)
        return 0;
    piece = piece < shared ? piece : shared;
    if (piece < most)
        most = (size_t)piece;
    ds_pace_charge(&stream->own, now, most);
    ds_pace_charge(stream->all, now, most);
    return most;
}

/* MHD's reader: how many bytes it put into `to`; 0: the connection is suspended; or MHD's code for the end. */
static ssize_t read_body(void *cls, uint64_t at, char *to, size_t most)
{
    struct stream *stream = cls;
    struct ds_reply *reply = &stream->reply;
    if (at >= reply->length)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (at >= stream->cut) {
        ssize_t code = at_cut(stream);
        if (code != 1)
            return code;
    }
    if (most > reply->length - at)
        most = (size_t)(reply->length - at);
    if (most > stream->cut - at)
        most = (size_t)(stream->cut - at);
    if ((most = allowed(stream, most)) == 0)
        return 0;
    if (!reply->object)
        memcpy(to, reply->body.data + at, most);
    else if (ds_object_read(reply->object, reply->fd, reply->first + at, to, most) < 0)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (stream->flip >= at && stream->flip < at + most)
        to[stream->flip - at] = (char)~to[stream->flip - at];
    return (ssize_t)most;
}

static void release(void *cls)
{
    struct stream *stream = cls;
    ds_reply_close(&stream->reply);
    ds_pace_close(&stream->own);
    free(stream);
}

static void place_fault(struct stream *stream)
{
    const struct ds_fault *fault = stream->fault;
    uint64_t length = stream->reply.length;
    uint64_t place = fault && fault->has_arg && fault->kind != MR_FAULT_STALL ? fault->bytes : length / 2;
    stream->cut = stream->flip = UINT64_MAX;
    if (!fault || length == 0)
        return;
    if (place >= length) /* a body shorter than ARG is still hit, at its last byte */
        place = length - 1;
    if (fault->kind == MR_FAULT_WRONG)
        stream->flip = place;
    else
        stream->cut = place;
}

struct MHD_Response *ds_stream_response(struct ds_timers *timers, struct MHD_Connection *connection,
                                        struct ds_reply *reply, double rate, struct ds_pace *all,
                                        const struct ds_fault *fault)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    *stream = (struct stream){.timers = timers, .connection = connection, .all = all, .fault = fault};
    ds_pace_init(&stream->own, rate);
    ds_reply_init(&stream->reply);
    stream->reply.body = reply->body;
    stream->reply.object = reply->object;
    stream->reply.fd = reply->fd;
    stream->reply.first = reply->first;
    stream->reply.length = reply->length;
    place_fault(stream);
    struct MHD_Response *response = MHD_create_response_from_callback(reply->chunked ? MHD_SIZE_UNKNOWN : reply->length,
                                                                      BLOCK, read_body, stream, release);
    if (!response) {
        ds_pace_close(&stream->own);
        free(stream);
        return NULL;
    }
    memset(&reply->body, 0, sizeof reply->body);
    reply->object = NULL;
    reply->fd = -1;
    return response;
}
