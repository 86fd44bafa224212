/* test_index_file.c - saved indexes: written and read back; damage of any byte, foreign files and kills while
 * saving. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "shm/index/index_build.h"
#include "shm/index/index_file.h"
#include "tests/unit/suite.h"

static char folder[64];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/mr-index-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void remove_folder(void)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    while ((entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    ck_assert_int_eq(rmdir(folder), 0);
}

static void *images[4]; /* of this test */
static unsigned image_count;

static void free_images(void)
{
    while (image_count > 0)
        free(images[--image_count]);
}

/* An image of `count` objects, attached; free_images frees it. */
static struct mr_index make_index(unsigned count)
{
    static const char *const prefixes[] = {"train/", "val/"};
    const struct mr_index_source source = {.scheme = MR_SCHEME_GS,
                                           .bucket = "bucket",
                                           .endpoint = "http://x",
                                           .prefixes = prefixes,
                                           .prefix_count = 2,
                                           .created_wall_ns = 1234567890};
    struct mr_index_builder *b = mr_index_builder_new(&source, -1);
    char name[64];
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof name, "train/%08u/%016llx", i, (unsigned long long)mr_mix64(i));
        ck_assert_int_eq(mr_index_builder_add(b, name, strlen(name), mr_mix64(i) % 100000, i, i, true), 0);
    }
    mr_index_builder_drop(b, MR_DROP_CLASS, 3);
    void *image;
    size_t length;
    ck_assert_int_eq(mr_index_builder_finish(b, &image, &length), 0);
    mr_index_builder_destroy(b);
    images[image_count++] = image;
    struct mr_index index;
    ck_assert_int_eq(mr_index_attach(&index, image, length), 0);
    return index;
}

static int saved_memfd(const struct mr_index *index)
{
    char *classes[] = {(char[]){"NEARLINE"}, (char[]){"Archive"}};
    struct mr_strings excluded = {classes, 2};
    const struct mr_index_file_extra extra = {77, &excluded};
    int fd = memfd_create("saved", 0);
    ck_assert_int_eq(mr_index_file_write(fd, index, &extra), 0);
    return fd;
}

START_TEST(comes_back)
{
    static const unsigned counts[] = {0, 1, 64, 1000, 200000};
    struct mr_index index = make_index(counts[_i]), again;
    struct mr_index_file file;
    int fd = saved_memfd(&index), out = memfd_create("image", 0);
    ck_assert_int_eq(mr_index_file_open(&file, fd), 0);
    char digest[MR_INDEX_DIGEST_SIZE];
    mr_index_digest_text(index.info.digest, digest);
    ck_assert_str_eq(file.digest, digest);
    ck_assert_str_eq(file.bucket, "bucket");
    ck_assert_str_eq(file.endpoint, "http://x");
    ck_assert_uint_eq(file.prefixes.count, 2);
    ck_assert_str_eq(file.prefixes.items[1], "val/");
    ck_assert_uint_eq(file.exclude_classes.count, 2);
    ck_assert_str_eq(file.exclude_classes.items[0], "archive");
    ck_assert_str_eq(file.exclude_classes.items[1], "nearline");
    ck_assert_uint_eq(file.objects, counts[_i]);
    ck_assert_uint_eq(file.requests, 77);
    ck_assert_uint_eq(file.dropped[MR_DROP_CLASS], 3);
    ck_assert_int_eq(file.created_wall_ns, 1234567890);
    ck_assert_int_eq(mr_index_file_unpack(&file, fd, out), 0);
    ck_assert_int_eq(mr_index_map(&again, out), 0);
    ck_assert_uint_eq(again.length, index.length);
    ck_assert_int_eq(memcmp(again.image, index.image, index.length), 0);
    ck_assert_int_eq(mr_index_verify(&again), 0);
    mr_index_close(&again);
    mr_index_file_close(&file);
    mr_index_file_close(&file);
    close(fd);
    close(out);
}
END_TEST

static int read_back(int fd)
{
    struct mr_index_file file;
    int out = memfd_create("image", 0), rc = mr_index_file_open(&file, fd);
    if (rc == 0)
        rc = mr_index_file_unpack(&file, fd, out);
    mr_index_file_close(&file);
    close(out);
    return rc;
}

START_TEST(any_damaged_byte_is_found)
{
    struct mr_index index = make_index(100);
    int fd = saved_memfd(&index);
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    for (off_t at = 0; at < status.st_size; at++) {
        unsigned char byte;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        unsigned char wrong = byte ^ (unsigned char)(1u << at % 8);
        ck_assert_int_eq(pwrite(fd, &wrong, 1, at), 1);
        ck_assert_msg(read_back(fd) != 0, "byte %lld", (long long)at);
        ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
    }
    ck_assert_int_eq(read_back(fd), 0);
    close(fd);
}
END_TEST

START_TEST(any_other_length_is_found)
{
    struct mr_index index = make_index(100);
    int fd = saved_memfd(&index);
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_int_eq(ftruncate(fd, status.st_size + 1), 0);
    for (off_t length = status.st_size + 1; length >= 0; length--) {
        ck_assert_int_eq(ftruncate(fd, length), 0);
        if (length == status.st_size) {
            ck_assert_int_eq(read_back(fd), 0);
            continue;
        }
        ck_assert_msg(read_back(fd) != 0, "%lld bytes", (long long)length);
        ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    }
    close(fd);
}
END_TEST

/* The byte behind the key "version" becomes 2, and the header's hash that of the new header. */
START_TEST(newer_version_says_so)
{
    struct mr_index index = make_index(1);
    int fd = saved_memfd(&index);
    unsigned char all[4096];
    ssize_t n = pread(fd, all, sizeof all, 0);
    ck_assert_int_gt(n, 100);
    unsigned char *key = memmem(all, (size_t)n, "version", 7);
    size_t header = 16u + all[8] + 256u * all[9];
    unsigned char *value = key + 7;
    ck_assert_uint_eq(*value, MR_INDEX_FILE_VERSION);
    *value = 2;
    ck_assert(EVP_Digest(all, header, all + header, NULL, EVP_sha256(), NULL));
    ck_assert_int_eq(pwrite(fd, all, (size_t)n, 0), n);
    ck_assert_int_eq(read_back(fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "version 2"));
    close(fd);
}
END_TEST

START_TEST(other_files_are_refused)
{
    int fd = memfd_create("other", 0);
    ck_assert_int_eq(read_back(fd), -1);
    ck_assert_int_eq(write(fd, "{\"json\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", 38), 38);
    ck_assert_int_eq(read_back(fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "not a saved index"));
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int unreadable = open(path, O_WRONLY); /* nothing is known of what is in it: a cache keeps it */
    ck_assert_int_ge(unreadable, 0);
    ck_assert_int_eq(read_back(unreadable), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "cannot read"));
    ck_assert_int_ne(mr_error_code(), MR_E_CORRUPT);
    close(unreadable);
    close(fd);
    ck_assert_int_eq(mr_index_file_open_path("/nowhere/x.mri"), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
}
END_TEST

/* Its checksums are right, and what it says of itself is not: written so by somebody, or by a fault of ours. */
START_TEST(an_image_that_contradicts_itself)
{
    struct mr_index index = make_index(1000);
    unsigned char *name = memmem(index.image + index.data, index.length - index.data, "train/0000", 10);
    ck_assert_ptr_nonnull(name);
    name[0] = 'u'; /* after its neighbours */
    int fd = saved_memfd(&index);
    ck_assert_int_eq(read_back(fd), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_CORRUPT);
    close(fd);
}
END_TEST

START_TEST(saving_replaces_or_refuses)
{
    struct mr_index one = make_index(10), two = make_index(20);
    const struct mr_index_file_extra extra = {0};
    make_folder();
    char path[128];
    snprintf(path, sizeof path, "%s/a.mri", folder);
    ck_assert_int_eq(mr_index_file_save(path, &one, &extra, false), 0);
    ck_assert_int_eq(mr_index_file_save(path, &two, &extra, false), -1);
    ck_assert_int_eq(mr_error_code(), MR_E_EXISTS);
    int fd = mr_index_file_open_path(path);
    struct mr_index_file file;
    ck_assert_int_eq(mr_index_file_open(&file, fd), 0);
    ck_assert_uint_eq(file.objects, 10);
    mr_index_file_close(&file);
    close(fd);
    ck_assert_int_eq(mr_index_file_save(path, &two, &extra, true), 0);
    fd = mr_index_file_open_path(path);
    ck_assert_int_eq(mr_index_file_open(&file, fd), 0);
    ck_assert_uint_eq(file.objects, 20);
    mr_index_file_close(&file);
    close(fd);
    remove_folder();
}
END_TEST

/* Killed at any moment, the name is that of nothing or of a whole file. */
START_TEST(killed_while_saving)
{
    struct mr_index index = make_index(100000);
    const struct mr_index_file_extra extra = {0};
    make_folder();
    char path[128];
    snprintf(path, sizeof path, "%s/a.mri", folder);
    for (unsigned round = 0; round < 40; round++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(mr_index_file_save(path, &index, &extra, round % 2) == 0 ? 0 : 1);
        usleep(round * 300);
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
        if (access(path, F_OK) != 0)
            continue;
        int fd = mr_index_file_open_path(path);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(read_back(fd), 0);
        close(fd);
        if (round % 3 == 0)
            unlink(path);
    }
    remove_folder();
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("index_file");
    tcase_add_checked_fixture(tc, NULL, free_images);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, comes_back, 0, 5);
    tcase_add_test(tc, any_damaged_byte_is_found);
    tcase_add_test(tc, any_other_length_is_found);
    tcase_add_test(tc, newer_version_says_so);
    tcase_add_test(tc, other_files_are_refused);
    tcase_add_test(tc, an_image_that_contradicts_itself);
    tcase_add_test(tc, saving_replaces_or_refuses);
    tcase_add_test(tc, killed_while_saving);
    return mr_suite_run("index_file", tc);
}
