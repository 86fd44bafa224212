/* json_get.h - values of a JSON object that may lack them, for the commands that print. */
#ifndef MR_CLI_JSON_GET_H
#define MR_CLI_JSON_GET_H

#include <jansson.h>

/* The supervisor's statistics; NULL with mr_error (PROTOCOL). Free with json_decref. */
json_t *mr_json_parse_stat(const char *text);
/* Control characters of all its texts as mr_error_make_printable has them, for what is shown to people: names come from
 * others. */
void mr_json_make_printable(json_t *value);
/* "" where there is none. Lives as long as the object. */
const char *mr_json_text(const json_t *object, const char *key);
/* 0 where there is none. */
long long mr_json_integer(const json_t *object, const char *key);
double mr_json_real(const json_t *object, const char *key);

#endif
