/*
 * mime.h - multipart bodies (RFC 2046): multipart/related of uploads, multipart/mixed of batches. Lines may end in
 * CRLF, or in LF as those of Google's Python client do. Everything is a view into the caller's bytes; nothing is
 * NUL-terminated.
 */
#ifndef MR_DEVSTORE_MIME_H
#define MR_DEVSTORE_MIME_H

#include <stdbool.h>
#include <stddef.h>

#define MR_BOUNDARY_MAX 70 /* RFC 2046 5.1.1 */

/* The boundary parameter of a Content-Type value. 0, or -1 (USAGE) when there is no valid one. */
int ds_mime_boundary(const char *content_type, char boundary[MR_BOUNDARY_MAX + 1]);

struct ds_mime_part {
    const char *headers, *body;
    size_t headers_length, body_length;
};

/*
 * The part that begins at *at (start with 0), which is moved to the next one. 1: a part. 0: there is none after the
 * closing delimiter. -1 (USAGE): malformed, or the bytes end within the part; then part->body may be set: the headers
 * are complete and the body has begun.
 */
int ds_mime_next(const char *bytes, size_t length, const char *boundary, size_t *at, struct ds_mime_part *part);
/*
 * Where in bytes the closing delimiter begins, its line break included, searched from the end. whole: bytes[0] is the
 * body's first, where a delimiter needs no line break. -1: there is none.
 */
long ds_mime_closing(const char *bytes, size_t length, const char *boundary, bool whole);

/* The value of a header, case ignored, blanks trimmed: a malloc'ed string, or NULL. */
char *ds_mime_header(const char *headers, size_t length, const char *name);
/* The first empty line: bytes before it (line break included) in *head, offset after it in *rest. 0 or -1. */
int ds_mime_head(const char *bytes, size_t length, size_t *head, size_t *rest);

#endif
