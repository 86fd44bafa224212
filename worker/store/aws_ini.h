/*
 * aws_ini.h - the files of the AWS tools (~/.aws/config, ~/.aws/credentials), read as botocore reads them, with
 * Python's configparser.
 *
 * "key = value" or "key: value" in sections; keys in lower case. A line that is indented deeper than its key continues
 * the value, after a newline; a value that begins with a newline is itself lines "key = value". Lines that begin with #
 * or ; are comments; after a value they are part of it. [DEFAULT] applies to every section. A duplicate section or key
 * is an error. Any bytes are safe to parse.
 */
#ifndef MR_WORKER_STORE_AWS_INI_H
#define MR_WORKER_STORE_AWS_INI_H

#include <stddef.h>

struct mr_aws_ini;

/* NULL with mr_error: DENIED with the line's number, never its content; NO_MEMORY. */
struct mr_aws_ini *mr_aws_ini_parse(const char *text, size_t length);
/* Overwrites everything first. NULL is allowed. */
void mr_aws_ini_destroy(struct mr_aws_ini *ini);

/* The number of the section of that name; -1: none. */
int mr_aws_ini_section(const struct mr_aws_ini *ini, const char *name);
/* The last section [kind name], where name may be quoted as in a shell; for kind "profile", [default] has the name
 * default. -1: none. */
int mr_aws_ini_titled(const struct mr_aws_ini *ini, const char *kind, const char *name);
/* A value of a section; NULL: there is none. Valid as long as ini is. line: set to its line; may be NULL. */
const char *mr_aws_ini_get(const struct mr_aws_ini *ini, int section, const char *key, unsigned *line);
/* The line of a section's title. */
unsigned mr_aws_ini_line(const struct mr_aws_ini *ini, int section);

/* In a value that is lines "key = value": the value of key, *length bytes; NULL: there is none. */
const char *mr_aws_ini_nested(const char *value, const char *key, size_t *length);

#endif
