/* exchange.c - see exchange.h. */
#include "exchange.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNS_MAX 64
#define OUT_MAX   (8u << 20) /* 300,000 bytes in chunks of one */

/* How an answer ends. */
enum end { END_KEPT, END_FIN, END_RESET, END_SILENCE };

struct fault_conn {
    int fd; /* -1: none */
    char *in;
    size_t in_length, in_size;
    char *out;
    size_t out_length, out_size, sent;
    size_t piece; /* bytes sent in a step; 0: all */
    enum end end;
    bool answering;
    unsigned requests;
};

static struct {
    int listener;
    char host[32];
    fault_handler *handler;
    void *arg;
    struct input *in;
    struct fault_conn conns[CONNS_MAX];
    struct fault_request request;
} server = {.listener = -1};

static void die(const char *what)
{
    perror(what);
    abort();
}

static void reserve(char **buffer, size_t *size, size_t wanted)
{
    if (wanted <= *size)
        return;
    *size = wanted * 2;
    *buffer = realloc(*buffer, *size);
    if (!*buffer)
        die("realloc");
}

/* ---- of a handler ---- */

void fault_send(struct fault_conn *conn, const void *data, size_t length)
{
    if (conn->out_length + length > OUT_MAX)
        abort();
    reserve(&conn->out, &conn->out_size, conn->out_length + length + 1);
    if (length > 0)
        memcpy(conn->out + conn->out_length, data, length);
    conn->out_length += length;
}

void fault_wait(struct fault_conn *conn, unsigned ms)
{
    (void)conn;
    (void)ms;
}

void fault_reset(struct fault_conn *conn)
{
    conn->end = END_RESET;
}

/* ---- what the input does to an answer ---- */

/* The answer is `head` (with the empty line), then `body`. */
static size_t head_length(const struct fault_conn *conn)
{
    const char *end = conn->out_length ? memmem(conn->out, conn->out_length, "\r\n\r\n", 4) : NULL;
    return end ? (size_t)(end + 4 - conn->out) : conn->out_length;
}

/* Bytes [at, at + old) become data[0, length). */
static void replace(struct fault_conn *conn, size_t at, size_t old, const void *data, size_t length)
{
    reserve(&conn->out, &conn->out_size, conn->out_length + length + 1);
    memmove(conn->out + at + length, conn->out + at + old, conn->out_length - at - old);
    if (length > 0)
        memcpy(conn->out + at, data, length);
    conn->out_length += length - old;
}

static void change_status(struct fault_conn *conn, struct input *in)
{
    static const char *const statuses[] = {"400", "401", "403", "404", "408", "409", "410", "411", "412", "413", "416",
                                           "429", "499", "500", "501", "502", "503", "504", "505", "200", "201", "204",
                                           "206", "301", "302", "304", "307", "308", "100", "101", "103", "000", "999"};
    const char *status = statuses[input_below(in, sizeof statuses / sizeof *statuses)];
    if (conn->out_length >= 12)
        replace(conn, 9, 3, status, 3);
}

/* A header line before the others. */
static void add_header(struct fault_conn *conn, struct input *in)
{
    static const char *const lines[] = {
        "Retry-After: 1\r\n",
        "Retry-After: Wed, 21 Oct 2195 07:28:00 GMT\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 18446744073709551615\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Content-Encoding: gzip\r\n",
        "X-GUploader-Response-Body-Transformations: gunzipped\r\n",
        "x-goog-generation: 18446744073709551615\r\n",
        "x-goog-generation: 8\r\n",
        "x-goog-hash: crc32c=AAAAAA==\r\n",
        "Content-Range: bytes 0-99/100\r\n",
        "Content-Range: bytes */100\r\n",
        "Range: bytes=0-262143\r\n",
        "Location: http://127.0.0.1:1/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=0\r\n",
        "Location: nowhere\r\n",
        "ETag: \"\"\r\n",
        "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
        "\r\n",
        "Content-Type: multipart/mixed; boundary=b_1\r\n",
        ": \r\n",
        "A\r\n",
        " folded: 1\r\n"};
    const char *end = conn->out_length ? memchr(conn->out, '\n', conn->out_length) : NULL;
    size_t at = end ? (size_t)(end + 1 - conn->out) : 0;
    unsigned n = input_below(in, sizeof lines / sizeof *lines + 4);
    const uint8_t *raw;
    if (n < sizeof lines / sizeof *lines) {
        replace(conn, at, 0, lines[n], strlen(lines[n]));
    } else { /* one out of the input */
        size_t length = input_bytes(in, input_byte(in), &raw);
        replace(conn, at, 0, "\r\n", 2);
        replace(conn, at, 0, raw, length);
    }
}

static void drop_line(struct fault_conn *conn, struct input *in)
{
    size_t head = head_length(conn), at = 0;
    for (unsigned n = input_below(in, 12); n > 0; n--) {
        const char *end = memchr(conn->out + at, '\n', head - at);
        if (!end || (size_t)(end + 1 - conn->out) >= head)
            return;
        at = (size_t)(end + 1 - conn->out);
    }
    const char *end = memchr(conn->out + at, '\n', head - at);
    if (end)
        replace(conn, at, (size_t)(end + 1 - conn->out) - at, "", 0);
}

/* The n-th number of the answer becomes another one. */
static void change_number(struct fault_conn *conn, struct input *in)
{
    size_t at = 0, length = 0;
    for (unsigned n = input_byte(in) + 1u; n > 0; n--) {
        at += length;
        while (at < conn->out_length && (conn->out[at] < '0' || conn->out[at] > '9'))
            at++;
        for (length = 0;
             at + length < conn->out_length && conn->out[at + length] >= '0' && conn->out[at + length] <= '9';)
            length++;
        if (length == 0)
            return;
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%llu", (unsigned long long)input_number(in));
    replace(conn, at, length, text, (size_t)n);
}

/* Without Content-Length, in chunks of which some may be framed wrongly. */
static void chunk_body(struct fault_conn *conn, struct input *in)
{
    size_t head = head_length(conn), body = conn->out_length - head;
    char *copy = malloc(body + 1);
    if (!copy)
        die("malloc");
    memcpy(copy, conn->out + head, body);
    conn->out_length = head;
    char *length = head ? memmem(conn->out, head, "Content-Length", 14) : NULL;
    if (length)
        memcpy(length, "X-No-Length---", 14);
    if (head >= 2)
        replace(conn, head - 2, 0, "Transfer-Encoding: chunked\r\n", 28);
    unsigned wrong = input_below(in, 8);
    for (size_t at = 0; at < body;) {
        size_t n = (size_t)input_16(in) + 1;
        n = n < body - at ? n : body - at;
        fault_printf(conn, "%zx%s\r\n", n, wrong == 1 ? ";a=b" : wrong == 2 ? "fffffffffffffff" : "");
        fault_send(conn, copy + at, n);
        fault_send(conn, "\r\n", wrong == 3 ? 1 : 2);
        at += n;
    }
    free(copy);
    if (wrong != 4)
        fault_printf(conn, "0\r\n%s\r\n", wrong == 5 ? "x-goog-generation: 9\r\n" : "");
}

/* The body becomes bytes of the input, told right. */
static void replace_body(struct fault_conn *conn, struct input *in)
{
    const uint8_t *raw;
    size_t length = input_bytes(in, input_16(in) % 2048, &raw), head = head_length(conn), digits = 0;
    replace(conn, head, conn->out_length - head, raw, length);
    char *field = head ? memmem(conn->out, head, "Content-Length: ", 16) : NULL;
    if (!field)
        return;
    size_t at = (size_t)(field + 16 - conn->out);
    while (at + digits < head && conn->out[at + digits] >= '0' && conn->out[at + digits] <= '9')
        digits++;
    char text[32];
    int n = snprintf(text, sizeof text, "%zu", length);
    replace(conn, at, digits, text, (size_t)n);
}

static void flip(struct fault_conn *conn, struct input *in)
{
    size_t at = input_position(in, conn->out_length);
    if (at < conn->out_length)
        conn->out[at] ^= (char)(1 << input_below(in, 8));
}

static void cut(struct fault_conn *conn, struct input *in, enum end end)
{
    conn->out_length = input_position(in, conn->out_length);
    conn->end = end;
}

static void spoil_once(struct fault_conn *conn, struct input *in, unsigned kind)
{
    const uint8_t *raw;
    size_t length;
    switch (kind) {
    case 3:
        change_status(conn, in);
        break;
    case 4:
        change_status(conn, in);
        add_header(conn, in);
        break;
    case 5:
        cut(conn, in, END_RESET);
        break;
    case 6:
        cut(conn, in, END_FIN);
        break;
    case 7:
        cut(conn, in, END_SILENCE);
        break;
    case 8:
        flip(conn, in);
        break;
    case 9:
        drop_line(conn, in);
        break;
    case 10:
        add_header(conn, in);
        break;
    case 11:
        chunk_body(conn, in);
        break;
    case 12:
        replace_body(conn, in);
        break;
    case 13:
        length = input_bytes(in, input_16(in) % 2048, &raw);
        replace(conn, 0, conn->out_length, raw, length);
        break;
    case 14:
        change_number(conn, in);
        break;
    case 15:
        replace(conn, 0, 0, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 41);
        break;
    default:
        break;
    }
}

/* 0x10: sent in pieces; 0x20: the connection ends after it; 0x40: one more change. */
static void spoil(struct fault_conn *conn)
{
    struct input *in = server.in;
    unsigned how;
    do {
        how = input_byte(in);
        spoil_once(conn, in, how % 16);
        if (how & 0x10)
            conn->piece = input_16(in) % 5000 + 1;
        if ((how & 0x20) && conn->end == END_KEPT)
            conn->end = END_FIN;
    } while ((how & 0x40) && in->at < in->size);
    if (conn->piece > 0 && conn->out_length / conn->piece > 200)
        conn->piece = conn->out_length / 200;
}

/* ---- connections ---- */

static void close_conn(struct fault_conn *conn, bool reset)
{
    struct linger linger = {1, 0};
    if (reset)
        setsockopt(conn->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
    close(conn->fd);
    free(conn->in);
    free(conn->out);
    *conn = (struct fault_conn){.fd = -1};
}

static bool accept_one(void)
{
    int fd = accept4(server.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return false;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        if (server.conns[i].fd < 0) {
            server.conns[i] = (struct fault_conn){.fd = fd};
            return true;
        }
    }
    die("too many connections");
    return false;
}

/* More of what the client sends. False: nothing came. */
static bool read_some(struct fault_conn *conn)
{
    reserve(&conn->in, &conn->in_size, conn->in_length + 65536);
    ssize_t n = recv(conn->fd, conn->in + conn->in_length, 65535, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        close_conn(conn, n < 0);
        return true;
    }
    conn->in_length += (size_t)n;
    conn->in[conn->in_length] = 0;
    return true;
}

/* A whole request out of the buffer. */
static bool take_request(struct fault_conn *conn)
{
    struct fault_request *request = &server.request;
    char *end = conn->in_length ? memmem(conn->in, conn->in_length, "\r\n\r\n", 4) : NULL;
    if (!end)
        return false;
    size_t head = (size_t)(end + 4 - conn->in);
    char *line_end = memmem(conn->in, conn->in_length, "\r\n", 2);
    if (sscanf(conn->in, "%15s %8191s", request->method, request->target) != 2)
        abort(); /* the client sends no such thing */
    snprintf(request->head, sizeof request->head, "%.*s", (int)(end + 2 - (line_end + 2)), line_end + 2);
    const char *length = fault_header(request, "Content-Length");
    request->body_length = length ? strtoul(length, NULL, 10) : 0;
    if (conn->in_length - head < request->body_length)
        return false;
    request->body = calloc(1, request->body_length + 4097);
    if (!request->body)
        die("calloc");
    memcpy(request->body, conn->in + head, request->body_length);
    size_t used = head + request->body_length;
    conn->in_length -= used;
    memmove(conn->in, conn->in + used, conn->in_length);
    request->on_conn = conn->requests++;
    return true;
}

static void answer(struct fault_conn *conn)
{
    conn->out_length = conn->sent = conn->piece = 0;
    conn->end = END_KEPT;
    conn->answering = true;
    if (!server.handler(server.arg, conn, &server.request) && conn->end == END_KEPT)
        conn->end = END_FIN;
    free(server.request.body);
    server.request.body = NULL;
    spoil(conn);
}

/* The next piece of the answer; what comes after its last one. */
static bool send_some(struct fault_conn *conn)
{
    size_t left = conn->out_length - conn->sent;
    if (conn->piece > 0 && conn->piece < left)
        left = conn->piece;
    ssize_t n = left > 0 ? send(conn->fd, conn->out + conn->sent, left, MSG_NOSIGNAL) : 0;
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n < 0) {
        close_conn(conn, true);
        return true;
    }
    conn->sent += (size_t)n;
    if (conn->sent < conn->out_length)
        return true;
    conn->answering = conn->end == END_SILENCE;
    if (conn->end == END_FIN || conn->end == END_RESET)
        close_conn(conn, conn->end == END_RESET);
    return n > 0 || conn->end != END_SILENCE;
}

static bool serve(struct fault_conn *conn)
{
    if (conn->answering && conn->sent < conn->out_length)
        return send_some(conn);
    if (!conn->answering && take_request(conn)) {
        answer(conn);
        return send_some(conn);
    }
    return read_some(conn);
}

bool exchange_step(void)
{
    bool moved = false;
    while (accept_one())
        moved = true;
    for (unsigned i = 0; i < CONNS_MAX; i++)
        if (server.conns[i].fd >= 0)
            moved |= serve(&server.conns[i]);
    return moved;
}

const char *exchange_host(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (server.listener >= 0)
        return server.host;
    server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server.listener < 0 || bind(server.listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server.listener, 128) != 0 || getsockname(server.listener, (struct sockaddr *)&address, &size) != 0)
        die("listen");
    snprintf(server.host, sizeof server.host, "127.0.0.1:%u", ntohs(address.sin_port));
    for (unsigned i = 0; i < CONNS_MAX; i++)
        server.conns[i].fd = -1;
    return server.host;
}

void exchange_begin(fault_handler *handler, void *arg, struct input *in)
{
    exchange_host();
    server.handler = handler;
    server.arg = arg;
    server.in = in;
}

void exchange_end(void)
{
    while (accept_one())
        ;
    for (unsigned i = 0; i < CONNS_MAX; i++)
        if (server.conns[i].fd >= 0)
            close_conn(&server.conns[i], true);
}
