/*
 * record.c - which messages the tests provoke: linked into every program by `scripts/messages.py record` (--wrap), into
 * none otherwise. Appends a line to $MILLRACE_TEST_MESSAGES for each: the test, the format, the text; one write(2) each.
 */
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/base/error.h"
#include "shm/base/log.h"

struct mr_doctor;
struct mr_reply;
struct mr_request;

/* Weak: a program that lacks one does not call it either. */
#define WEAK __attribute__((weak))
WEAK void __real_mr_error_set(enum mr_code code, const char *fmt, ...);
WEAK void __real_mr_error_set_errno(int errnum, const char *fmt, ...);
WEAK void __real_mr_error_append(const char *fmt, ...);
WEAK void __real_mr_log(enum mr_log_level level, const char *fmt, ...);
WEAK void __real_mr_doctor_report(struct mr_doctor *doctor, const char *level, const char *what, const char *fmt, ...);
WEAK void __real_mr_reply_error(struct mr_reply *reply, const struct mr_request *request, unsigned status,
                                const char *reason, const char *fmt, ...);
WEAK void __real_PyErr_SetString(PyObject *type, const char *text);
WEAK void __real_mr_log_sink_put(const char *text, size_t length);
WEAK int __real_PyErr_WarnEx(PyObject *category, const char *text, Py_ssize_t level);
WEAK PyObject *PyErr_FormatV(PyObject *type, const char *fmt, va_list ap);

static size_t put(char *line, size_t size, size_t at, const char *text)
{
    for (; *text && at + 2 < size; text++)
        line[at++] = (unsigned char)*text < ' ' ? ' ' : *text;
    return at;
}

/* A fuzzer provokes the same a million times: a process says it of a format a few times. */
static bool noted_often(const char *fmt)
{
    static atomic_uchar times[1 << 14];
    size_t hash = 5381;
    for (const char *c = fmt; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    unsigned char before = atomic_load_explicit(&times[hash % (1 << 14)], memory_order_relaxed);
    unsigned most = strstr(fmt, "%s") ? 200 : 3; /* what is put in may be a message too */
    if (before < most)
        atomic_store_explicit(&times[hash % (1 << 14)], before + 1, memory_order_relaxed);
    return before >= most;
}

static void note(const char *fmt, const char *text)
{
    int saved = errno;
    const char *path = getenv("MILLRACE_TEST_MESSAGES");
    if (path && *path && !noted_often(fmt)) {
        const char *test = getenv("PYTEST_CURRENT_TEST");
        if (!test)
            test = getenv("MILLRACE_TEST_PROGRAM");
        char line[3072];
        size_t at = put(line, sizeof line, 0, test ? test : program_invocation_short_name);
        line[at++] = '\t';
        at = put(line, sizeof line, at, fmt);
        line[at++] = '\t';
        at = put(line, sizeof line, at, text);
        line[at++] = '\n';
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0) {
            if (write(fd, line, at) < 0)
                at = 0;
            close(fd);
        }
    }
    errno = saved;
}

/* The programs that a C test starts are that test's. */
__attribute__((constructor)) static void name_test(void)
{
    setenv("MILLRACE_TEST_PROGRAM", program_invocation_short_name, 0);
}

/* text: the message; fmt is noted with it. */
#define TEXT(fmt)                          \
    char text[1024];                       \
    va_list ap;                            \
    va_start(ap, fmt);                     \
    vsnprintf(text, sizeof text, fmt, ap); \
    va_end(ap);                            \
    note(fmt, text)

void __wrap_mr_error_set(enum mr_code code, const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_error_set(code, "%s", text);
}

void __wrap_mr_error_set_errno(int errnum, const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_error_set_errno(errnum, "%s", text);
}

void __wrap_mr_error_append(const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_error_append("%s", text);
}

/* fuzz_supervisor has one of its own, which counts there. */
__attribute__((weak)) void __wrap_mr_log(enum mr_log_level level, const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_log(level, "%s", text);
}

void __wrap_mr_doctor_report(struct mr_doctor *doctor, const char *level, const char *what, const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_doctor_report(doctor, level, what, "%s", text);
}

void __wrap_mr_reply_error(struct mr_reply *reply, const struct mr_request *request, unsigned status,
                           const char *reason, const char *fmt, ...)
{
    TEXT(fmt);
    __real_mr_reply_error(reply, request, status, reason, "%s", text);
}

void __wrap_PyErr_SetString(PyObject *type, const char *text)
{
    note(text, text);
    __real_PyErr_SetString(type, text);
}

int __wrap_PyErr_WarnEx(PyObject *category, const char *text, Py_ssize_t level)
{
    note(text, text);
    return __real_PyErr_WarnEx(category, text, level);
}

PyObject *__wrap_PyErr_Format(PyObject *type, const char *fmt, ...)
{
    note(fmt, fmt); /* its placeholders are Python's own */
    va_list ap;
    va_start(ap, fmt);
    PyErr_FormatV(type, fmt, ap);
    va_end(ap);
    return NULL;
}

void __wrap_mr_log_sink_put(const char *text, size_t length)
{
    if (!strstr(text, "]") || strstr(text, "] the last line")) /* mr_log has noted the others */
        note("%s", text);
    __real_mr_log_sink_put(text, length);
}

/* What tools print; with _FORTIFY_SOURCE gcc calls these. */
int __wrap___printf_chk(int flag, const char *fmt, ...)
{
    (void)flag;
    TEXT(fmt);
    va_list all;
    va_start(all, fmt);
    int n = vprintf(fmt, all);
    va_end(all);
    return n;
}

int __wrap___fprintf_chk(FILE *stream, int flag, const char *fmt, ...)
{
    (void)flag;
    va_list ap;
    va_start(ap, fmt);
    if (stream == stderr) {
        char text[1024];
        va_list copy;
        va_copy(copy, ap);
        vsnprintf(text, sizeof text, fmt, copy);
        va_end(copy);
        note(fmt, text);
    }
    int n = vfprintf(stream, fmt, ap);
    va_end(ap);
    return n;
}
