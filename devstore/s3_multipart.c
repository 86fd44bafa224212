/*
 * s3_multipart.c - CreateMultipartUpload and CompleteMultipartUpload. The parts are in s3_upload.c, the lists in
 * s3_uploads.c; abort is the XML API's. https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpuoverview.html
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "devstore/multipart_impl.h"
#include "devstore/s3.h"
#include "devstore/s3_auth.h"
#include "devstore/s3_conditions.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"
#include "devstore/xml.h"

/* Chooses the checksum that the object gets. 0, or -1: there is no such algorithm, or type of it. */
static int choose_checksum(const struct ds_request *request, struct ds_session *session)
{
    const char *name = ds_request_header(request, "x-amz-checksum-algorithm");
    const char *type = ds_request_header(request, "x-amz-checksum-type");
    bool full = type && strcasecmp(type, "FULL_OBJECT") == 0;
    session->announced = name != NULL;
    session->algorithm = name ? ds_s3_algorithm(name) : MR_S3_CRC64NVME;
    bool whole_only = session->algorithm == MR_S3_CRC64NVME;
    bool sha = session->algorithm == MR_S3_SHA1 || session->algorithm == MR_S3_SHA256;
    session->composite = !whole_only && !full;
    if (type && !full && (strcasecmp(type, "COMPOSITE") != 0 || whole_only))
        return -1;
    return session->algorithm == MR_S3_NONE || (full && sha) ? -1 : 0;
}

void ds_s3_initiate(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_session *session = bucket ? ds_session_new(bucket, true) : NULL;
    if (!bucket)
        return;
    if (session && choose_checksum(request, session) < 0) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "There is no such checksum algorithm, or it has no such checksum type.");
    } else if (!session || ds_metadata_set_key(&session->metadata, request->object) < 0 ||
               ds_xml_metadata(request, &session->metadata) < 0 || ds_sessions_add(api->sessions, session) < 0) {
        ds_reply_from_error(reply, request);
    } else {
        ds_xml_begin(&reply->body, "InitiateMultipartUploadResult");
        ds_xml_put(&reply->body, "Bucket", request->bucket);
        ds_xml_put(&reply->body, "Key", request->object);
        ds_xml_put(&reply->body, "UploadId", session->id);
        ds_text_puts(&reply->body, "</InitiateMultipartUploadResult>");
        if (session->announced) {
            ds_reply_header(reply, "x-amz-checksum-algorithm", "%s", ds_s3_algorithm_names[session->algorithm]);
            ds_reply_header(reply, "x-amz-checksum-type", "%s", session->composite ? "COMPOSITE" : "FULL_OBJECT");
        }
        ds_s3_xml(reply);
    }
    ds_session_unref(session);
}

/* The sum of the parts' sums. */
static void composite_sum(const struct ds_multipart_chosen *chosen, struct ds_s3_info *info)
{
    struct ds_s3_sums sums;
    uint8_t raw[32];
    if (ds_s3_sums_init(&sums, 1u << info->algorithm) == 0) {
        for (size_t i = 0; i < chosen->n; i++) {
            if (ds_s3_sum_from_text(info->algorithm, chosen->parts[i]->sum, raw) == 0)
                ds_s3_sums_write(&sums, raw, ds_s3_sum_size(info->algorithm));
        }
        ds_s3_sums_raw(&sums, info->algorithm, raw);
        ds_s3_sum_to_text(info->algorithm, raw, info->sum);
        size_t n = strlen(info->sum);
        snprintf(info->sum + n, sizeof info->sum - n, "-%zu", chosen->n);
    }
    ds_s3_sums_close(&sums);
}

/* The sum of all bytes, from those of the parts. */
static void full_sum(const struct ds_multipart_chosen *chosen, struct ds_s3_info *info)
{
    uint8_t all[32] = {0}, raw[32];
    for (size_t i = 0; i < chosen->n; i++) {
        if (ds_s3_sum_from_text(info->algorithm, chosen->parts[i]->sum, raw) == 0)
            ds_s3_sum_join(info->algorithm, all, raw, chosen->parts[i]->object->size);
    }
    ds_s3_sum_to_text(info->algorithm, all, info->sum);
}

/* The MD5 of the parts' MD5s, and how many there are. */
static void make_etag(const struct ds_multipart_chosen *chosen, struct ds_s3_info *info)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    uint8_t sum[16] = {0};
    char hex[33];
    if (context && EVP_DigestInit_ex(context, EVP_md5(), NULL) == 1) {
        for (size_t i = 0; i < chosen->n; i++) {
            if (ds_s3_unhex(chosen->parts[i]->etag, sum, sizeof sum) == 0)
                EVP_DigestUpdate(context, sum, sizeof sum);
        }
        EVP_DigestFinal_ex(context, sum, NULL);
    }
    EVP_MD_CTX_free(context);
    ds_s3_hex(sum, sizeof sum, hex);
    snprintf(info->etag, sizeof info->etag, "%s-%zu", hex, chosen->n);
}

/* What S3 reports of the object. NULL: no memory. */
static struct ds_s3_info *describe(const struct ds_session *session, const struct ds_multipart_chosen *chosen)
{
    struct ds_s3_info *info = ds_s3_info_new(chosen->n);
    uint64_t end = 0;
    if (!info)
        return NULL;
    info->algorithm = session->algorithm;
    info->composite = session->composite;
    for (size_t i = 0; i < chosen->n; i++) {
        info->parts[i].end = end += chosen->parts[i]->object->size;
        memcpy(info->parts[i].sum, chosen->parts[i]->sum, MR_S3_SUM_MAX);
    }
    make_etag(chosen, info);
    if (info->composite)
        composite_sum(chosen, info);
    else
        full_sum(chosen, info);
    return info;
}

/* Checks what the client says of the whole object. 0, or -1 with the reply. */
static int check_whole(const struct ds_api *api, const struct ds_request *request, const struct ds_s3_info *info,
                       struct ds_reply *reply)
{
    const char *size = ds_request_header(request, "x-amz-mp-object-size");
    struct ds_s3_given given;
    uint64_t expected;
    if (ds_s3_given(api, request, &given, reply) < 0)
        return -1;
    if (size && (ds_parse_u64(size, &expected) < 0 || expected != info->parts[info->n_parts - 1].end)) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "The provided 'x-amz-mp-object-size' header does not match what was computed.");
        return -1;
    }
    if (given.algorithm && (given.algorithm != info->algorithm || strcmp(given.text, info->sum) != 0)) {
        ds_s3_error(reply, request, "BadDigest");
        return -1;
    }
    return 0;
}

/* A directory bucket's parts have no gaps between their numbers. NULL: they are as they must be; otherwise the error's
 * code, with the error set. */
static const char *check_numbers(const struct ds_request *request, const struct ds_multipart_chosen *chosen)
{
    for (size_t i = 0; ds_s3_is_express(request->bucket) && i < chosen->n; i++) {
        if (chosen->parts[i]->number == i + 1)
            continue;
        mr_error_set(MR_E_USAGE, "The part numbers of a directory bucket's upload are consecutive, from 1 on.");
        return "InvalidPartOrder";
    }
    return NULL;
}

/* The session's lock is held. NULL: the reply says why not. */
static struct ds_object *s3_multipart_complete(const struct ds_api *api, const struct ds_request *request,
                                               struct ds_session *session, struct ds_reply *reply)
{
    struct ds_conditions conditions;
    struct ds_multipart_chosen chosen;
    const char *code = ds_multipart_choose(api, request, session, &chosen);
    struct ds_object *object = NULL;
    int rc = -1;
    if (!code)
        code = check_numbers(request, &chosen);
    if (code) {
        ds_s3_error_said(reply, request, code, "%s", mr_error_text());
        goto out;
    }
    object = ds_object_new(session->metadata.name);
    if (!object || ds_metadata_apply(&session->metadata, object) < 0 || !(object->s3 = describe(session, &chosen))) {
        ds_reply_from_error(reply, request);
        goto out;
    }
    object->component_count = (unsigned)chosen.n;
    if (check_whole(api, request, object->s3, reply) < 0 ||
        ds_s3_write_conditions(api, request, session->bucket, &conditions, reply) < 0)
        goto out;
    rc = ds_api_join(session->bucket, chosen.objects, chosen.n, object, &conditions);
    if (rc < 0)
        ds_s3_write_failed(request, reply);
out:
    ds_multipart_chosen_close(&chosen);
    if (rc == 0)
        return object;
    ds_object_unref(object);
    return NULL;
}

static void completed(const struct ds_api *api, const struct ds_request *request, struct ds_object *object,
                      struct ds_reply *reply)
{
    struct ds_text *out = &reply->body;
    const char *host = ds_request_header(request, "Host");
    char etag[48];
    ds_s3_etag(object, false, etag);
    ds_xml_begin(out, "CompleteMultipartUploadResult");
    ds_text_puts(out, "<Location>http://");
    ds_xml_text(out, host && ds_utf8_valid(host, strlen(host)) ? host : "");
    ds_text_puts(out, "/");
    ds_xml_text(out, request->bucket);
    ds_text_puts(out, "/");
    ds_xml_text(out, object->name);
    ds_text_puts(out, "</Location>");
    ds_xml_put(out, "Bucket", request->bucket);
    ds_xml_put(out, "Key", object->name);
    ds_text_printf(out, "<ETag>&quot;%s&quot;</ETag>", etag);
    if (!api->s3->ignore_checksums) {
        ds_xml_put(out, ds_s3_sum_elements[object->s3->algorithm], object->s3->sum);
        ds_xml_put(out, "ChecksumType", object->s3->composite ? "COMPOSITE" : "FULL_OBJECT");
    }
    ds_text_puts(out, "</CompleteMultipartUploadResult>");
    ds_s3_xml(reply);
}

void ds_s3_complete(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    if (ds_s3_check_write(api, request, reply) < 0)
        return;
    struct ds_session *session = ds_multipart_find(api, request, reply);
    if (!session)
        return;
    struct ds_object *object = NULL;
    pthread_mutex_lock(&session->lock);
    if (session->gone)
        ds_s3_error(reply, request, "NoSuchUpload");
    else if (!ds_s3_late_error(request, reply))
        object = s3_multipart_complete(api, request, session, reply);
    session->gone |= object != NULL;
    pthread_mutex_unlock(&session->lock);
    if (object) {
        ds_sessions_remove(api->sessions, session);
        completed(api, request, object, reply);
    }
    ds_object_unref(object);
    ds_session_unref(session);
}
