/* test_datasets.c - a data set that cannot be opened fails alone: the worker goes on with the others. */
#include <check.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/suite.h"
#include "worker/fetch/datasets.h"

static int ends[2]; /* the worker's, the supervisor's */
static struct mr_link link_;
static struct mr_net net;
static struct mr_datasets datasets;

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    link_ = (struct mr_link){.socket = ends[0]};
    net = (struct mr_net){.config = &link_.config};
    datasets = (struct mr_datasets){.link = &link_, .net = &net};
}

static void teardown(void)
{
    close(ends[0]);
    close(ends[1]);
}

/* The message DATASET with this index, taken by the worker. */
static int add(uint64_t id, int fd)
{
    struct mr_msg_out *out = mr_msg_new(MR_MSG_DATASET);
    mr_msg_put_u64(out, "dataset", id);
    mr_msg_put_str(out, "uri", "gs://bucket/prefix");
    mr_msg_put_bool(out, "ranged", true);
    mr_msg_put_fd(out, fd);
    ck_assert_int_eq(mr_msg_send(ends[1], out), 0);
    struct mr_msg_in in;
    ck_assert_int_eq(mr_msg_recv(ends[0], &in), 1);
    int rc = mr_datasets_add(&datasets, &in);
    mr_msg_close(&in);
    return rc;
}

START_TEST(an_index_that_cannot_be_mapped)
{
    int fd = memfd_create("index", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, "damaged", 7), 7);
    ck_assert_int_eq(add(3, fd), 0);
    close(fd);
    struct mr_msg_in in;
    uint64_t dataset;
    ck_assert_int_eq(mr_msg_recv(ends[1], &in), 1);
    ck_assert_int_eq(in.type, MR_MSG_FAILED);
    ck_assert_int_eq(mr_msg_get_u64(&in, "dataset", &dataset), 0);
    ck_assert_uint_eq(dataset, 3);
    mr_msg_close(&in);
    ck_assert_ptr_null(mr_datasets_find(&datasets, 3));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, an_index_that_cannot_be_mapped);
    return mr_suite_run("datasets", tc);
}
