#include "devstore/xml.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

void ds_xml_text(struct ds_text *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            ds_text_puts(out, "&lt;");
        else if (*text == '>')
            ds_text_puts(out, "&gt;");
        else if (*text == '&')
            ds_text_puts(out, "&amp;");
        else if (*text == '"')
            ds_text_puts(out, "&quot;");
        else if ((unsigned char)*text < 0x20)
            ds_text_printf(out, "&#%d;", *text);
        else
            ds_text_append(out, text, 1);
    }
}

void ds_xml_put(struct ds_text *out, const char *name, const char *text)
{
    ds_text_printf(out, "<%s>", name);
    ds_xml_text(out, text);
    ds_text_printf(out, "</%s>", name);
}

void ds_xml_time(struct ds_text *out, const char *name, int64_t microseconds)
{
    ds_text_printf(out, "<%s>", name);
    ds_text_time(out, microseconds);
    ds_text_printf(out, "</%s>", name);
}

void ds_xml_put_number(struct ds_text *out, const char *name, uint64_t number)
{
    ds_text_printf(out, "<%s>%" PRIu64 "</%s>", name, number, name);
}

void ds_xml_begin(struct ds_text *out, const char *root)
{
    ds_text_printf(out, "<?xml version='1.0' encoding='UTF-8'?><%s xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>",
                   root);
}

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_blanks(struct ds_xml_view *rest)
{
    while (rest->at < rest->end && blank(*rest->at))
        rest->at++;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == ':' || c == '.';
}

static bool starts(const struct ds_xml_view *view, const char *text)
{
    return (size_t)(view->end - view->at) >= strlen(text) && memcmp(view->at, text, strlen(text)) == 0;
}

void ds_xml_skip_prolog(struct ds_xml_view *rest)
{
    if (starts(rest, "\xef\xbb\xbf"))
        rest->at += 3;
    for (;;) {
        skip_blanks(rest);
        const char *closing = starts(rest, "<?") ? "?>" : starts(rest, "<!--") ? "-->" : NULL;
        const char *end = closing ? memmem(rest->at, (size_t)(rest->end - rest->at), closing, strlen(closing)) : NULL;
        if (!end)
            return;
        rest->at = end + strlen(closing);
    }
}

/* Finds the end tag of the element, and moves *rest past it: what is in front of it is the content. 0 or -1. */
static int find_end(struct ds_xml_view *rest, const struct ds_xml_view *name, struct ds_xml_view *content)
{
    size_t n = (size_t)(name->end - name->at);
    content->at = rest->at;
    for (;;) {
        const char *hit = memmem(rest->at, (size_t)(rest->end - rest->at), "</", 2);
        if (!hit)
            return -1;
        rest->at = hit + 2;
        if ((size_t)(rest->end - rest->at) <= n || memcmp(rest->at, name->at, n) != 0 || name_char(rest->at[n]))
            continue;
        content->end = hit;
        rest->at += n;
        skip_blanks(rest);
        if (rest->at == rest->end || *rest->at != '>')
            return -1;
        rest->at++;
        return 0;
    }
}

int ds_xml_next(struct ds_xml_view *rest, struct ds_xml_view *name, struct ds_xml_view *content)
{
    skip_blanks(rest);
    if (rest->at == rest->end)
        return 0;
    if (*rest->at++ != '<')
        return -1;
    name->at = rest->at;
    while (rest->at < rest->end && name_char(*rest->at))
        rest->at++;
    name->end = rest->at;
    if (name->at == name->end)
        return -1;
    while (rest->at < rest->end && *rest->at != '>' && *rest->at != '<')
        rest->at++; /* attributes are ignored */
    if (rest->at == rest->end || *rest->at != '>')
        return -1;
    rest->at++;
    if (rest->at[-2] == '/') {
        content->at = content->end = rest->at;
        return 1;
    }
    return find_end(rest, name, content) < 0 ? -1 : 1;
}

bool ds_xml_is(const struct ds_xml_view *view, const char *text)
{
    return (size_t)(view->end - view->at) == strlen(text) && starts(view, text);
}

int ds_xml_string(const struct ds_xml_view *view, char *out, size_t size)
{
    static const struct {
        const char *name;
        char c;
    } entities[] = {{"&quot;", '"'}, {"&#34;", '"'}, {"&apos;", '\''}, {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}};
    struct ds_xml_view rest = *view;
    skip_blanks(&rest);
    while (rest.end > rest.at && blank(rest.end[-1]))
        rest.end--;
    size_t n = 0;
    while (rest.at < rest.end) {
        char c = *rest.at;
        size_t length = 1;
        for (size_t i = 0; c == '&' && i < sizeof entities / sizeof *entities; i++) {
            if (starts(&rest, entities[i].name)) {
                c = entities[i].c;
                length = strlen(entities[i].name);
                break;
            }
        }
        if (n + 1 >= size)
            return -1;
        out[n++] = c;
        rest.at += length;
    }
    out[n] = 0;
    return 0;
}

/* A character by its number, as UTF-8. Returns how many bytes, or 0 where there is no such character. */
static size_t put_character(unsigned long number, char out[4])
{
    if (number == 0 || number > 0x10ffff || (number >= 0xd800 && number <= 0xdfff))
        return 0;
    if (number < 0x80) {
        out[0] = (char)number;
        return 1;
    }
    size_t n = number < 0x800 ? 2 : number < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; number >>= 6)
        out[i] = (char)(0x80 | (number & 0x3f));
    out[0] = (char)((0xf00u >> n & 0xffu) | number);
    return n;
}

/* Decodes the entity at *at, which is moved past it. Returns how many bytes it is, or 0 where it is none. */
static size_t read_entity(const char **at, const char *end, char out[4])
{
    static const struct {
        const char *name;
        char c;
    } named[] = {{"quot", '"'}, {"apos", '\''}, {"amp", '&'}, {"lt", '<'}, {"gt", '>'}};
    char name[12];
    const char *from = *at + 1, *semicolon = memchr(from, ';', (size_t)(end - from));
    size_t length = semicolon ? (size_t)(semicolon - from) : sizeof name;
    if (length == 0 || length >= sizeof name)
        return 0;
    memcpy(name, from, length);
    name[length] = 0;
    *at = semicolon + 1;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (strcmp(name, named[i].name) == 0) {
            *out = named[i].c;
            return 1;
        }
    }
    bool hex = length > 1 && name[1] == 'x';
    const char *digits = name + 1 + hex;
    if (name[0] != '#' || !*digits || strspn(digits, hex ? "0123456789abcdefABCDEF" : "0123456789") != strlen(digits))
        return 0;
    return put_character(strtoul(digits, NULL, hex ? 16 : 10), out);
}

int ds_xml_exact(const struct ds_xml_view *view, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = view->at; at < view->end;) {
        char c[4] = {*at};
        size_t length = 1;
        if (*at == '<' || !*at)
            return -1;
        if (*at == '&')
            length = read_entity(&at, view->end, c);
        else
            at++;
        if (length == 0 || n + length >= size)
            return -1;
        memcpy(out + n, c, length);
        n += length;
    }
    out[n] = 0;
    return 0;
}
