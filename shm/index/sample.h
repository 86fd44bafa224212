/*
 * sample.h - samples in a tar archive, by the layout of WebDataset: consecutive members whose names have one key.
 *
 * A name is a key and a suffix, split at the first dot of its last component: "a.b/c.seg.png" has the key "a.b/c" and
 * the suffix "seg.png"; "d/.x" has the key "d/" and the suffix "x". A name without a suffix, what is not a regular
 * file, and what lies under a first component like "__meta__" belongs to no sample, and does not end one.
 */
#ifndef MR_SHM_INDEX_SAMPLE_H
#define MR_SHM_INDEX_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/index/tar.h"

/* The length of the key; the suffix follows after one dot. False: the name has none. */
bool mr_sample_split(const char *name, size_t length, size_t *key_length);
/* The member belongs to a sample: *key_length as above. */
bool mr_sample_takes(const struct mr_tar_member *member, size_t *key_length);

/* A sample: bytes [begin, end) of the archive, from its first member's first header to its last member's data. */
struct mr_sample_range {
    uint64_t begin, end;
    bool bad; /* it has a member with the suffix __bad__ that is not empty: the writer wants it left out */
    size_t key_length;
    char key[MR_TAR_NAME_MAX + 1];
};

/* Puts members together. Zeroed at the beginning; `open` and `sample` may be read. */
struct mr_sample_group {
    bool open;                     /* `sample` has a member */
    uint64_t skipped;              /* members of no sample */
    struct mr_sample_range sample; /* the open one, to which members may be added */
};

/* The member begins another sample than the one that is open: that one is complete, to be taken before
 * mr_sample_group_add. */
bool mr_sample_group_ends(const struct mr_sample_group *group, const struct mr_tar_member *member);
/* True: it belongs to group->sample now. False: to none. */
bool mr_sample_group_add(struct mr_sample_group *group, const struct mr_tar_member *member);

#endif
