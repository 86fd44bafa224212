/* fuzz_tar.c - an archive of any bytes: refused, or members that lie inside of it, the same in windows of any size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "shm/index/sample.h"

/* What an accepted member may look like, whatever the bytes were. */
static void check(const struct mr_tar_member *member, uint64_t before, size_t size)
{
    size_t key_length;
    if (member->begin < before || member->data < member->begin + MR_TAR_BLOCK || member->data > size ||
        member->size > size - member->data || member->name_length > MR_TAR_NAME_MAX ||
        member->name[member->name_length] != '\0')
        abort();
    if (mr_sample_split(member->name, member->name_length, &key_length) &&
        (key_length >= member->name_length || member->name[key_length] != '.'))
        abort();
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

/* A value of all that came; windows: of what is asked for and no more. */
static uint64_t read_all(const uint8_t *data, size_t size, bool windows)
{
    static struct mr_sample_group group;
    struct mr_tar tar;
    struct mr_tar_member member;
    enum mr_tar_event event;
    uint64_t hash = 1, before = 0, end = 0;
    memset(&group, 0, sizeof group);
    mr_tar_init(&tar, size);
    do {
        size_t at = tar.at < size ? tar.at : size, room = size - at;
        if (tar.need > MR_TAR_NEED_MAX)
            abort();
        event = mr_tar_next(&tar, data + at, windows && tar.need < room ? tar.need : room, &member);
        if (event != MR_TAR_MEMBER)
            continue;
        check(&member, before, size);
        before = member.data + member.size;
        hash = mix(mix(mix(hash, member.begin), member.size), member.name_length);
        bool ends = mr_sample_group_ends(&group, &member);
        if (ends)
            end = group.sample.end;
        if (mr_sample_group_add(&group, &member) && (group.sample.begin < end || group.sample.end != before))
            abort();
    } while (event == MR_TAR_MEMBER || (event == MR_TAR_MORE && windows));
    return mix(hash, (uint64_t)event);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (read_all(data, size, false) != read_all(data, size, true))
        abort();
    return 0;
}

static void sum_up(uint8_t *header)
{
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (unsigned i = 0; i < MR_TAR_BLOCK; i++)
        sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum & 0777777);
}

static size_t add(uint8_t *at, const char *name, char type, const char *text, size_t size)
{
    memcpy(at, name, strlen(name));
    snprintf((char *)at + 124, 12, "%011o", (unsigned)size);
    at[156] = (uint8_t)type;
    memcpy(at + 257, type == 'L' ? "ustar  \0" : "ustar\00000", 8);
    memcpy(at + MR_TAR_BLOCK, text, size);
    sum_up(at);
    return MR_TAR_BLOCK + (size + MR_TAR_BLOCK - 1) / MR_TAR_BLOCK * MR_TAR_BLOCK;
}

/* The small corpus: each dialect's own headers. */
size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const records[] = {"12 path=a.x\n", "11 size=10\n", "22 GNU.sparse.major=1\n", "6 a=b\n"};
    if (n >= 8)
        return 0;
    uint8_t *at = calloc(1, 8192);
    if (!at)
        abort();
    size_t size = 0;
    if (n < 4)
        size += add(at + size, "PaxHeaders/0", n == 3 ? 'g' : 'x', records[n], strlen(records[n]));
    if (n == 4)
        size += add(at + size, "././@LongLink", 'L', "a/long/name.jpg", 16);
    size += add(at + size, "a.jpg", '0', "0123456789", 10);
    size += add(at + size, n == 5 ? "folder/" : "a.cls", n == 5 ? '5' : '0', "7", 1);
    if (n == 6)
        size += add(at + size, "__meta__/x", '7', "7", 1);
    size += add(at + size, "b/c.seg.png", '\0', "7", 1);
    *data = at;
    return n == 7 ? size : size + 1024;
}
