#include "devstore/s3_sums.h"

#include <endian.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/checksum.h"
#include "base/crc64nvme.h"
#include "base/error.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"

const char *const ds_s3_algorithm_names[MR_S3_ALGORITHMS] = {"", "CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"};
const char *const ds_s3_sum_headers[MR_S3_ALGORITHMS] = {
    "",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
};
const char *const ds_s3_sum_elements[MR_S3_ALGORITHMS] = {
    "", "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256",
};
static const size_t sizes[MR_S3_ALGORITHMS] = {0, 4, 4, 8, 20, 32};

enum ds_s3_algorithm ds_s3_algorithm(const char *name)
{
    for (int i = 1; i < MR_S3_ALGORITHMS; i++) {
        if (strcasecmp(name, ds_s3_algorithm_names[i]) == 0 || strcasecmp(name, ds_s3_sum_headers[i]) == 0 ||
            strcasecmp(name, ds_s3_sum_elements[i]) == 0)
            return (enum ds_s3_algorithm)i;
    }
    return MR_S3_NONE;
}

size_t ds_s3_sum_size(enum ds_s3_algorithm algorithm)
{
    return sizes[algorithm];
}

static EVP_MD_CTX *digest(const EVP_MD *kind)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context && EVP_DigestInit_ex(context, kind, NULL) == 1)
        return context;
    EVP_MD_CTX_free(context);
    return NULL;
}

int ds_s3_sums_init(struct ds_s3_sums *sums, unsigned wanted)
{
    memset(sums, 0, sizeof *sums);
    sums->wanted = wanted;
    if (wanted & 1u << MR_S3_SHA1)
        sums->sha1 = digest(EVP_sha1());
    if (wanted & 1u << MR_S3_SHA256)
        sums->sha256 = digest(EVP_sha256());
    if ((!sums->sha1 && wanted & 1u << MR_S3_SHA1) || (!sums->sha256 && wanted & 1u << MR_S3_SHA256)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a checksum");
        return -1;
    }
    return 0;
}

void ds_s3_sums_write(struct ds_s3_sums *sums, const void *bytes, size_t length)
{
    if (sums->wanted & 1u << MR_S3_CRC32)
        sums->crc32 = crc32_gzip_refl(sums->crc32, bytes, length);
    if (sums->wanted & 1u << MR_S3_CRC32C)
        sums->crc32c = mr_crc32c(sums->crc32c, bytes, length);
    if (sums->wanted & 1u << MR_S3_CRC64NVME)
        sums->crc64 = mr_crc64nvme(sums->crc64, bytes, length);
    if (sums->sha1)
        EVP_DigestUpdate(sums->sha1, bytes, length);
    if (sums->sha256)
        EVP_DigestUpdate(sums->sha256, bytes, length);
}

void ds_s3_sums_raw(struct ds_s3_sums *sums, enum ds_s3_algorithm algorithm, uint8_t *raw)
{
    uint32_t crc = htobe32(algorithm == MR_S3_CRC32 ? sums->crc32 : sums->crc32c);
    uint64_t crc64 = htobe64(sums->crc64);
    if (algorithm == MR_S3_CRC64NVME)
        memcpy(raw, &crc64, sizeof crc64);
    else if (algorithm == MR_S3_CRC32 || algorithm == MR_S3_CRC32C)
        memcpy(raw, &crc, sizeof crc);
    else if (algorithm != MR_S3_NONE)
        EVP_DigestFinal_ex(algorithm == MR_S3_SHA1 ? sums->sha1 : sums->sha256, raw, NULL);
}

void ds_s3_sums_close(struct ds_s3_sums *sums)
{
    EVP_MD_CTX_free(sums->sha1);
    EVP_MD_CTX_free(sums->sha256);
    memset(sums, 0, sizeof *sums);
}

void ds_s3_sum_to_text(enum ds_s3_algorithm algorithm, const uint8_t *raw, char text[MR_S3_SUM_MAX])
{
    EVP_EncodeBlock((unsigned char *)text, raw, (int)sizes[algorithm]);
}

int ds_s3_sum_from_text(enum ds_s3_algorithm algorithm, const char *text, uint8_t *raw)
{
    size_t size = sizes[algorithm], length = 4 * ((size + 2) / 3);
    unsigned char block[36];
    char again[MR_S3_SUM_MAX];
    if (strlen(text) != length || EVP_DecodeBlock(block, (const unsigned char *)text, (int)length) < (int)size)
        return -1;
    memcpy(raw, block, size);
    ds_s3_sum_to_text(algorithm, raw, again); /* the padding is as long as it must be, and nothing follows it */
    return strcmp(text, again) == 0 ? 0 : -1;
}

void ds_s3_sum_join(enum ds_s3_algorithm algorithm, uint8_t *a, const uint8_t *b, uint64_t length_b)
{
    uint64_t left = 0, right = 0;
    size_t size = sizes[algorithm];
    for (size_t i = 0; i < size; i++) {
        left = left << 8 | a[i];
        right = right << 8 | b[i];
    }
    if (algorithm == MR_S3_CRC64NVME)
        left = mr_crc64nvme_combine(left, right, length_b);
    else if (algorithm == MR_S3_CRC32C)
        left = mr_crc32c_combine((uint32_t)left, (uint32_t)right, length_b);
    else
        left = mr_crc_combine(0xedb88320u, left, right, length_b);
    for (size_t i = size; i-- > 0; left >>= 8)
        a[i] = (uint8_t)left;
}

static int malformed(const struct ds_request *request, struct ds_reply *reply, const char *name)
{
    ds_s3_error_said(reply, request, "InvalidRequest", "Value for %s header is invalid.", name);
    return -1;
}

int ds_s3_given(const struct ds_api *api, const struct ds_request *request, struct ds_s3_given *given,
                struct ds_reply *reply)
{
    const char *trailer = ds_request_header(request, "x-amz-trailer");
    const char *announced = ds_request_header(request, "x-amz-sdk-checksum-algorithm");
    uint8_t raw[32];
    memset(given, 0, sizeof *given);
    if (api->s3->ignore_checksums)
        return 0;
    for (int i = 1; i < MR_S3_ALGORITHMS; i++) {
        const char *value = ds_request_header(request, ds_s3_sum_headers[i]);
        if (!value)
            continue;
        if (given->algorithm || ds_s3_sum_from_text((enum ds_s3_algorithm)i, value, raw) < 0)
            return malformed(request, reply, ds_s3_sum_headers[i]);
        given->algorithm = (enum ds_s3_algorithm)i;
        snprintf(given->text, sizeof given->text, "%s", value);
    }
    if (trailer) {
        if (given->algorithm || !ds_s3_algorithm(trailer))
            return malformed(request, reply, "x-amz-trailer");
        given->algorithm = ds_s3_algorithm(trailer);
        given->in_trailer = true;
    }
    if (announced && !given->algorithm) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "x-amz-sdk-checksum-algorithm is specified, but neither x-amz-checksum-* nor x-amz-trailer");
        return -1;
    }
    return 0;
}
