/*
 * kernel.c - the system calls of the code under test, replaced: this program's definitions come before the C library's.
 *
 * A futex wait hands the turn to the others; a wake and a write to an eventfd are counted in the memory of the run; the
 * clock stands still until everybody sleeps; a forked child counts as the same process (it plays one of its roles).
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "shm/memory/fork_mark.h"
#include "shm/memory/segment.h"
#include "tests/crash/whole/cast.h"

static unsigned lane_of(const _Atomic uint32_t *seq)
{
    for (unsigned l = 0; l < LANES; l++)
        if (seq == &the_cast->world.lane[l].shared->seq)
            return l;
    fail("a futex that is no lane's");
}

static long futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    unsigned lane = lane_of(word);

    if (op == FUTEX_WAKE) {
        the_cast->world.kernel->wakes[lane]++;
        return 0;
    }
    if (atomic_load(word) != value) {
        errno = EAGAIN;
        return -1;
    }
    return reader_sleep(the_cast, lane);
}

long syscall(long number, ...)
{

    if (number != SYS_futex)
        fail("system call %ld is not expected here", number);
    va_list args;
    va_start(args, number);
    _Atomic uint32_t *word = va_arg(args, _Atomic uint32_t *);
    int op = va_arg(args, int);
    uint32_t value = va_arg(args, uint32_t);
    va_end(args);
    return futex(word, op, value);
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    struct kernel *kernel = the_cast->world.kernel;

    if (fd < EVENTFD || fd >= EVENTFD + (int)PRODUCERS) /* standard error, or what the log has made of it */
        fail("the code under test logs: %.*s", (int)size, (const char *)bytes);
    if (size != sizeof(uint64_t))
        fail("write of %zu bytes to descriptor %d is not expected here", size, fd);
    kernel->event[fd - EVENTFD] = 1;
    return (ssize_t)size;
}

int64_t mr_clock_mono_ns(void)
{
    return the_cast->world.kernel->clock_ns;
}

uint64_t mr_fork_mark(void)
{
    return 1;
}

bool mr_fork_mark_is(uint64_t mark)
{
    return mark == 1;
}

/* Lanes lie in the memory of the run, which stays mapped. */
void mr_segment_unmap(void *at, uint64_t size)
{
    (void)at;
    (void)size;
}
