#include "worker/store/leftovers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/store/store.h"

#define STILL_PARTS_S   (6 * MR_LEFTOVER_BEAT_S)
#define STILL_PART_S    3600 /* the source of a session may be slow */
#define STILL_NO_LOCK_S 86400

#define PREFIX ".millrace-"
#define DIGITS 16

void mr_leftover_name(enum mr_leftover_kind kind, char name[MR_LEFTOVER_SIZE])
{
    snprintf(name, MR_LEFTOVER_SIZE, PREFIX "%0*llx.%s", DIGITS, (unsigned long long)mr_random64(),
             kind == MR_LEFTOVER_PARTS ? "parts" : "part");
}

enum mr_leftover_kind mr_leftover_kind(const char *name)
{
    const char *end = name + strlen(PREFIX) + DIGITS;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || strspn(name + strlen(PREFIX), "0123456789abcdef") != DIGITS)
        return MR_LEFTOVER_NONE;
    return strcmp(end, ".part") == 0    ? MR_LEFTOVER_PART
           : strcmp(end, ".parts") == 0 ? MR_LEFTOVER_PARTS
                                        : MR_LEFTOVER_NONE;
}

bool mr_leftover_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* The time by the file system's clock, which stamps its files and may be another machine's. Creates a file for that,
 * without a name where the file system can. */
static time_t now_there(int folder_fd, const char *name)
{
    char path[MR_STORE_NAME_MAX + MR_LEFTOVER_SIZE], own[MR_LEFTOVER_SIZE];
    const char *slash = strrchr(name, '/');
    int length = slash ? (int)(slash - name) + 1 : 0;
    struct stat st;
    snprintf(path, sizeof path, "%.*s.", length, name);
    int fd = openat(folder_fd, path, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd < 0) {
        mr_leftover_name(MR_LEFTOVER_PART, own);
        snprintf(path, sizeof path, "%.*s%s", length, name, own);
        fd = openat(folder_fd, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
            return time(NULL); /* a full disk, or no permission to write here */
        unlinkat(folder_fd, path, 0);
    }
    bool known = fstat(fd, &st) == 0;
    close(fd);
    return known ? st.st_mtim.tv_sec : time(NULL);
}

bool mr_leftover_is_dead(int folder_fd, const char *name, int64_t *written_s)
{
    const char *slash = strrchr(name, '/');
    enum mr_leftover_kind kind = mr_leftover_kind(slash ? slash + 1 : name);
    int64_t still_s = kind == MR_LEFTOVER_PARTS ? STILL_PARTS_S : STILL_PART_S;
    bool dead = false;
    if (kind == MR_LEFTOVER_NONE)
        return false;
    int fd = openat(folder_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno == EWOULDBLOCK)
        goto out;
    if (!locked) /* no locks here */
        still_s = STILL_NO_LOCK_S;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
        goto out;
    *written_s = st.st_mtim.tv_sec;
    dead = time(NULL) - st.st_mtim.tv_sec > still_s && now_there(folder_fd, name) - st.st_mtim.tv_sec > still_s;
out:
    close(fd);
    return dead;
}

unsigned mr_leftovers_remove(const char *folder, bool (*keep)(const char *name))
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    unsigned count = 0;
    int64_t written_s;
    while (dir && (entry = readdir(dir))) {
        if (mr_leftover_kind(entry->d_name) != MR_LEFTOVER_NONE &&
            mr_leftover_is_dead(dirfd(dir), entry->d_name, &written_s) && !(keep && keep(entry->d_name)))
            count += unlinkat(dirfd(dir), entry->d_name, 0) == 0;
    }
    if (dir)
        closedir(dir);
    return count;
}
