/*
 * upload.c - an object in one request: POST /upload/... with uploadType=media or multipart, and PUT /bucket/object. The
 * bytes go to a file or to memory as they arrive.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "devstore/api.h"
#include "devstore/metadata.h"
#include "devstore/mime.h"
#include "devstore/s3.h"
#include "devstore/sink.h"
#include "devstore/upload_impl.h"
#include "devstore/xml.h"

#define HEAD_MAX (1u << 20) /* bytes of a multipart body in front of the data */
/* The end of a multipart body that is held back: the closing delimiter, and some blanks that may follow it. */
#define TAIL_MAX (MR_BOUNDARY_MAX + 64)

struct simple {
    struct ds_upload base;
    const struct ds_api *api;
    const struct ds_request *request;
    struct ds_bucket *bucket;
    struct ds_conditions conditions;
    struct ds_metadata metadata;
    struct ds_sink sink;
    bool multipart, in_data, failed;
    char boundary[MR_BOUNDARY_MAX + 1];
    struct ds_text head;
    char tail[TAIL_MAX];
    size_t tail_length;
    struct ds_reply failure;
};

/* From now on the bytes are ignored; finish sends this failure. */
static void fail_from_error(struct simple *upload)
{
    upload->failed = true;
    ds_reply_from_error(&upload->failure, upload->request);
}

/* Reads what the query and the headers say of the upload. 0, or -1 with an error. */
static int start_type(struct simple *upload)
{
    const char *kind = upload->request->xml ? "media" : ds_request_query(upload->request, "uploadType");
    const char *type = ds_request_header(upload->request, "Content-Type");
    const char *name = upload->request->xml ? upload->request->object : ds_request_query(upload->request, "name");
    if (name && ds_metadata_set_name(&upload->metadata, name) < 0)
        return -1;
    if (kind && strcmp(kind, "media") == 0) {
        upload->in_data = true;
        if (!name) {
            mr_error_set(MR_E_USAGE, "A media upload needs a name parameter.");
            return -1;
        }
        if (upload->request->xml)
            return ds_xml_metadata(upload->request, &upload->metadata);
        if (type && ds_metadata_set(&upload->metadata, MR_ATTR_CONTENT_TYPE, type) < 0)
            return -1;
        return ds_metadata_hash_header(&upload->metadata, ds_request_header(upload->request, "x-goog-hash"));
    }
    if (kind && strcmp(kind, "multipart") == 0) {
        upload->multipart = true;
        return ds_mime_boundary(type, upload->boundary);
    }
    mr_error_set(MR_E_USAGE, "uploadType is media, multipart or resumable, not \"%.50s\".", kind ? kind : "");
    return -1;
}

static void destroy(struct ds_upload *base)
{
    struct simple *upload = (struct simple *)base;
    ds_sink_close(&upload->sink);
    ds_metadata_close(&upload->metadata);
    ds_reply_close(&upload->failure);
    ds_text_close(&upload->head);
    free(upload);
}

/* Writes data of a multipart body, and holds back the last TAIL_MAX bytes of it. 0, or -1 with an error. */
static int write_held(struct simple *upload, const char *bytes, size_t length)
{
    size_t total = upload->tail_length + length, out = total > TAIL_MAX ? total - TAIL_MAX : 0;
    size_t from_tail = out < upload->tail_length ? out : upload->tail_length;
    if (ds_sink_write(&upload->sink, upload->tail, from_tail) < 0 ||
        ds_sink_write(&upload->sink, bytes, out - from_tail) < 0)
        return -1;
    upload->tail_length -= from_tail;
    memmove(upload->tail, upload->tail + from_tail, upload->tail_length);
    memcpy(upload->tail + upload->tail_length, bytes + (out - from_tail), length - (out - from_tail));
    upload->tail_length += length - (out - from_tail);
    return 0;
}

static int take_type(struct simple *upload, const struct ds_mime_part *data)
{
    int rc = 0;
    char *type = ds_mime_header(data->headers, data->headers_length, "Content-Type");
    if (type && !upload->metadata.attributes[MR_ATTR_CONTENT_TYPE])
        rc = ds_metadata_set(&upload->metadata, MR_ATTR_CONTENT_TYPE, type);
    free(type);
    return rc;
}

/* Once the JSON part and the data's headers are complete, takes them and the data that came along. 0, also before that,
 * or -1. */
static int parse_head(struct simple *upload)
{
    struct ds_mime_part json;
    size_t at = 0;
    if (ds_mime_next(upload->head.data, upload->head.length, upload->boundary, &at, &json) != 1)
        goto more;
    struct ds_mime_part data;
    int rc = ds_mime_next(upload->head.data, upload->head.length, upload->boundary, &at, &data);
    if (!data.body) {
        if (rc == 0) {
            mr_error_set(MR_E_USAGE, "The multipart body has no second part.");
            return -1;
        }
        goto more;
    }
    if (ds_metadata_parse(&upload->metadata, json.body, json.body_length) < 0 || take_type(upload, &data) < 0)
        return -1;
    upload->in_data = true;
    return write_held(upload, data.body, (size_t)(upload->head.data + upload->head.length - data.body));
more:
    if (upload->head.length <= HEAD_MAX)
        return 0;
    mr_error_set(MR_E_USAGE, "The multipart body's first part is malformed or over 1 MiB.");
    return -1;
}

static void write_bytes(struct ds_upload *base, const void *bytes, size_t length)
{
    struct simple *upload = (struct simple *)base;
    if (upload->failed)
        return;
    int rc = 0;
    if (!upload->multipart) {
        rc = ds_sink_write(&upload->sink, bytes, length);
    } else if (upload->in_data) {
        rc = write_held(upload, bytes, length);
    } else {
        ds_text_append(&upload->head, bytes, length);
        rc = parse_head(upload);
    }
    if (rc < 0)
        fail_from_error(upload);
}

/* The end of the data: writes what was held back, without the closing delimiter. 0 or -1 (USAGE). */
static int finish_multipart(struct simple *upload)
{
    bool whole = upload->sink.size == 0; /* the tail is all that there is */
    long end = upload->in_data ? ds_mime_closing(upload->tail, upload->tail_length, upload->boundary, whole) : -1;
    if (end < 0) {
        mr_error_set(MR_E_USAGE, "The multipart body is incomplete: two parts and a closing delimiter are expected.");
        return -1;
    }
    return ds_sink_write(&upload->sink, upload->tail, (size_t)end);
}

/* 0, or -1 with an error; *object may be set, and is the caller's reference, in either case. */
static int make_live(struct simple *upload, struct ds_object **object)
{
    if (upload->multipart && finish_multipart(upload) < 0)
        return -1;
    if (!upload->metadata.name) {
        mr_error_set(MR_E_USAGE, "The object has no name: neither in the query nor in the metadata.");
        return -1;
    }
    *object = ds_object_new(upload->metadata.name);
    if (!*object || ds_metadata_apply(&upload->metadata, *object) < 0 || ds_sink_fill(&upload->sink, *object) < 0 ||
        ds_metadata_check_sums(&upload->metadata, upload->sink.crc, (*object)->has_md5 ? (*object)->md5 : NULL) < 0)
        return -1;
    return ds_sink_put(&upload->sink, upload->bucket, *object, &upload->conditions);
}

static void upload_finish(struct ds_upload *base, struct ds_reply *reply)
{
    struct simple *upload = (struct simple *)base;
    struct ds_object *object = NULL;
    if (!upload->failed && make_live(upload, &object) < 0)
        fail_from_error(upload);
    if (upload->failed) {
        ds_reply_close(reply);
        *reply = upload->failure;
        ds_reply_init(&upload->failure);
    } else {
        ds_upload_answer(upload->request, upload->bucket, object, reply);
    }
    ds_object_unref(object);
}

static struct ds_upload *simple_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                    struct ds_reply *reply)
{
    struct ds_bucket *bucket = ds_api_bucket(api, request, reply);
    struct simple *upload = bucket ? calloc(1, sizeof *upload) : NULL;
    if (!bucket)
        return NULL;
    if (!upload) {
        ds_reply_error(reply, request, 500, NULL, "out of memory");
        return NULL;
    }
    upload->base = (struct ds_upload){.write = write_bytes, .finish = upload_finish, .destroy = destroy};
    upload->api = api;
    upload->request = request;
    upload->bucket = bucket;
    upload->sink.fd = -1;
    ds_reply_init(&upload->failure);
    if (ds_api_conditions(request, &upload->conditions, reply) < 0)
        goto fail;
    if (start_type(upload) < 0 || ds_sink_open(&upload->sink, ds_bucket_folder(bucket), length, api->md5) < 0) {
        ds_reply_from_error(reply, request);
        goto fail;
    }
    return &upload->base;
fail:
    destroy(&upload->base);
    return NULL;
}

struct ds_upload *ds_upload_new(const struct ds_api *api, const struct ds_request *request, uint64_t length,
                                struct ds_reply *reply)
{
    if (request->s3)
        return ds_s3_upload_new(api, request, length, reply);
    if (request->op == MR_OP_CHUNK)
        return ds_upload_chunk_new(api, request, length, reply);
    if (request->op == MR_OP_PART)
        return ds_upload_part_new(api, request, length, reply);
    return simple_new(api, request, length, reply);
}

void ds_upload_write(struct ds_upload *upload, const void *bytes, size_t length)
{
    upload->write(upload, bytes, length);
}

void ds_upload_finish(struct ds_upload *upload, struct ds_reply *reply)
{
    upload->finish(upload, reply);
}

void ds_upload_destroy(struct ds_upload *upload)
{
    if (upload)
        upload->destroy(upload);
}
