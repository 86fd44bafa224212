#include "worker/store/text.h"

#include <stdlib.h>
#include <string.h>

/* Room for more bytes and a NUL. -1: no memory, now or before. */
static int reserve(struct mr_text *text, size_t more)
{
    if (text->failed)
        return -1;
    if (more < text->size - text->length)
        return 0;
    size_t size = text->size ? text->size : 256;
    while (size - text->length <= more)
        size *= 2;
    char *data = realloc(text->data, size);
    if (!data) {
        text->failed = true;
        return -1;
    }
    text->data = data;
    text->size = size;
    return 0;
}

void mr_text_clear(struct mr_text *text)
{
    text->length = 0;
    text->failed = false;
    if (text->data)
        text->data[0] = 0;
}

void mr_text_close(struct mr_text *text)
{
    free(text->data);
    memset(text, 0, sizeof *text);
}

void mr_text_add(struct mr_text *text, const char *data, size_t length)
{
    if (reserve(text, length) != 0)
        return;
    memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

void mr_text_puts(struct mr_text *text, const char *string)
{
    mr_text_add(text, string, strlen(string));
}

void mr_text_put_u64(struct mr_text *text, uint64_t value)
{
    char digits[20], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    mr_text_add(text, at, (size_t)(digits + sizeof digits - at));
}

static bool unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_' || c == '~';
}

/* kept: a byte that is not encoded, besides the unreserved ones; 0: none. */
static void put_encoded(struct mr_text *text, const char *data, size_t length, char kept)
{
    static const char hex[] = "0123456789ABCDEF";
    if (reserve(text, 3 * length) != 0)
        return;
    char *at = text->data + text->length;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)data[i];
        if (unreserved(c) || (kept && data[i] == kept)) {
            *at++ = (char)c;
        } else {
            *at++ = '%';
            *at++ = hex[c >> 4];
            *at++ = hex[c & 15];
        }
    }
    *at = 0;
    text->length = (size_t)(at - text->data);
}

void mr_text_put_encoded(struct mr_text *text, const char *data, size_t length)
{
    put_encoded(text, data, length, 0);
}

void mr_text_put_path(struct mr_text *text, const char *data, size_t length)
{
    put_encoded(text, data, length, '/');
}

void mr_text_put_xml(struct mr_text *text, const char *data, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const char *entity = data[i] == '<' ? "&lt;" : data[i] == '>' ? "&gt;" : data[i] == '&' ? "&amp;" : NULL;
        if (entity)
            mr_text_puts(text, entity);
        else
            mr_text_add(text, &data[i], 1);
    }
}

void mr_text_put_json(struct mr_text *text, const char *data, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    mr_text_add(text, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)data[i];
        char escape[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        if (c < 0x20) {
            mr_text_add(text, escape, sizeof escape);
            continue;
        }
        if (c == '"' || c == '\\')
            mr_text_add(text, "\\", 1);
        mr_text_add(text, &data[i], 1);
    }
    mr_text_add(text, "\"", 1);
}

int mr_text_dup(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return from && !*to ? -1 : 0;
}

/* What a terminal obeys: control bytes, and U+0080 to U+009F in UTF-8. */
static bool is_control(const char *name, size_t length, size_t at)
{
    unsigned char c = (unsigned char)name[at], next = at + 1 < length ? (unsigned char)name[at + 1] : 0;
    unsigned char before = at > 0 ? (unsigned char)name[at - 1] : 0;
    return c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0) ||
           (before == 0xc2 && c >= 0x80 && c < 0xa0);
}

const char *mr_text_quote(char *out, size_t size, const char *name, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        size_t needed = is_control(name, length, i) || c == '\\' ? 4 : 1;
        if (at + needed + 4 > size) { /* always room for "..." */
            memcpy(out + at, "...", 3);
            at += 3;
            break;
        }
        if (needed == 1) {
            out[at++] = (char)c;
        } else {
            out[at++] = '\\';
            out[at++] = 'x';
            out[at++] = hex[c >> 4];
            out[at++] = hex[c & 15];
        }
    }
    out[at] = 0;
    return out;
}
