#include "devstore/s3_chunked.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

#define TRAILER_MAX 4096
#define SIZE_DIGITS 15 /* of a chunk's size: no sum of two overflows */

static int s3_chunked_fail(const char *what)
{
    mr_error_set(MR_E_USAGE, "The aws-chunked body is malformed: %s.", what);
    return -1;
}

/* Collects bytes up to a CRLF. 1: the line is there, without it; 0: more is needed; -1. *used: how many were taken. */
static int s3_chunked_take_line(struct ds_s3_chunked *chunked, const char *bytes, size_t length, size_t *used)
{
    for (*used = 0; *used < length;) {
        char c = bytes[(*used)++];
        if (c == '\n') {
            if (chunked->line_length == 0 || chunked->line[chunked->line_length - 1] != '\r')
                return s3_chunked_fail("a line does not end with CRLF");
            chunked->line[--chunked->line_length] = 0;
            return 1;
        }
        if (chunked->line_length + 1 == sizeof chunked->line || c == 0)
            return s3_chunked_fail("a line is too long, or holds a zero byte");
        chunked->line[chunked->line_length++] = c;
    }
    return 0;
}

/* SIZE[;chunk-signature=HEX] */
static int begin_chunk(struct ds_s3_chunked *chunked)
{
    static const char name[] = "chunk-signature=";
    char *semicolon = strchr(chunked->line, ';');
    size_t digits = strspn(chunked->line, "0123456789abcdefABCDEF");
    chunked->signature[0] = 0;
    if (semicolon) {
        const char *value = semicolon + 1;
        *semicolon = 0;
        if (strncmp(value, name, sizeof name - 1) == 0 && strlen(value) < sizeof name + 64)
            memcpy(chunked->signature, value + sizeof name - 1, strlen(value) - (sizeof name - 1) + 1);
    }
    if (digits == 0 || digits > SIZE_DIGITS || digits != strlen(chunked->line))
        return s3_chunked_fail("a chunk's size is not a hexadecimal number");
    if (chunked->is_signed && strlen(chunked->signature) != 64)
        return s3_chunked_fail("a chunk has no signature");
    chunked->left = strtoull(chunked->line, NULL, 16);
    chunked->last = chunked->left == 0;
    chunked->total += chunked->left;
    chunked->state = chunked->last ? MR_S3_CHUNK_TRAILER : MR_S3_CHUNK_DATA;
    return chunked->last && chunked->chunk ? chunked->chunk(chunked->cls, chunked->signature) : 0;
}

/* A line of the trailer; the empty one ends the body. */
static int trailer_line(struct ds_s3_chunked *chunked)
{
    if (chunked->line_length == 0) {
        chunked->state = MR_S3_CHUNK_DONE;
        return 0;
    }
    if (!strchr(chunked->line, ':') || chunked->trailer.length + chunked->line_length > TRAILER_MAX)
        return s3_chunked_fail("its trailer is not NAME:VALUE, or too long");
    ds_text_puts(&chunked->trailer, chunked->line);
    ds_text_puts(&chunked->trailer, "\n");
    return 0;
}

/* Takes the next bytes of a chunk, or of a line. *used: how many were taken. 0 or -1. */
static int s3_chunked_take(struct ds_s3_chunked *chunked, const char *bytes, size_t length, size_t *used)
{
    if (chunked->state == MR_S3_CHUNK_DONE)
        return s3_chunked_fail("more follows its end");
    if (chunked->state == MR_S3_CHUNK_DATA) {
        *used = length < chunked->left ? length : (size_t)chunked->left;
        chunked->left -= *used;
        if (chunked->left == 0)
            chunked->state = MR_S3_CHUNK_END;
        return chunked->data(chunked->cls, bytes, *used);
    }
    int rc = s3_chunked_take_line(chunked, bytes, length, used);
    if (rc <= 0)
        return rc;
    if (chunked->state == MR_S3_CHUNK_HEAD) {
        rc = begin_chunk(chunked);
    } else if (chunked->state == MR_S3_CHUNK_TRAILER) {
        rc = trailer_line(chunked);
    } else if (chunked->line_length > 0) {
        rc = s3_chunked_fail("a chunk is longer than its size");
    } else {
        chunked->state = MR_S3_CHUNK_HEAD;
        rc = chunked->chunk ? chunked->chunk(chunked->cls, chunked->signature) : 0;
    }
    chunked->line_length = 0;
    return rc;
}

int ds_s3_chunked_write(struct ds_s3_chunked *chunked, const char *bytes, size_t length)
{
    while (length > 0) {
        size_t used = 0;
        if (s3_chunked_take(chunked, bytes, length, &used) < 0)
            return -1;
        bytes += used;
        length -= used;
    }
    return 0;
}

char *ds_s3_chunked_trailer(const struct ds_s3_chunked *chunked, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = chunked->trailer.data; at && *at; at = strchr(at, '\n') + 1) {
        if (strncasecmp(at, name, n) != 0 || at[n] != ':')
            continue;
        const char *value = at + n + 1;
        value += strspn(value, " \t");
        return strndup(value, strcspn(value, " \t\n"));
    }
    return NULL;
}

void ds_s3_chunked_close(struct ds_s3_chunked *chunked)
{
    ds_text_close(&chunked->trailer);
    memset(chunked, 0, sizeof *chunked);
}
