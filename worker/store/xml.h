/* xml.h - the parser of stores' XML responses: a root, elements below it, and elements below those. Any bytes are safe
 * to parse; a document type is refused. */
#ifndef MR_WORKER_STORE_XML_H
#define MR_WORKER_STORE_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/store/upload_parts.h"

struct mr_xml;

/* NULL with mr_error (PROTOCOL with what was wrong, NO_MEMORY). What the others return is valid as long as it. */
struct mr_xml *mr_xml_parse(const char *xml, size_t length);
void mr_xml_destroy(struct mr_xml *xml);

/* The name of the root element. */
const char *mr_xml_root(const struct mr_xml *xml);
/* The text of the first element of that name right below the root; "" if there is none. */
const char *mr_xml_text(const struct mr_xml *xml, const char *name);

/* An element of depth 1 (right below the root) or 2, in the order of their ends: what is in one comes before it. */
struct mr_xml_leaf {
    const char *name;
    char *text; /* without that of elements in it; may be changed in place */
    unsigned depth;
};
/* The i-th one; false: there are fewer. */
bool mr_xml_leaf(struct mr_xml *xml, size_t i, struct mr_xml_leaf *leaf);
size_t mr_xml_count(const struct mr_xml *xml);

/* Whether names are percent-encoded in it: EncodingType "url". */
bool mr_xml_is_encoded(const struct mr_xml *xml);
/* Decodes a percent-encoded name in place. 0, or -1 with mr_error: it has a NUL in it. */
int mr_xml_decode(char *name);

/* A ListMultipartUploadsResult; the items belong to xml. 0, or -1 with mr_error. */
int mr_xml_pending(struct mr_xml *xml, struct mr_store_pending_page *page);
/* "2026-01-31T23:59:59.123Z" in seconds since 1970; 0 for anything else. */
int64_t mr_xml_seconds(const char *text);

#endif
