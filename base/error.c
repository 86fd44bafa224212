#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define LIMIT_WORDS "ulimit"

static _Thread_local enum mr_code error_code;
static _Thread_local char error_text[MR_ERROR_TEXT];

static const char *const code_names[MR_E_COUNT] = {
    [MR_OK] = "ok",
    [MR_E_USAGE] = "usage",
    [MR_E_CONFIG] = "configuration",
    [MR_E_NOT_FOUND] = "not found",
    [MR_E_EXISTS] = "exists",
    [MR_E_DENIED] = "denied",
    [MR_E_CHANGED] = "changed",
    [MR_E_CORRUPT] = "corrupt",
    [MR_E_PROTOCOL] = "protocol",
    [MR_E_NET] = "network",
    [MR_E_TIMEOUT] = "timeout",
    [MR_E_BUSY] = "busy",
    [MR_E_NO_MEMORY] = "no memory",
    [MR_E_GONE] = "gone",
    [MR_E_IO] = "input/output",
    [MR_E_INTERNAL] = "internal",
};

void mr_error_make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        if (*at < 0x20 || *at == 0x7f)
            *at = *at == '\n' || *at == '\t' ? ' ' : '?';
        else if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) /* U+0080 to U+009F, which terminals obey too */
            at[0] = at[1] = '?';
    }
}

void mr_error_set(enum mr_code code, const char *fmt, ...)
{
    char text[MR_ERROR_TEXT]; /* the arguments may point into error_text itself */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mr_error_make_printable(text);
    memcpy(error_text, text, sizeof text);
    error_code = code;
}

static enum mr_code code_of_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
    case ENOTDIR:
        return MR_E_NOT_FOUND;
    case EEXIST:
        return MR_E_EXISTS;
    case EACCES:
    case EPERM:
    case EROFS:
        return MR_E_DENIED;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
        return MR_E_NO_MEMORY;
    case EPIPE:
    case ECONNRESET:
        return MR_E_GONE;
    case ETIMEDOUT:
        return MR_E_TIMEOUT;
    default:
        return MR_E_IO;
    }
}

/* What to do about it, if one look at a limit tells. */
static void put_remedy(int errnum, char *out, size_t size)
{
    struct rlimit limit;
    out[0] = '\0';
    if (errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(out, size,
                 " (at most %llu in this process: raise the limit with " LIMIT_WORDS " -n, or LimitNOFILE= of "
                 "systemd)",
                 (unsigned long long)limit.rlim_cur);
    else if (errnum == ENFILE)
        snprintf(out, size, " (the limit of the machine: raise fs.file-max)");
    else if (errnum == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(out, size,
                 " (files and shared memory may have %llu bytes in this process: raise the limit with " LIMIT_WORDS
                 " -f)",
                 (unsigned long long)limit.rlim_cur);
}

bool mr_error_names_limit(const char *text)
{
    return strstr(text, "raise the limit with " LIMIT_WORDS) != NULL;
}

void mr_error_set_errno(int errnum, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char text[MR_ERROR_TEXT];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char remedy[160];
    put_remedy(errnum, remedy, sizeof remedy);
    mr_error_set(code_of_errno(errnum), "%s: %s%s", text, strerror(errnum), remedy);
}

void mr_error_append(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char context[MR_ERROR_TEXT / 2];
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    char text[MR_ERROR_TEXT];
    if (snprintf(text, sizeof text, "%s: %s", context, error_text) < 0)
        return;
    mr_error_make_printable(text);
    memcpy(error_text, text, sizeof text);
}

enum mr_code mr_error_code(void)
{
    return error_code;
}

const char *mr_error_text(void)
{
    return error_text;
}

void mr_error_keep(struct mr_error *kept)
{
    kept->code = error_code;
    memcpy(kept->text, error_text, sizeof kept->text);
}

void mr_error_restore(const struct mr_error *kept)
{
    error_code = kept->code;
    memcpy(error_text, kept->text, sizeof error_text);
}

void mr_error_clear(void)
{
    error_code = MR_OK;
    error_text[0] = 0;
}

const char *mr_code_name(unsigned code)
{
    return code < MR_E_COUNT ? code_names[code] : "unknown";
}

bool mr_code_retryable(unsigned code)
{
    return code == MR_E_NET || code == MR_E_TIMEOUT || code == MR_E_BUSY;
}

int mr_code_exit_status(unsigned code)
{
    return code == MR_E_USAGE || code == MR_E_CONFIG ? 2 : 1;
}
