/* text.h - growing byte strings for URLs and messages, percent-encoding, and names made printable. */
#ifndef MR_WORKER_STORE_TEXT_H
#define MR_WORKER_STORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialised; data is NUL-terminated once something has been added. `failed` is set by a failed allocation, and
 * stays set until mr_text_clear. */
struct mr_text {
    char *data;
    size_t length, size;
    bool failed;
};

void mr_text_clear(struct mr_text *text); /* keeps the memory */
void mr_text_close(struct mr_text *text);
void mr_text_add(struct mr_text *text, const char *data, size_t length);
void mr_text_puts(struct mr_text *text, const char *string);
void mr_text_put_u64(struct mr_text *text, uint64_t value);
/* Each byte but A-Z a-z 0-9 - . _ ~ as %XX (RFC 3986, 2.3); "/" too, as object names in JSON paths need it. */
void mr_text_put_encoded(struct mr_text *text, const char *data, size_t length);
/* The same, but "/" stays. */
void mr_text_put_path(struct mr_text *text, const char *data, size_t length);
/* As the text of an XML element; it must not have control bytes in it. */
void mr_text_put_xml(struct mr_text *text, const char *data, size_t length);
/* In double quotes, escaped as JSON needs it; bytes from 0x80 on as they are. */
void mr_text_put_json(struct mr_text *text, const char *data, size_t length);

/* strdup, or NULL for NULL. 0, or -1: no memory; mr_error is not set. */
int mr_text_dup(char **to, const char *from);
/* name with control characters and backslashes as \xNN, cut to fit with "..." at its end. Returns out. */
const char *mr_text_quote(char *out, size_t size, const char *name, size_t length);

#endif
