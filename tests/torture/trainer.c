/*
 * trainer.c - reads every object of the data set "train" once and writes one checkpoint, then ends.
 *
 *   millrace-test-trainer OBJECTS CHECKPOINT-URI BYTES [HEADER]    under `millrace run`, or with MILLRACE_SOCKET
 *
 * Object i is HEADER bytes (0) and (i + 1) x 700 bytes, each i + 1; byte i of the checkpoint is i / 1000. Exit status
 * 0: "whole" was printed; 3: an error was, of whatever kind; 4: wrong bytes, or samples lost or twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/process.h"
#include "shm/control/ckpt_stream.h"
#include "shm/control/client.h"
#include "shm/index/index.h"
#include "shm/ring/consumer.h"

enum { SLICE_MS = 100, PATIENCE_S = 100, CHUNK = 8000 };

static bool wrong(uint64_t object, const char *what)
{
    fprintf(stderr, "WRONG: object %llu: %s\n", (unsigned long long)object, what);
    exit(4);
}

static void doze(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * MR_MILLISECOND_NS}, NULL);
}

static int await_ready(struct mr_client *client, uint64_t dataset)
{
    for (;;) {
        enum mr_dataset_state state = mr_client_dataset_state(client, dataset);
        if (state == MR_DATASET_READY)
            return 0;
        if (state == MR_DATASET_FAILED || mr_client_check(client) != 0)
            return -1;
        doze();
    }
}

static int count_objects(struct mr_client *client, uint64_t dataset, uint64_t *count)
{
    int fd;
    uint64_t size;
    if (mr_client_index(client, dataset, &fd, &size) != 0)
        return -1;
    struct mr_index index;
    int rc = mr_index_map(&index, fd);
    close(fd);
    if (rc != 0)
        return -1;
    *count = index.info.count;
    mr_index_close(&index);
    return 0;
}

static uint64_t header;

static uint64_t length_of(uint64_t object)
{
    return header + (object + 1) * 700;
}

static void check(const struct mr_delivery *delivery, uint64_t object)
{
    if (delivery->sample.request.object != object)
        wrong(object, "another one came");
    if (delivery->length != length_of(object))
        wrong(object, "another length");
    for (uint64_t i = header; i < delivery->length; i++)
        if (((const unsigned char *)delivery->data)[i] != (unsigned char)(object + 1))
            wrong(object, "other bytes");
}

static int take(struct mr_client *client, uint64_t dataset, struct mr_consumer *consumer, uint64_t object)
{
    struct mr_delivery delivery;
    for (;;) {
        switch (mr_consumer_next(consumer, SLICE_MS, &delivery)) {
        case MR_NEXT_OK:
            check(&delivery, object);
            if (delivery.copied)
                free((void *)(uintptr_t)delivery.data);
            else
                mr_lease_release(consumer, delivery.slot, delivery.word, delivery.length);
            return 0;
        case MR_NEXT_FAILED:
            mr_error_set((enum mr_code)delivery.code, "%s", delivery.text);
            return -1;
        case MR_NEXT_END:
            wrong(object, "it never came");
            return -1;
        case MR_NEXT_TIMEOUT:
        case MR_NEXT_SIGNAL:
            if (mr_client_check(client) != 0 || mr_client_dataset_state(client, dataset) == MR_DATASET_FAILED)
                return -1;
        }
    }
}

static int read_all(struct mr_client *client, uint64_t dataset, uint64_t count)
{
    struct mr_views *views = mr_client_views(client);
    struct mr_lane lane;
    if (!views || mr_client_open_lane(client, dataset, 0, 4, NULL, &lane, NULL, NULL) != 0)
        return -1;
    uint32_t number = lane.lane;
    struct mr_consumer *consumer = mr_consumer_new(&lane, views);
    if (!consumer) {
        mr_lane_unmap(&lane);
        return -1;
    }
    int rc = 0;
    for (uint64_t i = 0; i < count && rc == 0; i++) {
        struct mr_sample sample = {.request = {.dataset = mr_dataset_number(dataset), .object = i},
                                   .bytes = length_of(i)};
        rc = mr_consumer_feed(consumer, &sample, 1);
    }
    for (uint64_t i = 0; i < count && rc == 0; i++)
        rc = take(client, dataset, consumer, i);
    mr_consumer_destroy(consumer);
    if (mr_client_close_lane(client, number) != 0)
        return -1;
    return rc;
}

static int open_writer(struct mr_client *client, const char *uri, struct mr_ckpt_writer *writer)
{
    int64_t end = mr_clock_mono_ns() + PATIENCE_S * MR_SECOND_NS;
    while (mr_client_open_writer(client, uri, false, 0, writer) != 0) {
        if (mr_error_code() != MR_E_BUSY || mr_clock_mono_ns() > end)
            return -1;
        doze();
    }
    return 0;
}

static int push(struct mr_client *client, struct mr_ckpt_stream *stream, const unsigned char *data, size_t length)
{
    while (length > 0) {
        size_t taken = 0;
        enum mr_push how = mr_ckpt_stream_push(stream, data, length, &taken);
        data += taken;
        length -= taken;
        if (how == MR_PUSH_TOO_MANY)
            return -1;
        if (how == MR_PUSH_ENDED)
            return 0; /* the outcome says why */
        if (how == MR_PUSH_WAIT && mr_ckpt_stream_wait(stream, SLICE_MS) != MR_WAKE_CHANGED &&
            mr_client_check(client) != 0)
            return -1;
    }
    return 0;
}

static int await_outcome(struct mr_client *client, struct mr_ckpt_stream *stream)
{
    uint32_t code, crc32c;
    uint64_t generation;
    char text[MR_CKPT_PART_TEXT];
    enum mr_ckpt_part_outcome outcome;
    while ((outcome = mr_ckpt_part_result(&stream->writer->lane, &code, text, &generation, &crc32c)) ==
           MR_CKPT_PART_UNDECIDED)
        if (mr_ckpt_stream_wait_outcome(stream, SLICE_MS) != MR_WAKE_CHANGED && mr_client_check(client) != 0)
            return -1;
    if (outcome == MR_CKPT_PART_DONE)
        return 0;
    mr_error_set((enum mr_code)code, "%s", text);
    return -1;
}

/* 0 once it is sealed, or aborted by its worker. */
static int seal(struct mr_client *client, struct mr_ckpt_stream *stream)
{
    while (mr_ckpt_stream_seal(stream) == MR_FATE_OPEN) {
        if (mr_client_check(client) != 0)
            return -1;
        mr_ckpt_stream_wait_worker(stream, 100);
    }
    return 0;
}

static int save(struct mr_client *client, const char *uri, size_t bytes)
{
    struct mr_ckpt_writer writer;
    if (open_writer(client, uri, &writer) != 0)
        return -1;
    struct mr_ckpt_stream stream;
    mr_ckpt_stream_init(&stream, &writer);
    int rc = 0;
    for (size_t at = 0; at < bytes && rc == 0; at += CHUNK) {
        unsigned char chunk[CHUNK];
        size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
        for (size_t i = 0; i < n; i++)
            chunk[i] = (unsigned char)((at + i) / 1000);
        rc = push(client, &stream, chunk, n);
    }
    if (rc == 0)
        rc = seal(client, &stream);
    if (rc != 0)
        mr_ckpt_stream_abort(&stream);
    else
        rc = await_outcome(client, &stream);
    mr_ckpt_stream_close(&stream);
    if (mr_client_close_writer(client, &writer) != 0)
        return -1;
    return rc;
}

int main(int argc, char **argv)
{
    mr_process_begin();
    const char *path = getenv("MILLRACE_SOCKET");
    if (argc < 4 || argc > 5 || !path)
        return 2;
    header = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
    uint64_t objects = strtoull(argv[1], NULL, 10), count = 0;
    struct mr_client *client = mr_client_connect(path, "job", 5000);
    struct mr_opened opened;
    const struct mr_to_open what = {.name = "train", .names_fd = -1};
    const char *did = "connecting";
    int rc = client ? 0 : -1;
    if (rc == 0 && (did = "opening", mr_client_open_dataset(client, &what, &opened)) != 0)
        rc = -1;
    if (rc == 0 && (did = "listing", await_ready(client, opened.dataset)) != 0)
        rc = -1;
    if (rc == 0 && (did = "looking", count_objects(client, opened.dataset, &count)) != 0)
        rc = -1;
    if (rc == 0 && count != objects)
        wrong(count, "objects are listed");
    if (rc == 0 && (did = "reading", read_all(client, opened.dataset, count)) != 0)
        rc = -1;
    if (rc == 0 && (did = "saving", save(client, argv[2], strtoull(argv[3], NULL, 10))) != 0)
        rc = -1;
    if (rc != 0)
        fprintf(stderr, "trainer: %s: %s: %s\n", did, mr_code_name(mr_error_code()), mr_error_text());
    mr_client_destroy(client);
    if (rc == 0)
        printf("whole\n");
    return rc == 0 ? 0 : 3;
}
