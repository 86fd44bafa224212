#include "write_scene.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

static char runtime[64];
static uint32_t starts; /* of the slot: no two processes have the same number */

void scene_make_runtime(void)
{
    strcpy(runtime, "/tmp/mr-write-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    setenv("no_proxy", "*", 1);
}

unsigned scene_open_uploads(void)
{
    unsigned count = 0;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/millrace/uploads", runtime);
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

void scene_remove_runtime(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", runtime);
    ck_assert_int_eq(system(command), 0);
}

void scene_open(struct scene *s, const char *endpoint, const char *uri, const unsigned char *data, uint64_t size)
{
    struct mr_ckpt_part_format format = {
        .slots = SCENE_SLOTS, .lane = 7, .trainer = 3, .worker = 1, .part_bytes = SCENE_PART};
    memset(s, 0, sizeof *s);
    s->uri = uri;
    s->data = data;
    s->size = size;
    ck_assert_int_eq(mr_config_init(&s->config), 0);
    free(s->config.gcs.endpoint);
    s->config.gcs.endpoint = strdup(endpoint);
    s->config.gcs.auth = MR_AUTH_ANONYMOUS;
    s->config.retry.base_ms = 2;
    s->config.retry.cap_ms = 10;
    s->config.retry.deadline_ms = 100000;
    s->arena = calloc(SCENE_SLOTS, SCENE_PART);
    s->counters = calloc(1, sizeof *s->counters);
    s->fd = memfd_create("part-lane", MFD_CLOEXEC);
    ck_assert(s->arena && s->counters && s->fd >= 0);
    ck_assert_int_eq(ftruncate(s->fd, (off_t)mr_ckpt_part_size(SCENE_SLOTS)), 0);
    void *at = mmap(NULL, mr_ckpt_part_size(SCENE_SLOTS), PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    ck_assert_ptr_ne(at, MAP_FAILED);
    mr_ckpt_part_format(at, &format);
    ck_assert_int_eq(mr_ckpt_part_attach(&s->lane, at, mr_ckpt_part_size(SCENE_SLOTS), SCENE_SLOTS * SCENE_PART), 0);
}

void scene_close(struct scene *s)
{
    if (s->worker)
        scene_leave(s);
    munmap(s->lane.shared, mr_ckpt_part_size(SCENE_SLOTS));
    close(s->fd);
    free(s->arena);
    free(s->counters);
    mr_config_close(&s->config);
}

static void start_process(struct scene *s)
{
    struct mr_maker maker = {.run = SCENE_RUN, .slot = MR_MAKER_WRITE + 1, .start = ++starts};
    ck_assert_int_eq(mr_net_init(&s->net, &s->config), 0);
    s->context = (struct mr_write_context){.net = &s->net,
                                           .counters = s->counters,
                                           .temporaries = mr_temporaries_new(&s->net, s->counters, &maker),
                                           .uploads = mr_upload_log_new(&maker),
                                           .arena = s->arena};
    ck_assert_ptr_nonnull(s->context.temporaries);
}

void scene_start(struct scene *s)
{
    start_process(s);
    struct mr_ckpt_lane lane;
    ck_assert_int_eq(mr_ckpt_part_map(&lane, s->fd, SCENE_SLOTS * SCENE_PART), 0);
    s->worker = mr_write_lane_new(&s->context, &lane, s->uri, s->if_absent);
    ck_assert_ptr_nonnull(s->worker);
}

static void stop(struct scene *s)
{
    mr_write_again_close(&s->context.again, &s->net);
    mr_temporaries_destroy(s->context.temporaries);
    mr_upload_log_destroy(s->context.uploads);
    mr_net_close(&s->net);
    s->worker = NULL;
}

void scene_die(struct scene *s)
{
    mr_write_lane_destroy(s->worker);
    stop(s);
    mr_ckpt_part_recover_worker(&s->lane);
}

static void finish_process(struct scene *s)
{
    mr_temporaries_finish(s->context.temporaries);
    while (mr_temporaries_busy(s->context.temporaries) || (s->context.again && s->context.late_s == 0)) {
        ck_assert_int_ge(mr_http_step(s->net.http, 20, -1), 0);
        mr_temporaries_step(s->context.temporaries, mr_clock_mono_ns());
        mr_write_again_step(&s->context.again, &s->net, s->context.uploads);
    }
    stop(s);
}

void scene_leave(struct scene *s)
{
    mr_write_lane_destroy(s->worker);
    finish_process(s);
}

void scene_look_again(struct scene *s, const char *bucket)
{
    start_process(s);
    struct mr_store *store = mr_net_store(&s->net, MR_SCHEME_GS, bucket);
    ck_assert_ptr_nonnull(store);
    ck_assert_ptr_nonnull(mr_temporaries_bucket(s->context.temporaries, store, s->config.gcs.endpoint, bucket, true));
    finish_process(s);
}

static void write_parts(struct scene *s)
{
    uint64_t parts = (s->size + SCENE_PART - 1) / SCENE_PART, filling;
    for (; s->next < parts && mr_ckpt_part_fill(&s->lane, s->next, &filling); s->next++) {
        uint64_t at = s->next * SCENE_PART, length = s->size - at < SCENE_PART ? s->size - at : SCENE_PART;
        memcpy(s->arena + mr_ckpt_part_offset(&s->lane, mr_ckpt_part_slot(&s->lane, s->next)), s->data + at, length);
        mr_ckpt_part_publish(&s->lane, s->next, filling, length);
    }
    if (s->next == parts && !s->hold && !s->sealed)
        s->sealed = mr_ckpt_part_seal(&s->lane, (uint32_t)parts, s->size) == MR_FATE_SEALED;
}

void scene_step(struct scene *s, unsigned ms)
{
    write_parts(s);
    while (mr_transfer_free(s->net.engine) > 0 && mr_write_lane_start(s->worker)) {
    }
    if (s->stop && mr_ckpt_part_complete_sent(&s->lane))
        return;
    if (!mr_write_lane_is_ended(s->worker))
        ck_assert_int_ge(mr_http_step(s->net.http, (int)ms, -1), 0);
    mr_write_lane_step(s->worker, mr_clock_mono_ns());
    mr_temporaries_step(s->context.temporaries, mr_clock_mono_ns());
    mr_write_again_step(&s->context.again, &s->net, s->context.uploads);
}

void scene_run(struct scene *s)
{
    while (!mr_write_lane_is_ended(s->worker))
        scene_step(s, 20);
    s->outcome = mr_ckpt_part_result(&s->lane, &s->code, s->text, &s->generation, &s->crc32c);
    ck_assert_int_ne(s->outcome, MR_CKPT_PART_UNDECIDED);
    ck_assert(mr_ckpt_part_is_at_rest(&s->lane));
}

void scene_write(struct scene *s)
{
    scene_start(s);
    scene_run(s);
    scene_leave(s);
}
