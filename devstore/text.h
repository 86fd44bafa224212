/* text.h - growable text, and the small parsers of what a client sends: percent-encoding, numbers, byte ranges. */
#ifndef MR_DEVSTORE_TEXT_H
#define MR_DEVSTORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Bytes that grow. Zero-initialise, free with ds_text_close. Lack of memory is remembered in `failed` and makes
 * every later append do nothing, so that a writer checks once, at its end. data is NUL-terminated once non-NULL.
 */
struct ds_text {
    char *data;
    size_t length, capacity;
    bool failed;
};

void ds_text_close(struct ds_text *text);
void ds_text_append(struct ds_text *text, const void *bytes, size_t length);
void ds_text_puts(struct ds_text *text, const char *string);
void ds_text_printf(struct ds_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. The bytes must be UTF-8; control characters, quote and backslash are escaped. */
void ds_text_json_string(struct ds_text *text, const char *string);
/* Percent-encodes every byte outside RFC 3986's unreserved set. */
void ds_text_percent(struct ds_text *text, const char *string);
/* RFC 3339 in UTC with milliseconds, as GCS writes times ("2024-01-02T03:04:05.678Z"). */
void ds_text_time(struct ds_text *text, int64_t microseconds);

/* "Tue, 02 Jan 2024 03:04:05 GMT" */
void ds_http_date(int64_t microseconds, char out[40]);

/* malloc'ed decoded copy, or NULL: a stray '%', an encoded NUL, not UTF-8, or no memory. plus: '+' is a space. */
char *ds_percent_decode(const char *bytes, size_t length, bool plus);
/* Whether the bytes are well-formed UTF-8 (no surrogates, no overlong forms, no NUL). */
bool ds_utf8_valid(const char *bytes, size_t length);
/* Decimal digits only, whole string. 0, or -1 on anything else or overflow. */
int ds_parse_u64(const char *text, uint64_t *value);
/* A number with an optional KiB, MiB, GiB (or K, M, G) after it. 0 or -1. */
int ds_parse_size(const char *text, uint64_t *value);
/* A finite number >= 0. 0 or -1. */
int ds_parse_real(const char *text, double *value);

enum ds_range { MR_RANGE_NONE, MR_RANGE_PART, MR_RANGE_UNSATISFIABLE };
/*
 * The Range header against an object of `size` bytes. NONE: no header, or a form to ignore (RFC 9110 14.2: bad
 * syntax, another unit, several ranges). PART: *first and *last are inclusive and inside the object.
 */
enum ds_range ds_parse_range(const char *header, uint64_t size, uint64_t *first, uint64_t *last);

/* base64url without padding, for page tokens. Both malloc'ed; decode returns NULL for what encode does not write. */
char *ds_token_encode(const char *string);
char *ds_token_decode(const char *token);

#endif
