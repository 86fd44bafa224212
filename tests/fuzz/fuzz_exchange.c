/*
 * fuzz_exchange.c - whole exchanges with a store: transfers of every kind through the real engine, HTTP client and
 * libcurl, against a server whose answers the input spoils (exchange.h).
 *
 * The first byte says whether it is a store of GCS or of S3. Each transfer calls back once, within a bound of time and
 * steps. What is called well has the right bytes; what failed has one line of text. Time is the target's own: when
 * nobody has anything to do it goes on, so that waits and time-outs cost none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "exchange.h"
#include "fault_bucket.h"
#include "fault_gcs.h"
#include "fault_s3.h"
#include "fuzz.h"
#include "worker/store/s3.h"
#include "worker/store/transfer.h"
#include "worker/store/upload_parts.h"

#define DATA_MAX    300000u
#define LIMIT_S     900   /* of the target's time, for a whole input */
#define STEPS_MAX   50000 /* of the loop */
#define TRANSFERS   3u
#define SEEDS       30u /* of each store */
#define UPLOAD_SIZE (MR_STORE_CHUNK + 5000u)

static unsigned char data[DATA_MAX];
static int64_t now_ns;
static uint64_t draws;

int64_t __wrap_mr_clock_mono_ns(void);
int64_t __wrap_mr_clock_mono_ns(void)
{
    return now_ns += 1000;
}

uint64_t __wrap_mr_random64(void);
uint64_t __wrap_mr_random64(void)
{
    return mr_mix64(draws++);
}

static struct {
    struct input in;
    bool is_s3;
    struct fault_s3 s3;
    struct fault_gcs object;    /* gs: "x" */
    struct fault_bucket bucket; /* gs: all others */
    uint64_t size;              /* of "x" */
    uint64_t x_generation, a_generation;
    struct mr_http *http;
    struct mr_store *store;
    struct mr_transfer_engine *engine;
} scene;

struct work {
    unsigned kind;
    int done;
    struct mr_transfer *transfer;
    unsigned char *dest;
    uint64_t offset, length;
    bool has_crc;
    unsigned count; /* of names */
    uint64_t read;  /* of an upload's source */
    char id[200];
    struct mr_upload_part parts[2];
    unsigned sent; /* upload parts */
};

static void check_text(enum mr_code code, const char *text)
{
    if (code >= MR_E_COUNT || (code == MR_OK) != (text[0] == 0))
        abort();
    for (const char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20)
            abort();
}

static void ended(struct work *work, enum mr_code code, const char *text)
{
    check_text(code, text);
    if (work->done++ > 0)
        abort();
    work->transfer = NULL;
}

/* ---- callbacks ---- */

static void on_fetch(void *arg, const struct mr_transfer_result *result)
{
    struct work *work = arg;
    ended(work, result->code, result->text);
    if (result->code != MR_OK)
        return;
    if (result->crc32c != mr_crc32c(0, work->dest, work->length))
        abort();
    if (work->has_crc && (!result->verified || memcmp(work->dest, data + work->offset, work->length) != 0))
        abort();
}

static void on_list(void *arg, const struct mr_store_result *result, const struct mr_store_page *page)
{
    ended(arg, result->code, result->text);
    if ((result->code == MR_OK) != (page != NULL))
        abort();
    for (size_t i = 0; page && i < page->count; i++)
        if (strlen(page->items[i].name) != page->items[i].name_length ||
            (i && strcmp(page->items[i - 1].name, page->items[i].name) >= 0))
            abort();
}

static void on_item(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    ended(arg, result->code, result->text);
    if ((result->code == MR_OK) != (item != NULL))
        abort();
}

static void on_new_item(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct work *work = arg;
    on_item(arg, result, item);
    if (item && (item->size != work->length ||
                 (item->has_crc32c && item->crc32c != mr_crc32c(0, data + work->offset, work->length))))
        abort();
}

static void on_plain(void *arg, const struct mr_store_result *result)
{
    ended(arg, result->code, result->text);
}

static void on_batch(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct work *work = arg;
    ended(work, result->code, result->text);
    for (unsigned i = 0; result->code == MR_OK && i < work->count; i++)
        check_text(each[i].code, each[i].text);
}

static void on_bucket(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket)
{
    ended(arg, result->code, result->text);
    if (bucket && (!bucket->storage_class || !bucket->location || !bucket->location_type))
        abort();
}

static void on_permissions(void *arg, const struct mr_store_result *result, unsigned granted)
{
    ended(arg, result->code, result->text);
    if (granted > 3)
        abort();
}

static void on_pending(void *arg, const struct mr_store_result *result, const struct mr_store_pending_page *page)
{
    ended(arg, result->code, result->text);
    for (size_t i = 0; page && i < page->count; i++)
        if (strlen(page->items[i].name) != page->items[i].name_length || page->items[i].id[0] == 0)
            abort();
}

/* ---- an object in upload parts: begin, two parts, complete ---- */

static void send_part(struct work *work);

static void on_part(void *arg, const struct mr_store_result *result, const char *etag)
{
    struct work *work = arg;
    ended(work, result->code, result->text);
    if (result->code != MR_OK) {
        work->transfer = mr_transfer_parts_abort(scene.engine, scene.store, "parts", 5, work->id, on_plain, work);
        work->done = 0;
        return;
    }
    if (strlen(etag) >= sizeof work->parts[0].etag)
        abort();
    work->parts[work->sent].number = work->sent + 1;
    strcpy(work->parts[work->sent++].etag, etag);
    work->done = 0;
    send_part(work);
}

static void send_part(struct work *work)
{
    if (work->sent < 2) {
        uint64_t half = work->length / 2, from = work->sent ? half : 0,
                 length = work->sent ? work->length - half : half;
        struct mr_upload_part_request request = {.name = "parts",
                                                 .name_length = 5,
                                                 .id = work->id,
                                                 .number = work->sent + 1,
                                                 .offset = from,
                                                 .data = data + from,
                                                 .length = length,
                                                 .crc32c = mr_crc32c(0, data + from, length)};
        work->transfer = mr_transfer_part_send(scene.engine, scene.store, &request, on_part, work);
    } else {
        struct mr_store_complete_request request = {.name = "parts",
                                                    .name_length = 5,
                                                    .id = work->id,
                                                    .parts = work->parts,
                                                    .count = 2,
                                                    .size = work->length,
                                                    .crc32c = mr_crc32c(0, data, work->length),
                                                    .generation_match = MR_STORE_ANY};
        work->transfer = mr_transfer_parts_complete(scene.engine, scene.store, &request, on_new_item, work);
    }
    if (!work->transfer)
        work->done = 1;
}

static void on_begun(void *arg, const struct mr_store_result *result, const char *id)
{
    struct work *work = arg;
    ended(work, result->code, result->text);
    if (result->code != MR_OK)
        return;
    if (id[0] == 0 || strlen(id) >= sizeof work->id)
        return;
    strcpy(work->id, id);
    work->done = 0;
    send_part(work);
}

/* ---- starts ---- */

static struct mr_transfer *fetch(struct work *work, struct input *in)
{
    unsigned how = input_byte(in);
    uint64_t size = scene.size;
    work->offset = (how & 1) && size > 0 ? input_position(in, size - 1) : 0;
    work->length = size - work->offset;
    if ((how & 2) && size > 0)
        work->length = 1 + input_position(in, work->length - 1);
    work->has_crc = how & 4;
    work->dest = malloc(work->length ? work->length : 1);
    if (!work->dest)
        abort();
    struct mr_transfer_request request = {.store = scene.store,
                                          .name = "x",
                                          .name_length = 1,
                                          .generation = how & 8    ? scene.x_generation
                                                        : how & 16 ? 6
                                                                   : 0,
                                          .size = size,
                                          .offset = work->offset,
                                          .length = work->length,
                                          .has_crc32c = work->has_crc,
                                          .crc32c = mr_crc32c(0, data + work->offset, work->length),
                                          .dest = work->dest};
    return mr_transfer_fetch(scene.engine, &request, on_fetch, work);
}

static struct mr_transfer *insert(struct work *work, struct input *in)
{
    const uint64_t matches[] = {MR_STORE_ANY, 0, scene.a_generation, 5};
    unsigned how = input_byte(in);
    work->length = input_16(in);
    struct mr_store_insert_request request = {.name = how & 4 ? "a" : "new",
                                              .name_length = how & 4 ? 1 : 3,
                                              .body = data,
                                              .length = work->length,
                                              .crc32c = mr_crc32c(0, data, work->length),
                                              .generation_match = matches[how % 4],
                                              .maybe_done = how & 8};
    return mr_transfer_insert(scene.engine, scene.store, &request, on_new_item, work);
}

static struct mr_transfer *compose(struct work *work, struct input *in)
{
    const struct mr_store_name sources[] = {{"a", 1, scene.a_generation, NULL}, {"b", 1, 0, NULL}};
    unsigned how = input_byte(in);
    work->length = 2000;
    struct mr_store_compose_request request = {.name = "whole",
                                               .name_length = 5,
                                               .sources = sources,
                                               .count = 2,
                                               .generation_match = how & 1 ? 0 : MR_STORE_ANY,
                                               .has_size = true,
                                               .size = 2000,
                                               .has_crc32c = how & 2,
                                               .crc32c = mr_crc32c(0, data, 2000),
                                               .maybe_done = how & 4};
    return mr_transfer_compose(scene.engine, scene.store, &request, how & 2 ? on_new_item : on_item, work);
}

static int64_t read_source(void *arg, void *buffer, size_t size)
{
    struct work *work = arg;
    uint64_t left = work->length - work->read, n = size < left ? size : left;
    memcpy(buffer, data + work->read, n);
    work->read += n;
    return (int64_t)n;
}

static int rewind_source(void *arg)
{
    struct work *work = arg;
    work->read = 0;
    return 0;
}

static struct mr_transfer *upload(struct work *work, struct input *in)
{
    unsigned how = input_byte(in);
    work->length = how & 1 ? input_16(in) : UPLOAD_SIZE;
    struct mr_transfer_upload_request request = {.store = scene.store,
                                                 .name = "up",
                                                 .name_length = 2,
                                                 .generation_match = how & 2 ? 0 : MR_STORE_ANY,
                                                 .size = how & 4 ? work->length : MR_STORE_ANY,
                                                 .chunk_bytes = MR_STORE_CHUNK,
                                                 .read = read_source,
                                                 .rewind = how & 8 ? rewind_source : NULL,
                                                 .fd = -1};
    return mr_transfer_upload(scene.engine, &request, on_new_item, work);
}

static struct mr_transfer *delete_some(struct work *work, struct input *in)
{
    static const struct mr_store_name names[] = {{"a", 1, 0, NULL}, {"missing", 7, 0, NULL}, {"b", 1, 3, NULL}};
    work->count = 1 + input_below(in, 3);
    return mr_transfer_delete_batch(scene.engine, scene.store, names, work->count, on_batch, work);
}

static struct mr_transfer *list(struct work *work, struct input *in)
{
    unsigned how = input_byte(in);
    struct mr_store_list_request request = {.prefix = how & 1 ? "a" : NULL,
                                            .after = how & 2 ? "a" : NULL,
                                            .end_offset = how & 4 ? "b" : NULL,
                                            .page_token = how & 8 ? "t" : NULL,
                                            .with_times = how & 16};
    return mr_transfer_list(scene.engine, scene.store, &request, on_list, work);
}

static void start(struct work *work, struct input *in)
{
    static const char *const permissions[] = {"storage.objects.get", "storage.objects.create"};
    struct mr_transfer_engine *engine = scene.engine;
    struct mr_store *store = scene.store;
    work->kind = input_below(in, 12);
    if (scene.is_s3 && (work->kind == 5 || work->kind > 9)) /* what S3 has no request for */
        work->kind = 0;
    switch (work->kind) {
    case 2:
        work->transfer = list(work, in);
        break;
    case 3:
        work->transfer =
            mr_transfer_stat(engine, store, "a", 1, input_byte(in) & 1 ? scene.a_generation : 0, on_item, work);
        break;
    case 4:
        work->transfer = insert(work, in);
        break;
    case 5:
        work->transfer = compose(work, in);
        break;
    case 6:
        work->transfer = delete_some(work, in);
        break;
    case 7:
        work->transfer = upload(work, in);
        break;
    case 8:
        work->length = 1000 + input_16(in);
        work->transfer = mr_transfer_parts_begin(engine, store, "parts", 5, NULL, on_begun, work);
        break;
    case 9:
        work->transfer =
            mr_transfer_parts_list(engine, store, input_byte(in) & 1 ? "p" : NULL, NULL, NULL, on_pending, work);
        break;
    case 10:
        work->transfer = mr_transfer_bucket(engine, store, on_bucket, work);
        break;
    case 11:
        work->transfer = mr_transfer_permissions(engine, store, permissions, 2, on_permissions, work);
        break;
    default:
        work->transfer = fetch(work, in);
        break;
    }
    if (!work->transfer) { /* each request is a valid one */
        fprintf(stderr, "a transfer of kind %u was refused: %s\n", work->kind, mr_error_text());
        abort();
    }
}

/* ---- the whole ---- */

static bool handle(void *arg, struct fault_conn *conn, const struct fault_request *request)
{
    (void)arg;
    bool is_x = strcmp(request->method, "GET") == 0 && strstr(request->target, "/o/x") != NULL;
    return is_x ? fault_gcs_handle(&scene.object, conn, request) : fault_bucket_handle(&scene.bucket, conn, request);
}

static void fill_gs(bool with_sum, bool deleted)
{
    scene.object =
        (struct fault_gcs){.data = data, .size = scene.size, .generation = 7, .no_hash = !with_sum, .deleted = deleted};
    fault_bucket_init(&scene.bucket);
    scene.x_generation = 7;
    scene.a_generation = fault_bucket_put(&scene.bucket, "a", data, 1000);
    fault_bucket_put(&scene.bucket, "b", data + 1000, 1000);
}

static void fill_s3(bool with_sum, bool deleted)
{
    struct mr_checksum sum = {MR_CHECKSUM_CRC32C, 0};
    char text[MR_CHECKSUM_TEXT_SIZE];
    fault_s3_init(&scene.s3);
    scene.a_generation = mr_s3_generation(fault_s3_put(&scene.s3, "a", data, 1000)->etag);
    fault_s3_put(&scene.s3, "b", data + 1000, 1000);
    struct s3_object *x = fault_s3_put(&scene.s3, "x", data, scene.size);
    scene.x_generation = mr_s3_generation(x->etag);
    mr_checksum_add(&sum, data, scene.size);
    mr_checksum_to_base64(&sum, text);
    if (with_sum)
        snprintf(x->checksum, sizeof x->checksum, "x-amz-checksum-crc32c: %s\r\n", text);
    if (deleted)
        fault_s3_remove(&scene.s3, "x");
}

static void open_scene(struct input *in)
{
    static const uint64_t sizes[] = {0, 1, 1000, 70000, DATA_MAX};
    scene.is_s3 = input_byte(in) & 1;
    unsigned how = input_byte(in);
    now_ns = MR_SECOND_NS;
    draws = 0;
    scene.size = sizes[how % 5];
    (scene.is_s3 ? fill_s3 : fill_gs)(!(how & 0x40), (how & 0xa0) == 0xa0);
    exchange_begin(scene.is_s3 ? fault_s3_handle : handle, &scene.s3, &scene.in);
    scene.http = mr_http_new(&(struct mr_http_options){.proxy = "", .connections = 4, .buffer_bytes = 65536});
    struct mr_s3_options s3 = {.region = "us-east-1",
                               .checksums = how & 0x20 ? MR_S3_CHECKSUMS_ALWAYS : MR_S3_CHECKSUMS_AUTO};
    scene.store = scene.http
                      ? mr_store_open(&(struct mr_store_options){.scheme = scene.is_s3 ? MR_SCHEME_S3 : MR_SCHEME_GS,
                                                                 .bucket = "bucket",
                                                                 .endpoint = exchange_host(),
                                                                 .auth = scene.is_s3 ? NULL : "anonymous",
                                                                 .s3 = &s3,
                                                                 .stall_timeout_ms = 400,
                                                                 .http = scene.http})
                      : NULL;
    struct mr_transfer_options options = {.connections = 4,
                                          .retry_base_ms = 5,
                                          .retry_cap_ms = 40,
                                          .deadline_ms = 3000,
                                          .attempts = how & 0x10 ? 3 : 0,
                                          .stall_min_ms = 100,
                                          .range_min_bytes = 128u << 10,
                                          .range_bytes = 64u << 10};
    scene.engine = scene.store ? mr_transfer_new(&options, scene.http) : NULL;
    if (!scene.engine)
        abort();
}

static bool all_done(const struct work *work, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (work[i].done == 0)
            return false;
    return true;
}

static void run(struct work *work, unsigned count, unsigned cancel_at)
{
    unsigned idle = 0;
    for (unsigned step = 0; !all_done(work, count); step++) {
        if (step > STEPS_MAX || now_ns > LIMIT_S * MR_SECOND_NS)
            abort(); /* it hangs */
        if (step == cancel_at && work[0].done == 0) {
            mr_transfer_cancel(scene.engine, work[0].transfer);
            work[0].done = 1;
        }
        unsigned in_flight = mr_http_in_flight(scene.http);
        if (mr_http_step(scene.http, 0, -1) < 0)
            abort();
        bool moved = exchange_step() || in_flight != mr_http_in_flight(scene.http);
        idle = moved ? 0 : idle + 1;
        if (idle > 2)
            now_ns += (idle < 10 ? 1 << (idle - 2) : 250) * MR_MILLISECOND_NS;
    }
    if (mr_transfer_in_flight(scene.engine) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (data[0] == 0) {
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (unsigned char)(mr_mix64(i) | 1);
        mr_log_set_level(MR_LOG_ERROR);
        setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        unsetenv("AWS_SESSION_TOKEN");
    }
    scene.in = (struct input){bytes, size, 0};
    struct work work[TRANSFERS] = {0};
    open_scene(&scene.in);
    unsigned how = input_byte(&scene.in), count = 1 + how % TRANSFERS;
    for (unsigned i = 0; i < count; i++)
        start(&work[i], &scene.in);
    run(work, count, how & 0x80 ? how & 0x7f : UINT32_MAX);
    mr_transfer_destroy(scene.engine);
    mr_store_close(scene.store);
    exchange_end();
    mr_http_destroy(scene.http);
    if (scene.is_s3)
        fault_s3_close(&scene.s3);
    else
        fault_bucket_close(&scene.bucket);
    for (unsigned i = 0; i < count; i++)
        free(work[i].dest);
    return 0;
}

/* For either store one transfer of each kind; then what is done to its answers, each kind of it first. */
size_t mr_fuzz_seed(unsigned n, uint8_t **out)
{
    if (n >= 2 * SEEDS)
        return 0;
    uint8_t seed[65];
    for (size_t i = 0; i < sizeof seed; i++)
        seed[i] = (uint8_t)mr_mix64(n * 64 + i);
    seed[0] = n >= SEEDS;
    n %= SEEDS;
    seed[1] = (uint8_t)n;
    seed[2] = n % 4 == 3 ? 2 : 0;
    seed[3] = (uint8_t)(n % 12);
    seed[7] = (uint8_t)(n % 16 | (n >= 16 ? 0x50 : 0));
    *out = malloc(sizeof seed);
    if (!*out)
        abort();
    memcpy(*out, seed, sizeof seed);
    return n < 12 ? 7 : sizeof seed; /* the first ones spoil nothing */
}
