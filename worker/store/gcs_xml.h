/* gcs_xml.h - the parsers of what GCS answers in XML. They cope with any bytes; a document type is refused. */
#ifndef MR_WORKER_STORE_GCS_XML_H
#define MR_WORKER_STORE_GCS_XML_H

#include <stddef.h>

#include "worker/store/upload_parts.h"

struct mr_gcs_xml;

/* NULL with mr_error (PROTOCOL with what was wrong, NO_MEMORY). What the others return lives as long as it. */
struct mr_gcs_xml *mr_gcs_xml_parse(const char *xml, size_t length);
void mr_gcs_xml_destroy(struct mr_gcs_xml *xml);

/* The name of the root element. */
const char *mr_gcs_xml_root(const struct mr_gcs_xml *xml);
/* The text of the first element of that name right below the root; "" where there is none. */
const char *mr_gcs_xml_text(const struct mr_gcs_xml *xml, const char *name);
/* A ListMultipartUploadsResult. 0, or -1 with mr_error. */
int mr_gcs_xml_pending(struct mr_gcs_xml *xml, struct mr_store_pending_page *page);

#endif
