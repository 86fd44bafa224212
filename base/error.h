/*
 * error.h - one error per thread, set where it happens, with a line of context added by each caller.
 *
 * A function that can fail returns 0 or -1 (or a pointer or NULL) and leaves the error here. The origin calls
 * mr_error_set once; a caller that knows more (which object, which file) calls mr_error_append and returns -1
 * itself. Nothing else clears it, so after a failure it may be read until the next failing call on the thread.
 */
#ifndef MR_BASE_ERROR_H
#define MR_BASE_ERROR_H

#include <stdbool.h>

#define MR_ERROR_TEXT 1024 /* bytes of a message, its NUL included */

/* What kind of failure: the code decides the exit status, the Python exception, and whether a repeat can help. */
enum mr_code {
    MR_OK = 0,
    MR_E_USAGE,     /* the caller's argument or command line is wrong: exit status 2, ValueError */
    MR_E_CONFIG,    /* the configuration is wrong: exit status 2, ValueError */
    MR_E_NOT_FOUND, /* no such object, bucket or file: FileNotFoundError */
    MR_E_EXISTS,    /* it exists and must not: FileExistsError */
    MR_E_DENIED,    /* credentials are missing or do not suffice: PermissionError */
    MR_E_CHANGED,   /* the object is not the one that was listed: ChangedError */
    MR_E_CORRUPT,   /* bytes fail their checksum, or a file or segment of ours is damaged */
    MR_E_PROTOCOL,  /* a peer (server, supervisor, worker) sent what its protocol does not allow */
    MR_E_NET,       /* could not connect, connection lost: worth a repeat */
    MR_E_TIMEOUT,   /* a deadline passed: worth a repeat */
    MR_E_BUSY,      /* 408, 429, 5xx: worth a repeat, after a wait */
    MR_E_NO_MEMORY, /* memory, shared memory or descriptors are used up */
    MR_E_GONE,      /* the supervisor or another process that is needed has died: SupervisorGone */
    MR_E_IO,        /* any other operating-system error */
    MR_E_INTERNAL,  /* a broken invariant of ours: please report */
    MR_E_COUNT
};

/* Control characters of text as '?', tabs and newlines as spaces, in place: names and answers come from others, and a
 * message ends on a terminal or as a line of a log. mr_error_* and mr_log do it themselves. */
void mr_error_make_printable(char *text);
/* Sets this thread's error. The message has no newline and no trailing period. */
void mr_error_set(enum mr_code code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Same, with ": <strerror(errnum)>" added, and where a limit of the process is the cause (EMFILE, EFBIG) its value and
 * how to raise it; EACCES, ENOENT, ENOMEM and the like choose the code. */
void mr_error_set_errno(int errnum, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Whether a message, of this process or another, has such a limit: then advice about memory would lead astray. */
bool mr_error_names_limit(const char *text);
/* Puts "<context>: " in front of the message that is there. */
void mr_error_append(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

enum mr_code mr_error_code(void);
/* Never NULL; valid until the next mr_error_* call of this thread. */
const char *mr_error_text(void);
void mr_error_clear(void);

struct mr_error {
    enum mr_code code;
    char text[MR_ERROR_TEXT];
};
/* Around calls that take back what was begun before the error, and whose own failures would replace it. */
void mr_error_keep(struct mr_error *kept);
void mr_error_restore(const struct mr_error *kept);
/* A short lower-case name, "not found"; "unknown" for a value out of range (codes cross process borders). */
const char *mr_code_name(unsigned code);
/* Where repeating the same request may succeed (NET, TIMEOUT, BUSY). */
bool mr_code_retryable(unsigned code);
/* Process exit status of a command that failed with this code: 2 for USAGE and CONFIG, else 1. */
int mr_code_exit_status(unsigned code);

#endif
