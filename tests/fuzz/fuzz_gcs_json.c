/* fuzz_gcs_json.c - what a server may send as JSON: listing pages, object resources, error bodies. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fuzz.h"
#include "worker/store/gcs_json.h"

static void check_name(const char *name, size_t length)
{
    if (length == 0 || length > 1024 || strlen(name) != length)
        abort();
}

/* The first byte chooses the parser and the request, so that all of them are reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *json = (const char *)data + 1;
    size_t length = size - 1;
    struct mr_store_list_request request = {.page_token = "t"};
    if (data[0] & 1)
        request.prefix = "d/";
    if (data[0] & 2)
        request.end_offset = "d/m";
    struct mr_gcs_page *page = mr_gcs_page_parse(json, length, &request);
    if (!page && mr_error_text()[0] == 0)
        abort();
    if (page) {
        const struct mr_store_page *view = mr_gcs_page_view(page);
        for (size_t i = 0; i < view->count; i++) {
            const struct mr_store_item *it = &view->items[i];
            check_name(it->name, it->name_length);
            if (it->size > INT64_MAX || it->generation > INT64_MAX || !it->etag || !it->storage_class)
                abort();
            if ((request.prefix && strncmp(it->name, "d/", 2) != 0) ||
                (request.end_offset && strcmp(it->name, "d/m") >= 0) || (i && strcmp(it[-1].name, it->name) >= 0))
                abort();
        }
        if (view->next_token && (!view->next_token[0] || strcmp(view->next_token, "t") == 0))
            abort();
        mr_gcs_page_destroy(page);
    }
    struct mr_store_item item;
    if (mr_gcs_item_parse(json, length, &item, &page) == 0) {
        check_name(item.name, item.name_length);
        mr_gcs_page_destroy(page);
    }
    struct mr_store_bucket bucket;
    if (mr_gcs_bucket_parse(json, length, &bucket, &page) == 0) {
        if (!bucket.storage_class || !bucket.location || !bucket.location_type || bucket.soft_delete_s > INT64_MAX)
            abort();
        mr_gcs_page_destroy(page);
    }
    unsigned granted;
    if (mr_gcs_permissions_parse(json, length, "a\0storage.objects.get", 22, &granted) == 0 && granted > 3)
        abort();
    char text[64];
    mr_gcs_error_text(json, length, text, sizeof text);
    for (const char *p = text; *p; p++) {
        if ((unsigned char)*p < 0x20)
            abort();
    }
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "\x03{\"kind\":\"storage#objects\",\"nextPageToken\":\"u\",\"items\":[{\"name\":\"d/a\",\"size\":\"12\","
        "\"generation\":\"1700000000000001\",\"crc32c\":\"4waSgw==\",\"storageClass\":\"STANDARD\"},{\"name\":\"d/b\","
        "\"size\":\"9223372036854775807\",\"generation\":\"2\"},{\"name\":\"d/"
        "l\\u00e9\",\"size\":1,\"generation\":3}]}",
        "\x01{\"items\":[{\"name\":\"d/a\",\"size\":\"12\",\"generation\":\"1\"}]}",
        "\x04{\"name\":\"d/a\",\"size\":\"12\",\"generation\":\"17\",\"crc32c\":\"AAAAAA==\",\"etag\":\"CJ==\"}",
        ("\x04{\"storageClass\":\"RAPID\",\"locationType\":\"zone\",\"hierarchicalNamespace\":{\"enabled\":true},"
         "\"softDeletePolicy\":{\"retentionDurationSeconds\":\"604800\"}}"),
        "\x03{\"items\":[{\"name\":\"d/"
        "a\",\"size\":\"1\",\"generation\":\"1\",\"timeCreated\":\"2026-01-02T03:04:05.678Z\","
        "\"etag\":\"e\"}],\"nextPageToken\":\"t\"}",
        "\x01{\"items\":[{\"name\":\"d/b\",\"size\":\"1\",\"generation\":\"1\"},{\"name\":\"d/a\",\"size\":\"1\","
        "\"generation\":\"1\"}]}",
        "\x01{\"items\":[{\"name\":\"e\",\"size\":\"1\",\"generation\":\"1\"}]}",
        "\x02{\"items\":[{\"name\":\"d/z\",\"size\":\"1\",\"generation\":\"1\"}]}",
        "\x01{\"items\":[],\"items\":[],\"nextPageToken\":1}",
        "\x01{\"nextPageToken\":1}",
        "\x04{\"location\":\"US\",\"versioning\":{\"enabled\":true},\"autoclass\":{\"enabled\":true},\"billing\":{"
        "\"requesterPays\":true},\"hierarchicalNamespace\":1,\"softDeletePolicy\":{\"retentionDurationSeconds\":-1}}",
        "\x04{\"error\":\"invalid_grant\",\"error_description\":\"x\"}",
        "\x04{\"permissions\":[\"storage.objects.get\",\"a\"]}",
        "\x04{\"error\":{\"code\":404,\"message\":\"No such object\",\"errors\":[{\"reason\":\"notFound\"}]}}",
        "\x04<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access denied.</Message></Error>",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
