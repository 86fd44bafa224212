/* What `millrace doctor` finds out about this machine. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "cli/doctor_impl.h"
#include "cli/json_get.h"
#include "shm/memory/segment.h"
#include "supervisor/ckpt_share.h"

#define MIB              1048576.0
#define GIB              (1024 * MIB)
#define PAGE_TABLES      (2 * MIB) /* per GiB and process that maps it: 8 bytes for each page of 4 KiB */
#define DESCRIPTORS_MORE 64        /* beside connections and lanes */
#define FULL_BUFFERS     64

/* How many receive buffers of a fetch worker are full at once. auto: many requests are for small objects, which touch
 * little of a buffer; 256 of them take as much as FULL_BUFFERS whole ones (docs/tuning.md). */
static uint64_t full_buffers(const struct mr_config *config)
{
    return config->fetch.connections ? config->fetch.connections : FULL_BUFFERS;
}

static void check_memory(struct mr_doctor *doctor, const struct mr_config *config)
{
    char need[32];
    uint64_t limit_bytes = mr_memory_limit_bytes(), available_bytes = mr_memory_available_bytes();
    double arena_bytes = (double)mr_config_arena_bytes(config, limit_bytes, available_bytes);
    double buffer_bytes =
        (double)config->fetch.workers * (double)full_buffers(config) * (double)config->fetch.receive_buffer_bytes;
    double readers = 1; /* a fetch worker maps its own arena, each reader all of them */
    double table_bytes = arena_bytes / GIB * PAGE_TABLES * (1 + readers);
    double needed = arena_bytes + buffer_bytes + table_bytes;
    mr_size_text(needed, need);
    char arena[32];
    mr_size_text(arena_bytes, arena);
    char buffers[32];
    mr_size_text(buffer_bytes, buffers);
    char tables[32];
    mr_size_text(table_bytes, tables);
    char left[32];
    mr_size_text((double)available_bytes, left);
    char limit[32];
    mr_size_text((double)limit_bytes, limit);
    char batches[32];
    mr_size_text((double)mr_config_batch_bytes(config, limit_bytes), batches);
    bool fits = needed <= (double)available_bytes;
    double spare = ((double)available_bytes - buffer_bytes) * 0.9 / MIB;
    char advice[100] = "";
    if (!fits && spare > 16)
        snprintf(advice, sizeof advice, ": lower memory.arena_bytes to \"%.0fMiB\" or less, or give more memory",
                 spare);
    else if (!fits)
        snprintf(advice, sizeof advice, ": give more memory");
    mr_doctor_report(
        doctor, fits ? "ok" : "fail", "memory",
        "%s needed (arena %s%s, receive buffers %s, page tables with one reader %s), and up to %s for batches of "
        "DataLoader workers; %s are free of the %s that this machine or its cgroup allows%s",
        need, config->memory.arena_bytes == 0 ? "up to " : "", arena, buffers, tables, batches, left, limit, advice);
}

static void check_shared_memory(struct mr_doctor *doctor, const struct mr_config *config)
{
    char arena[32];
    double arena_bytes = (double)mr_config_arena_bytes(config, mr_memory_limit_bytes(), mr_memory_available_bytes());
    mr_size_text(arena_bytes, arena);
    if (config->memory.backing == MR_BACKING_MEMFD) {
        mr_doctor_report(doctor, "ok", "shared memory", "memfd, which needs no /dev/shm");
        return;
    }
    struct statvfs st;
    bool there = statvfs("/dev/shm", &st) == 0;
    double free_bytes = there ? (double)st.f_bavail * (double)st.f_frsize : 0;
    char room[32];
    mr_size_text(free_bytes, room);
    bool fits = there && free_bytes >= arena_bytes * 17 / 16;
    if (fits)
        mr_doctor_report(doctor, "ok", "shared memory", "the arena of %s fits /dev/shm, which has %s free", arena,
                         room);
    else if (config->memory.backing == MR_BACKING_AUTO)
        mr_doctor_report(doctor, "ok", "shared memory",
                         "/dev/shm has %s free, too little for the arena of %s: memfd is used", room, arena);
    else
        mr_doctor_report(
            doctor, "fail", "shared memory",
            "/dev/shm has %s free, too little for the arena of %s: set memory.backing = \"auto\", enlarge it "
            "(docker run --shm-size, a Kubernetes emptyDir with medium Memory), or lower memory.arena_bytes",
            room, arena);
}

/* The checkpoints' memory is allocated with the first one, in addition to the arena: where both do not fit, that save
 * fails. */
static void check_checkpoints(struct mr_doctor *doctor, const struct mr_config *config)
{
    char arena[32];
    uint64_t limit_bytes = mr_memory_limit_bytes(), available_bytes = mr_memory_available_bytes();
    uint64_t bytes = mr_config_ckpt_arena_bytes(config, limit_bytes);
    double needed = (double)bytes + (double)mr_config_arena_bytes(config, limit_bytes, available_bytes);
    struct mr_ckpt_share share = mr_ckpt_share(mr_ckpt_share_bytes(bytes, bytes, config->checkpoint.workers, 0, 1),
                                               bytes, config->checkpoint.part_bytes);
    mr_size_text((double)bytes, arena);
    char both[32];
    mr_size_text(needed, both);
    char left[32];
    mr_size_text((double)available_bytes, left);
    char part[32];
    mr_size_text((double)share.part_bytes, part);
    if (needed > (double)available_bytes) {
        mr_doctor_report(doctor, "note", "checkpoints",
                         "%s of shared memory with the first one, %s with the arena, and %s are free: lower "
                         "checkpoint.arena_bytes or memory.arena_bytes if this run saves checkpoints",
                         arena, both, left);
        return;
    }
    struct statvfs st;
    bool there = statvfs("/dev/shm", &st) == 0;
    double free_bytes = there ? (double)st.f_bavail * (double)st.f_frsize : 0;
    char room[32];
    mr_size_text(free_bytes, room);
    if (config->memory.backing == MR_BACKING_POSIX && free_bytes < needed * 17 / 16) {
        mr_doctor_report(doctor, "note", "checkpoints",
                         "%s of shared memory with the first one, %s with the arena, and /dev/shm has %s free: set "
                         "memory.backing = \"auto\", or enlarge it, if this run saves checkpoints",
                         arena, both, room);
        return;
    }
    mr_doctor_report(doctor, "ok", "checkpoints",
                     "%s of shared memory with the first one: a lone writer has %u parts of %s", arena, share.slots,
                     part);
}

static void check_open_files(struct mr_doctor *doctor, const struct mr_config *config)
{
    struct rlimit limit;
    /* A connection takes its socket and two of libcurl's. A number found by auto stays within a quarter of the
     * descriptors. */
    uint64_t worker = 3 * config->fetch.connections + config->lanes.max + DESCRIPTORS_MORE;
    uint64_t supervisor = 2 * config->lanes.max + 8 * config->fetch.workers + DESCRIPTORS_MORE;
    uint64_t need = worker > supervisor ? worker : supervisor;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    bool enough = limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need;
    bool hard = limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= need;
    if (enough)
        mr_doctor_report(doctor, "ok", "open files", "%llu allowed a process, up to %llu needed",
                         (unsigned long long)limit.rlim_cur, (unsigned long long)need);
    else
        mr_doctor_report(doctor, "fail", "open files",
                         "%llu allowed a process, and %llu may be needed (fetch.connections, lanes.max): %s",
                         (unsigned long long)limit.rlim_cur, (unsigned long long)need,
                         hard ? "ulimit -n raises it"
                              : "raise the limit (limits.conf, LimitNOFILE=, docker run --ulimit)");
}

/* The first line of a small file, "" if it cannot be read. Returns how many bytes were read; 0 or less: none. */
static ssize_t read_line(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, size - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return n;
}

/* "always within_size [never]": the word in brackets decides for /dev/shm and memfds. */
static void check_huge_pages(struct mr_doctor *doctor)
{
    char text[200];
    if (read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", text, sizeof text) <= 0) {
        mr_doctor_report(doctor, "ok", "huge pages", "this kernel has none for shared memory; pages have 4 KiB");
        return;
    }
    char *word = strchr(text, '['), *end = word ? strchr(word, ']') : NULL;
    if (!end)
        return;
    *end = '\0';
    word++;
    bool used = strcmp(word, "always") == 0 || strcmp(word, "within_size") == 0 || strcmp(word, "force") == 0;
    mr_doctor_report(
        doctor, "ok", "huge pages", "shmem_enabled is %s: shared memory %s", word,
        used ? "gets pages of 2 MiB where it can"
             : "has pages of 4 KiB, whose tables take 2 MiB a GiB of arena in each process (the administrator "
               "may write within_size to /sys/kernel/mm/transparent_hugepage/shmem_enabled)");
}

static void check_run_folder(struct mr_doctor *doctor)
{
    char base[PATH_MAX];
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime && runtime[0] == '/')
        snprintf(base, sizeof base, "%s/millrace", runtime);
    else
        snprintf(base, sizeof base, "/tmp/millrace-%u", (unsigned)geteuid());
    if (strlen(base) + sizeof "/run-1234567-89abcdef/socket" > sizeof((struct sockaddr_un *)NULL)->sun_path) {
        mr_doctor_report(doctor, "fail", "run folder", "%s is too long for a socket's path: set XDG_RUNTIME_DIR", base);
        return;
    }
    struct stat st;
    bool there = lstat(base, &st) == 0;
    if (there && (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)) {
        mr_doctor_report(
            doctor, "fail", "run folder",
            "%s must be a folder of this user that no other user may enter: remove it, or set XDG_RUNTIME_DIR", base);
        return;
    }
    if (!there)
        *strrchr(base, '/') = '\0'; /* it will be created in there */
    if (access(base, W_OK | X_OK) == 0)
        mr_doctor_report(doctor, "ok", "run folder", "%s%s", base, there ? "" : " can be written");
    else
        mr_doctor_report(doctor, "fail", "run folder",
                         "%s cannot be written (%s): set XDG_RUNTIME_DIR to a folder of yours", base, strerror(errno));
}

/* How many processors the cgroup (version 2) allows; 0: no limit is seen. */
static double cgroup_cpus(void)
{
    char text[200];
    if (read_line("/sys/fs/cgroup/cpu.max", text, sizeof text) <= 0 || strncmp(text, "max", 3) == 0)
        return 0;
    char *rest;
    double quota = strtod(text, &rest), period = strtod(rest, NULL);
    return quota > 0 && period > 0 ? quota / period : 0;
}

static void check_cpus(struct mr_doctor *doctor, const struct mr_config *config)
{
    cpu_set_t set;
    double cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (double)sysconf(_SC_NPROCESSORS_ONLN);
    double quota = cgroup_cpus();
    if (quota > 0 && quota < cpus)
        cpus = quota;
    if ((double)config->fetch.workers < cpus || config->fetch.workers == 1)
        mr_doctor_report(doctor, "ok", "processors", "%.3g, and %llu fetch workers", cpus,
                         (unsigned long long)config->fetch.workers);
    else
        mr_doctor_report(doctor, "note", "processors",
                         "%.3g, and %llu fetch workers: they share them with the training; fetch.workers = 1 may do",
                         cpus, (unsigned long long)config->fetch.workers);
}

void mr_doctor_local(struct mr_doctor *doctor, const struct mr_config *config)
{
    check_memory(doctor, config);
    check_shared_memory(doctor, config);
    check_checkpoints(doctor, config);
    check_huge_pages(doctor);
    check_open_files(doctor, config);
    check_run_folder(doctor);
    check_cpus(doctor, config);
}
