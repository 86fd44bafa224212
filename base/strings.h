/* strings.h - a list of texts that owns them. */
#ifndef MR_BASE_STRINGS_H
#define MR_BASE_STRINGS_H

#include <stddef.h>

/* Zeroed: empty. */
struct mr_strings {
    char **items;
    size_t count;
};

/* A copy of text at the end. 0, or -1 (NO_MEMORY). */
int mr_strings_add(struct mr_strings *strings, const char *text);
/* Frees all; empty afterwards. */
void mr_strings_close(struct mr_strings *strings);

#endif
