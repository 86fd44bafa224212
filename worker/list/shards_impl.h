/*
 * shards_impl.h - the reading of tar shards: shards.c has all shards and the index, shard_reader.c reads one, shard.c
 * knows one. For this folder alone.
 */
#ifndef MR_WORKER_LIST_SHARDS_IMPL_H
#define MR_WORKER_LIST_SHARDS_IMPL_H

#include "shm/index/sample.h"
#include "shm/index/tar.h"
#include "worker/list/shards.h"
#include "worker/list/sidecar.h"

#define MR_SHARD_READERS 32 /* shards that are read at once: as many windows of memory */
#define MR_SHARDS_KNOWN  16 /* cached indexes that are used */
#define MR_SHARDS_WARNED 10 /* shards that get a line of their own */

/* Whether there are sidecars: what the first shard has that needs one decides for all. */
enum mr_sidecars { MR_SIDECARS_UNKNOWN, MR_SIDECARS_LOOKED_FOR, MR_SIDECARS_NONE, MR_SIDECARS_THERE };

struct mr_shard {
    char *name;
    uint64_t size, version;
    bool done;
    void *image; /* its own index, until it is its turn */
    size_t image_bytes;
};

/* A shard that is being read. */
struct mr_shard_reader {
    struct mr_shards *shards;
    struct mr_shard *shard; /* NULL: free */
    struct mr_transfer *transfer;
    struct mr_index_builder *builder; /* of the one shard */
    unsigned char *window;
    size_t room;
    uint64_t start, length; /* of the archive, in the window */
    struct mr_tar tar;
    struct mr_sample_group group;
    /* The crc of the open sample up to `summed`, and at its last member's end; has_crc: no byte of it was left out. */
    bool has_crc;
    uint64_t summed, member_end; /* member_end: not summed up to it yet; 0: done */
    uint32_t crc, end_crc;
    bool hopped, past_end; /* past_end: the archive has ended, and the window is of what follows it */
    uint64_t bad;          /* samples that are marked so */
    /* Its sidecar, if there is one; sidecar_kind: the one that is asked for; sidecar_tried: no other is. */
    struct mr_sidecar sidecar;
    size_t sidecar_kind;
    uint64_t sidecar_bytes;
    char *sidecar_text; /* while it comes */
    bool sidecar_tried;
    bool waits; /* for MR_SIDECARS_LOOKED_FOR to be over: which shards have checksums must not be a matter of time */
};

struct mr_shards {
    struct mr_shards_options options;
    /* After each answer, of which rc says what came of it (-1: mr_error). False: that was all, and the shards may be
     * destroyed. The reader may have another shard by now, or none. */
    bool (*answered)(struct mr_shards *s, struct mr_shard *shard, int rc);
    struct mr_shard *items;
    size_t count, room;
    size_t next_start, next_out;
    struct mr_shard_reader readers[MR_SHARD_READERS];
    struct mr_index known[MR_SHARDS_KNOWN];
    unsigned known_count, warned;
    size_t unknown;       /* the first shard that none of them has */
    uint64_t known_bytes; /* that their images may have yet */
    enum mr_sidecars sidecars;
    size_t sidecar_kind; /* of SIDECARS_THERE */
    uint64_t done_bytes; /* of shards that are read */
    int64_t reported_ns;
    struct mr_shards_counts counts;
};

/* ---- shard.c ---- */

/* Its URI, cut to fit. */
void mr_shards_label(const struct mr_shards *s, const struct mr_shard *shard, char *out, size_t size);
/* A line about a shard: its URI, text, outcome. */
void mr_shards_warn(struct mr_shards *s, const struct mr_shard *shard, const char *text, const char *outcome);
/* Its samples are in its image, or it is known: it waits for its turn. */
void mr_shards_read(struct mr_shards *s, struct mr_shard *shard);

/* ---- shard_reader.c ---- */

/* 0, also where the shard was read at once; -1 with mr_error. */
int mr_shard_reader_start(struct mr_shards *s, struct mr_shard_reader *r, struct mr_shard *shard);
/* Cancels what is under way. The window stays, for the next shard. */
void mr_shard_reader_end(struct mr_shard_reader *r);
/* How the sidecars that were found are called, from a shard's ".tar" on. */
const char *mr_shards_sidecar_suffix(const struct mr_shards *s);

#endif
