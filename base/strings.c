#include "base/strings.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static int no_memory(void)
{
    mr_error_set(MR_E_NO_MEMORY, "no memory for a list of texts");
    return -1;
}

int mr_strings_add(struct mr_strings *strings, const char *text)
{
    char **items = realloc(strings->items, (strings->count + 1) * sizeof *items);
    if (!items)
        return no_memory();
    strings->items = items;
    items[strings->count] = strdup(text);
    if (!items[strings->count])
        return no_memory();
    strings->count++;
    return 0;
}

void mr_strings_close(struct mr_strings *strings)
{
    for (size_t i = 0; i < strings->count; i++)
        free(strings->items[i]);
    free(strings->items);
    *strings = (struct mr_strings){0};
}
