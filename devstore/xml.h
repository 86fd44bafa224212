/* xml.h - what the XML API needs: escaped text, a parser that takes one element at a time, metadata from headers. */
#ifndef MR_DEVSTORE_XML_H
#define MR_DEVSTORE_XML_H

#include <stdbool.h>
#include <stddef.h>

#include "devstore/metadata.h"
#include "devstore/request.h"

void ds_xml_text(struct ds_text *out, const char *text);
/* <name>text</name> */
void ds_xml_put(struct ds_text *out, const char *name, const char *text);
/* The same with a time, as GCS and S3 write them. */
void ds_xml_time(struct ds_text *out, const char *name, int64_t microseconds);
void ds_xml_put_number(struct ds_text *out, const char *name, uint64_t number);
/* The declaration, and the opening tag of the root. */
void ds_xml_begin(struct ds_text *out, const char *root);

struct ds_xml_view {
    const char *at, *end;
};
/*
 * The next element inside *rest, which is moved past it: its name (no attributes) and what is between its tags. An
 * element may not contain another one of its own name. 1; 0: only blanks are left; -1: anything else.
 */
int ds_xml_next(struct ds_xml_view *rest, struct ds_xml_view *name, struct ds_xml_view *content);
/* Moves *rest past blanks, the declaration and comments at the start of a document. */
void ds_xml_skip_prolog(struct ds_xml_view *rest);
bool ds_xml_is(const struct ds_xml_view *view, const char *text);
/* The text of a view, without blanks around it, and with the five entities decoded. 0, or -1: it is too long. */
int ds_xml_string(const struct ds_xml_view *view, char *out, size_t size);

/* The text of a view byte for byte, with every entity decoded, those of numbers too. 0, or -1: too long, or malformed. */
int ds_xml_exact(const struct ds_xml_view *view, char *out, size_t size);

/* What the request's headers say of the object that it creates: type, encoding, class, custom metadata, GCS's sums. 0
 * or -1. */
int ds_xml_metadata(const struct ds_request *request, struct ds_metadata *metadata);

#endif
