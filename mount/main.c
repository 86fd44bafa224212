/*
 * main.c - millrace-mount URI DIR [-- COMMAND ARGS...]: shows what is under the URI as read-only files below DIR, by
 * libfuse. `millrace mount` and `millrace run --mount` start it, with MILLRACE_SOCKET. Without a command it serves
 * until a signal or `fusermount3 -u`; with one, until the command has ended, and its exit status is the command's.
 *
 * Threads: libfuse's serve requests; the first one waits for signals, which are blocked elsewhere.
 */
#define FUSE_USE_VERSION 31

#include <errno.h>
#include <fuse.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <mntent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/uri.h"
#include "mount/files.h"
#include "mount/tree.h"

#define KEPT_S     3600.0   /* the kernel keeps what it knows of names: nothing changes while it is mounted */
#define WAKE_NS    20000000 /* between two signals that wake the loop */
#define PLACE_BASE 3        /* of readdir's offsets: 1 and 2 are after the dots, PLACE_BASE + n before object n */

static struct mr_files files;
static struct mr_tree tree;
static struct timespec mounted_at;
static volatile int ended; /* the signal */

/* ---- attributes ---- */

static struct timespec time_of(const struct mr_index_entry *entry)
{
    switch (files.index.info.version_kind) {
    case MR_INDEX_GENERATION: /* of Google Cloud Storage: microseconds since 1970 */
        return (struct timespec){.tv_sec = (time_t)(entry->version / 1000000),
                                 .tv_nsec = (long)(entry->version % 1000000) * 1000};
    case MR_INDEX_MTIME:
        return (struct timespec){.tv_sec = (time_t)(entry->version / 1000000000),
                                 .tv_nsec = (long)(entry->version % 1000000000)};
    default:
        return mounted_at;
    }
}

static void set_attributes(struct stat *st, const struct mr_tree_entry *found)
{
    *st = (struct stat){.st_uid = getuid(), .st_gid = getgid(), .st_blksize = 1 << 20};
    if (found->kind == MR_TREE_FOLDER) {
        st->st_mode = S_IFDIR | 0555;
        st->st_nlink = 2;
        st->st_mtim = mounted_at;
    } else {
        st->st_mode = S_IFREG | 0444;
        st->st_nlink = 1;
        st->st_size = (off_t)found->entry.size;
        st->st_blocks = (blkcnt_t)((found->entry.size + 511) / 512);
        st->st_mtim = time_of(&found->entry);
    }
    st->st_atim = st->st_ctim = st->st_mtim;
}

static int main_fail(const char *path)
{
    mr_log_error("%s: %s", path, mr_error_text());
    return -EIO;
}

/* 0 with what is there, or -errno. */
static int main_find(const char *path, struct mr_tree_entry *found)
{
    if (mr_tree_find(&tree, path, found) != 0)
        return main_fail(path);
    return found->kind == MR_TREE_NONE ? -ENOENT : 0;
}

static int do_getattr(const char *path, struct stat *st, struct fuse_file_info *info)
{
    struct mr_tree_entry found;
    (void)info;
    int rc = main_find(path, &found);
    if (rc == 0)
        set_attributes(st, &found);
    return rc;
}

static int do_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                      enum fuse_readdir_flags flags)
{
    struct mr_tree_walk *walk = malloc(sizeof *walk);
    struct mr_tree_entry found;
    struct stat st;
    uint64_t place = offset < PLACE_BASE ? 0 : (uint64_t)offset - PLACE_BASE;
    (void)info, (void)flags;
    int rc = walk ? mr_tree_walk_init(walk, &tree, path, place) : -1;
    if (rc != 0) {
        free(walk);
        return walk ? main_fail(path) : -ENOMEM;
    }
    bool full = (offset < 1 && fill(buffer, ".", NULL, 1, 0)) || (offset < 2 && fill(buffer, "..", NULL, 2, 0));
    while (!full && (rc = mr_tree_next(walk, &found, &place)) > 0) {
        set_attributes(&st, &found);
        full = fill(buffer, found.part, &st, (off_t)(place + PLACE_BASE), FUSE_FILL_DIR_PLUS) != 0;
    }
    free(walk);
    return rc < 0 ? main_fail(path) : 0;
}

static int do_statfs(const char *path, struct statvfs *st)
{
    (void)path;
    *st = (struct statvfs){.f_bsize = 1 << 20,
                           .f_frsize = 1,
                           .f_blocks = files.index.info.total_bytes,
                           .f_files = files.index.info.count,
                           .f_namemax = MR_TREE_PART_MAX};
    return 0;
}

/* ---- files ---- */

static int do_open(const char *path, struct fuse_file_info *info)
{
    struct mr_tree_entry found;
    if ((info->flags & O_ACCMODE) != O_RDONLY)
        return -EROFS;
    int rc = main_find(path, &found);
    if (rc != 0)
        return rc;
    if (found.kind != MR_TREE_FILE)
        return -EISDIR;
    struct mr_file *file = mr_file_open(&files, found.number, path);
    if (!file)
        return main_fail(path);
    info->fh = (uint64_t)(uintptr_t)file;
    info->keep_cache = 1;
    return 0;
}

static int do_read(const char *path, char *buffer, size_t size, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    return (int)mr_file_read((struct mr_file *)(uintptr_t)info->fh, (uint64_t)offset, buffer, size);
}

static int do_release(const char *path, struct fuse_file_info *info)
{
    (void)path;
    mr_file_close((struct mr_file *)(uintptr_t)info->fh);
    return 0;
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    config->kernel_cache = 1;
    config->entry_timeout = config->attr_timeout = config->negative_timeout = KEPT_S;
    /* One read of a file at a time, in order: several would look like seeks. The range reader looks ahead. */
    connection->want &= ~(unsigned)FUSE_CAP_ASYNC_READ;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = do_init,
    .getattr = do_getattr,
    .readdir = do_readdir,
    .statfs = do_statfs,
    .open = do_open,
    .read = do_read,
    .release = do_release,
};

/* ---- the session ---- */

struct session {
    struct fuse *fuse;
    pthread_t loop, first;
    const char *dir;
};

__attribute__((format(printf, 2, 0))) static void log_of_fuse(enum fuse_log_level level, const char *format,
                                                              va_list args)
{
    char line[500];
    int n = vsnprintf(line, sizeof line, format, args);
    if (n > 0 && (size_t)n < sizeof line && line[n - 1] == '\n')
        line[n - 1] = '\0';
    if (level <= FUSE_LOG_ERR)
        mr_log_error("%s", line);
    else
        mr_log_debug("%s", line);
}

/* The bits of a line of /proc/PID/status, "SigPnd:\t0000000000000002"; 0: it is another line. */
static unsigned long long signal_bits(const char *line, const char *name)
{
    size_t length = strlen(name);
    return strncmp(line, name, length) == 0 ? strtoull(line + length, NULL, 16) : 0;
}

/* Whether a signal that is to end it waits for this thread, or has ended it; true where that cannot be seen. Any other
 * one, such as SIGSTOP or SIGCHLD, does not cut the read of a file short. */
static bool is_to_end(pid_t pid)
{
    static const int numbers[] = {SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM};
    char path[40], line[256];
    unsigned long long pending = 0, blocked = 0, ending = 0;
    bool gone = false;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return true;
    while (fgets(line, sizeof line, file)) {
        gone |= strncmp(line, "State:\tZ", 8) == 0 || strncmp(line, "State:\tX", 8) == 0;
        pending |= signal_bits(line, "SigPnd:") | signal_bits(line, "ShdPnd:");
        blocked |= signal_bits(line, "SigBlk:");
    }
    fclose(file);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ending |= 1ULL << (numbers[i] - 1);
    return gone || (pending & ~blocked & ending) != 0;
}

static int main_interrupted(void)
{
    return fuse_interrupted() && is_to_end(fuse_get_context()->pid);
}

/* libfuse's loop. When it ends, SIGUSR1 wakes the first thread. */
static void *serve(void *arg)
{
    struct session *session = arg;
    fuse_loop_mt(session->fuse, 0);
    pthread_kill(session->first, SIGUSR1); /* it is not mounted any more */
    return NULL;
}

/* Whether a mount of ours is there already, which another one would hide. */
static bool is_mounted(const char *dir)
{
    char *path = realpath(dir, NULL);
    FILE *mounts = path ? setmntent("/proc/self/mounts", "r") : NULL;
    bool found = false;
    for (struct mntent *entry; mounts && !found && (entry = getmntent(mounts));)
        found = strcmp(entry->mnt_type, "fuse.millrace") == 0 && strcmp(entry->mnt_dir, path) == 0;
    if (mounts)
        endmntent(mounts);
    free(path);
    return found;
}

/* Mounts, and does not serve yet. 0 or -1; session->fuse may be set in either case, and must be destroyed. */
static int mount_it(struct session *session, const char *uri)
{
    char name[400], options[600];
    struct stat st;
    int errnum = stat(session->dir, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (errnum != 0) {
        mr_error_set_errno(errnum, "cannot mount at %s", session->dir);
        if (errnum == ENOTCONN)
            mr_error_append("a mount that was killed is still there: fusermount3 -u %s", session->dir);
        return -1;
    }
    if (is_mounted(session->dir)) {
        mr_error_set(MR_E_EXISTS, "a mount of millrace is at %s already: fusermount3 -u %s ends it", session->dir,
                     session->dir);
        return -1;
    }
    if (access("/dev/fuse", F_OK) != 0) {
        mr_error_set(MR_E_CONFIG, "there is no /dev/fuse: load the kernel's module fuse; a container needs --device "
                                  "/dev/fuse --cap-add SYS_ADMIN");
        return -1;
    }
    snprintf(name, sizeof name, "%s", uri);
    for (char *at = name; (at = strpbrk(at, ",\\")); at++) /* what separates options */
        *at = '_';
    snprintf(options, sizeof options, "ro,nosuid,nodev,default_permissions,subtype=millrace,fsname=%s", name);
    char *arguments[] = {"millrace-mount", "-o", options, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, arguments);
    session->fuse = fuse_new(&args, &operations, sizeof operations, NULL);
    fuse_opt_free_args(&args);
    if (session->fuse && fuse_mount(session->fuse, session->dir) == 0)
        return 0;
    mr_error_set(MR_E_CONFIG,
                 "cannot mount at %s: the lines above say why (a user needs the program fusermount3, of the "
                 "package fuse3; a container SYS_ADMIN)",
                 session->dir);
    return -1;
}

static void wake_loop(int number)
{
    (void)number;
}

/* Ends the loop and joins its thread, which must have been started. It may have ended already. While a process has a
 * file or a folder of the mount, its end does not wake the loop, whose wait a signal interrupts: it then looks whether
 * it is to end, and ends its threads. */
static void unmount(struct session *session)
{
    const struct sigaction wake = {.sa_handler = wake_loop};
    const struct timespec pause = {.tv_nsec = WAKE_NS};
    atomic_store(&files.ending, true);
    fuse_session_exit(fuse_get_session(session->fuse));
    fuse_unmount(session->fuse);
    sigaction(SIGURG, &wake, NULL);
    while (pthread_tryjoin_np(session->loop, NULL) != 0) {
        pthread_kill(session->loop, SIGURG);
        nanosleep(&pause, NULL);
    }
}

/* ---- the command ---- */

/* Returns the command's pid, or -1 with mr_error. In the child, as in a shell, 127 or 126 means that it cannot run. */
static pid_t main_start(char *const argv[])
{
    pid_t pid = fork();
    if (pid != 0) {
        if (pid < 0)
            mr_error_set_errno(errno, "cannot start %s%s", argv[0], mr_process_limit(errno));
        return pid;
    }
    mr_process_restore_signals();
    execvp(argv[0], argv);
    fprintf(stderr, "millrace-mount: cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

/* Waits until the command has ended and returns its exit status. Signals are passed on to it, except those of the
 * terminal, which has sent them to it too. */
static int await_command(const struct session *session, pid_t pid, const sigset_t *signals)
{
    for (;;) {
        siginfo_t info;
        int status;
        if (sigwaitinfo(signals, &info) < 0)
            continue;
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        bool is_wakeup = info.si_signo == SIGUSR1 && info.si_pid == getpid(); /* serve's */
        if (is_wakeup)
            mr_log_warning("%s is not mounted any more: the command goes on without it", session->dir);
        if (info.si_signo != SIGCHLD && !is_wakeup && info.si_code != SI_KERNEL)
            kill(pid, info.si_signo);
        if (info.si_signo == SIGTSTP)
            raise(SIGSTOP); /* the shell waits for us to stop, not for the command */
    }
}

/* Waits for a signal, or the end of the session, which sends one. */
static void await_end(const sigset_t *signals)
{
    while (sigwaitinfo(signals, NULL) < 0)
        ;
}

static void main_on_signal(int number)
{
    ended = number;
}

/* Signals end the listing while it goes on; later they are blocked and waited for. */
static void catch_signals(sigset_t *signals)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigemptyset(signals);
    sigaddset(signals, SIGCHLD);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (mr_process_catch(numbers[i], main_on_signal, 0)) /* one that is ignored is so for the command too */
            sigaddset(signals, numbers[i]);
    sigaddset(signals, SIGUSR1); /* serve's, in any case */
    signal(SIGPIPE, SIG_IGN);
}

/* Those that the supervisor passes on as well, and that would end us, or stop us, instead of the command. */
static void catch_for_command(sigset_t *signals)
{
    static const int numbers[] = {SIGUSR2, SIGQUIT, SIGCONT, SIGTSTP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (mr_process_catch(numbers[i], main_on_signal, 0))
            sigaddset(signals, numbers[i]);
}

static void say(const char *uri, const char *dir)
{
    uint64_t hidden = 0;
    if (mr_tree_hidden(&tree, &hidden) == 0 && hidden > 0)
        mr_log_warning("%" PRIu64 " of %" PRIu64
                       " objects are not shown: their names are not paths, or a folder has them "
                       "(docs/files.md)",
                       hidden, files.index.info.count);
    mr_log_info("%s is mounted at %s: %" PRIu64 " objects, %" PRIu64 " bytes", uri, dir, files.index.info.count,
                files.index.info.total_bytes);
}

/* Returns the exit status, with mr_error where the mount itself failed. */
static int main_run(const char *uri, const char *dir, char *const *command)
{
    struct session session = {.first = pthread_self(), .dir = dir};
    sigset_t signals;
    int status = 1;
    catch_signals(&signals);
    const char *socket_path = getenv("MILLRACE_SOCKET");
    if (!socket_path) {
        mr_error_set(MR_E_USAGE, "it is started by `millrace mount`, or with MILLRACE_SOCKET");
        return 1;
    }
    if (mr_files_init(&files, socket_path, uri, &ended, main_interrupted) != 0 || mount_it(&session, uri) != 0)
        goto out;
    say(uri, dir);
    if (command)
        catch_for_command(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    int rc = ended ? EINTR : pthread_create(&session.loop, NULL, serve, &session);
    if (rc != 0) {
        mr_error_set_errno(rc, "cannot serve %s", dir);
        fuse_unmount(session.fuse);
        goto out;
    }
    pid_t pid = command ? main_start(command) : 0;
    if (pid > 0) {
        status = await_command(&session, pid, &signals);
    } else if (pid == 0) {
        await_end(&signals);
        status = 0;
    }
    unmount(&session);
out:
    if (session.fuse)
        fuse_destroy(session.fuse);
    mr_files_close(&files);
    return status;
}

int main(int argc, char **argv)
{
    mr_process_begin();
    mr_log_init("mount", MR_LOG_INFO);
    fuse_set_log_func(log_of_fuse);
    bool has_command = argc > 4 && strcmp(argv[3], "--") == 0;
    if (argc != 3 && !has_command) {
        fputs("usage: millrace-mount URI DIR [-- COMMAND ARGS...]   (see millrace help mount)\n", stderr);
        return 2;
    }
    struct mr_uri uri;
    if (mr_uri_init(&uri, argv[1]) != 0) {
        mr_log_error("%s", mr_error_text());
        return 2;
    }
    size_t length = strlen(uri.key);
    char *top = NULL, *folder = NULL;
    if (asprintf(&top, "%s%s", uri.key, length > 0 && uri.key[length - 1] != '/' ? "/" : "") < 0 ||
        !(folder = mr_uri_format(uri.scheme, uri.bucket, top)))
        return 1;
    clock_gettime(CLOCK_REALTIME, &mounted_at);
    tree = (struct mr_tree){.index = &files.index, .top = top, .top_length = strlen(top)};
    int status = main_run(folder, argv[2], has_command ? argv + 4 : NULL);
    if (status != 0 && mr_error_text()[0] != '\0')
        mr_log_error("%s", mr_error_text());
    free(folder);
    free(top);
    mr_uri_close(&uri);
    return status;
}
