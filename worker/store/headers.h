/* headers.h - the parser of response header lines. Any bytes are safe to parse: what it does not understand is left
 * out. */
#ifndef MR_WORKER_STORE_HEADERS_H
#define MR_WORKER_STORE_HEADERS_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/store/http.h"

/* One line "Name: value" as it arrived, CR LF included or not; not NUL-terminated. */
void mr_http_headers_line(struct mr_http_headers *headers, const char *line, size_t length);
/* true for a line "Location: url", with its url, not NUL-terminated. */
bool mr_http_headers_location(const char *line, size_t length, const char **url, size_t *url_length);
/* The status of a line "HTTP/1.1 206 Partial Content", or 0 if it is not a status line. */
int mr_http_headers_status(const char *line, size_t length);

/* Last-Modified in seconds since 1970; 0: none, or not a date. */
int64_t mr_http_headers_modified_s(const struct mr_http_headers *headers);

#endif
