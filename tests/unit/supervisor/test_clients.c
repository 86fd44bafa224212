/* What the socket of a supervisor holds, and gives back. Its requests: tests/supervisor/test_socket.py. */
#include <check.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "supervisor/run_impl.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/suite.h"

/* An address that the kernel chooses, without a file. */
static int listen_anywhere(struct sockaddr_un *address, socklen_t *length)
{
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(listener, 0);
    const struct sockaddr_un unnamed = {.sun_family = AF_UNIX};
    ck_assert_int_eq(bind(listener, (const struct sockaddr *)&unnamed, sizeof unnamed.sun_family), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)address, length), 0);
    return listener;
}

/* A supervisor that is no more than its clients, with one in the queue. */
static struct mr_supervisor *open_scene(int *client)
{
    struct mr_supervisor *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    ck_assert_int_eq(mr_events_init(&s->events), 0);
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    ck_assert_int_eq(mr_clients_init(s, listen_anywhere(&address, &length)), 0);
    ck_assert_int_ge(s->clients.spare, 0);
    *client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(*client, (const struct sockaddr *)&address, length), 0);
    return s;
}

static void wait_for_the_client(struct mr_supervisor *s)
{
    while (!s->clients.first)
        ck_assert_int_eq(mr_events_step(&s->events), 0);
}

static void close_scene(struct mr_supervisor *s, int client)
{
    mr_clients_close(s);
    ck_assert_ptr_null(s->clients.first);
    mr_events_close(&s->events);
    free(s);
    close(client);
}

/* The spare one, which turns a client away where no other descriptor is left, stayed open. */
START_TEST(no_descriptor_is_left_when_the_clients_are_closed)
{
    unsigned before = mr_count_descriptors();
    int client;
    struct mr_supervisor *s = open_scene(&client);
    wait_for_the_client(s);
    close_scene(s, client);
    ck_assert_uint_eq(mr_count_descriptors(), before);
}
END_TEST

/* Where not even the spare one is left, the client that waits in the queue does not keep the loop busy; it comes in
 * when there are descriptors again. */
START_TEST(a_client_that_cannot_even_be_refused)
{
    int client;
    struct mr_supervisor *s = open_scene(&client);
    close(s->clients.spare);
    s->clients.spare = -1;
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_int_eq(mr_events_step(&s->events), 0);
    ck_assert(!s->clients.accept.active && s->clients.again.active);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    wait_for_the_client(s);
    ck_assert(s->clients.accept.active && !s->clients.again.active);
    close_scene(s, client);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("clients");
    tcase_add_test(tcase, no_descriptor_is_left_when_the_clients_are_closed);
    tcase_add_test(tcase, a_client_that_cannot_even_be_refused);
    return mr_suite_run("clients", tcase);
}
