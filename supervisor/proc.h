/* proc.h - small files of /proc and of this process's cgroup, which are read as a whole. */
#ifndef MR_SUPERVISOR_PROC_H
#define MR_SUPERVISOR_PROC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* As much of a file as fits: 0; "" and -1 where there is none, or it is empty. */
int mr_proc_read(const char *path, char *text, size_t size);
/* The same of /proc/PID/file. */
int mr_proc_read_of(pid_t pid, const char *file, char *text, size_t size);
/* The same of a file of this process's cgroup, of that controller: 2 with the text of `file` where it is cgroup v2, 1
 * with that of `v1_file`, or -1. */
int mr_proc_read_cgroup(const char *controller, const char *file, const char *v1_file, char *text, size_t size);
/* The number after `key` and a blank at the start of a line; 0 where there is none. */
uint64_t mr_proc_keyed(const char *text, const char *key);

#endif
