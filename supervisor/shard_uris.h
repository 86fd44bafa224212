/*
 * shard_uris.h - which tar shards the URIs of a data set name: "gs://bucket/train/{000..099}.tar".
 *
 * {000..099} stands for the numbers from the first to the last, as wide as the first is written; {train,val} for each
 * of the words. "::" between URIs joins several.
 */
#ifndef MR_SUPERVISOR_SHARD_URIS_H
#define MR_SUPERVISOR_SHARD_URIS_H

#include <stdbool.h>

#include "base/strings.h"

#define MR_SHARD_URIS_MAX 1000000u

/* What the objects of a data set are. */
enum mr_format {
    MR_FORMAT_BY_NAME, /* shards where all URIs end in ".tar" */
    MR_FORMAT_OBJECTS, /* whole objects; braces are characters */
    MR_FORMAT_TAR      /* shards: what ends in ".tar", or lies under a URI and does */
};

/* "", "objects", "tar". 0, or -1 (USAGE). */
int mr_format_parse(const char *text, enum mr_format *format);
/*
 * The URIs with "::" taken apart; each stays a pattern. 0, or -1 (USAGE, NO_MEMORY). Not for MR_FORMAT_OBJECTS, whose
 * names may hold anything.
 */
int mr_shard_uris_split(const char *const *uris, size_t count, struct mr_strings *out);
/* All of them, some of them end in ".tar". */
bool mr_shard_uris_are(const struct mr_strings *uris);
bool mr_shard_uris_some(const struct mr_strings *uris);
/*
 * Are these patterns shards? 1, with *names a memfd of the URIs that they stand for, one a line, which the caller
 * closes; or with *names -1 if the shards lie under URIs and are to be listed. 0: whole objects. -1: USAGE (a pattern
 * that cannot be read, shards together with folders), NO_MEMORY.
 */
int mr_shard_uris_open(const struct mr_strings *uris, enum mr_format format, int *names);

#endif
