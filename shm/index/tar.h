/*
 * tar.h - the members of a tar archive, from its headers: ustar, pax (path, size), GNU long names and large sizes, and
 * what came before them. No I/O, no allocation: the caller brings bytes from the offset that is asked for.
 *
 *     mr_tar_init(&tar, size_of_the_archive);
 *     for (;;) {
 *         switch (mr_tar_next(&tar, bytes, length, &member)) {    bytes lie at offset tar.at of the archive
 *         case MR_TAR_MEMBER: use(&member); break;                tar.at is past its data now
 *         case MR_TAR_MORE:   bring tar.need bytes or more from tar.at on; break;
 *         ...
 *
 * Data is never looked at, so that a caller may leave it out. `need` is at most MR_TAR_NEED_MAX.
 *
 * Refused with an error that says what it is: compressed archives, sparse files, global pax headers that name files or
 * give sizes (a range of the archive would not have them), damaged checksums, extended headers that are longer than
 * MR_TAR_EXTENDED_MAX or, those of one member together, than MR_TAR_CHAIN_MAX, archives that end inside of a member.
 */
#ifndef MR_SHM_INDEX_TAR_H
#define MR_SHM_INDEX_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_TAR_BLOCK        512u
#define MR_TAR_NAME_MAX     4096u        /* bytes of a member's name */
#define MR_TAR_EXTENDED_MAX (128u << 10) /* bytes of one pax header or long name */
#define MR_TAR_CHAIN_MAX    (512u << 10) /* bytes of all extended headers of one member, with their blocks */
#define MR_TAR_NEED_MAX     (MR_TAR_BLOCK + MR_TAR_EXTENDED_MAX)

enum mr_tar_event {
    MR_TAR_ERROR = -1, /* mr_error: CORRUPT (damaged, cut short), USAGE (not read by us) */
    MR_TAR_MORE,
    MR_TAR_MEMBER,
    MR_TAR_END
};

/* One archive, or a range of one that begins at a header: then all offsets are of the range. Fields but at, need,
 * unended and cut are for tar.c. */
struct mr_tar {
    uint64_t size;
    uint64_t at;   /* of the next header; past `size` where the padding of the last member is missing */
    uint64_t need; /* bytes from there on that the next call wants */
    bool unended;  /* MR_TAR_END came by the end of the archive, without a block of zeros */
    bool cut;      /* MR_TAR_ERROR came by the end of the archive in a member's data: the member was filled in */
    bool extended; /* there were headers for the member to come; the first of them is at `begin` */
    bool has_path, has_size;
    uint64_t begin, member_size;
    size_t name_length;
    char name[MR_TAR_NAME_MAX + 1];
};

struct mr_tar_member {
    uint64_t begin; /* of its first header, extended ones included */
    uint64_t data, size;
    bool regular;     /* a file: neither folder, link, device nor anything else */
    const char *name; /* NUL-terminated after name_length; the tar's, until the next call */
    size_t name_length;
};

void mr_tar_init(struct mr_tar *tar, uint64_t size);
/* Must not be called after MR_TAR_END or MR_TAR_ERROR. The end is a block of zeros, or the archive's. */
enum mr_tar_event mr_tar_next(struct mr_tar *tar, const unsigned char *bytes, size_t length,
                              struct mr_tar_member *member);
/* Continues after the data of a member that is known without its header; only between members. */
void mr_tar_skip(struct mr_tar *tar, const struct mr_tar_member *member);

#endif
