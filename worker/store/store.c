#include "worker/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/store_impl.h"
#include "worker/store/text.h"

void mr_store_close(struct mr_store *store)
{
    if (!store)
        return;
    while (store->calls)
        store->ops->cancel(store->calls);
    free(store->bucket);
    store->ops->destroy(store);
}

void mr_store_describe(const struct mr_store *store, char *endpoint, size_t endpoint_size, char *credentials,
                       size_t credentials_size)
{
    endpoint[0] = credentials[0] = 0;
    if (store->ops->describe)
        store->ops->describe(store, endpoint, endpoint_size, credentials, credentials_size);
}

bool mr_store_ignores_ranges(const struct mr_store *store)
{
    return store->no_ranges;
}

enum mr_scheme mr_store_scheme(const struct mr_store *store)
{
    return store->scheme;
}

static int store_check_name(const struct mr_store *store, const char *name, size_t length)
{
    char quoted[300];
    size_t most = store->scheme == MR_SCHEME_FILE ? MR_STORE_NAME_MAX - 1 : 1024;
    if (length == 0 || length > most || memchr(name, 0, length)) {
        mr_error_set(MR_E_USAGE, "\"%s\" is not an object name: it must have 1 to %zu bytes and no NUL",
                     mr_text_quote(quoted, sizeof quoted, name, length), most);
        return -1;
    }
    return 0;
}

struct mr_store_call *mr_store_list(struct mr_store *store, const struct mr_store_list_request *request,
                                    mr_store_list_fn *done, void *arg)
{
    return store->ops->list(store, request, done, arg);
}

bool mr_store_lists_ranges(const struct mr_store *store)
{
    return !store->unsorted;
}

struct mr_store_call *mr_store_get(struct mr_store *store, const struct mr_store_get_request *request,
                                   mr_store_get_fn *done, void *arg)
{
    if (store_check_name(store, request->name, request->name_length) != 0)
        return NULL;
    if (request->offset > INT64_MAX || request->length > (uint64_t)INT64_MAX - request->offset ||
        (request->whole && request->offset != 0) || (!request->whole && request->length == 0)) {
        mr_error_set(MR_E_USAGE, "bytes %llu and %llu more are not a range of an object",
                     (unsigned long long)request->offset, (unsigned long long)request->length);
        return NULL;
    }
    return store->ops->get(store, request, done, arg);
}

struct mr_store_call *mr_store_stat(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                    mr_store_stat_fn *done, void *arg)
{
    if (store_check_name(store, name, name_length) != 0)
        return NULL;
    return store->ops->stat(store, name, name_length, generation, done, arg);
}

/* It becomes a header line. NULL is allowed; -1 with mr_error. */
static int check_type(const char *content_type)
{
    for (const unsigned char *at = (const unsigned char *)content_type; at && *at; at++) {
        if (*at < 0x20 || *at > 0x7e) {
            mr_error_set(MR_E_USAGE, "a content type must be printable ASCII");
            return -1;
        }
    }
    return 0;
}

struct mr_store_call *mr_store_insert(struct mr_store *store, const struct mr_store_insert_request *request,
                                      mr_store_stat_fn *done, void *arg)
{
    if (store_check_name(store, request->name, request->name_length) != 0 || check_type(request->content_type) != 0)
        return NULL;
    if (request->length > INT64_MAX) {
        mr_error_set(MR_E_USAGE, "an object of %llu bytes: its length must fit 63 bits",
                     (unsigned long long)request->length);
        return NULL;
    }
    return store->ops->insert(store, request, done, arg);
}

struct mr_store_call *mr_store_delete(struct mr_store *store, const char *name, size_t name_length, uint64_t generation,
                                      mr_store_delete_fn *done, void *arg)
{
    if (store_check_name(store, name, name_length) != 0)
        return NULL;
    return store->ops->remove(store, name, name_length, generation, done, arg);
}

static int check_names(const struct mr_store *store, const struct mr_store_name *names, unsigned count, unsigned most,
                       const char *what)
{
    if (count == 0 || count > most) {
        mr_error_set(MR_E_USAGE, "%u objects to %s: 1 to %u are possible in one request", count, what, most);
        return -1;
    }
    for (unsigned i = 0; i < count; i++) {
        if (store_check_name(store, names[i].name, names[i].name_length) != 0)
            return -1;
    }
    return 0;
}

struct mr_store_call *mr_store_delete_batch(struct mr_store *store, const struct mr_store_name *names, unsigned count,
                                            mr_store_batch_fn *done, void *arg)
{
    if (check_names(store, names, count, MR_STORE_BATCH_MAX, "delete") != 0)
        return NULL;
    return store->ops->remove_batch(store, names, count, done, arg);
}

struct mr_store_call *mr_store_compose(struct mr_store *store, const struct mr_store_compose_request *request,
                                       mr_store_stat_fn *done, void *arg)
{
    if (store_check_name(store, request->name, request->name_length) != 0 || check_type(request->content_type) != 0 ||
        check_names(store, request->sources, request->count, MR_STORE_COMPOSE_MAX, "compose") != 0)
        return NULL;
    if (!store->ops->compose) {
        mr_error_set(MR_E_USAGE, "%s:// cannot put objects together: it has no such request",
                     mr_scheme_name(store->scheme));
        return NULL;
    }
    return store->ops->compose(store, request, done, arg);
}

struct mr_store_call *mr_store_upload_begin(struct mr_store *store, const struct mr_store_upload_request *request,
                                            mr_store_begin_fn *done, void *arg)
{
    if (store_check_name(store, request->name, request->name_length) != 0 || check_type(request->content_type) != 0)
        return NULL;
    return store->ops->upload_begin(store, request, done, arg);
}

struct mr_store_call *mr_store_upload_send(struct mr_store *store, const struct mr_store_chunk *chunk,
                                           mr_store_upload_fn *done, void *arg)
{
    if (chunk->length > INT64_MAX || chunk->offset > (uint64_t)INT64_MAX - chunk->length ||
        (!chunk->probe && chunk->total == MR_STORE_ANY &&
         (chunk->length == 0 || chunk->length % MR_STORE_CHUNK != 0)) ||
        (!chunk->probe && chunk->total != MR_STORE_ANY && chunk->offset + chunk->length != chunk->total)) {
        mr_error_set(MR_E_USAGE, "%llu bytes at %llu are not a chunk of an upload", (unsigned long long)chunk->length,
                     (unsigned long long)chunk->offset);
        return NULL;
    }
    return store->ops->upload_send(store, chunk, done, arg);
}

void mr_store_upload_drop(struct mr_store *store, const char *session)
{
    store->ops->upload_drop(store, session);
}

/* ---- upload parts ---- */

bool mr_store_has_parts(const struct mr_store *store)
{
    return store->ops->has_parts && store->ops->has_parts(store);
}

static int check_parts(const struct mr_store *store, const char *name, size_t length)
{
    if (!store->ops->has_parts) {
        mr_error_set(MR_E_USAGE, "%s:// has no upload parts", mr_scheme_name(store->scheme));
        return -1;
    }
    return store_check_name(store, name, length);
}

struct mr_store_call *mr_store_parts_begin(struct mr_store *store, const char *name, size_t name_length,
                                           const char *content_type, mr_store_parts_begin_fn *done, void *arg)
{
    if (check_parts(store, name, name_length) != 0 || check_type(content_type) != 0)
        return NULL;
    return store->ops->parts_begin(store, name, name_length, content_type, done, arg);
}

struct mr_store_call *mr_upload_part_send(struct mr_store *store, const struct mr_upload_part_request *request,
                                          mr_upload_part_fn *done, void *arg)
{
    if (check_parts(store, request->name, request->name_length) != 0)
        return NULL;
    if (request->number == 0 || request->number > MR_UPLOAD_PARTS_MAX || request->length > INT64_MAX) {
        mr_error_set(MR_E_USAGE, "upload part %u: an object has upload parts 1 to %d", request->number,
                     MR_UPLOAD_PARTS_MAX);
        return NULL;
    }
    return store->ops->part_send(store, request, done, arg);
}

struct mr_store_call *mr_store_parts_complete(struct mr_store *store, const struct mr_store_complete_request *request,
                                              mr_store_complete_fn *done, void *arg)
{
    if (check_parts(store, request->name, request->name_length) != 0)
        return NULL;
    if (request->count == 0 || request->count > MR_UPLOAD_PARTS_MAX) {
        mr_error_set(MR_E_USAGE, "%u upload parts: an object has 1 to %d", request->count, MR_UPLOAD_PARTS_MAX);
        return NULL;
    }
    return store->ops->parts_complete(store, request, done, arg);
}

struct mr_store_call *mr_store_parts_abort(struct mr_store *store, const char *name, size_t name_length, const char *id,
                                           mr_store_delete_fn *done, void *arg)
{
    if (check_parts(store, name, name_length) != 0)
        return NULL;
    return store->ops->parts_abort(store, name, name_length, id, done, arg);
}

struct mr_store_call *mr_store_parts_list(struct mr_store *store, const char *prefix, const char *from_name,
                                          const char *from_id, mr_store_parts_list_fn *done, void *arg)
{
    if (check_parts(store, "x", 1) != 0)
        return NULL;
    return store->ops->parts_list(store, prefix, from_name, from_id, done, arg);
}

/* ---- the bucket ---- */

struct mr_store_call *mr_store_bucket(struct mr_store *store, mr_store_bucket_fn *done, void *arg)
{
    return store->ops->bucket(store, done, arg);
}

struct mr_store_call *mr_store_permissions(struct mr_store *store, const char *const *names, unsigned count,
                                           mr_store_permissions_fn *done, void *arg)
{
    if (count == 0 || count > MR_STORE_PERMISSION_MAX) {
        mr_error_set(MR_E_USAGE, "%u permissions: 1 to %d can be asked for", count, MR_STORE_PERMISSION_MAX);
        return NULL;
    }
    if (!store->ops->permissions) {
        mr_error_set(MR_E_USAGE, "%s:// cannot be asked for them", mr_scheme_name(store->scheme));
        return NULL;
    }
    return store->ops->permissions(store, names, count, done, arg);
}

uint64_t mr_store_made(struct mr_store *store, const struct mr_store_made *by)
{
    return store->ops->made ? store->ops->made(store, by) : 0;
}

void mr_store_cancel(struct mr_store_call *call)
{
    call->store->ops->cancel(call);
}

void mr_store_call_link(struct mr_store *store, struct mr_store_call *call)
{
    call->store = store;
    call->previous = NULL;
    call->next = store->calls;
    if (store->calls)
        store->calls->previous = call;
    store->calls = call;
}

void mr_store_call_unlink(struct mr_store_call *call)
{
    *(call->previous ? &call->previous->next : &call->store->calls) = call->next;
    if (call->next)
        call->next->previous = call->previous;
}

int mr_store_names_copy(struct mr_store_name *to, const struct mr_store_name *names, unsigned count,
                        struct mr_text *strings)
{
    size_t at = strings->length;
    for (unsigned i = 0; i < count; i++) {
        mr_text_add(strings, names[i].name, names[i].name_length);
        mr_text_add(strings, "", 1);
        if (names[i].etag)
            mr_text_add(strings, names[i].etag, strlen(names[i].etag) + 1);
    }
    if (strings->failed)
        return -1;
    for (unsigned i = 0; i < count; i++) { /* only now: the strings' memory moved while it grew */
        to[i] = names[i];
        to[i].name = strings->data + at;
        at += names[i].name_length + 1;
        if (names[i].etag) {
            to[i].etag = strings->data + at;
            at += strlen(names[i].etag) + 1;
        }
    }
    return 0;
}

int mr_store_list_copy(struct mr_store_list_request *to, const struct mr_store_list_request *from,
                       struct mr_text *strings)
{
    const char *const all[] = {from->prefix, from->start_offset, from->end_offset, from->page_token, from->after};
    const char **const copies[] = {&to->prefix, &to->start_offset, &to->end_offset, &to->page_token, &to->after};
    mr_text_clear(strings);
    for (unsigned i = 0; i < 5; i++) {
        if (all[i])
            mr_text_add(strings, all[i], strlen(all[i]) + 1);
    }
    if (strings->failed)
        return -1;
    size_t at = 0;
    for (unsigned i = 0; i < 5; i++) { /* only now: the strings' memory moved while it grew */
        *copies[i] = all[i] ? strings->data + at : NULL;
        at += all[i] ? strlen(all[i]) + 1 : 0;
    }
    to->max_results = from->max_results;
    to->with_times = from->with_times;
    to->no_links = from->no_links;
    return 0;
}

const char *mr_store_uri(const struct mr_store *store, char *out, size_t size, const char *name, size_t length)
{
    int n = snprintf(out, size, "%s", store->root);
    if (n > 0 && (size_t)n + 8 < size)
        mr_text_quote(out + n, size - (size_t)n, name, length);
    return out;
}
