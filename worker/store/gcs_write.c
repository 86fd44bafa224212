/* Inserts, deletes and composes of the GCS client. Facts: docs/protocols.md, "Google Cloud Storage". */
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "worker/store/gcs_impl.h"

/* ---- insert: multipart/related, metadata in front ---- */

void mr_gcs_boundary(char out[MR_GCS_BOUNDARY_SIZE])
{
    snprintf(out, MR_GCS_BOUNDARY_SIZE, "millrace-%016llx%016llx", (unsigned long long)mr_random64(),
             (unsigned long long)mr_random64());
}

/* The pieces of the body point into head and tail, and to the caller's data. */
static void insert_body(struct gcs_call *call, const struct mr_store_insert_request *request)
{
    char boundary[MR_GCS_BOUNDARY_SIZE];
    const char *content_type = request->content_type ? request->content_type : MR_GCS_CONTENT_TYPE;
    struct mr_text *head = &call->head, *tail = &call->tail;
    mr_gcs_boundary(boundary);
    char crc[9];
    mr_crc32c_to_base64(request->crc32c, crc);
    mr_text_puts(head, "--");
    mr_text_puts(head, boundary);
    mr_text_puts(head, "\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{\"name\":");
    mr_text_put_json(head, request->name, request->name_length);
    mr_text_puts(head, ",\"contentType\":");
    mr_text_put_json(head, content_type, strlen(content_type));
    mr_text_puts(head, ",\"crc32c\":\"");
    mr_text_puts(head, crc);
    mr_text_puts(head, "\"}\r\n--");
    mr_text_puts(head, boundary);
    mr_text_puts(head, "\r\nContent-Type: ");
    mr_text_puts(head, content_type);
    mr_text_puts(head, "\r\n\r\n");
    mr_text_puts(tail, "\r\n--");
    mr_text_puts(tail, boundary);
    mr_text_puts(tail, "--\r\n");
    char type[MR_GCS_BOUNDARY_SIZE + 64];
    snprintf(type, sizeof type, "multipart/related; boundary=%s", boundary);
    mr_gcs_line(call, "Content-Type: ", type);
    call->body[0] = (struct mr_http_piece){head->data, head->length};
    call->body[1] = (struct mr_http_piece){request->body, request->length};
    call->body[2] = (struct mr_http_piece){tail->data, tail->length};
}

struct mr_store_call *mr_gcs_insert(struct mr_store *base, const struct mr_store_insert_request *request,
                                    mr_store_stat_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_INSERT, arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {
        .method = "POST",
        .body = call->body,
        .body_count = 3,
        .fresh_connection = request->generation_match == MR_STORE_ANY, /* see mr_gcs_delete */
    };
    call->done.stat = done;
    call->generation_match = request->generation_match;
    mr_text_add(&call->name, request->name, request->name_length);
    insert_body(call, request);
    mr_gcs_objects_url(store, "/upload");
    mr_text_puts(&store->url, "?uploadType=multipart&" MR_GCS_STAT_FIELDS "&name=");
    mr_text_put_encoded(&store->url, request->name, request->name_length);
    mr_gcs_match(&store->url, "ifGenerationMatch", request->generation_match);
    return mr_gcs_start(call, &http, mr_gcs_on_item);
}

/* ---- delete ---- */

void mr_gcs_on_removed(struct gcs_call *call, struct gcs_answer *answer)
{
    call->done.remove(call->arg, &answer->result);
    mr_gcs_give(call);
}

void mr_gcs_delete_url(struct gcs_store *store, struct mr_text *url, const struct mr_store_name *name)
{
    mr_text_add(url, store->objects.data + strlen(store->endpoint), store->objects.length - strlen(store->endpoint));
    mr_text_add(url, "/", 1);
    mr_text_put_encoded(url, name->name, name->name_length);
    mr_text_puts(url, "?alt=json");
    if (mr_store_is_generation(name->generation))
        mr_gcs_match(url, "ifGenerationMatch", name->generation);
}

struct mr_store_call *mr_gcs_delete(struct mr_store *base, const char *name, size_t name_length, uint64_t generation,
                                    mr_store_delete_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_DELETE, arg);
    struct mr_store_name target = {name, name_length, generation, NULL};
    struct mr_http_request http = {
        .method = "DELETE",
        /* Without a precondition it is not repeated, so it must not use an old connection, which may be dead. */
        .fresh_connection = !mr_store_is_generation(generation),
    };
    if (!call)
        return NULL;
    call->done.remove = done;
    call->generation_match = generation;
    mr_text_add(&call->name, name, name_length);
    mr_text_clear(&store->url);
    mr_text_puts(&store->url, store->endpoint);
    mr_gcs_delete_url(store, &store->url, &target);
    return mr_gcs_start(call, &http, mr_gcs_on_removed);
}

/* ---- compose ---- */

static void compose_body(struct mr_text *body, const struct mr_store_compose_request *request)
{
    const char *content_type = request->content_type ? request->content_type : MR_GCS_CONTENT_TYPE;
    mr_text_puts(body, "{\"destination\":{\"contentType\":");
    mr_text_put_json(body, content_type, strlen(content_type));
    mr_text_puts(body, "},\"sourceObjects\":[");
    for (unsigned i = 0; i < request->count; i++) {
        const struct mr_store_name *source = &request->sources[i];
        mr_text_puts(body, i ? ",{\"name\":" : "{\"name\":");
        mr_text_put_json(body, source->name, source->name_length);
        if (mr_store_is_generation(source->generation)) {
            mr_text_puts(body, ",\"generation\":");
            mr_text_put_u64(body, source->generation);
            mr_text_puts(body, ",\"objectPreconditions\":{\"ifGenerationMatch\":");
            mr_text_put_u64(body, source->generation);
            mr_text_puts(body, "}");
        }
        mr_text_puts(body, "}");
    }
    mr_text_puts(body, "]}");
}

struct mr_store_call *mr_gcs_compose(struct mr_store *base, const struct mr_store_compose_request *request,
                                     mr_store_stat_fn *done, void *arg)
{
    struct gcs_store *store = (struct gcs_store *)base;
    struct gcs_call *call = mr_gcs_take(store, GCS_COMPOSE, arg);
    if (!call)
        return NULL;
    struct mr_http_request http = {
        .method = "POST",
        .body = call->body,
        .body_count = 1,
        .fresh_connection = request->generation_match == MR_STORE_ANY,
    };
    call->done.stat = done;
    call->generation_match = request->generation_match;
    mr_text_add(&call->name, request->name, request->name_length);
    compose_body(&call->head, request);
    call->body[0] = (struct mr_http_piece){call->head.data, call->head.length};
    mr_gcs_line(call, "Content-Type: ", "application/json");
    mr_gcs_objects_url(store, "");
    mr_text_add(&store->url, "/", 1);
    mr_text_put_encoded(&store->url, request->name, request->name_length);
    mr_text_puts(&store->url, "/compose?" MR_GCS_STAT_FIELDS);
    mr_gcs_match(&store->url, "ifGenerationMatch", request->generation_match);
    return mr_gcs_start(call, &http, mr_gcs_on_item);
}
