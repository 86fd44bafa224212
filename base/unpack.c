#include "base/unpack.h"

#include <stdint.h>
#include <string.h>

#include "base/error.h"

static uint64_t big_endian(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/*
 * One value's head at `at`: its bytes (head and payload) in *bytes and how many values follow inside it in *children.
 * False when the head itself is cut or of no known kind. Format: the msgpack specification, "Formats".
 */
static bool value_head(const uint8_t *at, size_t left, uint64_t *bytes, uint64_t *children)
{
    /* For 0xc0 .. 0xdf: how many bytes of length follow, bytes of fixed payload, and what the length counts. */
    static const struct {
        uint8_t length, fixed;
        enum { NONE, PAYLOAD, ITEMS, PAIRS } counts;
    } kinds[32] = {
        [0x00] = {0, 0, NONE},    [0x02] = {0, 0, NONE},    [0x03] = {0, 0, NONE},    [0x04] = {1, 0, PAYLOAD},
        [0x05] = {2, 0, PAYLOAD}, [0x06] = {4, 0, PAYLOAD}, [0x0a] = {0, 4, NONE},    [0x0b] = {0, 8, NONE},
        [0x0c] = {0, 1, NONE},    [0x0d] = {0, 2, NONE},    [0x0e] = {0, 4, NONE},    [0x0f] = {0, 8, NONE},
        [0x10] = {0, 1, NONE},    [0x11] = {0, 2, NONE},    [0x12] = {0, 4, NONE},    [0x13] = {0, 8, NONE},
        [0x19] = {1, 0, PAYLOAD}, [0x1a] = {2, 0, PAYLOAD}, [0x1b] = {4, 0, PAYLOAD}, [0x1c] = {2, 0, ITEMS},
        [0x1d] = {4, 0, ITEMS},   [0x1e] = {2, 0, PAIRS},   [0x1f] = {4, 0, PAIRS},
    };
    uint8_t head = at[0];
    *bytes = 1;
    *children = 0;
    if (head < 0x80 || head >= 0xe0)
        return true;
    if (head < 0xc0) {
        if (head < 0x90)
            *children = 2u * (head & 0x0f);
        else if (head < 0xa0)
            *children = head & 0x0f;
        else
            *bytes += head & 0x1f;
        return true;
    }
    unsigned kind = head - 0xc0u;
    unsigned length = kinds[kind].length;
    if (length == 0 && kinds[kind].fixed == 0 && kind != 0x00 && kind != 0x02 && kind != 0x03)
        return false; /* never used, and extensions: we send none */
    if (left < 1u + length)
        return false;
    uint64_t counted = big_endian(at + 1, length);
    *bytes += length + kinds[kind].fixed;
    if (kinds[kind].counts == PAYLOAD)
        *bytes += counted;
    else if (kinds[kind].counts == ITEMS)
        *children = counted;
    else if (kinds[kind].counts == PAIRS)
        *children = 2 * counted;
    return true;
}

/* True when data is exactly one value, complete, and no array or map claims more items than bytes follow. */
static bool is_whole(const void *data, size_t length)
{
    const uint8_t *at = data;
    size_t left = length;
    uint64_t wanted = 1; /* values that must still come; each takes a byte at least, so it stays below left + 1 */
    while (wanted > 0) {
        uint64_t bytes, children;
        if (wanted > left || !value_head(at, left, &bytes, &children) || bytes > left)
            return false;
        at += bytes;
        left -= (size_t)bytes;
        wanted += children - 1;
    }
    return left == 0;
}

int mr_unpack(msgpack_zone *zone, const void *data, size_t length, msgpack_object *object)
{
    size_t offset = 0;
    if (!is_whole(data, length) || msgpack_unpack(data, length, &offset, zone, object) != MSGPACK_UNPACK_SUCCESS) {
        mr_error_set(MR_E_PROTOCOL, "%zu bytes that are not one whole msgpack value", length);
        return -1;
    }
    return 0;
}

const msgpack_object *mr_unpack_find(const msgpack_object *map, const char *key)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    size_t wanted = strlen(key);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *pair = &map->via.map.ptr[i];
        const char *at;
        size_t length;
        if (mr_unpack_bytes(&pair->key, &at, &length) && length == wanted && memcmp(at, key, wanted) == 0)
            return &pair->val;
    }
    return NULL;
}

bool mr_unpack_bytes(const msgpack_object *object, const char **at, size_t *length)
{
    if (object->type == MSGPACK_OBJECT_STR) {
        *at = object->via.str.ptr;
        *length = object->via.str.size;
        return true;
    }
    if (object->type == MSGPACK_OBJECT_BIN) {
        *at = object->via.bin.ptr;
        *length = object->via.bin.size;
        return true;
    }
    return false;
}
