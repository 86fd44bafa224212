#include "fault_gcs.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

static const char *hash_line(const struct fault_gcs *gcs, char line[64])
{
    char crc[9];
    mr_crc32c_to_base64(mr_crc32c(0, gcs->data, gcs->size), crc);
    snprintf(line, 64, "x-goog-hash: crc32c=%s\r\n", crc);
    return gcs->no_hash ? "" : line;
}

static bool not_found(struct fault_conn *conn)
{
    static const char text[] = "{\"error\": {\"code\": 404, \"message\": \"No such object: bucket/x\"}}";
    fault_answer(conn, 404, "Content-Type: application/json\r\n", text, sizeof text - 1);
    return true;
}

static bool answer_metadata(struct fault_gcs *gcs, struct fault_conn *conn)
{
    gcs->lookups++;
    char crc[9];
    mr_crc32c_to_base64(mr_crc32c(0, gcs->data, gcs->size), crc);
    char text[300];
    int n = snprintf(text, sizeof text, "{\"name\":\"x\",\"size\":\"%llu\",\"generation\":\"%llu\",\"crc32c\":\"%s\"}",
                     (unsigned long long)gcs->size, (unsigned long long)gcs->generation, crc);
    fault_answer(conn, 200, "", text, (size_t)n);
    return true;
}

static void send_drip(struct fault_conn *conn, const unsigned char *data, uint64_t length, uint64_t each)
{
    for (uint64_t at = 0; at < length; at += each) {
        fault_send(conn, data + at, MIN(each, length - at));
        fault_wait(conn, 10);
    }
}

/* All but the last chunk, which is empty. */
static void send_chunks(struct fault_conn *conn, const unsigned char *data, uint64_t length, uint64_t extra)
{
    for (uint64_t at = 0; at < length; at += 50000) {
        uint64_t n = MIN(50000, length - at);
        fault_printf(conn, "%llx\r\n", (unsigned long long)n);
        fault_send(conn, data + at, n);
        fault_printf(conn, "\r\n");
    }
    for (; extra > 0; extra--)
        fault_printf(conn, "1\r\nx\r\n");
}

/* The body, and all that goes wrong in it. data[0, length) is what was asked for. */
static bool send_body(struct fault_conn *conn, const struct fault_step *step, const unsigned char *data,
                      uint64_t length)
{
    unsigned char *copy;
    switch (step->kind) {
    case FAULT_RESET:
    case FAULT_CLOSE:
    case FAULT_NO_RANGE_CUT:
        fault_send(conn, data, MIN(step->after, length));
        if (step->kind == FAULT_RESET) {
            fault_wait(conn, 50); /* a reset overtakes what is not read yet */
            fault_reset(conn);
        }
        return false;
    case FAULT_STALL:
        fault_send(conn, data, MIN(step->after, length));
        fault_wait(conn, 30000);
        return false;
    case FAULT_DRIP:
        send_drip(conn, data, length, step->after);
        return true;
    case FAULT_FLIP:
        copy = malloc(length + 1);
        memcpy(copy, data, length);
        copy[length] = 0;
        copy[MIN(step->after, length)] ^= 1;
        fault_send(conn, copy, length);
        free(copy);
        return true;
    case FAULT_LONG:
        fault_send(conn, data, length);
        for (uint64_t i = 0; i < step->after; i++)
            fault_send(conn, "x", 1);
        return true;
    case FAULT_SHORT:
        fault_send(conn, data, length - step->after);
        return true;
    case FAULT_NO_RANGE_OPEN:
    case FAULT_CHUNKED_LONG:
    case FAULT_CHUNKED_SHORT:
        send_chunks(conn, data, step->kind == FAULT_CHUNKED_SHORT ? length - step->after : length,
                    step->kind == FAULT_CHUNKED_LONG ? step->after : 0);
        fault_printf(conn, "0\r\n\r\n");
        return true;
    case FAULT_CHUNKED_CUT:
        send_chunks(conn, data, length, 0);
        return false;
    default:
        fault_send(conn, data, length);
        return step->kind != FAULT_CLOSE_AFTER;
    }
}

static bool answer_media(struct fault_gcs *gcs, struct fault_conn *conn, const struct fault_request *request,
                         const struct fault_step *step)
{
    char head[512];
    unsigned long long first = 0, last = gcs->size ? gcs->size - 1 : 0;
    const char *range = fault_header(request, "Range");
    bool ignored =
        step->kind == FAULT_NO_RANGE || step->kind == FAULT_NO_RANGE_CUT || step->kind == FAULT_NO_RANGE_OPEN;
    if (range && !ignored) {
        if (sscanf(range, "bytes=%llu-%llu", &first, &last) != 2 || first >= gcs->size) {
            fault_answer(conn, 416, "", "", 0);
            return true;
        }
        last = MIN(last, gcs->size - 1);
        snprintf(head, sizeof head, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %llu-%llu/%llu\r\n",
                 first + (step->kind == FAULT_OTHER_RANGE), last, (unsigned long long)gcs->size);
        if (step->kind == FAULT_NOT_PARTIAL)
            snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\n");
    } else {
        snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\n");
    }
    uint64_t length = gcs->size ? last - first + 1 : 0, told = length;
    told += step->kind == FAULT_LONG ? step->after : 0;
    told -= step->kind == FAULT_SHORT ? step->after : 0;
    char hash[64];
    fault_printf(conn, "%s%sx-goog-generation: %llu\r\n%s", head, hash_line(gcs, hash),
                 (unsigned long long)gcs->generation, step->extra ? step->extra : "");
    if (step->kind == FAULT_GUNZIPPED)
        fault_printf(conn, "x-guploader-response-body-transformations: gunzipped\r\n");
    if (step->kind == FAULT_CHUNKED_LONG || step->kind == FAULT_CHUNKED_SHORT || step->kind == FAULT_CHUNKED_CUT ||
        step->kind == FAULT_NO_RANGE_OPEN)
        fault_printf(conn, "Transfer-Encoding: chunked\r\n\r\n");
    else
        fault_printf(conn, "Content-Length: %llu\r\n\r\n", (unsigned long long)told);
    return send_body(conn, step, gcs->data + first, length);
}

static bool answer(struct fault_gcs *gcs, struct fault_conn *conn, const struct fault_request *request)
{
    static const struct fault_step none;
    const char *generation = fault_query(request, "generation");
    uint64_t wanted = generation ? strtoull(generation, NULL, 10) : 0;
    bool is_media = fault_query(request, "alt") != NULL;
    const struct fault_step *step = &none;
    if (is_media) {
        unsigned n = gcs->media++;
        const char *range = fault_header(request, "Range");
        unsigned long long first = 0, last = UINT64_MAX;
        if (range)
            sscanf(range, "bytes=%llu-%llu", &first, &last);
        if (n < 256) {
            gcs->seen[n].first = first;
            gcs->seen[n].last = last;
            gcs->seen[n].generation = wanted;
            gcs->seen[n].on_conn = request->on_conn;
        }
        if (n < gcs->steps)
            step = &gcs->script[n];
    }
    if (gcs->delay_ms)
        fault_wait(conn, gcs->delay_ms);
    if (step->kind == FAULT_STATUS) {
        const char *text = step->text ? step->text : "";
        fault_answer(conn, step->status, step->extra ? step->extra : "", text, strlen(text));
        return true;
    }
    if (gcs->deleted || (wanted && wanted != gcs->generation))
        return not_found(conn);
    return is_media ? answer_media(gcs, conn, request, step) : answer_metadata(gcs, conn);
}

bool fault_gcs_handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    struct fault_gcs *gcs = arg;
    unsigned now = ++gcs->at_once, most = gcs->most_at_once;
    while (now > most && !atomic_compare_exchange_weak(&gcs->most_at_once, &most, now))
        ;
    if (request->on_conn == 0)
        gcs->connections++;
    bool keep = answer(gcs, conn, request);
    gcs->at_once--;
    return keep;
}
