#include "mount/tree.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* The number of the first name that is not below key; the count where there is none. 0 or -1 (CORRUPT). */
static int lower_bound(const struct mr_index *index, const char *key, uint64_t *number)
{
    bool is_there;
    return mr_index_lower_bound(index, key, strlen(key), number, &is_there);
}

/* 1 if a name begins with `start`, 0 if none does, -1 (CORRUPT). */
static int any_with(const struct mr_index *index, const char *start)
{
    char name[MR_INDEX_NAME_SIZE];
    struct mr_index_entry entry;
    uint64_t number;
    if (lower_bound(index, start, &number) != 0)
        return -1;
    if (number == index->info.count)
        return 0;
    if (mr_index_get(index, number, &entry, name) != 0)
        return -1;
    return strncmp(name, start, strlen(start)) == 0;
}

static bool is_part(const char *part, size_t length)
{
    return length > 0 && length <= MR_TREE_PART_MAX && !(length == 1 && part[0] == '.') &&
           !(length == 2 && part[0] == '.' && part[1] == '.');
}

/* The object name of a path, with room for a slash after it. 0, or -1 without mr_error: longer than any name. */
static int tree_name_of(const struct mr_tree *tree, const char *path, char name[MR_INDEX_NAME_SIZE + 1])
{
    int n = snprintf(name, MR_INDEX_NAME_SIZE, "%s%s", tree->top, path + (path[0] == '/'));
    return n < (int)MR_INDEX_NAME_SIZE ? 0 : -1;
}

int mr_tree_find(const struct mr_tree *tree, const char *path, struct mr_tree_entry *found)
{
    char name[MR_INDEX_NAME_SIZE + 1];
    *found = (struct mr_tree_entry){.kind = MR_TREE_NONE};
    if (path[0] == '\0' || strcmp(path, "/") == 0) {
        found->kind = MR_TREE_FOLDER;
        return 0;
    }
    if (tree_name_of(tree, path, name) != 0)
        return 0;
    size_t length = strlen(name);
    memcpy(name + length, "/", 2);
    int below = any_with(tree->index, name);
    if (below != 0) {
        found->kind = MR_TREE_FOLDER;
        return below < 0 ? -1 : 0;
    }
    if (mr_index_find(tree->index, name, length, &found->number) != 0)
        return mr_error_code() == MR_E_NOT_FOUND ? 0 : -1;
    found->kind = MR_TREE_FILE;
    return mr_index_get(tree->index, found->number, &found->entry, NULL);
}

int mr_tree_walk_init(struct mr_tree_walk *walk, const struct mr_tree *tree, const char *path, uint64_t place)
{
    walk->tree = tree;
    walk->ahead = false;
    if (tree_name_of(tree, path, walk->folder) != 0) {
        mr_error_set(MR_E_USAGE, "the name of a folder is too long");
        return -1;
    }
    walk->folder_length = strlen(walk->folder);
    if (path[0] != '\0' && strcmp(path, "/") != 0) {
        memcpy(walk->folder + walk->folder_length, "/", 2);
        walk->folder_length++;
    }
    if (place == 0 && lower_bound(tree->index, walk->folder, &place) != 0)
        return -1;
    mr_index_iter_init(&walk->iter, tree->index, place);
    return 0;
}

/* Skips all that is below the folder whose name, with its slash, is the first `length` bytes of iter.name. */
static int skip_folder(struct mr_tree_walk *walk, size_t length)
{
    char after[MR_INDEX_NAME_SIZE];
    uint64_t number;
    memcpy(after, walk->iter.name, length);
    after[length - 1] = '/' + 1;
    after[length] = '\0';
    if (lower_bound(walk->tree->index, after, &number) != 0)
        return -1;
    mr_index_iter_init(&walk->iter, walk->tree->index, number);
    walk->ahead = false;
    return 0;
}

/* Skips a file: 1 if a folder hides it, 0 if not, -1. Names that begin with the file's come right after it. */
static int skip_file(struct mr_tree_walk *walk)
{
    char start[MR_INDEX_NAME_SIZE + 1];
    size_t length = walk->iter.name_length;
    memcpy(start, walk->iter.name, length);
    memcpy(start + length, "/", 2);
    int rc = mr_index_iter_next(&walk->iter, &walk->entry);
    walk->ahead = rc > 0;
    if (rc <= 0)
        return rc;
    return strncmp(walk->iter.name, start, length) == 0 ? any_with(walk->tree->index, start) : 0;
}

int mr_tree_next(struct mr_tree_walk *walk, struct mr_tree_entry *found, uint64_t *place)
{
    for (;;) {
        int rc = walk->ahead ? 1 : mr_index_iter_next(&walk->iter, &walk->entry);
        if (rc <= 0)
            return rc;
        walk->ahead = true;
        if (strncmp(walk->iter.name, walk->folder, walk->folder_length) != 0)
            return 0;
        const char *part = walk->iter.name + walk->folder_length, *slash = strchr(part, '/');
        size_t length = slash ? (size_t)(slash - part) : strlen(part);
        bool shown = is_part(part, length);
        *found = (struct mr_tree_entry){
            .kind = slash ? MR_TREE_FOLDER : MR_TREE_FILE, .number = walk->iter.next - 1, .entry = walk->entry};
        memcpy(found->part, part, shown ? length : 0);
        rc = slash ? skip_folder(walk, walk->folder_length + length + 1) : skip_file(walk);
        if (rc < 0)
            return -1;
        *place = walk->iter.next - walk->ahead;
        if (shown && rc == 0)
            return 1;
    }
}

static bool is_path(const char *name)
{
    for (;;) {
        const char *slash = strchr(name, '/');
        if (!is_part(name, slash ? (size_t)(slash - name) : strlen(name)))
            return false;
        if (!slash)
            return true;
        name = slash + 1;
    }
}

int mr_tree_hidden(const struct mr_tree *tree, uint64_t *count)
{
    struct mr_tree_walk walk = {.tree = tree};
    struct mr_index_entry entry;
    int rc;
    *count = 0;
    mr_index_iter_init(&walk.iter, tree->index, 0);
    while ((rc = walk.ahead ? 1 : mr_index_iter_next(&walk.iter, &entry)) > 0) {
        bool shown = is_path(walk.iter.name + tree->top_length);
        rc = skip_file(&walk);
        if (rc < 0)
            return -1;
        *count += !shown || rc > 0;
        if (!walk.ahead)
            return 0;
    }
    return rc;
}
