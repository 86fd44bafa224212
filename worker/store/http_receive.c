/* Requests over connections of our own: their text, the head of the response, and its body, read into place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "worker/store/headers.h"
#include "worker/store/http_impl.h"

#define HEAD_FIRST ((size_t)4 << 10)   /* size of the first read: body bytes in it are copied */
#define HEAD_MOST  ((size_t)128 << 10) /* bytes */
#define SCRATCH    ((size_t)64 << 10)
#define TURNS      16 /* reads of one connection before others have theirs */
#define TURN_BYTES ((size_t)256 << 10)

/* ---- the request ---- */

bool mr_http_is_own(const struct mr_http *http, const struct mr_http_request *request)
{
    bool tls = strncmp(request->url, "https://", 8) == 0;
    if (!request->room || !request->sink || request->body_count > 0 || strcmp(request->method, "GET") != 0)
        return false;
    if (request->once || request->direct || (!tls && (http->plain_proxy || strncmp(request->url, "http://", 7) != 0)))
        return false;
    const char *authority = strstr(request->url, "://") + 3;
    return authority[0] != '\0' && strcspn(authority, "/") <= strcspn(authority, "?#@\\");
}

/* Whether a line "Name: value" has that name. */
static bool is_named(const char *line, const char *name)
{
    size_t length = strlen(name);
    return strncasecmp(line, name, length) == 0 && line[length] == ':';
}

static bool is_given(const struct mr_http_request *request, const struct curl_slist *shared, const char *name)
{
    for (unsigned i = 0; i < request->header_count; i++)
        if (is_named(request->headers[i], name))
            return true;
    for (; shared; shared = shared->next)
        if (is_named(shared->data, name))
            return true;
    return false;
}

/* Lines with an empty value only tell libcurl not to add its own. */
static bool has_value(const char *line)
{
    const char *colon = strchr(line, ':');
    return colon && colon[1 + strspn(colon + 1, " \t")] != '\0';
}

static char *http_receive_put(char *to, const char *text, size_t length)
{
    memcpy(to, text, length);
    return to + length;
}

static char *put_line(char *to, const char *line)
{
    return http_receive_put(http_receive_put(to, line, strlen(line)), "\r\n", 2);
}

/* As libcurl writes it: without the scheme's default port. */
static char *put_host(char *to, const char *authority, size_t length, bool tls)
{
    const char *port = tls ? ":443" : ":80";
    size_t n = strlen(port);
    if (length > n && memcmp(authority + length - n, port, n) == 0)
        length -= n;
    return http_receive_put(http_receive_put(http_receive_put(to, "Host: ", 6), authority, length), "\r\n", 2);
}

int mr_http_write_request(struct mr_http_call *call, const struct mr_http_request *request)
{
    static const char agent[] = "User-Agent: " MR_HTTP_AGENT, accept[] = "Accept: */*";
    const struct curl_slist *shared = call->http->lines[request->plain][request->identity];
    const char *authority = strstr(request->url, "://") + 3, *path = authority + strcspn(authority, "/");
    size_t place = (size_t)(path - request->url), needed = 2 * strlen(request->url) + 512;
    for (unsigned i = 0; i < request->header_count; i++)
        needed += strlen(request->headers[i]) + 2;
    for (const struct curl_slist *line = shared; line; line = line->next)
        needed += strlen(line->data) + 2;
    if (needed > call->lines_size) {
        char *lines = malloc(needed);
        if (!lines)
            return -1;
        if (call->lines) /* they may hold a token */
            explicit_bzero(call->lines, call->lines_size);
        free(call->lines);
        call->lines = lines;
        call->lines_size = needed;
    }
    char *at = http_receive_put(call->lines, request->url, place);
    at = http_receive_put(
        http_receive_put(http_receive_put(at, "GET ", 4), *path ? path : "/", *path ? strlen(path) : 1),
        " HTTP/1.1\r\n", 11);
    if (!is_given(request, shared, "Host"))
        at = put_host(at, authority, (size_t)(path - authority), request->url[4] == 's');
    if (request->has_range)
        at += sprintf(at, "Range: bytes=%llu-%llu\r\n", (unsigned long long)request->range_first,
                      (unsigned long long)request->range_last);
    if (!is_given(request, shared, "User-Agent"))
        at = put_line(at, agent);
    if (!is_given(request, shared, "Accept"))
        at = put_line(at, accept);
    for (unsigned i = 0; i < request->header_count; i++)
        at = has_value(request->headers[i]) ? put_line(at, request->headers[i]) : at;
    for (; shared; shared = shared->next)
        at = has_value(shared->data) ? put_line(at, shared->data) : at;
    at = http_receive_put(at, "\r\n", 2);
    call->place_length = place;
    call->text_length = (size_t)(at - call->lines);
    return 0;
}

/* ---- the end of a call ---- */

/* The response is complete, or as much of it as is wanted: ends the call. */
static void http_receive_finish(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    call->keeps &= call->text_at == call->text_length; /* a response may come before all is sent */
    mr_http_line_release(line);
    mr_http_finish(http, call, MR_OK, "");
}

/* The connection is of no further use: closes it and ends the call. */
static void http_receive_fail(struct mr_http_line *line, enum mr_code code, const char *text)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    mr_http_line_close(line);
    mr_http_finish(http, call, code, text);
}

void mr_http_line_fail(struct mr_http_line *line, CURLcode curl)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    char text[CURL_ERROR_SIZE];
    memcpy(text, line->curl_text, sizeof text);
    mr_http_line_close(line);
    mr_http_finish_curl(http, call, curl, text);
}

/* A send or receive failed with this result; OK: the connection has ended. If the server closed an idle connection, the
 * call is queued again, for a new one; else it ends. */
static void broken(struct mr_http_line *line, CURLcode curl)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    char text[CURL_ERROR_SIZE];
    if (line->used && line->head_length == 0) { /* the server has closed it meanwhile: not this request's fault */
        mr_http_line_close(line);
        call->fresh = true;
        mr_http_queue(http, call);
        return;
    }
    if (curl != CURLE_OK) {
        mr_http_line_fail(line, curl);
        return;
    }
    if (!call->head_ended || call->status / 100 == 1)
        snprintf(text, sizeof text, "%s",
                 line->head_length > 0 ? "the connection ended within the head of the answer"
                                       : "the connection ended before an answer came");
    else if (call->framing == MR_FRAMING_LENGTH)
        snprintf(text, sizeof text, "the connection ended with %llu bytes of the answer still to come",
                 (unsigned long long)call->left);
    else
        snprintf(text, sizeof text, "the connection ended within the answer");
    http_receive_fail(line, MR_E_NET, text);
}

/* ---- sending ---- */

void mr_http_send(struct mr_http_line *line)
{
    struct mr_http_call *call = line->call;
    size_t sent;
    call->sent += !line->begun;
    line->begun = true;
    while (call->text_at < call->text_length) {
        CURLcode curl =
            curl_easy_send(line->easy, call->lines + call->text_at, call->text_length - call->text_at, &sent);
        if (curl == CURLE_AGAIN) {
            mr_http_watch_line(line, true);
            return;
        }
        if (curl != CURLE_OK) {
            broken(line, curl);
            return;
        }
        call->text_at += sent;
    }
    mr_http_watch_line(line, false);
}

/* ---- the head ---- */

static bool has_word(const char *line, size_t length, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++)
        if (strncasecmp(line + i, word, n) == 0)
            return true;
    return false;
}

/* Whether the value of a line "Name: value", without white space around it, is this one. */
static bool is_value(const char *line, size_t length, const char *value)
{
    const char *begin = strchr(line, ':') + 1, *end = line + length;
    begin += strspn(begin, " \t");
    while (end > begin && strchr(" \t\r\n", end[-1]))
        end--;
    return (size_t)(end - begin) == strlen(value) && strncasecmp(begin, value, strlen(value)) == 0;
}

/* Takes the fields that determine how long the body is and whether the connection is kept. NULL, or what is wrong. */
static const char *take_field(struct mr_http_call *call, const char *line, size_t length)
{
    if (is_named(line, "Content-Length")) {
        if (!call->headers.has_content_length)
            return "the answer has a Content-Length that is not a number";
        if (call->has_length && call->left != call->headers.content_length)
            return "the answer has two lengths";
        call->has_length = true;
        call->left = call->headers.content_length;
        call->framing = call->framing == MR_FRAMING_CHUNKED ? MR_FRAMING_CHUNKED : MR_FRAMING_LENGTH;
    } else if (is_named(line, "Transfer-Encoding")) {
        if (is_value(line, length, "chunked"))
            call->framing = MR_FRAMING_CHUNKED;
        else if (!is_value(line, length, "identity"))
            return "the answer has a Transfer-Encoding that is not known here";
    } else if (is_named(line, "Connection") && has_word(line, length, "close")) {
        call->keeps = false;
    }
    return NULL;
}

static const char not_http[] = "the answer is not HTTP/1";

/* Whether the first line of a head is next. */
static bool begins_head(const struct mr_http_call *call)
{
    return call->status == 0 || call->head_ended;
}

/* Takes a line of the head, with its line end, NUL-terminated after it. NULL, or what is wrong. */
static const char *http_receive_take_line(struct mr_http_call *call, const char *line, size_t length)
{
    bool first = begins_head(call);
    if (first != (mr_http_headers_status(line, length) != 0))
        return first ? not_http : "a head begins within the head of the answer";
    mr_http_head_line(call, line, length);
    if (first) {
        call->framing = MR_FRAMING_CLOSE;
        call->has_length = false;
        call->keeps = strncmp(line, "HTTP/1.0", 8) != 0;
        return call->status == 101 ? "the server changes the protocol" : NULL;
    }
    return take_field(call, line, length);
}

/* 1: the head has ended; 0: there is more of it to come; -1: *text says what is wrong. */
static int parse_head(struct mr_http_line *line, const char **text)
{
    static const char start[] = "HTTP/1.";
    size_t length = line->head_length - line->head_at;
    char *feed;
    *text = NULL;
    if (begins_head(line->call) && memcmp(line->head + line->head_at, start, length < 7 ? length : 7) != 0)
        *text = not_http; /* which may never have a line end */
    while (!*text && (feed = memchr(line->head + line->head_at, '\n', line->head_length - line->head_at))) {
        char *begin = line->head + line->head_at, *next = feed + 1;
        length = (size_t)(next - begin);
        bool blank = length == 1 || (length == 2 && begin[0] == '\r');
        if (!blank && next == line->head + line->head_length)
            return 0;
        if (!blank && (*next == ' ' || *next == '\t')) { /* a folded line */
            feed[0] = ' ';
            if (length > 1 && feed[-1] == '\r')
                feed[-1] = ' ';
            continue;
        }
        line->head_at += length;
        char behind = *next;
        *next = '\0';
        *text = http_receive_take_line(line->call, begin, length);
        *next = behind;
        if (!*text && blank && line->call->status / 100 != 1)
            return 1;
    }
    return *text ? -1 : 0;
}

/* ---- the body ---- */

enum chunk_state { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_TRAILER_LINE };

/* Passes on bytes of the body itself. false: the call has ended. */
static bool give(struct mr_http_line *line, const char *data, size_t length)
{
    struct mr_http_call *call = line->call;
    int rc = length > 0 ? mr_http_take_body(call, data, length) : 0;
    if (rc == 0)
        return true;
    call->keeps = false;
    if (rc > 0)
        http_receive_finish(line);
    else
        http_receive_fail(line, call->sink_code, call->sink_text);
    return false;
}

static int hex(char c)
{
    char low = (char)(c | 32);
    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* One byte between chunks: the next state, or -1. */
static int next_state(struct mr_http_call *call, char c)
{
    int digit;
    switch ((enum chunk_state)call->chunk_state) {
    case CHUNK_SIZE:
        digit = hex(c);
        if (digit >= 0 && call->left >> 58 == 0) {
            call->left = call->left * 16 + (unsigned)digit;
            call->chunk_digits = true;
            return CHUNK_SIZE;
        }
        if (digit >= 0 || !call->chunk_digits || !c || !strchr("; \t\r\n", c))
            return -1;
        return c == '\n' ? (call->left > 0 ? CHUNK_DATA : CHUNK_TRAILER) : CHUNK_EXTENSION;
    case CHUNK_EXTENSION:
        return c != '\n' ? CHUNK_EXTENSION : call->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
    case CHUNK_DATA_END:
        call->chunk_digits = false;
        return c == '\n' ? CHUNK_SIZE : c == '\r' ? CHUNK_DATA_END : -1;
    case CHUNK_TRAILER:
        return c == '\r' || c == '\n' ? CHUNK_TRAILER : CHUNK_TRAILER_LINE;
    case CHUNK_TRAILER_LINE:
        return c == '\n' ? CHUNK_TRAILER : CHUNK_TRAILER_LINE;
    default:
        return -1;
    }
}

/* false: the call has ended. */
static bool take_chunks(struct mr_http_line *line, const char *data, size_t length)
{
    struct mr_http_call *call = line->call;
    while (length > 0) {
        if (call->chunk_state == CHUNK_DATA) {
            size_t n = length < call->left ? length : (size_t)call->left;
            call->left -= n;
            if (call->left == 0)
                call->chunk_state = CHUNK_DATA_END;
            if (!give(line, data, n))
                return false;
            data += n;
            length -= n;
            continue;
        }
        bool ends = call->chunk_state == CHUNK_TRAILER && *data == '\n';
        int state = next_state(call, *data++);
        length--;
        if (state < 0) {
            http_receive_fail(line, MR_E_PROTOCOL, "the answer comes in chunks, and one has no length");
            return false;
        }
        call->chunk_state = (unsigned)state;
        if (ends) {
            call->keeps &= length == 0;
            http_receive_finish(line);
            return false;
        }
    }
    return true;
}

/* Takes what was received after the head. false: the call has ended. */
static bool take_bytes(struct mr_http_line *line, const char *data, size_t length)
{
    struct mr_http_call *call = line->call;
    if (call->framing == MR_FRAMING_CHUNKED)
        return take_chunks(line, data, length);
    if (call->framing == MR_FRAMING_CLOSE)
        return give(line, data, length);
    size_t n = length < call->left ? length : (size_t)call->left;
    call->left -= n;
    call->keeps &= length == n;
    if (!give(line, data, n))
        return false;
    if (call->left > 0)
        return true;
    http_receive_finish(line);
    return false;
}

/* The head is complete: determines how the body ends, and takes what has arrived of it. false: the call has ended. */
static bool begin_body(struct mr_http_line *line)
{
    struct mr_http_call *call = line->call;
    if (call->status == 204 || call->status == 304)
        call->framing = MR_FRAMING_LENGTH;
    call->left = 0;
    call->chunk_state = CHUNK_SIZE;
    call->chunk_digits = false;
    if (call->framing == MR_FRAMING_LENGTH && call->status != 204 && call->status != 304)
        call->left = call->headers.content_length;
    call->keeps &= call->framing != MR_FRAMING_CLOSE;
    return take_bytes(line, line->head + line->head_at, line->head_length - line->head_at);
}

/* ---- receiving ---- */

/* 1: bytes; 0: none are there; -1: the connection has ended, and so has the call, or it was queued again. */
static int receive(struct mr_http_line *line, void *to, size_t room, size_t *got)
{
    CURLcode curl = curl_easy_recv(line->easy, to, room, got);
    if (curl == CURLE_AGAIN)
        return 0;
    if (curl == CURLE_OK && *got > 0)
        return 1;
    bool answered = line->call->head_ended && line->call->status / 100 != 1; /* a 1xx announces another head */
    if (curl == CURLE_OK && answered && line->call->framing == MR_FRAMING_CLOSE)
        http_receive_finish(line);
    else
        broken(line, curl);
    return -1;
}

/* true: there may be more to receive at once. false: there is not, or the call has ended. */
static bool receive_head(struct mr_http_line *line)
{
    const char *text = "the head of the answer is longer than 128 KiB";
    size_t got;
    if (line->head_length + 1 >= line->head_room) {
        size_t room = line->head_room ? 2 * line->head_room : HEAD_FIRST;
        char *head = room <= HEAD_MOST ? realloc(line->head, room) : NULL;
        if (!head) {
            http_receive_fail(line, room <= HEAD_MOST ? MR_E_NO_MEMORY : MR_E_PROTOCOL,
                              room <= HEAD_MOST ? "no memory for the head of an answer" : text);
            return false;
        }
        line->head = head;
        line->head_room = room;
    }
    if (receive(line, line->head + line->head_length, line->head_room - line->head_length - 1, &got) <= 0)
        return false;
    line->head_length += got;
    int rc = parse_head(line, &text);
    if (rc < 0) {
        http_receive_fail(line, MR_E_PROTOCOL, text);
        return false;
    }
    return rc == 0 || begin_body(line);
}

/* Returns as receive_head does. */
static bool receive_body(struct mr_http_line *line)
{
    struct mr_http *http = line->http;
    struct mr_http_call *call = line->call;
    size_t room = 0, got;
    bool whole = call->framing != MR_FRAMING_CHUNKED && call->status / 100 == 2;
    char *to = whole ? call->room(call->arg, &room) : NULL;
    if (!to) {
        if (!http->scratch && !(http->scratch = malloc(SCRATCH))) {
            http_receive_fail(line, MR_E_NO_MEMORY, "no memory for the body of an answer");
            return false;
        }
        to = http->scratch;
        room = SCRATCH;
    }
    if (call->framing == MR_FRAMING_LENGTH && room > call->left)
        room = (size_t)call->left;
    if (room > TURN_BYTES)
        room = TURN_BYTES;
    if (receive(line, to, room, &got) <= 0 || !take_bytes(line, to, got))
        return false;
    return line->tls || got == room; /* else the socket is empty: an event will tell. A TLS record may follow */
}

void mr_http_receive(struct mr_http_line *line)
{
    line->more = false;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        const struct mr_http_call *call = line->call;
        if (!(call->head_ended && call->status / 100 != 1 ? receive_body(line) : receive_head(line)))
            return;
    }
    line->more = line->http->more = true;
}
