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
    char etag[80]; /* "": whichever */
    bool version;  /* it names one, which there is not */
};

/* 0 or -1: malformed. */
static int read_entry(const struct mr_xml_view *content, struct entry *entry)
{
    struct mr_xml_view rest = *content, name, value;
    char version[80];
    int more;
    memset(entry, 0, sizeof *entry);
    while ((more = mr_xml_next(&rest, &name, &value)) == 1) {
        int rc = 0;
        if (mr_xml_is(&name, "Key"))
            rc = mr_xml_exact(&value, entry->key, sizeof entry->key);
        else if (mr_xml_is(&name, "ETag"))
            rc = mr_xml_string(&value, entry->etag, sizeof entry->etag);
        else if (mr_xml_is(&name, "VersionId") && (rc = mr_xml_string(&value, version, sizeof version)) == 0)
            entry->version = strcmp(version, "null") != 0;
        if (rc < 0)
            return -1;
    }
    return more == 0 && entry->key[0] && mr_utf8_valid(entry->key, strlen(entry->key)) ? 0 : -1;
}

/* The code of why it is not deleted, or NULL. */
static const char *delete_one(const struct mr_api *api, const struct mr_request *outer, struct mr_bucket *bucket,
                              const struct entry *entry)
{
    struct mr_request request = {.op = MR_OP_DELETE, .s3 = true, .xml = true, .bucket = outer->bucket};
    struct mr_conditions conditions = {0};
    request.object = (char *)entry->key;
    const struct mr_fault *fault = mr_faults_draw(api->faults, &request, true);
    if (fault)
        return mr_s3_fault_code(fault);
    if (mr_api_denied(api, MR_OP_DELETE))
        return "AccessDenied";
    if (entry->version)
        return "NoSuchVersion";
    if (entry->etag[0]) {
        char etag[48] = "";
        struct mr_object *live = mr_bucket_get(bucket, entry->key);
        if (live)
            mr_s3_etag(live, false, etag);
        conditions = (struct mr_conditions){.has = MR_IF_GENERATION, .generation = live ? live->generation : 0};
        mr_object_unref(live);
        if (!live || !mr_s3_etag_listed(entry->etag, etag))
            return "PreconditionFailed";
    }
    if (mr_bucket_delete(bucket, entry->key, 0, &conditions) == 0 || mr_error_code() == MR_E_NOT_FOUND)
        return NULL; /* what is not there is deleted */
    return mr_error_code() == MR_E_CHANGED ? "PreconditionFailed" : "InternalError";
}

static void put_answer(struct mr_text *out, const struct entry *entry, const char *code, bool quiet)
{
    if (!code && quiet)
        return;
    mr_text_puts(out, code ? "<Error>" : "<Deleted>");
    mr_xml_put(out, "Key", entry->key);
    if (code) {
        mr_xml_put(out, "Code", code);
        mr_xml_put(out, "Message", mr_s3_error_message(code));
    }
    mr_text_puts(out, code ? "</Error>" : "</Deleted>");
}

/* Reads the list: how many entries it has, and whether only errors are to be answered. -1: malformed. */
static int read_list(struct mr_xml_view list, bool *quiet)
{
    struct mr_xml_view name, content;
    struct entry entry;
    char text[8];
    int n = 0, more;
    *quiet = false;
    while ((more = mr_xml_next(&list, &name, &content)) == 1) {
        if (mr_xml_is(&name, "Quiet") && mr_xml_string(&content, text, sizeof text) == 0)
            *quiet = strcmp(text, "true") == 0;
        else if (mr_xml_is(&name, "Object") && read_entry(&content, &entry) == 0)
            n++;
        else
            return -1;
    }
    return more < 0 || n == 0 || n > MR_S3_PAGE_MAX ? -1 : n;
}

void mr_s3_batch(const struct mr_api *api, const struct mr_request *request, struct mr_reply *reply)
{
    struct mr_bucket *bucket = mr_api_bucket(api, request, reply);
    struct mr_s3_given given;
    if (!bucket || mr_s3_given(api, request, &given, reply) < 0)
        return;
    if (!given.algorithm && !mr_request_header(request, "Content-MD5")) {
        mr_s3_error_said(reply, request, "InvalidRequest",
                         "Missing required header for this request: Content-MD5 OR x-amz-checksum-*");
        return;
    }
    struct mr_xml_view rest = {request->body.data, request->body.data + request->body.length}, name, content, list;
    bool quiet;
    if (request->body.data)
        mr_xml_skip_prolog(&rest);
    /* Read whole before the first is deleted: a list that is refused has changed nothing. */
    if (!request->body.data || mr_xml_next(&rest, &name, &list) != 1 || !mr_xml_is(&name, "Delete") ||
        read_list(list, &quiet) < 0) {
        mr_s3_error(reply, request, "MalformedXML");
        return;
    }
    struct mr_text *out = &reply->body;
    mr_xml_begin(out, "DeleteResult");
    while (mr_xml_next(&list, &name, &content) == 1) {
        struct entry entry;
        if (!mr_xml_is(&name, "Object") || read_entry(&content, &entry) < 0)
            continue;
        const char *code = delete_one(api, request, bucket, &entry);
        put_answer(out, &entry, code, quiet);
        mr_counts_request(api->counts, MR_OP_DELETE, code ? 400 : 204, true);
    }
    mr_text_puts(out, "</DeleteResult>");
    mr_s3_xml(reply);
}
