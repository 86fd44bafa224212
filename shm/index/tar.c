#include "shm/index/tar.h"

#include <string.h>

#include "base/error.h"

/* The fields of a header that are read. */
enum {
    NAME = 0,
    NAME_BYTES = 100,
    SIZE = 124,
    SIZE_BYTES = 12,
    CHECKSUM = 148,
    CHECKSUM_BYTES = 8,
    TYPE = 156,
    MAGIC = 257,
    PREFIX = 345,
    PREFIX_BYTES = 155,
};

#define SIZE_MAX_BYTES (UINT64_C(1) << 62) /* larger sizes could overflow sums */

enum type {
    REGULAR = '0',
    REGULAR_OLD = '\0',
    CONTIGUOUS = '7',
    PAX = 'x',
    PAX_SOLARIS = 'X',
    PAX_GLOBAL = 'g',
    LONG_NAME = 'L',
    LONG_LINK = 'K',
    SPARSE = 'S',
};

static enum mr_tar_event tar_corrupt(const struct mr_tar *tar, const char *what)
{
    mr_error_set(MR_E_CORRUPT, "byte %llu: %s", (unsigned long long)tar->at, what);
    return MR_TAR_ERROR;
}

static enum mr_tar_event tar_refuse(const struct mr_tar *tar, const char *what)
{
    mr_error_set(MR_E_USAGE, "byte %llu: %s", (unsigned long long)tar->at, what);
    return MR_TAR_ERROR;
}

void mr_tar_init(struct mr_tar *tar, uint64_t size)
{
    tar->size = size;
    tar->at = 0;
    tar->need = MR_TAR_BLOCK;
    tar->unended = tar->cut = tar->extended = tar->has_path = tar->has_size = false;
    tar->name_length = 0;
}

/* ---- one header ---- */

static uint64_t padded(uint64_t size)
{
    return (size + MR_TAR_BLOCK - 1) / MR_TAR_BLOCK * MR_TAR_BLOCK;
}

/* Octal digits among spaces and NULs, or the base-256 form: 0x80 and a big-endian number. False for anything else. */
static bool number(const unsigned char *field, size_t width, uint64_t *value)
{
    uint64_t v = 0;
    size_t i = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < width; i++) {
            if (v >> 54 != 0)
                return false;
            v = v << 8 | field[i];
        }
        *value = v;
        return true;
    }
    while (i < width && field[i] == ' ')
        i++;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++)
        v = v << 3 | (uint64_t)(field[i] - '0'); /* 12 digits at most */
    while (i < width && field[i] == ' ')
        i++;
    *value = v;
    return i == width || field[i] == '\0';
}

/* Its bytes added up, with spaces in place of the sum itself. Some old programs added them as signed ones. */
static bool checksum_fits(const unsigned char *header)
{
    uint64_t written;
    int64_t plain = 0, with_signs = 0;
    for (unsigned i = 0; i < MR_TAR_BLOCK; i++) {
        unsigned char byte = i >= CHECKSUM && i < CHECKSUM + CHECKSUM_BYTES ? ' ' : header[i];
        plain += byte;
        with_signs += (signed char)byte;
    }
    return number(header + CHECKSUM, CHECKSUM_BYTES, &written) &&
           ((int64_t)written == plain || (int64_t)written == with_signs);
}

static bool all_zero(const unsigned char *block)
{
    return block[0] == 0 && memcmp(block, block + 1, MR_TAR_BLOCK - 1) == 0;
}

/* What the first bytes are if they are not those of a tar archive; NULL. */
static const char *disguise(const unsigned char *bytes)
{
    static const struct {
        const char *magic;
        size_t length;
        const char *text;
    } known[] = {
        {"\x1f\x8b", 2, "it is compressed (gzip)"},
        {"\x28\xb5\x2f\xfd", 4, "it is compressed (zstd)"},
        {"BZh", 3, "it is compressed (bzip2)"},
        {"\xfd\x37zXZ", 5, "it is compressed (xz)"},
        {"\x04\x22\x4d\x18", 4, "it is compressed (lz4)"},
        {"PK\x03\x04", 4, "it is a zip archive"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (memcmp(bytes, known[i].magic, known[i].length) == 0)
            return known[i].text;
    return NULL;
}

static enum mr_tar_event bad_checksum(const struct mr_tar *tar, const unsigned char *header)
{
    const char *other = tar->at == 0 ? disguise(header) : NULL;
    if (!other)
        return tar_corrupt(tar, "no tar header: its checksum does not fit");
    mr_error_set(MR_E_USAGE, "%s: samples are read as ranges of plain tar archives. Store it uncompressed", other);
    return MR_TAR_ERROR;
}

/* ---- extended headers ---- */

/* The first one that names a member counts, as the outermost does where a reader nests them. */
static enum mr_tar_event set_name(struct mr_tar *tar, const char *name, size_t length)
{
    if (tar->has_path)
        return MR_TAR_MEMBER;
    if (length > MR_TAR_NAME_MAX)
        return tar_refuse(tar, "a member's name is longer than 4096 bytes");
    if (memchr(name, '\0', length))
        return tar_corrupt(tar, "a pax header has a path with a NUL");
    memcpy(tar->name, name, length);
    tar->name_length = length;
    tar->has_path = length > 0;
    return MR_TAR_MEMBER;
}

static bool is(const char *key, size_t length, const char *wanted)
{
    return strlen(wanted) == length && memcmp(key, wanted, length) == 0;
}

/* An empty value leaves the size to the member's own header, as does a size that an earlier record has set. */
static enum mr_tar_event set_size(struct mr_tar *tar, const char *value, size_t length)
{
    uint64_t size = 0;
    if (tar->has_size || length == 0)
        return MR_TAR_MEMBER;
    for (size_t i = 0; i < length; i++) {
        if (value[i] < '0' || value[i] > '9' || size > SIZE_MAX_BYTES / 10)
            return tar_corrupt(tar, "a pax header has a size that is not a number");
        size = size * 10 + (uint64_t)(value[i] - '0');
    }
    tar->member_size = size;
    tar->has_size = true;
    return MR_TAR_MEMBER;
}

static enum mr_tar_event take_record(struct mr_tar *tar, bool global, const char *key, size_t key_length,
                                     const char *value, size_t length)
{
    static const char sparse[] = "GNU.sparse.";
    bool path = is(key, key_length, "path"), size = is(key, key_length, "size");
    if (key_length >= sizeof sparse - 1 && memcmp(key, sparse, sizeof sparse - 1) == 0)
        return tar_refuse(tar, "a sparse file: make the archive without --sparse");
    if (global && (path || size))
        return tar_refuse(tar, "a global pax header with a path or a size: make the archive without it");
    while (path && length > 0 && value[length - 1] == '/') /* as Python's tarfile */
        length--;
    return path ? set_name(tar, value, length) : size ? set_size(tar, value, length) : MR_TAR_MEMBER;
}

/* Records "LENGTH KEY=VALUE\n", where LENGTH counts all of it. NULs after the last one are padding of some writers. */
static enum mr_tar_event take_pax(struct mr_tar *tar, bool global, const char *text, size_t length)
{
    enum mr_tar_event rc = MR_TAR_MEMBER;
    while (rc == MR_TAR_MEMBER && length > 0 && *text != '\0') {
        size_t record = 0, digits = 0;
        while (digits < length && digits < 8 && text[digits] >= '0' && text[digits] <= '9')
            record = record * 10 + (size_t)(text[digits++] - '0');
        if (digits == 0 || digits == length || text[digits] != ' ' || record <= digits + 1 || record > length ||
            text[record - 1] != '\n')
            return tar_corrupt(tar, "a damaged pax header");
        const char *key = text + digits + 1, *end = text + record - 1;
        const char *equals = memchr(key, '=', (size_t)(end - key));
        if (!equals)
            return tar_corrupt(tar, "a damaged pax header");
        rc = take_record(tar, global, key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1));
        text += record;
        length -= record;
    }
    return rc;
}

static bool is_extended(unsigned char type)
{
    return type == PAX || type == PAX_SOLARIS || type == PAX_GLOBAL || type == LONG_NAME || type == LONG_LINK;
}

/* All of it is in `bytes`, or MR_TAR_MORE. MR_TAR_MEMBER: it has been taken, and tar->at is past it. */
static enum mr_tar_event take_extended(struct mr_tar *tar, const unsigned char *bytes, size_t length, uint64_t size)
{
    unsigned char type = bytes[TYPE];
    if (size > MR_TAR_EXTENDED_MAX) {
        mr_error_set(MR_E_USAGE, "byte %llu: a%s header of %llu bytes: more than %u are not read",
                     (unsigned long long)tar->at, type == LONG_NAME || type == LONG_LINK ? " long name" : " pax",
                     (unsigned long long)size, MR_TAR_EXTENDED_MAX);
        return MR_TAR_ERROR;
    }
    uint64_t whole = MR_TAR_BLOCK + padded(size);
    if (whole > tar->size - tar->at)
        return tar_corrupt(tar, "the archive ends inside of a header: it is cut short");
    if (tar->extended && tar->at - tar->begin + whole > MR_TAR_CHAIN_MAX)
        return tar_refuse(tar, "the extended headers of one member have more than 512 KiB: they are not read");
    if (length < whole) {
        tar->need = whole;
        return MR_TAR_MORE;
    }
    const char *text = (const char *)bytes + MR_TAR_BLOCK;
    enum mr_tar_event rc = MR_TAR_MEMBER;
    if (type == LONG_NAME)
        rc = set_name(tar, text, strnlen(text, size));
    else if (type != LONG_LINK)
        rc = take_pax(tar, type == PAX_GLOBAL, text, size);
    if (rc != MR_TAR_MEMBER)
        return rc;
    if (type != PAX_GLOBAL && !tar->extended) {
        tar->extended = true;
        tar->begin = tar->at;
    }
    tar->at += whole;
    return MR_TAR_MEMBER;
}

/* ---- members ---- */

/* The name in the header itself: ustar splits long ones, GNU and older writers have other things in that place. */
static void take_short_name(struct mr_tar *tar, const unsigned char *header)
{
    size_t length = 0;
    if (memcmp(header + MAGIC, "ustar", 6) == 0 && header[PREFIX] != '\0') { /* with its NUL */
        length = strnlen((const char *)header + PREFIX, PREFIX_BYTES);
        memcpy(tar->name, header + PREFIX, length);
        tar->name[length++] = '/';
    }
    size_t rest = strnlen((const char *)header + NAME, NAME_BYTES);
    memcpy(tar->name + length, header + NAME, rest);
    tar->name_length = length + rest;
}

static bool is_regular(const struct mr_tar *tar, unsigned char type)
{
    if (type == REGULAR_OLD) /* such writers marked folders by a slash */
        return tar->name_length == 0 || tar->name[tar->name_length - 1] != '/';
    return type == REGULAR || type == CONTIGUOUS;
}

/* Links, devices, folders and FIFOs have no data, whatever their size field says. */
static bool has_data(unsigned char type, bool regular)
{
    return regular || (type != REGULAR_OLD && (type < '1' || type > '6'));
}

/* Describes the member whose header is at tar->at, and moves to the header after its data. */
static enum mr_tar_event take_member(struct mr_tar *tar, const unsigned char *header, uint64_t size,
                                     struct mr_tar_member *member)
{
    unsigned char type = header[TYPE];
    if (!tar->has_path)
        take_short_name(tar, header);
    tar->name[tar->name_length] = '\0';
    member->name = tar->name;
    member->name_length = tar->name_length;
    if (type == SPARSE)
        return tar_refuse(tar, "a sparse file: make the archive without --sparse");
    member->begin = tar->extended ? tar->begin : tar->at;
    member->data = tar->at + MR_TAR_BLOCK;
    member->regular = is_regular(tar, type);
    size = tar->has_size ? tar->member_size : size;
    member->size = has_data(type, member->regular) ? size : 0;
    if (member->size > SIZE_MAX_BYTES || member->data > tar->size || member->size > tar->size - member->data) {
        tar->cut = true;
        mr_error_set(MR_E_CORRUPT,
                     "byte %llu: the archive ends inside of %.200s, of %llu bytes: it is cut short, or the header is "
                     "damaged",
                     (unsigned long long)tar->at, tar->name, (unsigned long long)member->size);
        return MR_TAR_ERROR;
    }
    tar->at = member->data + padded(member->size);
    tar->need = MR_TAR_BLOCK;
    tar->extended = tar->has_path = tar->has_size = false;
    return MR_TAR_MEMBER;
}

/* No whole header is left. */
static enum mr_tar_event at_end(struct mr_tar *tar)
{
    if (tar->extended)
        return tar_corrupt(tar, "the archive ends after an extended header: it is cut short");
    if (tar->at < tar->size)
        return tar_corrupt(tar, "the archive ends inside of a header: it is cut short");
    tar->unended = true;
    return MR_TAR_END;
}

enum mr_tar_event mr_tar_next(struct mr_tar *tar, const unsigned char *bytes, size_t length,
                              struct mr_tar_member *member)
{
    for (;;) {
        if (tar->at > tar->size || tar->size - tar->at < MR_TAR_BLOCK)
            return at_end(tar);
        if (length < tar->need)
            return MR_TAR_MORE;
        if (all_zero(bytes)) {
            if (tar->extended)
                return tar_corrupt(tar, "the archive ends after an extended header");
            return MR_TAR_END;
        }
        if (!checksum_fits(bytes))
            return bad_checksum(tar, bytes);
        uint64_t size;
        if (!number(bytes + SIZE, SIZE_BYTES, &size))
            return tar_corrupt(tar, "a header whose size is not a number");
        if (!is_extended(bytes[TYPE]))
            return take_member(tar, bytes, size, member);
        uint64_t before = tar->at;
        enum mr_tar_event rc = take_extended(tar, bytes, length, size);
        if (rc != MR_TAR_MEMBER)
            return rc;
        tar->need = MR_TAR_BLOCK;
        bytes += tar->at - before;
        length -= tar->at - before;
    }
}

void mr_tar_skip(struct mr_tar *tar, const struct mr_tar_member *member)
{
    tar->at = member->data + padded(member->size);
    tar->need = MR_TAR_BLOCK;
}
