/* What is known of a shard without reading it: whether a name is one, how it is called in messages, that it is done. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/log.h"
#include "worker/list/shards_impl.h"

static bool ends_in(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcasecmp(name + n - m, suffix) == 0;
}

int mr_shards_is_one(const char *name, bool *is_shard)
{
    static const char *const compressed[] = {".tar.gz",  ".tgz",      ".tar.zst", ".tzst",   ".tar.zstd",
                                             ".tar.bz2", ".tbz2",     ".tbz",     ".tar.xz", ".txz",
                                             ".tar.lz4", ".tar.lzma", ".tar.z",   ".tar.br", ".tar.zip"};
    size_t length = strlen(name);
    *is_shard = length >= 4 && strcmp(name + length - 4, ".tar") == 0;
    for (size_t i = 0; i < sizeof compressed / sizeof compressed[0]; i++) {
        if (!ends_in(name, compressed[i]))
            continue;
        mr_error_set(MR_E_USAGE,
                     "%.300s is compressed: samples are read as ranges of plain tar archives. Store the shards "
                     "uncompressed, or name those that are",
                     name);
        return -1;
    }
    return 0;
}

void mr_shards_label(const struct mr_shards *s, const struct mr_shard *shard, char *out, size_t size)
{
    const struct mr_index_source *source = s->options.source;
    char root[MR_URI_PLACE_SIZE];
    snprintf(out, size, "%s%.300s", mr_uri_root(source->scheme, source->bucket, root), shard->name);
}

void mr_shards_warn(struct mr_shards *s, const struct mr_shard *shard, const char *text, const char *outcome)
{
    char uri[500];
    mr_shards_label(s, shard, uri, sizeof uri);
    if (s->warned++ < MR_SHARDS_WARNED)
        mr_log_warning("%s: %s%s", uri, text, outcome);
}

void mr_shards_read(struct mr_shards *s, struct mr_shard *shard)
{
    shard->done = true;
    s->done_bytes += shard->size;
    s->counts.shards_done++;
}
