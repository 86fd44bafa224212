/* Unfinished uploads below a folder: temporary files that no process writes any more. Those of live writers are not
 * listed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "worker/store/file_impl.h"
#include "worker/store/leftovers.h"

struct found {
    struct mr_store_pending *items;
    size_t count, size;
    struct mr_text names; /* each with its NUL */
};

/* The folders still to be read are a stack: what is held is their paths and one descriptor. (glibc's fts_open writes to
 * NULL when it has no memory.) */
struct search {
    struct found found;
    struct mr_text folders;       /* paths, each with its NUL */
    char path[MR_STORE_NAME_MAX]; /* of the folder that is read, or of an entry */
    dev_t dev;                    /* other file systems are not entered */
};

/* -1: no memory; mr_error is not set. */
static int found_add(struct found *found, const char *path, size_t length, int64_t written_s)
{
    if (found->count == found->size) {
        size_t size = found->size ? 2 * found->size : 64;
        struct mr_store_pending *items = realloc(found->items, size * sizeof *items);
        if (!items)
            return -1;
        found->items = items;
        found->size = size;
    }
    mr_text_add(&found->names, path, length + 1);
    found->items[found->count++] = (struct mr_store_pending){.name_length = length, .started_s = written_s};
    return found->names.failed ? -1 : 0;
}

/* search->path: of the entry. 0, or -1: no memory. */
static int look_at(struct search *search, const struct dirent *entry, size_t length)
{
    int64_t written_s;
    struct stat st;
    bool is_folder = entry->d_type == DT_DIR;
    if (mr_leftover_kind(entry->d_name) != MR_LEFTOVER_NONE && mr_leftover_is_dead(AT_FDCWD, search->path, &written_s))
        return found_add(&search->found, search->path, length, written_s);
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
        return 0;
    if (entry->d_type == DT_UNKNOWN)
        is_folder = lstat(search->path, &st) == 0 && S_ISDIR(st.st_mode);
    if (is_folder)
        mr_text_add(&search->folders, search->path, length + 1);
    return search->folders.failed ? -1 : 0;
}

/* The folder search->path. 0, or -1 with errno. */
static int read_folder(struct search *search, DIR *dir)
{
    size_t length = strlen(search->path);
    if (length + 1 >= sizeof search->path) /* no entry's name fits */
        return 0;
    if (search->path[length - 1] != '/')
        search->path[length++] = '/';
    int rc = 0;
    const struct dirent *entry;
    while (rc == 0 && (errno = 0, entry = readdir(dir))) {
        size_t n = strlen(entry->d_name);
        if (length + n >= sizeof search->path) /* longer than any object's name */
            continue;
        memcpy(search->path + length, entry->d_name, n + 1);
        rc = look_at(search, entry, length + n);
        errno = ENOMEM; /* if it failed */
    }
    search->path[length] = 0;
    return rc == 0 && errno == 0 ? 0 : -1;
}

/* Whether a folder below may be passed over: removed or replaced meanwhile, or not this user's. */
static bool is_passed_over(int errnum)
{
    return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == EACCES || errnum == ENAMETOOLONG;
}

/* Takes the last folder of the stack. 0, or -1 with errno. */
static int search_next(struct search *search, bool is_root)
{
    struct stat st;
    const char *end = search->folders.data + search->folders.length - 1;
    const char *before = memrchr(search->folders.data, 0, (size_t)(end - search->folders.data));
    const char *path = before ? before + 1 : search->folders.data;
    memcpy(search->path, path, (size_t)(end - path) + 1);
    search->folders.length = (size_t)(path - search->folders.data);
    int fd = open(search->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (is_root ? 0 : O_NOFOLLOW));
    if (fd < 0)
        return !is_root && is_passed_over(errno) ? 0 : -1;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd); /* keeps errno */
        return -1;
    }
    int rc = fstat(fd, &st);
    if (rc == 0 && is_root)
        search->dev = st.st_dev;
    if (rc == 0 && st.st_dev == search->dev)
        rc = read_folder(search, dir);
    int errnum = errno;
    closedir(dir);
    errno = errnum;
    return rc;
}

/* 0, or -1 with mr_error. */
static int search_below(struct search *search, const char *root)
{
    char quoted[300];
    mr_text_add(&search->folders, root, strlen(root) + 1);
    int rc = search->folders.failed ? -1 : 0;
    errno = ENOMEM;
    for (bool is_root = true; rc == 0 && search->folders.length > 0; is_root = false)
        rc = search_next(search, is_root);
    if (rc != 0)
        mr_error_set_errno(errno, "cannot read the folder \"%s\"",
                           mr_text_quote(quoted, sizeof quoted, search->path, strlen(search->path)));
    mr_text_close(&search->folders);
    return rc;
}

static void run_list(struct file_call *call)
{
    struct search search = {0};
    int rc = search_below(&search, call->name);
    struct found found = search.found;
    char text[MR_FILE_TEXT];
    struct mr_store_result result = mr_file_result(call, rc, text);
    size_t at = 0;
    for (size_t i = 0; i < found.count && rc == 0; i++) { /* only now: their memory moved while it grew */
        found.items[i].name = found.names.data + at;
        found.items[i].id = strrchr(found.items[i].name, '/') + 1;
        at += found.items[i].name_length + 1;
    }
    struct mr_store_pending_page page = {.items = found.items, .count = found.count, .now_s = time(NULL)};
    call->done.pending(call->arg, &result, rc == 0 ? &page : NULL);
    free(found.items);
    mr_text_close(&found.names);
    mr_file_call_end(call);
}

struct mr_store_call *mr_file_parts_list(struct mr_store *base, const char *prefix, const char *from_name,
                                         const char *from_id, mr_store_parts_list_fn *done, void *arg)
{
    const char *folder = prefix && prefix[0] ? prefix : "/";
    (void)from_name; /* there is one page */
    (void)from_id;
    struct file_call *call = mr_file_call_new(base, run_list, folder, strlen(folder), arg);
    if (!call)
        return NULL;
    call->done.pending = done;
    return &call->base;
}
