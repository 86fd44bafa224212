/* utf8.h - where the characters of a text of unknown origin end. */
#ifndef MR_BASE_UTF8_H
#define MR_BASE_UTF8_H

/* Bytes of the character at `at`, by RFC 3629, section 4: 1 to 4, or 0 where there is none. The text ends with a NUL,
 * which is a character of its own; nothing beyond it is read. */
unsigned mr_utf8_length(const unsigned char *at);

#endif
