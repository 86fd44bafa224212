#include "worker/store/xml.h"

#include <expat.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/store/text.h"

#define DEPTH_MAX 16
#define LEAF_MAX  (1u << 20)

/* Elements of depth 1 (below the root) and 2 that hold text: a flat list, strings in one block. */
struct leaf {
    size_t name, text; /* offsets in strings */
    unsigned depth;
};

struct mr_xml {
    struct mr_text strings; /* each with its NUL; the root's name is the first */
    struct leaf *leaves;
    size_t count, size;
    struct mr_store_pending *pending;
    /* while it is parsed */
    XML_Parser parser;
    struct mr_text text; /* of the element that is open */
    size_t names[DEPTH_MAX];
    unsigned depth;
    const char *refused;
};

static void stop(struct mr_xml *xml, const char *why)
{
    xml->refused = why;
    XML_StopParser(xml->parser, XML_FALSE);
}

static size_t xml_add(struct mr_xml *xml, const char *string, size_t length)
{
    size_t at = xml->strings.length;
    mr_text_add(&xml->strings, string, length);
    mr_text_add(&xml->strings, "", 1);
    return at;
}

static void on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    struct mr_xml *xml = arg;
    (void)attributes;
    if (xml->depth >= DEPTH_MAX) {
        stop(xml, "it is nested too deep");
        return;
    }
    const char *colon = strrchr(name, ':');
    const char *local = colon ? colon + 1 : name;
    xml->names[xml->depth] = xml_add(xml, local, strlen(local));
    xml->depth++;
    mr_text_clear(&xml->text);
}

static void on_text(void *arg, const XML_Char *text, int length)
{
    struct mr_xml *xml = arg;
    mr_text_add(&xml->text, text, (size_t)length);
}

/* Keeps elements of depth 1 and 2, in the order of their ends. */
static void xml_on_end(void *arg, const XML_Char *name)
{
    struct mr_xml *xml = arg;
    (void)name;
    xml->depth--;
    if (xml->depth != 1 && xml->depth != 2)
        return;
    if (xml->count == xml->size) {
        size_t size = xml->size ? 2 * xml->size : 64;
        if (size > LEAF_MAX) {
            stop(xml, "it is too long");
            return;
        }
        struct leaf *leaves = realloc(xml->leaves, size * sizeof *leaves);
        if (!leaves) {
            xml->text.failed = true;
            stop(xml, "no memory");
            return;
        }
        xml->leaves = leaves;
        xml->size = size;
    }
    const char *text = xml->text.data ? xml->text.data : "";
    xml->leaves[xml->count].name = xml->names[xml->depth];
    xml->leaves[xml->count].text = xml_add(xml, text, xml->text.length);
    xml->leaves[xml->count].depth = xml->depth;
    xml->count++;
    mr_text_clear(&xml->text);
}

/* A document type can define entities: no response that is meant for us has one. */
static void on_doctype(void *arg, const XML_Char *name, const XML_Char *system, const XML_Char *public, int internal)
{
    (void)name, (void)system, (void)public, (void)internal;
    stop(arg, "it has a document type");
}

struct mr_xml *mr_xml_parse(const char *text, size_t length)
{
    struct mr_xml *xml = calloc(1, sizeof *xml);
    XML_Parser parser = XML_ParserCreate(NULL);
    if (!xml || !parser || length > INT32_MAX) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an answer of %zu bytes", length);
        goto fail;
    }
    xml->parser = parser;
    XML_SetUserData(parser, xml);
    XML_SetElementHandler(parser, on_start, xml_on_end);
    XML_SetCharacterDataHandler(parser, on_text);
    XML_SetStartDoctypeDeclHandler(parser, on_doctype);
    bool parsed = XML_Parse(parser, text, (int)length, 1) == XML_STATUS_OK;
    if (xml->strings.failed || xml->text.failed || (!parsed && XML_GetErrorCode(parser) == XML_ERROR_NO_MEMORY)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an answer of %zu bytes", length);
        goto fail;
    }
    if (!parsed) {
        mr_error_set(MR_E_PROTOCOL, "the answer is not XML: at byte %ld: %s", (long)XML_GetCurrentByteIndex(parser),
                     xml->refused ? xml->refused : XML_ErrorString(XML_GetErrorCode(parser)));
        goto fail;
    }
    XML_ParserFree(parser);
    xml->parser = NULL;
    return xml;
fail:
    if (parser)
        XML_ParserFree(parser);
    mr_xml_destroy(xml);
    return NULL;
}

void mr_xml_destroy(struct mr_xml *xml)
{
    if (!xml)
        return;
    mr_text_close(&xml->strings);
    mr_text_close(&xml->text);
    free(xml->leaves);
    free(xml->pending);
    free(xml);
}

const char *mr_xml_root(const struct mr_xml *xml)
{
    return xml->strings.data;
}

const char *mr_xml_text(const struct mr_xml *xml, const char *name)
{
    for (size_t i = 0; i < xml->count; i++) {
        if (xml->leaves[i].depth == 1 && strcmp(xml->strings.data + xml->leaves[i].name, name) == 0)
            return xml->strings.data + xml->leaves[i].text;
    }
    return "";
}

bool mr_xml_leaf(struct mr_xml *xml, size_t i, struct mr_xml_leaf *leaf)
{
    if (i >= xml->count)
        return false;
    const struct leaf *from = &xml->leaves[i];
    *leaf = (struct mr_xml_leaf){xml->strings.data + from->name, xml->strings.data + from->text, from->depth};
    return true;
}

size_t mr_xml_count(const struct mr_xml *xml)
{
    return xml->count;
}

bool mr_xml_is_encoded(const struct mr_xml *xml)
{
    return strcmp(mr_xml_text(xml, "EncodingType"), "url") == 0;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int mr_xml_decode(char *name)
{
    char *to = name;
    for (const char *at = name; *at; at++) {
        if (*at == '+') {
            *to++ = ' ';
            continue;
        }
        int high = *at == '%' ? digit(at[1]) : -1, low = high >= 0 ? digit(at[2]) : -1;
        if (low < 0) {
            *to++ = *at;
            continue;
        }
        *to++ = (char)(high * 16 + low);
        if (to[-1] == 0) {
            mr_error_set(MR_E_PROTOCOL, "a name with a NUL in it");
            return -1;
        }
        at += 2;
    }
    *to = 0;
    return 0;
}

int64_t mr_xml_seconds(const char *text)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    return rest && (*rest == '.' || *rest == 'Z') ? (int64_t)timegm(&tm) : 0;
}

/* Takes one field of an upload. -1 with mr_error. */
static int take_pending(const struct mr_xml_leaf *leaf, bool encoded, struct mr_store_pending *item)
{
    if (strcmp(leaf->name, "Key") == 0) {
        if (encoded && mr_xml_decode(leaf->text) != 0)
            return -1;
        item->name = leaf->text;
        item->name_length = strlen(leaf->text);
    } else if (strcmp(leaf->name, "UploadId") == 0) {
        item->id = leaf->text;
    } else if (strcmp(leaf->name, "Initiated") == 0) {
        item->started_s = mr_xml_seconds(leaf->text);
    }
    return 0;
}

/* Takes the markers of the next page. 0, or -1 with mr_error. */
static int take_next(struct mr_xml *xml, bool encoded, struct mr_store_pending_page *page)
{
    page->next_name = mr_xml_text(xml, "NextKeyMarker");
    page->next_id = mr_xml_text(xml, "NextUploadIdMarker");
    struct mr_xml_leaf leaf;
    for (size_t i = 0; encoded && mr_xml_leaf(xml, i, &leaf); i++)
        if (leaf.text == page->next_name && mr_xml_decode(leaf.text) != 0)
            return -1;
    if (page->next_name[0])
        return 0;
    mr_error_set(MR_E_PROTOCOL, "a truncated list of uploads without a marker for its next page");
    return -1;
}

int mr_xml_pending(struct mr_xml *xml, struct mr_store_pending_page *page)
{
    memset(page, 0, sizeof *page);
    if (strcmp(mr_xml_root(xml), "ListMultipartUploadsResult") != 0) {
        mr_error_set(MR_E_PROTOCOL, "uploads were asked for, and %.60s came", mr_xml_root(xml));
        return -1;
    }
    xml->pending = calloc(xml->count + 1, sizeof *xml->pending);
    if (!xml->pending) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for %zu uploads", xml->count);
        return -1;
    }
    bool encoded = mr_xml_is_encoded(xml);
    struct mr_store_pending item = {"", 0, "", 0};
    size_t count = 0;
    struct mr_xml_leaf leaf;
    for (size_t i = 0; mr_xml_leaf(xml, i, &leaf); i++) {
        if (leaf.depth == 2) { /* what is in an element comes in front of its own end */
            if (take_pending(&leaf, encoded, &item) != 0)
                return -1;
            continue;
        }
        if (strcmp(leaf.name, "Upload") == 0) {
            if (item.name_length == 0 || !item.id[0]) {
                mr_error_set(MR_E_PROTOCOL, "an upload without %s", item.id[0] ? "a name" : "an id");
                return -1;
            }
            xml->pending[count++] = item;
        }
        item = (struct mr_store_pending){"", 0, "", 0};
    }
    page->items = xml->pending;
    page->count = count;
    return strcmp(mr_xml_text(xml, "IsTruncated"), "true") == 0 ? take_next(xml, encoded, page) : 0;
}
