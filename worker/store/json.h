/*
 * json.h - reads a JSON text (RFC 8259) from front to back, in place: no tree, no allocation.
 *
 * A listing is millions of small objects, for which a tree would cost more than the network. Strings are decoded and
 * NUL-terminated in place, so the text is overwritten, and a string lives as long as the text. Any bytes are safe to
 * parse: strings are valid UTF-8 without NUL, escapes must be whole, nesting is limited. The first error sticks.
 */
#ifndef MR_WORKER_STORE_JSON_H
#define MR_WORKER_STORE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#define MR_JSON_DEPTH 64

struct mr_json {
    char *begin, *at, *end;
    const char *error; /* NULL, or what was wrong; byte offset at - begin */
    unsigned depth;
    bool first; /* no member of the innermost object or array has been read */
};

enum mr_json_kind { MR_JSON_BAD, MR_JSON_OBJECT, MR_JSON_ARRAY, MR_JSON_STRING, MR_JSON_NUMBER, MR_JSON_WORD };

/* text[length] must be writable: a NUL is put there. */
void mr_json_init(struct mr_json *json, char *text, size_t length);
/* The kind of the next value; BAD also at the end and after an error. */
enum mr_json_kind mr_json_peek(struct mr_json *json);

/* Enters an object or array. 0, or -1 if the next value is neither. */
int mr_json_enter(struct mr_json *json);
/* The next member's key: 1; 0: the object ended; -1: error. Its value must be read or skipped before the next call. */
int mr_json_key(struct mr_json *json, const char **key);
/* 1: another element of the array follows; 0: the array ended; -1: error. */
int mr_json_element(struct mr_json *json);
/* 0, or -1 if the next value is not a string. length may be NULL. */
int mr_json_string(struct mr_json *json, const char **string, size_t *length);
/* A number as its text: *length characters, not NUL-terminated. 0, or -1. */
int mr_json_number(struct mr_json *json, const char **text, size_t *length);
/* Skips a value of any kind. 0, or -1. */
int mr_json_skip(struct mr_json *json);
/* 0 if nothing but white space is left, else -1. */
int mr_json_finish(struct mr_json *json);

#endif
