/* json_text.h - text of unknown origin (object names, errors of stores) as a JSON string. */
#ifndef MR_BASE_JSON_TEXT_H
#define MR_BASE_JSON_TEXT_H

#include <jansson.h>

/* A new string, or null for NULL. In text that is not UTF-8 (a name, or words that were cut) each byte beyond ASCII
 * becomes "?". NULL: no memory; mr_error is not set. */
json_t *mr_json_from_text(const char *text);

#endif
