#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define NEEDED 3 /* for a look-up of a name and a connection */

static const struct {
    int signal;
    void (*disposition)(int);
} changed[] = {
    {SIGCHLD, SIG_DFL},
    {SIGPIPE, SIG_DFL},
    {SIGTERM, SIG_DFL},
    {SIGALRM, SIG_DFL},
    {SIGUSR1, SIG_DFL},
    {SIGUSR2, SIG_DFL},
    /* A write beyond `ulimit -f` fails with EFBIG, which becomes an error message. */
    {SIGXFSZ, SIG_IGN},
};
#define CHANGED (sizeof changed / sizeof changed[0])

static struct sigaction inherited[CHANGED];
static sigset_t inherited_mask;
static sigset_t caught; /* zeroed: none */

/* What was closed becomes what can be neither read nor written, as before, and is closed again for other programs. */
static void open_standard(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == 0 ? O_CLOEXEC | O_WRONLY : O_CLOEXEC | O_RDONLY) != fd)
            _exit(1); /* no /dev/null, or no descriptor at all: nothing could be reported either */
}

void mr_process_begin(void)
{
    open_standard();
    for (size_t i = 0; i < CHANGED; i++) {
        struct sigaction ours = {.sa_handler = changed[i].disposition};
        sigaction(changed[i].signal, &ours, &inherited[i]);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, &inherited_mask);
}

const char *mr_process_limit(int errnum)
{
    return errnum == EAGAIN ? " (ulimit -u, or the container's limit of processes)" : "";
}

bool mr_process_lacks_descriptors(void)
{
    int fds[NEEDED], errnum = 0;
    unsigned count = 0;
    for (; count < NEEDED && errnum == 0; count++) {
        fds[count] = open("/", O_PATH | O_CLOEXEC);
        if (fds[count] < 0)
            errnum = errno;
    }
    for (unsigned i = 0; i < count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (errnum != EMFILE && errnum != ENFILE)
        return false;
    mr_error_set_errno(errnum, "no descriptor is left");
    return true;
}

void mr_process_restore_signals(void)
{
    mr_process_uncatch(); /* before they are unblocked: one that comes before exec would be lost */
    for (size_t i = 0; i < CHANGED; i++)
        sigaction(changed[i].signal, &inherited[i], NULL);
    sigprocmask(SIG_SETMASK, &inherited_mask, NULL);
}

bool mr_process_catch(int number, void (*handler)(int number), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, before;
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
        return false;
    sigaction(number, &action, NULL);
    sigaddset(&caught, number);
    return true;
}

void mr_process_uncatch(void)
{
    for (int number = 1; number < SIGRTMIN; number++)
        if (sigismember(&caught, number) == 1)
            signal(number, SIG_DFL);
}

void mr_process_stop(void)
{
    struct sigaction usual = {.sa_handler = SIG_DFL}, ours;
    sigset_t stop, before;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    sigaction(SIGTSTP, &usual, &ours);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &stop, &before); /* here it stops */
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGTSTP, &ours, NULL);
}

uint64_t mr_process_image(void)
{
    /* Addresses, which stay: the bytes at AT_RANDOM do not (Go's runtime, in a shared library, clears them). */
    static const unsigned long types[] = {AT_RANDOM, AT_ENTRY, AT_BASE, AT_SYSINFO_EHDR};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        hash = mr_mix64(hash ^ getauxval(types[i]));
    return hash | 1;
}

int mr_process_flush(void)
{
    errno = EIO; /* of a write that failed earlier, whose errno is lost */
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    mr_error_set_errno(errno, "cannot write to standard output");
    return -1;
}
