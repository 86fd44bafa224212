/* s3_batch.c - DeleteObjects. https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/counts.h"
#include "devstore/faults.h"
#include "devstore/s3.h"
#include "devstore/s3_error.h"
#include "devstore/s3_info.h"
#include "devstore/s3_sums.h"
#include "devstore/xml.h"

/* One <Object> of the list. */
struct entry {
    char key[MR_NAME_MAX + 1];
    char etag[80]; /* "": any */
    bool version;  /* it names one, and there are none */
};

/* 0 or -1: malformed. */
static int read_entry(const struct ds_xml_view *content, struct entry *entry)
{
    struct ds_xml_view rest = *content, name, value;
    char version[80];
    int more;
    memset(entry, 0, sizeof *entry);
    while ((more = ds_xml_next(&rest, &name, &value)) == 1) {
        int rc = 0;
        if (ds_xml_is(&name, "Key"))
            rc = ds_xml_exact(&value, entry->key, sizeof entry->key);
        else if (ds_xml_is(&name, "ETag"))
            rc = ds_xml_string(&value, entry->etag, sizeof entry->etag);
        else if (ds_xml_is(&name, "VersionId") && (rc = ds_xml_string(&value, version, sizeof version)) == 0)
            entry->version = strcmp(version, "null") != 0;
        if (rc < 0)
            return -1;
    }
    return more == 0 && entry->key[0] && ds_utf8_valid(entry->key, strlen(entry->key)) ? 0 : -1;
}

/* Deletes one object. NULL, or the code that says why it was not deleted. */
static const char *delete_one(const struct ds_api *api, const struct ds_request *outer, struct ds_bucket *bucket,
                              const struct entry *entry)
{
    struct ds_request request = {.op = MR_OP_DELETE, .s3 = true, .xml = true, .bucket = outer->bucket};
    struct ds_conditions conditions = {0};
    request.object = (char *)entry->key;
    const struct ds_fault *fault = ds_faults_draw(api->faults, &request, true);
    if (fault)
        return ds_s3_fault_code(fault);
    if (ds_api_denied(api, MR_OP_DELETE))
        return "AccessDenied";
    if (entry->version)
        return "NoSuchVersion";
    if (entry->etag[0]) {
        char etag[48] = "";
        struct ds_object *live = ds_bucket_get(bucket, entry->key);
        if (live)
            ds_s3_etag(live, false, etag);
        conditions = (struct ds_conditions){.has = MR_IF_GENERATION, .generation = live ? live->generation : 0};
        ds_object_unref(live);
        if (!live || !ds_s3_etag_listed(entry->etag, etag))
            return "PreconditionFailed";
    }
    if (ds_bucket_delete(bucket, entry->key, 0, &conditions) == 0 || mr_error_code() == MR_E_NOT_FOUND)
        return NULL; /* what does not exist counts as deleted */
    return mr_error_code() == MR_E_CHANGED ? "PreconditionFailed" : "InternalError";
}

static void put_answer(struct ds_text *out, const struct entry *entry, const char *code, bool quiet)
{
    if (!code && quiet)
        return;
    ds_text_puts(out, code ? "<Error>" : "<Deleted>");
    ds_xml_put(out, "Key", entry->key);
    if (code) {
        ds_xml_put(out, "Code", code);
        ds_xml_put(out, "Message", ds_s3_error_message(code));
    }
    ds_text_puts(out, code ? "</Error>" : "</Deleted>");
}

/* Reads the list: how many entries it has, and whether only errors are to be answered. -1: malformed. */
static int read_list(struct ds_xml_view list, bool *quiet)
{
    struct ds_xml_view name, content;
    struct entry entry;
    char text[8];
    int n = 0, more;
    *quiet = false;
    while ((more = ds_xml_next(&list, &name, &content)) == 1) {
        if (ds_xml_is(&name, "Quiet") && ds_xml_string(&content, text, sizeof text) == 0)
            *quiet = strcmp(text, "true") == 0;
        else if (ds_xml_is(&name, "Object") && read_entry(&content, &entry) == 0)
            n++;
        else
            return -1;
    }
    return more < 0 || n == 0 || n > MR_S3_PAGE_MAX ? -1 : n;
}

void ds_s3_batch(const struct ds_api *api, const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct ds_s3_given given;
    if (!bucket || ds_s3_given(api, request, &given, reply) < 0)
        return;
    if (!given.algorithm && !ds_request_header(request, "Content-MD5")) {
        ds_s3_error_said(reply, request, "InvalidRequest",
                         "Missing required header for this request: Content-MD5 OR x-amz-checksum-*");
        return;
    }
    struct ds_xml_view rest = {request->body.data, request->body.data + request->body.length}, name, content, list;
    bool quiet;
    if (request->body.data)
        ds_xml_skip_prolog(&rest);
    /* Read whole before the first is deleted: a list that is refused has changed nothing. */
    if (!request->body.data || ds_xml_next(&rest, &name, &list) != 1 || !ds_xml_is(&name, "Delete") ||
        read_list(list, &quiet) < 0) {
        ds_s3_error(reply, request, "MalformedXML");
        return;
    }
    struct ds_text *out = &reply->body;
    ds_xml_begin(out, "DeleteResult");
    while (ds_xml_next(&list, &name, &content) == 1) {
        struct entry entry;
        if (!ds_xml_is(&name, "Object") || read_entry(&content, &entry) < 0)
            continue;
        const char *code = delete_one(api, request, bucket, &entry);
        put_answer(out, &entry, code, quiet);
        ds_counts_request(api->counts, MR_OP_DELETE, code ? 400 : 204, true);
    }
    ds_text_puts(out, "</DeleteResult>");
    ds_s3_xml(reply);
}
