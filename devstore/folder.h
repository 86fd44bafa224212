/*
 * folder.h - objects as files: which file an object's name stands for, and back.
 *
 * DIR/bucket/a/b.txt is object "a/b.txt" where that works. A name that cannot be a path (an empty, "." or ".."
 * component, a component over 255 bytes, a trailing slash, or "a/b" while "a" is a file) is kept in
 * DIR/bucket/.devstore/, percent-encoded and cut into short components: those of folders end in '+', the last in '='.
 * DIR/bucket/.devstore/#N are uploads under way; the scan removes those that a dead run has left.
 */
#ifndef MR_DEVSTORE_FOLDER_H
#define MR_DEVSTORE_FOLDER_H

#include <stdint.h>

struct ds_object;

/* malloc'ed path below the bucket's folder, NULL when the name cannot be a plain path (or no memory). */
char *ds_folder_plain_path(const char *name);
/* malloc'ed path below the bucket's folder for any name: ".devstore/...=". NULL: no memory. */
char *ds_folder_side_path(const char *name);
/* The name that ds_folder_side_path was given, from the path after ".devstore/". malloc'ed; NULL if it is no such
 * path. */
char *ds_folder_side_name(const char *path);

/* Calls found for each object under folder; it takes the reference, and returns -1 to stop. 0 or -1. Blocks. */
int ds_folder_scan(const char *folder, int (*found)(void *cls, struct ds_object *object), void *cls);
/*
 * An object of that name from the file at path (copied): size and times from stat, generation from the mtime in
 * microseconds. NULL with NOT_FOUND when it is not a regular file.
 */
struct ds_object *ds_folder_object(const char *name, const char *path);

/* A new file for an upload. *path is malloc'ed. A descriptor open for reading and writing, or -1. */
int ds_folder_temporary(const char *folder, char **path);
/*
 * Moves the temporary file to the place of the object's name (old_path: where that object already is, or NULL)
 * and stamps its mtime with the object's generation, so that the generation survives a restart. On success the
 * object's path and mtime_ns are set. 0 or -1.
 */
int ds_folder_commit(const char *folder, const char *temporary, struct ds_object *object, const char *old_path);
/* Gives an object's file the mtime of its generation, and the object that mtime. 0 or -1. */
int ds_folder_stamp(struct ds_object *object);
/* Removes the file and the folders that this leaves empty, up to the bucket's. */
void ds_folder_remove(const char *folder, const char *path);

#endif
