/*
 * saver.c - a trainer's side of checkpoint lanes, driven by lines on standard input: each is answered by one line.
 *
 *   connect PATH                        ok
 *   open ID URI IF_ABSENT SHARERS       ok LANE WORKER PART_BYTES SLOTS   (asks again while BUSY for `patience` ms)
 *   patience MS                         ok
 *   write ID BYTES                      ok TOTAL          byte i of the object is mr_mix64(i / 4096) & 255
 *   hold ID                             ok                takes the next slot (FILLING) and keeps it
 *   seal ID                             ok sealed|aborted
 *   abort ID                            ok
 *   wait ID                             ok done GENERATION CRC32C | ok failed CODE TEXT | ok gone 0 TEXT
 *   fate ID                             ok open|sealed|aborted
 *   scribble ID SEED                    ok                random bytes over all that the lane shares
 *   close ID                            ok
 *   steal LANE                          ok                CLOSE_WRITER of somebody else's lane
 *
 * or "error CODE TEXT". It ends with its standard input, without closing anything.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/control/client.h"

enum { WRITERS = 64, LINE = 8192 };

struct saver {
    bool used;
    struct mr_ckpt_writer writer;
    uint64_t parts, bytes; /* published */
    uint64_t filling, filled;
    bool holds; /* a slot in FILLING */
};

static struct saver savers[WRITERS];
static struct mr_client *client;
static unsigned patience_ms = 100000;

static int fail(void)
{
    printf("error %d %s\n", (int)mr_error_code(), mr_error_text());
    return -1;
}

static void doze(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * MR_MILLISECOND_NS}, NULL);
}

static void make_bytes(unsigned char *out, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = (unsigned char)mr_mix64((from + i) / 4096);
}

static void wake(struct saver *s)
{
    mr_wake_producer(s->writer.line, s->writer.eventfd);
}

static int open_writer(struct saver *s, const char *uri, bool if_absent, uint32_t sharers)
{
    int64_t deadline = mr_clock_mono_ns() + (int64_t)patience_ms * MR_MILLISECOND_NS;
    memset(s, 0, sizeof *s);
    while (mr_client_open_writer(client, uri, if_absent, sharers, &s->writer) != 0) {
        if (mr_error_code() != MR_E_BUSY || mr_clock_mono_ns() > deadline)
            return fail();
        doze();
    }
    s->used = true;
    const struct mr_ckpt_lane *lane = &s->writer.lane;
    printf("ok %u %u %" PRIu64 " %u\n", lane->lane, lane->worker, lane->part_bytes, lane->slots);
    return 0;
}

/* 0, or -1 when the lane has been aborted, or the supervisor is gone. */
static int take_slot(struct saver *s)
{
    struct mr_ckpt_lane *lane = &s->writer.lane;
    while (!s->holds) {
        uint32_t seen = mr_ckpt_part_seq(lane);
        mr_ckpt_part_set_want(lane, s->parts + 1);
        s->holds = mr_ckpt_part_fill(lane, s->parts, &s->filling);
        if (!s->holds && mr_ckpt_part_fate(lane) == MR_FATE_ABORTED) {
            mr_error_set(MR_E_CHANGED, "aborted");
            return fail();
        }
        if (!s->holds && mr_client_check(client) != 0)
            return fail();
        if (!s->holds)
            mr_ckpt_part_wait(lane, seen, 100);
    }
    mr_ckpt_part_set_want(lane, 0);
    return 0;
}

static void publish(struct saver *s)
{
    mr_ckpt_part_publish(&s->writer.lane, s->parts, s->filling, s->filled);
    s->bytes += s->filled;
    s->parts++;
    s->filled = 0;
    s->holds = false;
    wake(s);
}

static int write_bytes(struct saver *s, uint64_t bytes)
{
    struct mr_ckpt_lane *lane = &s->writer.lane;
    while (bytes > 0) {
        if (take_slot(s) != 0)
            return -1;
        uint64_t n = lane->part_bytes - s->filled;
        if (n > bytes)
            n = bytes;
        make_bytes(s->writer.arena + mr_ckpt_part_offset(lane, mr_ckpt_part_slot(lane, s->parts)) + s->filled,
                   s->bytes + s->filled, n);
        s->filled += n;
        bytes -= n;
        if (s->filled == lane->part_bytes)
            publish(s);
    }
    printf("ok %" PRIu64 "\n", s->bytes + s->filled);
    return 0;
}

static void seal(struct saver *s)
{
    if (s->filled > 0)
        publish(s);
    if (s->holds)
        mr_ckpt_part_unfill(&s->writer.lane, s->parts, s->filling);
    s->holds = false;
    enum mr_fate fate;
    while ((fate = mr_ckpt_part_seal(&s->writer.lane, (uint32_t)s->parts, s->bytes)) == MR_FATE_OPEN) {
        if (mr_client_check(client) != 0) {
            fail();
            return;
        }
        doze();
    }
    wake(s);
    printf("ok %s\n", fate == MR_FATE_SEALED ? "sealed" : "aborted");
}

static int wait_end(struct saver *s)
{
    struct mr_ckpt_lane *lane = &s->writer.lane;
    uint32_t code, crc32c;
    uint64_t generation;
    char text[MR_CKPT_PART_TEXT];
    enum mr_ckpt_part_outcome outcome;
    while ((outcome = mr_ckpt_part_result(lane, &code, text, &generation, &crc32c)) == MR_CKPT_PART_UNDECIDED) {
        uint32_t seen = mr_ckpt_part_seq(lane);
        mr_ckpt_part_set_want(lane, MR_CKPT_PART_WANT_OUTCOME);
        if (mr_client_check(client) != 0)
            return fail();
        if (mr_ckpt_part_result(lane, &code, text, &generation, &crc32c) == MR_CKPT_PART_UNDECIDED)
            mr_ckpt_part_wait(lane, seen, 100);
    }
    if (outcome == MR_CKPT_PART_DONE)
        printf("ok done %" PRIu64 " %u\n", generation, crc32c);
    else
        printf("ok %s %u %s\n", outcome == MR_CKPT_PART_FAILED ? "failed" : "gone", code, text);
    return 0;
}

static int steal(uint32_t number)
{
    struct mr_ckpt_writer other = {.lane = {.lane = number}};
    if (mr_client_close_writer(client, &other) != 0)
        return fail();
    printf("ok\n");
    return 0;
}

static void scribble(const struct saver *s, uint64_t seed)
{
    uint64_t *words = (uint64_t *)s->writer.lane.shared;
    for (size_t i = 0; i < s->writer.lane.size / sizeof *words; i++)
        __atomic_store_n(&words[i], mr_mix64(seed * 1000003 + i), __ATOMIC_RELAXED);
}

static int on_saver(const char *verb, struct saver *s, uint64_t number)
{
    static const char *const fates[] = {"open", "sealed", "aborted"};
    if (strcmp(verb, "write") == 0)
        return write_bytes(s, number);
    if (strcmp(verb, "wait") == 0)
        return wait_end(s);
    if (strcmp(verb, "seal") == 0) {
        seal(s);
    } else if (strcmp(verb, "hold") == 0) {
        if (take_slot(s) != 0)
            return -1;
        printf("ok\n");
    } else if (strcmp(verb, "abort") == 0) {
        mr_ckpt_part_abort(&s->writer.lane);
        wake(s);
        printf("ok\n");
    } else if (strcmp(verb, "scribble") == 0) {
        scribble(s, number);
        wake(s);
        printf("ok\n");
    } else if (strcmp(verb, "fate") == 0) {
        printf("ok %s\n", fates[mr_ckpt_part_fate(&s->writer.lane)]);
    } else if (strcmp(verb, "close") == 0) {
        s->used = false;
        if (mr_client_close_writer(client, &s->writer) != 0)
            return fail();
        printf("ok\n");
    } else {
        printf("error 0 no such command\n");
    }
    return 0;
}

static void obey(const char *line)
{
    char verb[16], text[LINE];
    unsigned id = 0, if_absent, sharers;
    unsigned long long number = 0;
    if (sscanf(line, "connect %8000s", text) == 1) {
        client = mr_client_connect(text, "job", 10000);
        if (!client)
            fail();
        else
            printf("ok\n");
    } else if (sscanf(line, "patience %u", &patience_ms) == 1) {
        printf("ok\n");
    } else if (sscanf(line, "steal %u", &id) == 1) {
        steal(id);
    } else if (sscanf(line, "open %u %8000s %u %u", &id, text, &if_absent, &sharers) == 4 && id < WRITERS) {
        open_writer(&savers[id], text, if_absent != 0, sharers);
    } else if (sscanf(line, "%15s %u %llu", verb, &id, &number) >= 2 && id < WRITERS && savers[id].used) {
        on_saver(verb, &savers[id], number);
    } else {
        printf("error 0 no such command\n");
    }
}

int main(void)
{
    static char line[LINE];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin))
        obey(line);
    return 0;
}
