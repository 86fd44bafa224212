/* fork_mark.c - see fork_mark.h. */
#include "shm/memory/fork_mark.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "base/error.h"

static _Atomic(_Atomic uint64_t *) page; /* one a process, inherited (wiped) by its children; never unmapped */
static _Atomic uint64_t last_mark; /* inherited too, and not wiped: a child's marks are higher than its parent's */

/* The process's one page, whichever thread makes it first. Never unmapped: a fork at any time must find it wiped. */
static _Atomic uint64_t *make_page(void)
{
    _Atomic uint64_t *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                     *there = NULL;

    if (made == MAP_FAILED) {
        mr_error_set_errno(errno, "no memory for the page that marks a fork");
        return NULL;
    }
    if (madvise((void *)made, 4096, MADV_WIPEONFORK)) {
        mr_error_set_errno(errno, "MADV_WIPEONFORK (Linux 4.14) is needed to notice a fork");
        munmap((void *)made, 4096);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&page, &there, made))
        return made;
    munmap((void *)made, 4096); /* another thread was faster */
    return there;
}

uint64_t mr_fork_mark(void)
{
    _Atomic uint64_t *at = atomic_load(&page);
    uint64_t mark = 0;

    if (!at)
        at = make_page();
    if (!at)
        return 0;
    if (atomic_compare_exchange_strong(at, &mark, atomic_load(&last_mark) + 1)) {
        mark = atomic_load(at);
        atomic_store(&last_mark, mark);
    }
    return mark;
}

bool mr_fork_mark_is(uint64_t mark)
{
    _Atomic uint64_t *at = atomic_load_explicit(&page, memory_order_acquire);

    return at && mark && atomic_load_explicit(at, memory_order_relaxed) == mark;
}
