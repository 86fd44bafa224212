#include "cli/json_get.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

json_t *mr_json_parse_stat(const char *text)
{
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (!root)
        mr_error_set(MR_E_PROTOCOL, "the supervisor's statistics are no JSON: %s", error.text);
    return root;
}

void mr_json_make_printable(json_t *value)
{
    const char *key;
    json_t *item;
    size_t i;
    char *text = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
    if (text) {
        mr_error_make_printable(text);
        json_string_set(value, text);
        free(text);
    }
    json_array_foreach(value, i, item) mr_json_make_printable(item);
    json_object_foreach(value, key, item) mr_json_make_printable(item);
}

const char *mr_json_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

long long mr_json_integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

double mr_json_real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}
