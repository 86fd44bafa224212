/* test_write.c - the write role's lanes against a bucket that does each thing wrong: one part, and parts of the XML API. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fault_bucket.h"
#include "shm/base/checksum.h"
#include "shm/base/clock.h"
#include "write_scene.h"

#define STEPS(array) (array), sizeof(array) / sizeof *(array)
#define COUNT(table) (int)(sizeof(table) / sizeof *(table))
#define URI          "gs://bucket/ckpt/step 1.pt"
#define NAME         "ckpt/step 1.pt"

static unsigned char data[45 * SCENE_PART];
static struct fault_bucket bucket;
static struct fault_server *server;
static struct scene scene;

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    scene_make_runtime();
    fault_bucket_init(&bucket);
    server = fault_server_start(fault_bucket_handle, &bucket);
}

static void teardown(void)
{
    fault_server_stop(server);
    fault_bucket_close(&bucket);
    scene_remove_runtime();
}

static void check_stored(uint64_t size)
{
    const struct bucket_object *object = fault_bucket_find(&bucket, NAME);
    ck_assert_msg(scene.outcome == MR_PART_DONE, "%s", scene.text);
    ck_assert_ptr_nonnull(object);
    ck_assert_uint_eq(object->size, size);
    ck_assert_mem_eq(object->data, data, size);
    ck_assert_uint_eq(object->generation, scene.generation);
    ck_assert_uint_eq(scene.crc32c, mr_crc32c(0, data, size));
}

static const uint64_t sizes[] = {
    0, 1, SCENE_PART - 1, SCENE_PART, SCENE_PART + 1, 40 * SCENE_PART, 40 * SCENE_PART + 7};

START_TEST(objects_of_all_sizes)
{
    uint64_t parts = (sizes[_i] + SCENE_PART - 1) / SCENE_PART;
    scene_open(&scene, fault_server_host(server), URI, data, sizes[_i]);
    scene_write(&scene);
    check_stored(sizes[_i]);
    ck_assert_uint_eq(bucket.count[OP_INSERT] + bucket.count[OP_PART], parts ? parts : 1);
    if (parts > 1) {
        ck_assert_uint_eq(bucket.count[OP_INITIATE], 1);
        ck_assert_uint_eq(bucket.count[OP_COMPLETE], 1);
    }
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_UPLOADS_DONE), 1);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_PARTS), parts);
    ck_assert_uint_eq(mr_counter_get(scene.counters, MR_WC_PART_BYTES), sizes[_i]);
    scene_close(&scene);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("write");
    TCase *tc = tcase_create("write");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, objects_of_all_sizes, 0, COUNT(sizes));
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
