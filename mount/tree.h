/*
 * tree.h - the names of an index as files and folders.
 *
 * A name's slashes divide it into folders. Not shown are names that are not paths, with a part that is empty, "." or
 * "..", or longer than 255 bytes, and an object whose name is also a folder's, which the folder hides.
 *
 * Everything is found by binary search in the index, which is borrowed: nothing is stored per name. Any number of
 * threads may read it.
 */
#ifndef MR_MOUNT_TREE_H
#define MR_MOUNT_TREE_H

#include "shm/index/index.h"

#define MR_TREE_PART_MAX 255u

struct mr_tree {
    const struct mr_index *index;
    const char *top; /* what all names begin with: "" or "train/"; not shown */
    size_t top_length;
};

enum mr_tree_kind { MR_TREE_NONE, MR_TREE_FILE, MR_TREE_FOLDER };

struct mr_tree_entry {
    enum mr_tree_kind kind;
    uint64_t number;                 /* of a file, in the index */
    struct mr_index_entry entry;     /* of a file */
    char part[MR_TREE_PART_MAX + 1]; /* its name in its folder; by mr_tree_next */
};

/* What has this path ("/" or "/a/b"). 0, also for NONE, or -1 (CORRUPT). */
int mr_tree_find(const struct mr_tree *tree, const char *path, struct mr_tree_entry *found);

/* The entries of a folder in bytewise order. */
struct mr_tree_walk {
    const struct mr_tree *tree;
    struct mr_index_iter iter;
    struct mr_index_entry entry;         /* of iter.name, where `ahead` */
    bool ahead;                          /* iter.name comes next */
    char folder[MR_INDEX_NAME_SIZE + 1]; /* the names begin with it */
    size_t folder_length;
};

/* From the place that mr_tree_next gave, or 0: the beginning. 0, or -1 (USAGE: the path is too long; CORRUPT). */
int mr_tree_walk_init(struct mr_tree_walk *walk, const struct mr_tree *tree, const char *path, uint64_t place);
/* 1 with *found and the place after it, 0 at the end, -1 (CORRUPT). */
int mr_tree_next(struct mr_tree_walk *walk, struct mr_tree_entry *found, uint64_t *place);

/* How many objects are not shown. 0, or -1 (CORRUPT). Reads all names. */
int mr_tree_hidden(const struct mr_tree *tree, uint64_t *count);

#endif
