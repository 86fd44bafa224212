/* segment.c - anonymous shared memory of both backings, and how much of it there may be. */
#include "shm/memory/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* linux/mman.h */
#endif
#define HUGE_BYTES  (UINT64_C(2) << 20)
#define SHM_DIR     "/dev/shm"
#define NAME_PREFIX "millrace."

/* When a process started, in clock ticks since boot (proc(5), stat's field 22): with its id it names it forever. 0: no
 * such process. */
static uint64_t start_ticks(pid_t pid)
{
    char path[64];
    uint64_t ticks = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char text[1024];
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the command's name may hold anything */
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    if (at)
        ticks = strtoull(at + 1, NULL, 10);
    return ticks;
}

/* Opened and unlinked at once: a name is left only by a kill in between, and mr_segment_sweep finds whose it was. */
static int open_named(void)
{
    static _Atomic unsigned counter;
    char name[96];

    snprintf(name, sizeof name, "/" NAME_PREFIX "%d-%" PRIu64 ".%u", (int)getpid(), start_ticks(getpid()),
             atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed));
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        shm_unlink(name);
    return fd;
}

static int open_posix(void)
{
    int fd = open(SHM_DIR, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    return fd >= 0 ? fd : open_named();
}

static bool shm_dir_has_room(uint64_t size)
{
    struct statvfs st;

    return statvfs(SHM_DIR, &st) == 0 && (uint64_t)st.f_bavail * st.f_frsize >= size + size / 16;
}

/* A holder that shrinks the file would kill the others by SIGBUS; only a memfd can forbid it. */
static void seal_size(int fd)
{
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
}

int mr_segment_new(enum mr_backing backing, const char *what, uint64_t size, bool reserve)
{
    bool memfd = backing == MR_BACKING_MEMFD || (backing == MR_BACKING_AUTO && !shm_dir_has_room(size));
    int fd = memfd ? memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING) : open_posix();

    if (fd < 0 && backing == MR_BACKING_AUTO && !memfd) {
        memfd = true;
        fd = memfd_create("millrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    if (fd < 0) {
        mr_error_set_errno(errno, "cannot make shared memory for %s", what);
        return -1;
    }
    if (size == 0 || size > INT64_MAX || ftruncate(fd, (off_t)size)) {
        mr_error_set_errno(size == 0 || size > INT64_MAX ? EINVAL : errno,
                           "cannot set the size of %s to %" PRIu64 " bytes", what, size);
        goto fail;
    }
    if (memfd)
        seal_size(fd);
    if (reserve && mr_segment_reserve(fd, what, 0, size))
        goto fail;
    return fd;

fail:
    close(fd);
    return -1;
}

/* 0, or -1 where the cgroup or the machine has too little: populating past that means the OOM killer. */
static int check_available(int fd, const char *what, uint64_t offset, uint64_t size)
{
    uint64_t available = mr_memory_available_bytes(), there = 0;
    struct stat st;

    /* Pages that are there already do not count again: they are the first ones. */
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 > offset)
        there = (uint64_t)st.st_blocks * 512 - offset;
    if (there < size && available < size - there) {
        mr_error_set(MR_E_NO_MEMORY,
                     "%s needs %" PRIu64 " bytes and %" PRIu64
                     " are available within this machine's and cgroup's limits: lower the "
                     "arena_bytes of [memory] or [checkpoint]",
                     what, size, available);
        return -1;
    }
    return 0;
}

int mr_segment_reserve(int fd, const char *what, uint64_t offset, uint64_t size)
{

    if (check_available(fd, what, offset, size) != 0)
        return -1;
    int err;
    do {
        err = posix_fallocate(fd, (off_t)offset, (off_t)size);
    } while (err == EINTR);
    if (err == ENOSPC || err == ENOMEM) {
        mr_error_set(MR_E_NO_MEMORY,
                     "no room for the %" PRIu64 " bytes of %s: lower the arena_bytes of [memory] or "
                     "[checkpoint], enlarge " SHM_DIR ", or set backing = \"memfd\"",
                     size, what);
        return -1;
    }
    if (err) {
        mr_error_set_errno(err, "cannot allocate %" PRIu64 " bytes for %s", size, what);
        return -1;
    }
    return 0;
}

void mr_segment_release(int fd, uint64_t offset, uint64_t size)
{
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size);
}

void mr_segment_populate(void *at, uint64_t size)
{
    (void)madvise(at, size, MADV_POPULATE_WRITE); /* since Linux 5.14; elsewhere each page faults once */
}

bool mr_segment_huge_possible(void)
{
    char text[128] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    return text[0] != '\0' && !strstr(text, "[never]") && !strstr(text, "[deny]");
}

int mr_segment_reserve_huge(int fd, void *at, const char *what, uint64_t offset, uint64_t size)
{
    char *from = (char *)at + offset;

    if (check_available(fd, what, offset, size) != 0)
        return -1;
    /* One small page of each huge one: the kernel allocates and maps the huge one, or just that. */
    if (madvise(from, size, MADV_HUGEPAGE) == 0)
        for (uint64_t done = 0; done < size; done += HUGE_BYTES)
            if (madvise(from + done, 4096, MADV_POPULATE_WRITE) != 0)
                break;
    return mr_segment_reserve(fd, what, offset, size); /* what is missing, in small pages, which fault once each */
}

int mr_segment_reopen_readonly(int fd)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (again < 0)
        mr_error_set_errno(errno, "cannot reopen shared memory read-only%s",
                           errno == ENOENT ? " (is /proc mounted?)" : "");
    return again;
}

void *mr_segment_map(int fd, uint64_t size, bool writable, uint64_t *size_out)
{
    struct stat st;

    if (fstat(fd, &st)) {
        mr_error_set_errno(errno, "cannot examine a shared segment");
        return NULL;
    }
    if (st.st_size <= 0 || (uint64_t)st.st_size < size) {
        mr_error_set(MR_E_CORRUPT, "a shared segment has %lld bytes where %" PRIu64 " were announced",
                     (long long)st.st_size, size);
        return NULL;
    }
    if (size == 0)
        size = (uint64_t)st.st_size;
    void *at = mmap(NULL, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        mr_error_set_errno(errno, "cannot map %" PRIu64 " bytes of shared memory", size);
        return NULL;
    }
    if (size_out)
        *size_out = size;
    return at;
}

void mr_segment_unmap(void *at, uint64_t size)
{
    if (at)
        munmap(at, size);
}

unsigned mr_segment_sweep(void)
{
    DIR *dir = opendir(SHM_DIR);
    unsigned removed = 0;

    if (!dir)
        return 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        uint64_t started;
        unsigned n;
        int pid, end = 0;
        if (sscanf(entry->d_name, NAME_PREFIX "%d-%" SCNu64 ".%u%n", &pid, &started, &n, &end) != 3 ||
            entry->d_name[end] || pid <= 0)
            continue;
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) ||
            st.st_uid != getuid() || start_ticks(pid) == started)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            removed++;
    }
    closedir(dir);
    return removed;
}

/* The first number of a file; UINT64_MAX if it cannot be read or holds "max". */
static uint64_t read_number(const char *path)
{
    char text[64];
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        n = read(fd, text, sizeof text - 1);
        close(fd);
    }
    if (n <= 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    text[n] = '\0';
    return strtoull(text, NULL, 10);
}

/* The value after `key` in a file of "key value" lines; 0 if it is not there. */
static uint64_t read_keyed(const char *path, const char *key)
{
    uint64_t value = 0;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");

    if (!file)
        return 0;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':')) {
            value = strtoull(line + length + 1, NULL, 10);
            break;
        }
    }
    fclose(file);
    return value;
}

/* This process's cgroup path below the hierarchy's root, of cgroup v2 ("0::/path") or v1's memory controller; "" if
 * there is none. *v1 is which of the two. */
static void cgroup_path(char *path, size_t size, bool *v1)
{
    FILE *file = fopen("/proc/self/cgroup", "re");

    path[0] = '\0';
    *v1 = false;
    if (!file)
        return;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        char *at = strstr(line, ":memory:");
        line[strcspn(line, "\n")] = '\0';
        if (at) {
            *v1 = true;
            snprintf(path, size, "%s", at + 8);
            break;
        }
        if (strncmp(line, "0::", 3) == 0)
            snprintf(path, size, "%s", line + 3);
    }
    fclose(file);
}

/* The tightest limit, or the least room below it, over this cgroup and its parents (inside a container the path may
 * not exist: then only the root, which is the container's own, counts). */
static uint64_t cgroup_least(bool room)
{
    char path[4096];
    uint64_t least = UINT64_MAX;
    bool v1;

    cgroup_path(path, sizeof path, &v1);
    char file[4400];
    for (;;) {
        const char *root = v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
        snprintf(file, sizeof file, "%s%s/%s", root, path, v1 ? "memory.limit_in_bytes" : "memory.max");
        uint64_t limit = read_number(file);
        uint64_t used, cache;
        if (limit != UINT64_MAX && room) {
            snprintf(file, sizeof file, "%s%s/%s", root, path, v1 ? "memory.usage_in_bytes" : "memory.current");
            used = read_number(file);
            snprintf(file, sizeof file, "%s%s/memory.stat", root, path);
            cache = read_keyed(file, v1 ? "total_inactive_file" : "inactive_file"); /* the kernel gives it back */
            if (used == UINT64_MAX)
                used = 0;
            used = used > cache ? used - cache : 0;
            limit = limit > used ? limit - used : 0;
        }
        if (limit < least)
            least = limit;
        char *slash = strrchr(path, '/');
        if (!slash || path[0] == '\0')
            break;
        *slash = '\0';
    }
    return least;
}

uint64_t mr_memory_limit_bytes(void)
{
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit = cgroup_least(false);

    return limit < physical ? limit : physical;
}

uint64_t mr_memory_available_bytes(void)
{
    uint64_t available = read_keyed("/proc/meminfo", "MemAvailable") * 1024;
    uint64_t room = cgroup_least(true);

    if (available == 0)
        available = UINT64_MAX;
    return room < available ? room : available;
}
