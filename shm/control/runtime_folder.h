/* runtime_folder.h - the folder of this user on this machine for what does not outlive its boot: run folders, marks. */
#ifndef MR_SHM_CONTROL_RUNTIME_FOLDER_H
#define MR_SHM_CONTROL_RUNTIME_FOLDER_H

#include <limits.h>

/* Makes path if it is not there, and checks that it is ours and that no other user can enter it. 0, or -1 (DENIED,
 * IO). */
int mr_private_folder(const char *path);
/* $XDG_RUNTIME_DIR/millrace, or /tmp/millrace-UID, and below it the folder `kind` unless that is NULL; made and
 * checked. 0, or -1. */
int mr_runtime_folder(const char *kind, char path[PATH_MAX]);

#endif
