/*
 * failing.c - a library for LD_PRELOAD that makes one call of a process fail: the Nth of a kind.
 *
 *   TORTURE_PROGRAM   which process: its name, or NAME:FIRST-ARGUMENT (millrace, millrace-worker:fetch, python)
 *   TORTURE_KIND      a name of `kinds` below
 *   TORTURE_N         1 is the first call; 0 counts alone
 *   TORTURE_STAMP     a file that is made when the call fails, with the place it came from. While it is there nothing
 *                     fails any more, in whatever process: what is started again works
 *   TORTURE_EVER      set: every call from the Nth on fails, in every process of that name
 *
 * A call counts when it comes from our objects: the program, libstdc++ as a part of it, the Python extension. In
 * programs of ours, kinds other than `malloc` count all callers but the libraries of cryptography.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum kind {
    NONE,
    ALLOCATION, /* chosen as `malloc` (ours), `malloc-all`, or `malloc-near` (ours within some frames) */
    MAPPING,
    OPEN,
    SOCKET,
    ACCEPT,
    PROCESS,
    SPACE,
    THREAD,
    EPOLL,
    EVENT,
    WRITE,
    READ,
    SYNC,
    NAME,
    STAT,
    DESCRIPTOR,
};

enum callers { OURS, ALL, NEAR };

static const struct {
    const char *name;
    enum kind kind;
    enum callers callers;
} kinds[] = {
    {"malloc", ALLOCATION, OURS},
    {"malloc-all", ALLOCATION, ALL},
    {"malloc-near", ALLOCATION, NEAR},
    {"mmap", MAPPING, ALL},
    {"open", OPEN, ALL},
    {"socket", SOCKET, ALL},
    {"accept", ACCEPT, ALL},
    {"fork", PROCESS, ALL},
    {"ftruncate", SPACE, ALL},
    {"pthread", THREAD, ALL},
    {"epoll", EPOLL, ALL},
    {"eventfd", EVENT, ALL},
    {"write", WRITE, ALL},
    {"read", READ, ALL},
    {"fsync", SYNC, ALL},
    {"rename", NAME, ALL},
    {"stat", STAT, ALL},
    {"dup", DESCRIPTOR, ALL},
};

enum { FRAMES = 12 };

static enum kind chosen; /* NONE until the constructor has run */
static enum callers callers;
static bool is_python, ever;
static long fail_at;
static atomic_long count;
static const char *stamp;
static struct {
    uintptr_t from, to;
} ours[3]; /* the program, libstdc++, the extension */
static struct {
    uintptr_t from, to;
} theirs[8]; /* libraries of thousands of allocations that the programs cannot do anything about */
static size_t theirs_count;

/* ---- whose call it is ---- */

static bool is_theirs(const char *path)
{
    static const char *const names[] = {"/libcrypto.", "/libssl.", "/libgnutls.", "/libp11-kit.", "/libgcrypt."};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(path, names[i]))
            return true;
    return false;
}

static uintptr_t end_of(const struct dl_phdr_info *info)
{
    uintptr_t end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz > end)
            end = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    return end;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    const int *at_first = data;
    int slot = *at_first && info->dlpi_name[0] == '\0' ? 0 : -1;
    if (strstr(info->dlpi_name, "libstdc++"))
        slot = 1;
    if (strstr(info->dlpi_name, "/_ring."))
        slot = 2;
    if (*at_first && is_theirs(info->dlpi_name) && theirs_count < sizeof theirs / sizeof theirs[0]) {
        theirs[theirs_count].from = info->dlpi_addr;
        theirs[theirs_count++].to = info->dlpi_addr + end_of(info);
    }
    if (slot < 0 || (is_python && slot != 2))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            ours[slot].from = from;
            ours[slot].to = to;
        }
    }
    return 0;
}

static bool is_ours(const void *caller)
{
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if ((uintptr_t)caller >= ours[i].from && (uintptr_t)caller < ours[i].to)
            return true;
    return false;
}

static bool is_by_theirs(const void *caller)
{
    for (size_t i = 0; i < theirs_count; i++)
        if ((uintptr_t)caller >= theirs[i].from && (uintptr_t)caller < theirs[i].to)
            return true;
    return false;
}

static bool is_near(void)
{
    static _Thread_local bool inside; /* backtrace may allocate */
    if (inside || ours[2].to == 0)
        return false;
    inside = true;
    void *frames[FRAMES];
    int n = backtrace(frames, FRAMES);
    bool found = false;
    for (int i = 0; i < n; i++)
        found |= is_ours(frames[i]);
    inside = false;
    return found;
}

static bool counts(const void *caller)
{
    if (callers == NEAR)
        return is_near();
    return (callers == ALL && !is_python && !is_by_theirs(caller)) || is_ours(caller);
}

/* ---- whether it fails ---- */

/* A line with what happened and where, as OBJECT+OFFSET of each frame. Without a libc function that is wrapped below. */
static bool leave_line(int flags, const char *what, void *const *frames, int depth)
{
    long fd = syscall(SYS_openat, AT_FDCWD, stamp, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
    if (fd < 0)
        return false;
    char line[4096];
    int length = snprintf(line, sizeof line, "%s", what);
    for (int i = 0; i < depth && length < (int)sizeof line - 512; i++) {
        Dl_info info;
        if (dladdr(frames[i], &info) && info.dli_fname)
            length += snprintf(line + length, 500, " %.300s+0x%lx", info.dli_fname,
                               (unsigned long)((uintptr_t)frames[i] - (uintptr_t)info.dli_fbase));
    }
    line[length++] = '\n';
    syscall(SYS_write, fd, line, length);
    syscall(SYS_close, fd);
    return true;
}

static bool leave_stamp(long n, void *caller)
{
    void *frames[FRAMES] = {caller};
    char what[32];
    snprintf(what, sizeof what, "%ld", n);
    return leave_line(O_EXCL, what, frames, getenv("TORTURE_FRAMES") ? backtrace(frames, FRAMES) : 1);
}

/* Workers leave no core file: the second line of the stamp says where they crashed. */
static void on_crash(int signal)
{
    void *frames[FRAMES];
    chosen = NONE;
    leave_line(O_APPEND, strsignal(signal), frames, backtrace(frames, FRAMES));
}

static bool fails(enum kind kind, void *caller, int error)
{
    if (kind != chosen || !counts(caller))
        return false;
    long n = atomic_fetch_add(&count, 1) + 1;
    if (fail_at == 0 || n < fail_at || (n > fail_at && !ever))
        return false;
    int before = errno;
    enum kind kept = chosen;
    chosen = NONE; /* what follows is not counted; another thread's call may be missed meanwhile */
    bool now = leave_stamp(n, caller) || ever;
    chosen = kept;
    errno = now ? error : before;
    return now;
}

/* Names of processes do: several of one program are told apart by their first argument. */
static bool is_chosen(int argc, char **argv)
{
    const char *wanted = getenv("TORTURE_PROGRAM"), *name = program_invocation_short_name;
    if (!wanted)
        return false;
    const char *colon = strchr(wanted, ':');
    size_t length = colon ? (size_t)(colon - wanted) : strlen(wanted);
    if (strncmp(wanted, name, length) != 0 || (name[length] != '\0' && strcmp(wanted, "python") != 0))
        return false;
    return !colon || (argc > 1 && strcmp(argv[1], colon + 1) == 0);
}

__attribute__((constructor)) static void begin(int argc, char **argv)
{
    const char *kind = getenv("TORTURE_KIND"), *number = getenv("TORTURE_N");
    stamp = getenv("TORTURE_STAMP");
    if (!kind || !number || !stamp || !is_chosen(argc, argv))
        return;
    is_python = strncmp(program_invocation_short_name, "python", 6) == 0;
    ever = getenv("TORTURE_EVER") != NULL;
    fail_at = atol(number);
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        sigaction(crashes[i], &(struct sigaction){.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND}, NULL);
    void *frames[2];
    backtrace(frames, 2); /* loads libgcc_s now, and not in the middle of a malloc */
    int at_first = 1;
    dl_iterate_phdr(add_object, &at_first);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind, kinds[i].name) == 0) {
            callers = kinds[i].callers;
            chosen = kinds[i].kind;
        }
    if (chosen == NONE)
        abort();
}

/* ---- the next of that name: libc's, or a sanitizer's ---- */

#define NEXT(name)                 \
    static __typeof__(&name) next; \
    if (!next)                     \
    next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define CALLER __builtin_return_address(0)

/* ---- malloc ---- */

#ifndef TORTURE_SANITIZED /* a sanitizer's malloc wants to be the first */

static char early[65536]; /* for what dlsym may allocate before there is a malloc */
static size_t early_used;
static _Thread_local bool looking;

static bool is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *take_early(size_t size)
{
    size_t at = (early_used + 15) & ~(size_t)15;
    early_used = at + size;
    return early_used <= sizeof early ? early + at : NULL;
}

static void *(*next_malloc)(size_t size);
static void *(*next_calloc)(size_t n, size_t size);
static void *(*next_realloc)(void *p, size_t size);
static void (*next_free)(void *p);

static bool look_up(void)
{
    if (next_free)
        return true;
    if (looking)
        return false;
    looking = true;
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    next_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    looking = false;
    return true;
}

EXPORT void *malloc(size_t size)
{
    if (fails(ALLOCATION, CALLER, ENOMEM))
        return NULL;
    return look_up() ? next_malloc(size) : take_early(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
    if (fails(ALLOCATION, CALLER, ENOMEM))
        return NULL;
    return look_up() ? next_calloc(n, size) : take_early(n * size);
}

EXPORT void *realloc(void *p, size_t size)
{
    if (fails(ALLOCATION, CALLER, ENOMEM))
        return NULL;
    if (!look_up())
        return NULL;
    if (!is_early(p))
        return next_realloc(p, size);
    void *fresh = next_malloc(size);
    if (fresh)
        memcpy(fresh, p,
               size < (size_t)(early + sizeof early - (char *)p) ? size : (size_t)(early + sizeof early - (char *)p));
    return fresh;
}

EXPORT void free(void *p)
{
    if (p && !is_early(p) && look_up())
        next_free(p);
}

/* What allocates within libc for a caller of ours: for `malloc-all` the malloc inside counts by itself. */
#define LIBC_FAILS (callers == OURS && fails(ALLOCATION, CALLER, ENOMEM))

EXPORT char *strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = fails(ALLOCATION, CALLER, ENOMEM) || !look_up() ? NULL : next_malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

EXPORT char *strndup(const char *text, size_t most)
{
    size_t length = strnlen(text, most);
    char *copy = fails(ALLOCATION, CALLER, ENOMEM) || !look_up() ? NULL : next_malloc(length + 1);
    if (!copy)
        return NULL;
    copy[length] = '\0';
    return memcpy(copy, text, length);
}

EXPORT int vasprintf(char **out, const char *fmt, va_list ap)
{
    NEXT(vasprintf);
    if (!LIBC_FAILS)
        return next(out, fmt, ap);
    *out = (char *)8; /* glibc leaves it undefined: whoever looks at it shall notice */
    return -1;
}

EXPORT int asprintf(char **out, const char *fmt, ...)
{
    if (LIBC_FAILS) {
        *out = (char *)8;
        return -1;
    }
    static __typeof__(&vasprintf) next;
    if (!next)
        next = (__typeof__(&vasprintf))dlsym(RTLD_NEXT, "vasprintf");
    va_list ap;
    va_start(ap, fmt);
    int n = next(out, fmt, ap);
    va_end(ap);
    return n;
}

/* The names that hardened builds call. */
extern int __asprintf_chk(char **out, int flag, const char *fmt, ...);
EXPORT int __asprintf_chk(char **out, int flag, const char *fmt, ...)
{
    (void)flag;
    if (LIBC_FAILS) {
        *out = (char *)8;
        return -1;
    }
    static __typeof__(&vasprintf) next;
    if (!next)
        next = (__typeof__(&vasprintf))dlsym(RTLD_NEXT, "vasprintf");
    va_list ap;
    va_start(ap, fmt);
    int n = next(out, fmt, ap);
    va_end(ap);
    return n;
}

extern char *__realpath_chk(const char *path, char *out, size_t room);
EXPORT char *__realpath_chk(const char *path, char *out, size_t room)
{
    NEXT(__realpath_chk);
    return LIBC_FAILS ? NULL : next(path, out, room);
}

EXPORT FILE *open_memstream(char **out, size_t *size)
{
    NEXT(open_memstream);
    return LIBC_FAILS ? NULL : next(out, size);
}

EXPORT char *realpath(const char *path, char *out)
{
    NEXT(realpath);
    return LIBC_FAILS ? NULL : next(path, out);
}

/* Both names: getline is an inline call of the other in libc's headers. */
extern ssize_t __getdelim(char **line, size_t *size, int end, FILE *file);
EXPORT ssize_t __getdelim(char **line, size_t *size, int end, FILE *file)
{
    NEXT(__getdelim);
    return LIBC_FAILS ? -1 : next(line, size, end, file);
}

#endif

/* ---- mappings and files ---- */

EXPORT void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    if (fails(MAPPING, CALLER, ENOMEM))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
    if (fails(MAPPING, CALLER, ENOMEM))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

#define OPEN_BODY(folder)                                                       \
    va_list ap;                                                                 \
    va_start(ap, flags);                                                        \
    unsigned mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, unsigned) : 0; \
    va_end(ap);                                                                 \
    if (fails(OPEN, CALLER, EMFILE))                                            \
        return -1;                                                              \
    return (int)syscall(SYS_openat, folder, path, flags, mode)

EXPORT int open(const char *path, int flags, ...)
{
    OPEN_BODY(AT_FDCWD);
}

EXPORT int open64(const char *path, int flags, ...)
{
    OPEN_BODY(AT_FDCWD);
}

EXPORT int openat(int folder, const char *path, int flags, ...)
{
    OPEN_BODY(folder);
}

EXPORT int openat64(int folder, const char *path, int flags, ...)
{
    OPEN_BODY(folder);
}

extern int __open_2(const char *path, int flags);
EXPORT int __open_2(const char *path, int flags)
{
    if (fails(OPEN, CALLER, EMFILE))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}

/* kind, value on failure, errno; type, name, parameters, arguments */
#define WRAP(kind, bad, error, type, name, parameters, arguments) \
    EXPORT type name parameters                                   \
    {                                                             \
        NEXT(name);                                               \
        if (fails(kind, CALLER, error))                           \
            return bad;                                           \
        return next arguments;                                    \
    }

WRAP(OPEN, NULL, EMFILE, FILE *, fopen, (const char *path, const char *mode), (path, mode))
WRAP(OPEN, NULL, EMFILE, FILE *, fopen64, (const char *path, const char *mode), (path, mode))
WRAP(OPEN, NULL, ENOMEM, FILE *, fdopen, (int fd, const char *mode), (fd, mode))
struct __dirstream;
extern struct __dirstream *opendir(const char *path);
WRAP(OPEN, NULL, EMFILE, struct __dirstream *, opendir, (const char *path), (path))
WRAP(OPEN, -1, EMFILE, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(OPEN, -1, EMFILE, int, mkostemps, (char *name, int suffix, int flags), (name, suffix, flags))
WRAP(OPEN, -1, EMFILE, int, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode))

/* ---- sockets ---- */

WRAP(SOCKET, -1, EMFILE, int, socket, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(SOCKET, -1, EMFILE, int, socketpair, (int domain, int type, int protocol, int ends[2]),
     (domain, type, protocol, ends))
WRAP(SOCKET, -1, EMFILE, int, pipe, (int ends[2]), (ends))
WRAP(SOCKET, -1, EMFILE, int, pipe2, (int ends[2], int flags), (ends, flags))
WRAP(SOCKET, -1, EADDRINUSE, int, bind, (int fd, const struct sockaddr *to, socklen_t length), (fd, to, length))
WRAP(SOCKET, -1, EADDRINUSE, int, listen, (int fd, int backlog), (fd, backlog))
WRAP(SOCKET, -1, ECONNREFUSED, int, connect, (int fd, const struct sockaddr *to, socklen_t length), (fd, to, length))
WRAP(SOCKET, -1, ENOMEM, int, setsockopt, (int fd, int level, int name, const void *value, socklen_t length),
     (fd, level, name, value, length))
WRAP(SOCKET, -1, ENOBUFS, int, getsockopt, (int fd, int level, int name, void *value, socklen_t *length),
     (fd, level, name, value, length))
WRAP(ACCEPT, -1, EMFILE, int, accept, (int fd, struct sockaddr *from, socklen_t *length), (fd, from, length))
WRAP(ACCEPT, -1, EMFILE, int, accept4, (int fd, struct sockaddr *from, socklen_t *length, int flags),
     (fd, from, length, flags))

/* ---- processes and threads ---- */

WRAP(PROCESS, -1, EAGAIN, pid_t, fork, (void), ())
WRAP(PROCESS, EAGAIN, EAGAIN, int, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
      char *const argv[], char *const envp[]),
     (pid, path, actions, attributes, argv, envp))
WRAP(PROCESS, EAGAIN, EAGAIN, int, posix_spawnp,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
      char *const argv[], char *const envp[]),
     (pid, path, actions, attributes, argv, envp))
WRAP(PROCESS, -1, ENOMEM, int, execv, (const char *path, char *const argv[]), (path, argv))
WRAP(PROCESS, -1, ENOMEM, int, execvp, (const char *path, char *const argv[]), (path, argv))
WRAP(PROCESS, -1, ENOMEM, int, execve, (const char *path, char *const argv[], char *const envp[]), (path, argv, envp))
WRAP(THREAD, EAGAIN, EAGAIN, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg),
     (thread, attributes, run, arg))

/* ---- space, epoll, events ---- */

WRAP(SPACE, -1, ENOSPC, int, ftruncate, (int fd, off_t length), (fd, length))
WRAP(SPACE, -1, ENOSPC, int, ftruncate64, (int fd, off_t length), (fd, length))
WRAP(SPACE, -1, ENOSPC, int, fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length))
WRAP(SPACE, ENOSPC, ENOSPC, int, posix_fallocate, (int fd, off_t offset, off_t length), (fd, offset, length))
WRAP(EPOLL, -1, EMFILE, int, epoll_create1, (int flags), (flags))
WRAP(EPOLL, -1, ENOSPC, int, epoll_ctl, (int epoll, int verb, int fd, struct epoll_event *event),
     (epoll, verb, fd, event))
WRAP(EPOLL, -1, ENOMEM, int, epoll_wait, (int epoll, struct epoll_event *events, int most, int timeout_ms),
     (epoll, events, most, timeout_ms))
WRAP(EVENT, -1, EMFILE, int, eventfd, (unsigned value, int flags), (value, flags))
struct itimerspec;
extern int timerfd_create(int clock, int flags);
extern int timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *from);
extern int signalfd(int fd, const sigset_t *mask, int flags);
WRAP(EVENT, -1, EMFILE, int, timerfd_create, (int clock, int flags), (clock, flags))
WRAP(EVENT, -1, ENOMEM, int, timerfd_settime, (int fd, int flags, const struct itimerspec *to, struct itimerspec *from),
     (fd, flags, to, from))
WRAP(EVENT, -1, EMFILE, int, signalfd, (int fd, const sigset_t *mask, int flags), (fd, mask, flags))

/* pidfd_open and the like, which libc has no function for. */
EXPORT long syscall(long number, ...)
{
    static long (*next)(long, ...);
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list ap;
    va_start(ap, number);
    long a = va_arg(ap, long), b = va_arg(ap, long), c = va_arg(ap, long), d = va_arg(ap, long), e = va_arg(ap, long),
         f = va_arg(ap, long);
    va_end(ap);
    if (number == SYS_pidfd_open && fails(EVENT, CALLER, EMFILE))
        return -1;
    return next(number, a, b, c, d, e, f);
}

/* ---- bytes: standard error is left alone, for it has the words that are looked for ---- */

#define WRAP_BYTES(kind, error, name, parameters, arguments)   \
    EXPORT ssize_t name parameters                             \
    {                                                          \
        NEXT(name);                                            \
        if (fd != STDERR_FILENO && fails(kind, CALLER, error)) \
            return -1;                                         \
        return next arguments;                                 \
    }

WRAP_BYTES(WRITE, ENOSPC, write, (int fd, const void *from, size_t size), (fd, from, size))
WRAP_BYTES(WRITE, ENOSPC, writev, (int fd, const struct iovec *from, int n), (fd, from, n))
WRAP_BYTES(WRITE, ENOSPC, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
WRAP_BYTES(WRITE, ENOSPC, pwrite64, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
WRAP_BYTES(WRITE, ENOBUFS, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags))
WRAP_BYTES(WRITE, ENOBUFS, sendto,
           (int fd, const void *from, size_t size, int flags, const struct sockaddr *to, socklen_t length),
           (fd, from, size, flags, to, length))
WRAP_BYTES(WRITE, ENOBUFS, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
EXPORT ssize_t copy_file_range(int from, off_t *from_at, int fd, off_t *to_at, size_t size, unsigned flags)
{
    NEXT(copy_file_range);
    if (fails(WRITE, CALLER, ENOSPC))
        return -1;
    return next(from, from_at, fd, to_at, size, flags);
}
WRAP_BYTES(READ, EIO, read, (int fd, void *to, size_t size), (fd, to, size))
WRAP_BYTES(READ, EIO, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
WRAP_BYTES(READ, EIO, pread64, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
extern ssize_t __read_chk(int fd, void *to, size_t size, size_t room);
extern ssize_t __pread_chk(int fd, void *to, size_t size, off_t at, size_t room);
WRAP_BYTES(READ, EIO, __read_chk, (int fd, void *to, size_t size, size_t room), (fd, to, size, room))
WRAP_BYTES(READ, EIO, __pread_chk, (int fd, void *to, size_t size, off_t at, size_t room), (fd, to, size, at, room))
WRAP_BYTES(READ, ECONNRESET, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
WRAP_BYTES(READ, ECONNRESET, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))

/* stdio's own writes are inside libc: a buffer that is not taken is lost, as libc does it. */
EXPORT int fflush(FILE *file)
{
    NEXT(fflush);
    if (file && file != stderr && fails(WRITE, CALLER, ENOSPC)) {
        return EOF;
    }
    return next(file);
}

/* ---- the disk, names, descriptors ---- */

WRAP(SYNC, -1, EIO, int, fsync, (int fd), (fd))
WRAP(SYNC, -1, EIO, int, fdatasync, (int fd), (fd))
WRAP(SYNC, -1, EIO, int, sync_file_range, (int fd, off64_t at, off64_t size, unsigned flags), (fd, at, size, flags))
WRAP(NAME, -1, EIO, int, rename, (const char *from, const char *to), (from, to))
WRAP(NAME, -1, EIO, int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))
WRAP(NAME, -1, EIO, int, link, (const char *from, const char *to), (from, to))
WRAP(NAME, -1, EIO, int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(NAME, -1, EIO, int, unlink, (const char *path), (path))
WRAP(NAME, -1, EIO, int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
WRAP(NAME, -1, EIO, int, mkdir, (const char *path, mode_t mode), (path, mode))
extern int flock(int fd, int verb);
WRAP(NAME, -1, ENOLCK, int, flock, (int fd, int verb), (fd, verb))
WRAP(STAT, -1, EIO, int, stat, (const char *path, struct stat *to), (path, to))
WRAP(STAT, -1, EIO, int, lstat, (const char *path, struct stat *to), (path, to))
WRAP(STAT, -1, EIO, int, fstat, (int fd, struct stat *to), (fd, to))
WRAP(STAT, -1, EIO, int, fstatat, (int folder, const char *path, struct stat *to, int flags), (folder, path, to, flags))
WRAP(STAT, -1, EIO, int, access, (const char *path, int mode), (path, mode))
WRAP(STAT, -1, EIO, ssize_t, readlink, (const char *path, char *to, size_t size), (path, to, size))
WRAP(DESCRIPTOR, -1, EMFILE, int, dup, (int fd), (fd))
WRAP(DESCRIPTOR, -1, EMFILE, int, dup2, (int fd, int to), (fd, to))
WRAP(DESCRIPTOR, -1, EMFILE, int, dup3, (int fd, int to, int flags), (fd, to, flags))

#define FCNTL_BODY(name)                                        \
    static int (*next)(int, int, ...);                          \
    if (!next)                                                  \
        next = (int (*)(int, int, ...))dlsym(RTLD_NEXT, #name); \
    va_list ap;                                                 \
    va_start(ap, verb);                                         \
    void *argument = va_arg(ap, void *);                        \
    va_end(ap);                                                 \
    if (verb != F_GETFD && fails(DESCRIPTOR, CALLER, EMFILE))   \
        return -1;                                              \
    return next(fd, verb, argument)

EXPORT int fcntl(int fd, int verb, ...)
{
    FCNTL_BODY(fcntl);
}

EXPORT int fcntl64(int fd, int verb, ...)
{
    FCNTL_BODY(fcntl64);
}

/* The extension is loaded long after us. */
EXPORT void *dlopen(const char *path, int flags)
{
    NEXT(dlopen);
    void *found = next(path, flags);
    if (found && is_python && chosen != NONE && path && strstr(path, "/_ring.")) {
        int at_first = 0;
        dl_iterate_phdr(add_object, &at_first);
    }
    return found;
}
