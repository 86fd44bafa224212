/* https://docs.aws.amazon.com/AmazonS3/latest/API/API_CopyObject.html */
#include "devstore/s3_copy.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "devstore/faults.h"
#include "devstore/metadata.h"
#include "devstore/s3.h"
#include "devstore/s3_conditions.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"
#include "devstore/xml.h"
#include "shm/base/error.h"

#define COPY_MAX (UINT64_C(5) << 30) /* bytes of one copy: S3's limit */

/* BUCKET/KEY?versionId=null, percent-encoded, perhaps with a slash in front. 0, or -1 with the reply. */
static int split_source(const struct mr_request *request, const char *text, struct mr_request *source,
                        struct mr_reply *reply)
{
    text += *text == '/';
    const char *query = strchrnul(text, '?'), *slash = memchr(text, '/', (size_t)(query - text));
    *source = *request;
    source->op = MR_OP_GET;
    source->bucket = slash ? mr_percent_decode(text, (size_t)(slash - text), false) : NULL;
    source->object = slash ? mr_percent_decode(slash + 1, (size_t)(query - slash - 1), false) : NULL;
    if (source->bucket && source->object && (!*query || strcmp(query, "?versionId=null") == 0))
        return 0;
    mr_s3_error_said(reply, request, "InvalidArgument", "Copy Source must mention the source bucket and key: %s",
                     "sourcebucket/sourcekey");
    return -1;
}

/* The source with its conditions checked. fd: its open file. NULL: the reply says why not. */
static struct mr_object *find_source(const struct mr_api *api, const struct mr_request *request, const char *text,
                                     int *fd, struct mr_reply *reply)
{
    struct mr_request source;
    struct mr_object *object = NULL;
    char etag[48];
    if (split_source(request, text, &source, reply) == 0) {
        struct mr_bucket *bucket = mr_api_bucket(api, &source, reply);
        object = bucket ? mr_api_open(&source, bucket, reply, NULL, fd) : NULL;
    }
    free(source.bucket);
    free(source.object);
    if (!object)
        return NULL;
    mr_s3_etag(object, false, etag);
    if (mr_s3_check_read(request, "x-amz-copy-source-", etag, reply) == 0 &&
        (object->size <= COPY_MAX || mr_request_header(request, "x-amz-copy-source-range")))
        return object;
    if (reply->status < 300)
        mr_s3_error_said(reply, request, "InvalidRequest", "The copy source is larger than the 5 GiB of one copy");
    mr_object_unref(object);
    if (*fd >= 0)
        close(*fd);
    return NULL;
}

static int each_block(const struct mr_object *object, int fd, uint64_t at, uint64_t end,
                      int (*take)(void *cls, const void *bytes, size_t length), void *cls)
{
    enum { BLOCK = 1 << 18 };
    char *block = malloc(BLOCK);
    int rc = block ? 0 : -1;
    if (!block)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a copy");
    while (rc == 0 && at < end) {
        size_t n = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
        rc = mr_object_read(object, fd, at, block, n) < 0 ? -1 : take(cls, block, n);
        at += n;
    }
    free(block);
    return rc;
}

int mr_s3_copy_bytes(const struct mr_api *api, const struct mr_request *request, const char *source,
                     int (*take)(void *cls, const void *bytes, size_t length), void *cls, struct mr_reply *reply)
{
    const char *range = mr_request_header(request, "x-amz-copy-source-range");
    int fd = -1;
    struct mr_object *object = find_source(api, request, source, &fd, reply);
    if (!object)
        return -1;
    int rc = -1;
    uint64_t first = 0, last = object->size - 1;
    if (range && (mr_parse_range(range, object->size, &first, &last) != MR_RANGE_PART || last - first >= COPY_MAX))
        mr_s3_error_said(reply, request, "InvalidArgument", "Range specified is not valid for source object");
    else if ((rc = each_block(object, fd, first, last + 1, take, cls)) < 0)
        mr_reply_from_error(reply, request);
    mr_object_unref(object);
    if (fd >= 0)
        close(fd);
    return rc;
}

void mr_s3_copy_result(const struct mr_api *api, struct mr_text *out, const char *root, const char *etag,
                       int64_t microseconds, enum mr_s3_algorithm algorithm, const char *sum)
{
    mr_xml_begin(out, root);
    mr_text_puts(out, "<LastModified>");
    mr_text_time(out, microseconds);
    mr_text_printf(out, "</LastModified><ETag>&quot;%s&quot;</ETag>", etag);
    if (algorithm && !api->s3->ignore_checksums)
        mr_xml_put(out, mr_s3_sum_elements[algorithm], sum);
    mr_text_printf(out, "</%s>", root);
}

static int add_md5(void *cls, const void *bytes, size_t length)
{
    return EVP_DigestUpdate(cls, bytes, length) == 1 ? 0 : -1;
}

/* A copy is one piece: it has the MD5 of all, even if the source came in parts. */
static int sum_md5(const struct mr_object *source, int fd, struct mr_object *made)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int rc = -1;
    if (context && EVP_DigestInit_ex(context, EVP_md5(), NULL) == 1 &&
        each_block(source, fd, 0, source->size, add_md5, context) == 0)
        rc = EVP_DigestFinal_ex(context, made->md5, NULL) == 1 ? 0 : -1;
    made->has_md5 = rc == 0;
    EVP_MD_CTX_free(context);
    return rc;
}

/* What the copy is told to have, else what the source has. NULL: no memory. */
static struct mr_object *make(const struct mr_api *api, const struct mr_request *request,
                              const struct mr_object *source, int fd)
{
    const char *directive = mr_request_header(request, "x-amz-metadata-directive");
    const char *class = mr_request_header(request, "x-amz-storage-class");
    struct mr_object *made = mr_object_new(request->object);
    struct mr_metadata metadata = {0};
    int rc = made ? 0 : -1;
    if (rc == 0 && directive && strcasecmp(directive, "REPLACE") == 0)
        rc = mr_xml_metadata(request, &metadata) < 0 ? -1 : mr_metadata_apply(&metadata, made);
    else if (rc == 0)
        rc = mr_object_copy_attributes(made, source);
    if (rc == 0)
        rc = mr_object_set_attribute(made, MR_ATTR_STORAGE_CLASS, class); /* a copy begins anew, as STANDARD */
    mr_metadata_close(&metadata);
    if (rc == 0 && source->has_md5) {
        made->has_md5 = true;
        memcpy(made->md5, source->md5, sizeof made->md5);
    } else if (rc == 0 && api->md5) {
        rc = sum_md5(source, fd, made);
    }
    const struct mr_s3_info *info = source->s3;
    if (rc == 0 && info && info->algorithm && !info->composite && (made->s3 = mr_s3_info_new(0))) {
        made->s3->algorithm = info->algorithm;
        memcpy(made->s3->sum, info->sum, sizeof info->sum);
    }
    if (rc == 0)
        return made;
    mr_object_unref(made);
    return NULL;
}

/* Where nothing would change S3 refuses. */
static bool changes_nothing(const struct mr_request *request, const struct mr_object *source, const char *text)
{
    const char *directive = mr_request_header(request, "x-amz-metadata-directive");
    size_t n = strlen(request->bucket);
    text += *text == '/';
    return strncmp(text, request->bucket, n) == 0 && text[n] == '/' && strcmp(source->name, request->object) == 0 &&
           !(directive && strcasecmp(directive, "REPLACE") == 0) && !mr_request_header(request, "x-amz-storage-class");
}

static void answer(const struct mr_api *api, struct mr_object *made, struct mr_reply *reply)
{
    char etag[48], sum[MR_S3_SUM_MAX];
    bool composite;
    mr_s3_etag(made, false, etag);
    enum mr_s3_algorithm algorithm = mr_s3_object_sum(made, sum, &composite);
    mr_s3_copy_result(api, &reply->body, "CopyObjectResult", etag, made->updated_us, algorithm, sum);
    mr_s3_xml(reply);
}

void mr_s3_copy(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    const char *text = mr_request_header(request, "x-amz-copy-source");
    struct mr_bucket *bucket = mr_api_bucket(api, request, reply);
    int fd = -1;
    if (!bucket || mr_s3_late_error(request, reply) || mr_s3_check_write(api, request, reply) < 0)
        return;
    struct mr_object *source = find_source(api, request, text, &fd, reply), *made = NULL;
    struct mr_conditions conditions;
    if (!source)
        return;
    if (changes_nothing(request, source, text))
        mr_s3_error_said(reply, request, "InvalidRequest",
                         "The copy would be the object itself, without other metadata or another storage class");
    else if (mr_s3_write_conditions(api, request, bucket, &conditions, reply) < 0)
        ;
    else if (!(made = make(api, request, source, fd)))
        mr_reply_from_error(reply, request);
    else if (mr_api_join(bucket, &source, 1, made, &conditions) < 0)
        mr_s3_write_failed(request, reply);
    else
        answer(api, made, reply);
    mr_object_unref(made);
    mr_object_unref(source);
    if (fd >= 0)
        close(fd);
}
