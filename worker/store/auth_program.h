/* auth_program.h - a program that prints credentials. It runs beside the loop: its output is polled from a timer, and
 * it is killed at its deadline. */
#ifndef MR_WORKER_STORE_AUTH_PROGRAM_H
#define MR_WORKER_STORE_AUTH_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "worker/store/http.h"

/* Zero-initialised. */
struct mr_auth_program {
    const char *name; /* for messages: "the credentials executable" */
    unsigned timeout_ms;
    char *output; /* NUL-terminated; may be overwritten; valid until the callback returns */
    size_t output_length;
    /* Once, from mr_http_step. code: 0 if it succeeded, with its output, which may be empty; -1 with mr_error. */
    void (*done)(struct mr_auth_program *program, int code);
    struct mr_http *http;       /* private */
    struct mr_http_timer timer; /* private */
    int pid, fd;                /* private; pid 0: it does not run */
    int64_t deadline_ns;        /* private */
};

/*
 * Runs the command with this process's variables, and the strings in `added` (each "NAME=value" with its NUL) in place
 * of those of the same names. name, timeout_ms and done must be set. 0, and done follows; -1 with mr_error.
 */
int mr_auth_program_start(struct mr_auth_program *program, struct mr_http *http, const char *command, const char *added,
                          size_t added_length);
/* Kills it without calling done, waits for its death, and overwrites what it has printed. */
void mr_auth_program_stop(struct mr_auth_program *program);

/*
 * Splits text at white space into words that end with NUL, as a shell does: quotes and backslashes keep words together.
 * Overwrites text. Returns their count and sets words[count] to NULL, so words has room for max + 1; -1: a quote is
 * left open, or there are more than max words.
 */
int mr_auth_split_words(char *text, char **words, int max);

#endif
