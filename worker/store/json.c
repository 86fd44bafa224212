#include "worker/store/json.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

static int json_fail(struct mr_json *json, const char *error)
{
    if (!json->error)
        json->error = error;
    return -1;
}

void mr_json_init(struct mr_json *json, char *text, size_t length)
{
    *json = (struct mr_json){.begin = text, .at = text, .end = text + length};
    text[length] = 0; /* stops every scan: no valid token holds a NUL */
}

static void skip_space(struct mr_json *json)
{
    while (*json->at == ' ' || *json->at == '\n' || *json->at == '\r' || *json->at == '\t')
        json->at++;
}

enum mr_json_kind mr_json_peek(struct mr_json *json)
{
    if (json->error)
        return MR_JSON_BAD;
    skip_space(json);
    switch (*json->at) {
    case '{':
        return MR_JSON_OBJECT;
    case '[':
        return MR_JSON_ARRAY;
    case '"':
        return MR_JSON_STRING;
    case 't':
    case 'f':
    case 'n':
        return MR_JSON_WORD;
    default:
        return *json->at == '-' || (*json->at >= '0' && *json->at <= '9') ? MR_JSON_NUMBER : MR_JSON_BAD;
    }
}

/* ---- strings ---- */

/* The value of four hex digits; -1: they are not hex digits. */
static int hex4(const char *at)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value << 4 | ((c | 0x20) - 'a' + 10);
        else
            return -1; /* the NUL at the end of the text ends up here too */
    }
    return value;
}

static char *put_utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 63));
        *to++ = (char)(0x80 | (code & 63));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 63));
        *to++ = (char)(0x80 | (code >> 6 & 63));
        *to++ = (char)(0x80 | (code & 63));
    }
    return to;
}

/* \uXXXX after the "\u" at *from, with the second half of a surrogate pair. Advances *from and *to. 0, or -1. */
static int take_unicode(struct mr_json *json, char **from, char **to)
{
    int code = hex4(*from);
    if (code < 0)
        return json_fail(json, "a broken \\u escape");
    *from += 4;
    if (code == 0)
        return json_fail(json, "\\u0000 in a string");
    if (code >= 0xdc00 && code < 0xe000)
        return json_fail(json, "half of a surrogate pair");
    int low;
    if (code >= 0xd800 && code < 0xdc00) {
        if ((*from)[0] != '\\' || (*from)[1] != 'u' || (low = hex4(*from + 2)) < 0xdc00 || low >= 0xe000)
            return json_fail(json, "half of a surrogate pair");
        *from += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    *to = put_utf8(*to, (unsigned)code); /* never longer than the escape */
    return 0;
}

/* Decodes the escape after a backslash in place: *to never overtakes *from. 0, or -1. */
static int take_escape(struct mr_json *json, char **from, char **to)
{
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    char c = *(*from)++;
    if (c == 'u')
        return take_unicode(json, from, to);
    const char *found = c ? strchr(letters, c) : NULL;
    if (!found)
        return json_fail(json, "an unknown escape");
    *(*to)++ = bytes[found - letters];
    return 0;
}

/* Neither a quote, a backslash, a control byte or the end, nor part of a UTF-8 sequence. */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

int mr_json_string(struct mr_json *json, const char **string, size_t *length)
{
    if (mr_json_peek(json) != MR_JSON_STRING)
        return json_fail(json, "a string was expected");
    char *start = ++json->at, *from = start;
    while (is_plain((unsigned char)*from))
        from++;
    char *to = from; /* up to here nothing has to be decoded */
    while (*from != '"') {
        unsigned char c = (unsigned char)*from;
        if (c == '\\') {
            from++;
            if (take_escape(json, &from, &to) != 0)
                return -1;
        } else if (c < 0x20) {
            return json_fail(json, from == json->end ? "the text ends inside a string" : "a control byte in a string");
        } else {
            unsigned n = mr_utf8_length((const unsigned char *)from);
            if (n == 0)
                return json_fail(json, "a string that is not UTF-8");
            while (n-- > 0)
                *to++ = *from++;
        }
    }
    *to = 0;
    json->at = from + 1;
    *string = start;
    if (length)
        *length = (size_t)(to - start);
    return 0;
}

/* ---- numbers and words ---- */

static const char *digits(const char *at)
{
    while (*at >= '0' && *at <= '9')
        at++;
    return at;
}

int mr_json_number(struct mr_json *json, const char **text, size_t *length)
{
    if (mr_json_peek(json) != MR_JSON_NUMBER)
        return json_fail(json, "a number was expected");
    const char *at = json->at;
    at += *at == '-';
    const char *part = at;
    at = digits(at);
    if (at == part || (*part == '0' && at - part > 1))
        return json_fail(json, "a broken number");
    if (*at == '.') {
        part = ++at;
        at = digits(at);
        if (at == part)
            return json_fail(json, "a broken number");
    }
    if ((*at | 0x20) == 'e') {
        at++;
        at += *at == '+' || *at == '-';
        part = at;
        at = digits(at);
        if (at == part)
            return json_fail(json, "a broken number");
    }
    *text = json->at;
    *length = (size_t)(at - json->at);
    json->at += *length;
    return 0;
}

static int skip_word(struct mr_json *json)
{
    static const char *const words[] = {"true", "false", "null"};
    for (unsigned i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (strncmp(json->at, words[i], n) == 0) {
            json->at += n;
            return 0;
        }
    }
    return json_fail(json, "an unknown word");
}

/* ---- objects and arrays ---- */

int mr_json_enter(struct mr_json *json)
{
    enum mr_json_kind kind = mr_json_peek(json);
    if (kind != MR_JSON_OBJECT && kind != MR_JSON_ARRAY)
        return json_fail(json, "an object or array was expected");
    if (++json->depth > MR_JSON_DEPTH)
        return json_fail(json, "nested too deep");
    json->at++;
    json->first = true;
    return 0;
}

/* 1: at the next member, past the comma; 0: past the closing bracket; -1: error. */
static int next(struct mr_json *json, char closing)
{
    if (json->error)
        return -1;
    skip_space(json);
    bool first = json->first;
    json->first = false;
    if (*json->at == closing) {
        json->at++;
        json->depth--;
        return 0;
    }
    if (first)
        return 1;
    if (*json->at != ',')
        return json_fail(json, "a comma or a closing bracket was expected");
    json->at++;
    return 1;
}

int mr_json_key(struct mr_json *json, const char **key)
{
    int rc = next(json, '}');
    if (rc <= 0)
        return rc;
    if (mr_json_string(json, key, NULL) != 0)
        return -1;
    skip_space(json);
    if (*json->at != ':')
        return json_fail(json, "a colon was expected");
    json->at++;
    return 1;
}

int mr_json_element(struct mr_json *json)
{
    return next(json, ']');
}

static int skip_members(struct mr_json *json, bool is_object)
{
    const char *key;
    int rc;
    while ((rc = is_object ? mr_json_key(json, &key) : mr_json_element(json)) > 0) {
        if (mr_json_skip(json) != 0)
            return -1;
    }
    return rc;
}

int mr_json_skip(struct mr_json *json)
{
    const char *text;
    size_t length;
    enum mr_json_kind kind = mr_json_peek(json);
    switch (kind) {
    case MR_JSON_OBJECT:
    case MR_JSON_ARRAY:
        return mr_json_enter(json) == 0 ? skip_members(json, kind == MR_JSON_OBJECT) : -1;
    case MR_JSON_STRING:
        return mr_json_string(json, &text, &length);
    case MR_JSON_NUMBER:
        return mr_json_number(json, &text, &length);
    case MR_JSON_WORD:
        return skip_word(json);
    default:
        return json_fail(json, json->at >= json->end ? "the text ends too early" : "a value was expected");
    }
}

int mr_json_finish(struct mr_json *json)
{
    if (json->error)
        return -1;
    skip_space(json);
    return json->at == json->end ? 0 : json_fail(json, "more after the end");
}
