/* What S3 says of an object: its ETag and its checksum, also where it has none of its own. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "devstore/object.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_info.h"

void ds_s3_etag(const struct ds_object *object, bool changed, char etag[48])
{
    if (object->s3 && object->s3->etag[0])
        memcpy(etag, object->s3->etag, sizeof object->s3->etag);
    else if (object->has_md5)
        ds_s3_hex(object->md5, sizeof object->md5, etag);
    else /* like that of a multipart upload of one part, so that no client takes it for an MD5 */
        snprintf(etag, 48, "%016" PRIx64 "%016" PRIx64 "-1", mr_mix64(object->size), object->generation);
    if (changed)
        etag[0] = etag[0] == '0' ? '1' : '0';
}

bool ds_s3_etag_listed(const char *list, const char *etag)
{
    size_t n = strlen(etag);
    for (const char *at = list; *at;) {
        at += strspn(at, " \t,");
        if (strncmp(at, "W/", 2) == 0)
            at += 2;
        size_t length = strcspn(at, " \t,");
        if (length == 1 && *at == '*')
            return true;
        const char *from = at;
        size_t inner = length;
        if (inner >= 2 && *from == '"' && from[inner - 1] == '"') {
            from++;
            inner -= 2;
        }
        if (inner == n && strncmp(from, etag, n) == 0)
            return true;
        at += length;
    }
    return false;
}

enum ds_s3_algorithm ds_s3_object_sum(struct ds_object *object, char text[MR_S3_SUM_MAX], bool *composite)
{
    uint32_t crc;
    *composite = false;
    if (object->s3 && object->s3->algorithm) {
        *composite = object->s3->composite;
        memcpy(text, object->s3->sum, sizeof object->s3->sum);
        return object->s3->algorithm;
    }
    if (ds_object_crc(object, &crc) < 0)
        return MR_S3_NONE;
    mr_crc32c_to_base64(crc, text);
    return MR_S3_CRC32C;
}
