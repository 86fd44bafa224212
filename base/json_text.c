#include "base/json_text.h"

#include <stdlib.h>
#include <string.h>

json_t *mr_json_from_text(const char *text)
{
    if (!text)
        return json_null();
    json_t *string = json_string(text);
    if (string)
        return string;
    char *plain = strdup(text);
    for (char *at = plain; at && *at; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
    string = json_string(plain); /* of NULL: NULL */
    free(plain);
    return string;
}
