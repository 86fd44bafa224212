/* batches.c - see batches.h. What lies behind a client's descriptor may change at any time: what bounds an access is
 * copied first. */
#include "supervisor/batches.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "supervisor/run_impl.h"

#define ARENAS_MAX 64u /* of one client: a training has a few loaders */

struct mr_counted_batches {
    struct mr_counted_batches *next;
    const struct mr_client_peer *client;
    struct mr_batch_arena arena; /* of its head alone */
    uint64_t mapped_bytes;
};

static int batches_refuse(const char *why)
{
    mr_error_set(MR_E_USAGE, "a descriptor of a batch arena %s", why);
    return -1;
}

/* Maps `bytes` of the head and checks what it says. */
static int map_head(struct mr_counted_batches *made, int fd, uint64_t bytes, uint64_t file_bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map the head of a batch arena");
        return -1;
    }
    if (mr_batch_attach(&made->arena, at, file_bytes, -1)) {
        munmap(at, bytes);
        return -1;
    }
    made->mapped_bytes = bytes;
    return 0;
}

int mr_batches_add(struct mr_supervisor *s, const struct mr_client_peer *client, int fd)
{
    unsigned count = 0;

    mr_batches_look(s); /* those that have ended no longer count */
    for (const struct mr_counted_batches *each = s->batches.first; each; each = each->next)
        count += each->client == client;
    if (count >= ARENAS_MAX)
        return batches_refuse("is one too many of this process");
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)sizeof(struct mr_batch_shared))
        return batches_refuse("is of no memory that keeps its size");
    struct mr_counted_batches *made = calloc(1, sizeof *made);
    if (!made) {
        mr_error_set(MR_E_NO_MEMORY, "no memory to count a batch arena");
        return -1;
    }
    uint64_t size = (uint64_t)st.st_size;
    if (map_head(made, fd, sizeof(struct mr_batch_shared), size))
        goto fail;
    uint64_t head = mr_batch_head_bytes(made->arena.lanes, made->arena.slots);
    munmap(made->arena.shared, made->mapped_bytes);
    if (map_head(made, fd, head, size))
        goto fail;
    if (mr_batch_head_bytes(made->arena.lanes, made->arena.slots) > head) { /* it has changed in between */
        munmap(made->arena.shared, head);
        batches_refuse("is of memory that changes");
        goto fail;
    }
    made->client = client;
    made->next = s->batches.first;
    s->batches.first = made;
    return 0;

fail:
    free(made);
    return -1;
}

/* Unmaps those of one client, or (NULL) those that have ended. */
static void batches_let_go(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    for (struct mr_counted_batches **at = &s->batches.first; *at;) {
        struct mr_counted_batches *each = *at;
        if (client ? each->client != client : !mr_batch_has_ended(&each->arena)) {
            at = &each->next;
            continue;
        }
        *at = each->next;
        munmap(each->arena.shared, each->mapped_bytes);
        free(each);
    }
}

void mr_batches_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    batches_let_go(s, client);
}

void mr_batches_look(struct mr_supervisor *s)
{
    batches_let_go(s, NULL);
}

unsigned mr_batches_count(const struct mr_supervisor *s, const struct mr_client_peer *client,
                          struct mr_batch_counts *counts)
{
    unsigned arenas = 0;

    *counts = (struct mr_batch_counts){0};
    for (const struct mr_counted_batches *each = s->batches.first; each; each = each->next) {
        if (client && each->client != client)
            continue;
        mr_batch_count(&each->arena, counts);
        arenas++;
    }
    return arenas;
}

void mr_batches_close(struct mr_supervisor *s)
{
    while (s->batches.first)
        batches_let_go(s, s->batches.first->client);
}
