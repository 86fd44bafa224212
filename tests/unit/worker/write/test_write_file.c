/* test_write_file.c - the write role's lanes into a folder: sizes, a worker that dies, a full disk, leftovers. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "shm/control/run_lock.h"
#include "worker/store/leftovers.h"
#include "worker/store/upload_parts.h"
#include "write_scene.h"

#define COUNT(table) (int)(sizeof(table) / sizeof *(table))

/* What the file system lacks (ld --wrap), and how its folders fail. */
static int rename_fails, link_fails, folder_sync_fails;

int __real_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int __wrap_renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    errno = rename_fails;
    return rename_fails ? -1 : __real_renameat2(from_folder, from, to_folder, to, flags);
}

int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to)
{
    errno = link_fails;
    return link_fails ? -1 : __real_link(from, to);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat st;
    if (folder_sync_fails && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        errno = folder_sync_fails;
        return -1;
    }
    return __real_fsync(fd);
}

/* Times of modification in whole steps of seconds; 0: as they are set. */
static int time_step_s;

int __real_futimens(int fd, const struct timespec times[2]);
int __wrap_futimens(int fd, const struct timespec times[2]);
int __wrap_futimens(int fd, const struct timespec times[2])
{
    struct timespec coarse[2];
    if (!times || time_step_s == 0)
        return __real_futimens(fd, times);
    for (int i = 0; i < 2; i++)
        coarse[i] = (struct timespec){.tv_sec = times[i].tv_sec / time_step_s * time_step_s};
    return __real_futimens(fd, coarse);
}

static unsigned char data[45 * SCENE_PART];
static char base[64], folder[128], path[192], uri[256];
static struct scene scene;

/* time(2) in the whole program, by the linker's --wrap. */
time_t __wrap_time(time_t *to);
time_t __real_time(time_t *to);
static time_t ahead_s;

time_t __wrap_time(time_t *to)
{
    time_t now = __real_time(NULL) + ahead_s;
    if (to)
        *to = now;
    return now;
}

static void setup(void)
{
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(mr_mix64(i / 8) >> (i % 8 * 8));
    scene_make_runtime();
    strcpy(base, "/tmp/mr-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
    snprintf(folder, sizeof folder, "%s/run 1/ckpt", base); /* is not there */
    snprintf(path, sizeof path, "%s/step.pt", folder);
    snprintf(uri, sizeof uri, "file://%s", path);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    ck_assert_int_eq(system(command), 0);
    scene_remove_runtime();
}

static unsigned count_files(void)
{
    unsigned count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return count;
}

static void check_stored(uint64_t size)
{
    static unsigned char there[sizeof data + 1];
    ck_assert_msg(scene.outcome == MR_CKPT_PART_DONE, "%s", scene.text);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fread(there, 1, sizeof there, file), size);
    fclose(file);
    ck_assert_mem_eq(there, data, size);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(scene.generation, (uint64_t)st.st_mtim.tv_sec * MR_SECOND_NS + (uint64_t)st.st_mtim.tv_nsec);
    ck_assert_uint_eq(scene.crc32c, mr_crc32c(0, data, size));
    ck_assert_uint_eq(count_files(), 1);
}

static void check_failed(enum mr_code code, const char *text)
{
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_FAILED);
    ck_assert_msg(scene.code == (uint32_t)code, "%s: %s", mr_code_name(scene.code), scene.text);
    ck_assert_msg(strstr(scene.text, text) && strstr(scene.text, path), "%s", scene.text);
}

static void make_folder(void)
{
    char command[256];
    snprintf(command, sizeof command, "mkdir -p '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static void put_file(const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static const uint64_t sizes[] = {0, 1, SCENE_PART, SCENE_PART + 1, 40 * SCENE_PART, 40 * SCENE_PART + 7};

START_TEST(files_of_all_sizes)
{
    scene_open(&scene, "", uri, data, sizes[_i]);
    scene_write(&scene);
    check_stored(sizes[_i]);
    scene_close(&scene);
    scene_open(&scene, "", uri, data, sizes[_i] ? sizes[_i] - 1 : 1); /* the old one is replaced */
    scene_write(&scene);
    check_stored(sizes[_i] ? sizes[_i] - 1 : 1);
    scene_close(&scene);
    scene_open(&scene, "", uri, data, sizes[_i]);
    scene.if_absent = true;
    scene_write(&scene);
    check_failed(MR_E_EXISTS, "exists already");
    ck_assert_uint_eq(count_files(), 1);
    scene_close(&scene);
}
END_TEST

START_TEST(a_new_file_that_must_be_new)
{
    scene_open(&scene, "", uri, data, sizes[_i]);
    scene.if_absent = true;
    scene_write(&scene);
    check_stored(sizes[_i]);
    scene_close(&scene);
}
END_TEST

/* exFAT through FUSE, NFS: a new name without renameat2, and without links. */
START_TEST(a_file_system_without_links)
{
    rename_fails = EINVAL;
    link_fails = _i % 2 ? EPERM : 0;
    scene_open(&scene, "", uri, data, 3 * SCENE_PART + 1);
    scene.if_absent = _i / 2;
    scene_write(&scene);
    check_stored(3 * SCENE_PART + 1);
    scene_close(&scene);
    scene_open(&scene, "", uri, data, 5);
    scene.if_absent = true;
    scene_write(&scene);
    check_failed(MR_E_EXISTS, "exists already");
    ck_assert_uint_eq(count_files(), 1);
    scene_close(&scene);
}
END_TEST

START_TEST(a_worker_that_dies_without_links)
{
    uint64_t size = 3 * SCENE_PART + 5;
    rename_fails = EINVAL;
    link_fails = _i % 2 ? EPERM : 0;
    scene_open(&scene, "", uri, data, size);
    scene.if_absent = true;
    scene_start(&scene);
    for (int n = 0; n < _i && !mr_write_lane_is_ended(scene.worker); n++)
        scene_step(&scene, 20);
    scene_die(&scene);
    scene_write(&scene);
    check_stored(size);
    scene_close(&scene);
}
END_TEST

/* vfat keeps steps of two seconds, exFAT by way of FUSE of one: what is written twice has two generations. */
START_TEST(times_in_whole_seconds)
{
    time_step_s = _i + 1;
    uint64_t before = 0;
    for (int save = 0; save < 3; save++) {
        scene_open(&scene, "", uri, data, 3 * SCENE_PART);
        scene_write(&scene);
        check_stored(3 * SCENE_PART);
        ck_assert_uint_ne(scene.generation, before);
        before = scene.generation;
        scene_close(&scene);
    }
}
END_TEST

/* Its name may be gone after a crash of the machine: nobody is told that it is saved. */
START_TEST(a_folder_that_cannot_be_synced)
{
    make_folder();
    folder_sync_fails = EIO;
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene_write(&scene);
    check_failed(MR_E_IO, "cannot bring the names in");
    scene_close(&scene);
    folder_sync_fails = EINVAL; /* it cannot do that for folders */
    scene_open(&scene, "", uri, data, 2 * SCENE_PART);
    scene_write(&scene);
    check_stored(2 * SCENE_PART);
    scene_close(&scene);
}
END_TEST

/* The worker dies where its last request is noted in the lane and was not sent. */
static void die_before_the_end(void)
{
    scene.stop = true;
    scene_start(&scene);
    while (!mr_ckpt_part_complete_sent(&scene.lane))
        scene_step(&scene, 1);
    scene_die(&scene);
    scene.stop = false;
}

/* The worker dies when the file has its name, before the folder is synced: the next one syncs it before it says that the
 * file is saved. */
START_TEST(a_worker_that_dies_before_the_name_is_synced)
{
    char temporary[512] = "";
    make_folder();
    folder_sync_fails = _i ? EIO : 0;
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene.if_absent = true;
    die_before_the_end();
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (mr_leftover_kind(entry->d_name) == MR_LEFTOVER_PARTS)
            snprintf(temporary, sizeof temporary, "%s/%s", folder, entry->d_name);
    closedir(dir);
    ck_assert_int_eq(rename(temporary, path), 0);
    scene_write(&scene);
    if (folder_sync_fails)
        check_failed(MR_E_IO, "cannot bring the names in");
    else
        check_stored(3 * SCENE_PART);
    scene_close(&scene);
}
END_TEST

/* The worker dies in its n-th step of the loop, and once more a few steps later. */
START_TEST(a_worker_that_dies)
{
    uint64_t size = 9 * SCENE_PART + 5;
    scene_open(&scene, "", uri, data, size);
    scene.if_absent = _i % 2;
    if (_i % 4 < 2 && !scene.if_absent) {
        make_folder();
        put_file("the old one");
    }
    for (int life = 0; life < 2; life++) {
        scene_start(&scene);
        for (int n = 0; n < _i && !mr_write_lane_is_ended(scene.worker); n++)
            scene_step(&scene, 20);
        scene_die(&scene);
    }
    scene_write(&scene);
    check_stored(size);
    scene_close(&scene);
}
END_TEST

static void put_bytes(const void *bytes, uint64_t size)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

/* The worker dies on its way to the last step, and a file of that size has the name then. It is the save's where it has
 * the save's bytes, and not where somebody else wrote others. */
START_TEST(a_file_of_the_same_size)
{
    static unsigned char theirs[9 * SCENE_PART];
    bool same = _i % 2, new_name = _i / 2 % 2;
    uint64_t size = _i / 4 ? SCENE_PART - 1 : 9 * SCENE_PART;
    make_folder();
    if (!new_name)
        put_file("the old one");
    scene_open(&scene, "", uri, data, size);
    die_before_the_end();
    put_bytes(same ? data : theirs, size);
    scene_start(&scene);
    scene_run(&scene);
    if (same) {
        ck_assert_msg(scene.outcome == MR_CKPT_PART_DONE, "%s", scene.text);
    } else {
        check_failed(MR_E_CHANGED, "");
        static unsigned char there[sizeof theirs];
        FILE *file = fopen(path, "rb");
        ck_assert_uint_eq(fread(there, 1, sizeof there, file), size);
        fclose(file);
        ck_assert_mem_eq(there, theirs, size);
    }
    scene_leave(&scene);
    scene_close(&scene);
}
END_TEST

START_TEST(somebody_else_writes_it)
{
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene.if_absent = _i;
    scene.hold = true;
    scene_start(&scene);
    while (count_files() == 0)
        scene_step(&scene, 20);
    put_file("first");
    scene.hold = false;
    scene_run(&scene);
    scene_leave(&scene);
    check_failed(_i ? MR_E_EXISTS : MR_E_CHANGED, _i ? "exists" : "another writer");
    ck_assert_uint_eq(count_files(), 1);
    scene_close(&scene);
}
END_TEST

START_TEST(given_up)
{
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (count_files() == 0)
        scene_step(&scene, 20);
    ck_assert_int_eq(mr_ckpt_part_abort(&scene.lane), MR_FATE_ABORTED);
    scene_run(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    ck_assert_uint_eq(count_files(), 0);
    scene_leave(&scene);
    scene_close(&scene);
}
END_TEST

START_TEST(given_up_while_the_worker_was_dead)
{
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (count_files() == 0)
        scene_step(&scene, 20);
    scene_die(&scene);
    ck_assert_uint_eq(count_files(), 1);
    ck_assert_int_eq(mr_ckpt_part_recover_trainer(&scene.lane), MR_FATE_ABORTED);
    scene_write(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_GONE);
    ck_assert_uint_eq(count_files(), 0);
    scene_close(&scene);
}
END_TEST

/* Files may not be large enough: what a full disk does, without one. */
START_TEST(no_room)
{
    struct rlimit limit = {SCENE_PART / 2 * 3, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    scene_open(&scene, "", uri, data, _i ? 5 * SCENE_PART : SCENE_PART);
    scene_start(&scene);
    if (_i == 0)
        limit.rlim_cur = SCENE_PART / 2;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    scene_run(&scene);
    check_failed(MR_E_IO, "raise the limit with ulimit -f");
    ck_assert_uint_eq(count_files(), 0);
    scene_leave(&scene);
    scene_close(&scene);
}
END_TEST

START_TEST(no_folder_can_be_made)
{
    scene_open(&scene, "", "file:///dev/full/x", data, 5); /* no folder */
    scene_write(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_FAILED);
    ck_assert_msg(strstr(scene.text, "/dev/full"), "%s", scene.text);
    scene_close(&scene);
}
END_TEST

static int leave_file(const char *name, int64_t age_s)
{
    char at[256];
    struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};
    snprintf(at, sizeof at, "%s/%s", folder, name);
    int fd = open(at, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(futimens(fd, times), 0);
    return fd;
}

static bool is_there(const char *name)
{
    char at[256];
    snprintf(at, sizeof at, "%s/%s", folder, name);
    return access(at, F_OK) == 0;
}

START_TEST(leftovers)
{
    static const char dead[] = ".millrace-0123456789abcdef.parts", live[] = ".millrace-0123456789abcde0.parts",
                      young[] = ".millrace-0123456789abcde1.parts", old_part[] = ".millrace-0123456789abcde2.part",
                      part[] = ".millrace-0123456789abcde3.part", other[] = ".millrace-x.parts";
    make_folder();
    close(leave_file(dead, 100));
    int fd = leave_file(live, 100);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    close(leave_file(young, 5));
    close(leave_file(old_part, 4000));
    close(leave_file(part, 100));
    close(leave_file(other, 100000));
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene_write(&scene);
    ck_assert_int_eq(scene.outcome, MR_CKPT_PART_DONE);
    scene_close(&scene);
    ck_assert(!is_there(dead) && is_there(live) && is_there(young) && !is_there(old_part) && is_there(part) &&
              is_there(other));
    close(fd);
    ck_assert_uint_eq(mr_leftovers_remove(folder, NULL), 1);
    ck_assert(!is_there(live));
}
END_TEST

/* The worker dies, and its supervisor is stopped for longer than a file may be still: the file stays for the successor
 * while somebody else saves into the folder. */
START_TEST(a_successor_that_comes_late)
{
    int lock = mr_run_lock_new(SCENE_RUN);
    ck_assert_int_ge(lock, 0);
    scene_open(&scene, "", uri, data, 3 * SCENE_PART);
    scene.hold = true;
    scene_start(&scene);
    while (mr_counter_get(scene.counters, MR_WC_PARTS) < 3)
        scene_step(&scene, 20);
    scene_die(&scene);
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] == '.' && strstr(entry->d_name, ".parts"))
            ck_assert_int_eq(utimensat(dirfd(dir), entry->d_name, old, 0), 0);
    closedir(dir);
    static struct scene other;
    char other_uri[300];
    snprintf(other_uri, sizeof other_uri, "%s-2", uri);
    scene_open(&other, "", other_uri, data, 2 * SCENE_PART);
    scene_write(&other);
    ck_assert_int_eq(other.outcome, MR_CKPT_PART_DONE);
    scene_close(&other);
    ck_assert_uint_eq(count_files(), 2);
    snprintf(other_uri, sizeof other_uri, "%s-2", path);
    ck_assert_int_eq(unlink(other_uri), 0);
    scene.hold = false;
    scene_write(&scene);
    check_stored(3 * SCENE_PART);
    scene_close(&scene);
    mr_run_lock_end(lock, SCENE_RUN);
}
END_TEST

/* Another machine's file, whose lock is not seen here: this machine's clock may be ahead of the file system's. */
START_TEST(a_clock_that_is_wrong)
{
    static const char live[] = ".millrace-0123456789abcde0.parts", dead[] = ".millrace-0123456789abcde1.parts";
    make_folder();
    close(leave_file(live, 5));
    close(leave_file(dead, 100));
    ahead_s = 3600;
    ck_assert_uint_eq(mr_leftovers_remove(folder, NULL), 1);
    ahead_s = 0;
    ck_assert(is_there(live) && !is_there(dead));
    ck_assert_uint_eq(count_files(), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("write_file");
    TCase *tc = tcase_create("write_file");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, files_of_all_sizes, 0, COUNT(sizes));
    tcase_add_loop_test(tc, a_new_file_that_must_be_new, 0, COUNT(sizes));
    tcase_add_loop_test(tc, a_worker_that_dies, 0, 30);
    tcase_add_loop_test(tc, a_file_of_the_same_size, 0, 8);
    tcase_add_loop_test(tc, a_file_system_without_links, 0, 4);
    tcase_add_loop_test(tc, a_worker_that_dies_without_links, 0, 24);
    tcase_add_loop_test(tc, times_in_whole_seconds, 0, 2);
    tcase_add_test(tc, a_folder_that_cannot_be_synced);
    tcase_add_loop_test(tc, a_worker_that_dies_before_the_name_is_synced, 0, 2);
    tcase_add_loop_test(tc, somebody_else_writes_it, 0, 2);
    tcase_add_test(tc, given_up);
    tcase_add_test(tc, given_up_while_the_worker_was_dead);
    tcase_add_loop_test(tc, no_room, 0, 2);
    tcase_add_test(tc, no_folder_can_be_made);
    tcase_add_test(tc, leftovers);
    tcase_add_test(tc, a_successor_that_comes_late);
    tcase_add_test(tc, a_clock_that_is_wrong);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
