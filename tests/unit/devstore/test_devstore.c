/* The development store's parsers, its ordered names, made-up objects and fault draws, without a server. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "devstore/faults.h"
#include "devstore/fields.h"
#include "devstore/folder.h"
#include "devstore/mime.h"
#include "devstore/names.h"
#include "devstore/object.h"
#include "devstore/options.h"
#include "devstore/pace.h"
#include "devstore/request.h"
#include "devstore/s3_info.h"
#include "devstore/s3_sums.h"
#include "devstore/synthetic.h"
#include "devstore/text.h"
#include "devstore/xml.h"

static void check_decoded(const char *text, const char *expected)
{
    char *decoded = ds_percent_decode(text, strlen(text), true);
    if (expected)
        ck_assert_str_eq(decoded, expected);
    else
        ck_assert_ptr_null(decoded);
    free(decoded);
}

START_TEST(percent_encoding)
{
    check_decoded("", "");
    check_decoded("a%2Fb+c%20d", "a/b c d");
    check_decoded("%c3%A9", "\xc3\xa9");
    check_decoded("%", NULL);
    check_decoded("a%2", NULL);
    check_decoded("%2x", NULL);
    check_decoded("%00", NULL);
    check_decoded("%ff", NULL);
    char every[256];
    for (int i = 1; i < 256; i++)
        every[i - 1] = (char)i;
    every[255] = 0;
    struct ds_text all = {0};
    ds_text_percent(&all, every + 127); /* every byte that needs its code */
    ck_assert_uint_eq(all.length, 3 * 128);
    ds_text_close(&all);
}
END_TEST

static void check_exact(const char *text, const char *expected)
{
    struct ds_xml_view view = {text, text + strlen(text)};
    char out[16];
    ck_assert_int_eq(ds_xml_exact(&view, out, sizeof out), expected ? 0 : -1);
    if (expected)
        ck_assert_str_eq(out, expected);
}

START_TEST(keys_in_xml)
{
    check_exact("", "");
    check_exact(" a b\n", " a b\n"); /* blanks are a key's */
    check_exact("&amp;&lt;&gt;&quot;&apos;&#10;&#xD;&#x41;", "&<>\"'\n\rA");
    check_exact("&#xe9;&#x20ac;&#x1f600;", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    check_exact("123456789012345", "123456789012345");
    check_exact("1234567890123456", NULL); /* no room */
    check_exact("12345678901234&#xe9;", NULL);
    check_exact("&", NULL);
    check_exact("&;", NULL);
    check_exact("&amp", NULL);
    check_exact("&#;", NULL);
    check_exact("&#x;", NULL);
    check_exact("&#-1;", NULL);
    check_exact("&#0;", NULL);
    check_exact("&#xdfff;", NULL);
    check_exact("&#x110000;", NULL);
    check_exact("a<b", NULL);
}
END_TEST

START_TEST(lists_of_etags)
{
    ck_assert(ds_s3_etag_listed("\"ab-1\"", "ab-1"));
    ck_assert(ds_s3_etag_listed("ab-1", "ab-1"));
    ck_assert(ds_s3_etag_listed("\"x\" , W/\"ab-1\"", "ab-1"));
    ck_assert(ds_s3_etag_listed(" *", "ab-1"));
    ck_assert(!ds_s3_etag_listed("", "ab-1"));
    ck_assert(!ds_s3_etag_listed(" , ,", "ab-1"));
    ck_assert(!ds_s3_etag_listed("\"ab-1", "ab-1"));
    ck_assert(!ds_s3_etag_listed("\"ab\"", "ab-1"));
    ck_assert(!ds_s3_etag_listed("\"ab-12\"", "ab-1"));
}
END_TEST

/* Of each CRC: a part, the rest, and both joined are what the whole is. */
START_TEST(s3_sums_join)
{
    char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    for (size_t cut = 0; cut <= sizeof data; cut += 125) {
        struct ds_s3_sums part, rest, whole;
        unsigned all = 1u << MR_S3_CRC32 | 1u << MR_S3_CRC32C | 1u << MR_S3_CRC64NVME;
        ck_assert_int_eq(ds_s3_sums_init(&part, all) + ds_s3_sums_init(&rest, all) + ds_s3_sums_init(&whole, all), 0);
        ds_s3_sums_write(&part, data, cut);
        ds_s3_sums_write(&rest, data + cut, sizeof data - cut);
        ds_s3_sums_write(&whole, data, sizeof data);
        for (enum ds_s3_algorithm i = MR_S3_CRC32; i <= MR_S3_CRC64NVME; i++) {
            uint8_t a[32], b[32], expected[32];
            ds_s3_sums_raw(&part, i, a);
            ds_s3_sums_raw(&rest, i, b);
            ds_s3_sums_raw(&whole, i, expected);
            ds_s3_sum_join(i, a, b, sizeof data - cut);
            ck_assert_mem_eq(a, expected, ds_s3_sum_size(i));
            char text[MR_S3_SUM_MAX];
            ds_s3_sum_to_text(i, a, text);
            ck_assert_int_eq(ds_s3_sum_from_text(i, text, b), 0);
            ck_assert_mem_eq(a, b, ds_s3_sum_size(i));
        }
        ds_s3_sums_close(&part);
        ds_s3_sums_close(&rest);
        ds_s3_sums_close(&whole);
    }
    uint8_t raw[32];
    ck_assert_int_eq(ds_s3_sum_from_text(MR_S3_CRC32, "AAAAAA==", raw), 0);
    ck_assert_int_eq(ds_s3_sum_from_text(MR_S3_CRC32, "AAAAAAA=", raw), -1); /* five bytes */
    ck_assert_int_eq(ds_s3_sum_from_text(MR_S3_CRC32, "AAAAAB==", raw), -1); /* bits in the padding */
    ck_assert_int_eq(ds_s3_sum_from_text(MR_S3_CRC64NVME, "AAAAAA==", raw), -1);
    ck_assert_int_eq(ds_s3_algorithm("x-amz-checksum-sha256"), MR_S3_SHA256);
    ck_assert_int_eq(ds_s3_algorithm("md5"), MR_S3_NONE);
}
END_TEST

START_TEST(utf8)
{
    ck_assert(ds_utf8_valid("\xf0\x9f\x98\x80", 4));
    ck_assert(!ds_utf8_valid("\xf0\x9f\x98", 3));
    ck_assert(!ds_utf8_valid("\xc0\x80", 2));         /* overlong */
    ck_assert(!ds_utf8_valid("\xed\xa0\x80", 3));     /* surrogate */
    ck_assert(!ds_utf8_valid("\xf4\x90\x80\x80", 4)); /* over 10FFFF */
    ck_assert(!ds_utf8_valid("a\0b", 3));
}
END_TEST

START_TEST(numbers)
{
    uint64_t n = 7;
    ck_assert_int_eq(ds_parse_u64("18446744073709551615", &n), 0);
    ck_assert_uint_eq(n, UINT64_MAX);
    ck_assert_int_eq(ds_parse_u64("18446744073709551616", &n), -1);
    ck_assert_int_eq(ds_parse_u64("", &n), -1);
    ck_assert_int_eq(ds_parse_u64(" 1", &n), -1);
    ck_assert_int_eq(ds_parse_u64("-1", &n), -1);
    ck_assert_int_eq(ds_parse_size("100KiB", &n), 0);
    ck_assert_uint_eq(n, 102400);
    ck_assert_int_eq(ds_parse_size("17179869184GiB", &n), -1);
    ck_assert_int_eq(ds_parse_size("5 MiB", &n), -1);
    double x = 7;
    ck_assert_int_eq(ds_parse_real("0.25", &x), 0);
    ck_assert_double_eq(x, 0.25);
    ck_assert_int_eq(ds_parse_real("nan", &x), -1);
    ck_assert_int_eq(ds_parse_real("1e999", &x), -1);
    ck_assert_int_eq(ds_parse_real("-1", &x), -1);
}
END_TEST

START_TEST(ranges)
{
    uint64_t a = 0, b = 0;
    ck_assert_int_eq(ds_parse_range("bytes=2-5", 10, &a, &b), MR_RANGE_PART);
    ck_assert(a == 2 && b == 5);
    ck_assert_int_eq(ds_parse_range("bytes=2-50", 10, &a, &b), MR_RANGE_PART);
    ck_assert(a == 2 && b == 9);
    ck_assert_int_eq(ds_parse_range("bytes=-3", 10, &a, &b), MR_RANGE_PART);
    ck_assert(a == 7 && b == 9);
    ck_assert_int_eq(ds_parse_range("bytes=10-", 10, &a, &b), MR_RANGE_UNSATISFIABLE);
    ck_assert_int_eq(ds_parse_range("bytes=0-", 0, &a, &b), MR_RANGE_UNSATISFIABLE);
    ck_assert_int_eq(ds_parse_range("bytes=-1", 0, &a, &b), MR_RANGE_UNSATISFIABLE);
    ck_assert_int_eq(ds_parse_range(NULL, 10, &a, &b), MR_RANGE_NONE);
    ck_assert_int_eq(ds_parse_range("bytes=1-2,3-4", 10, &a, &b), MR_RANGE_NONE);
}
END_TEST

START_TEST(tokens)
{
    static const char *const names[] = {"", "a", "ab", "abc", "\xc3\xa9/x", "obj-000000001"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *token = ds_token_encode(names[i]), *name = ds_token_decode(token);
        ck_assert_str_eq(name, names[i]);
        free(token);
        free(name);
    }
    ck_assert_ptr_null(ds_token_decode("A"));
    ck_assert_ptr_null(ds_token_decode("AB")); /* bits left over that encode does not write */
    ck_assert_ptr_null(ds_token_decode("YQ=="));
    ck_assert_ptr_null(ds_token_decode("_w")); /* 0xff: not UTF-8 */
}
END_TEST

START_TEST(json_strings)
{
    struct ds_text text = {0};
    ds_text_json_string(&text, "a\"\\\n\x7f\xc3\xa9");
    ck_assert_str_eq(text.data, "\"a\\\"\\\\\\u000a\\u007f\xc3\xa9\"");
    ds_text_close(&text);
}
END_TEST

START_TEST(field_masks)
{
    struct ds_fields fields;
    ck_assert_int_eq(ds_fields_parse(&fields, "items(name,size),nextPageToken"), 0);
    int items = ds_fields_under(&fields, 0, "items");
    ck_assert_int_gt(items, 0);
    ck_assert_int_ge(ds_fields_under(&fields, items, "size"), 0);
    ck_assert_int_eq(ds_fields_under(&fields, items, "crc32c"), -1);
    ck_assert_int_eq(ds_fields_under(&fields, 0, "prefixes"), -1);
    ck_assert_int_eq(ds_fields_parse(&fields, "items/a,items(b)"), 0);
    items = ds_fields_under(&fields, 0, "items");
    ck_assert(ds_fields_under(&fields, items, "a") > 0 && ds_fields_under(&fields, items, "b") > 0);
    ck_assert_int_eq(ds_fields_parse(&fields, "*"), 0);
    ck_assert_int_gt(ds_fields_under(&fields, ds_fields_under(&fields, 0, "items"), "size"), 0);
    ck_assert_int_eq(ds_fields_parse(&fields, NULL), 0);
    ck_assert_int_eq(ds_fields_under(&fields, ds_fields_under(&fields, 0, "items"), "size"), 0);
    static const char *const bad[] = {"", ",", "a,", "a(", "a()", "a)", "a(b", "a/", "/a", "a//b", "(a)", "a(b))"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(ds_fields_parse(&fields, bad[i]) < 0, "%s", bad[i]);
}
END_TEST

START_TEST(multipart)
{
    static const char body[] =
        "preamble\r\n--b\r\nContent-ID: <1>\r\n\r\none\r\n--bx\r\nstill one\r\n--b \r\n\r\n\r\n--b\n\nLF\n--b--\r\n";
    struct ds_mime_part part;
    size_t at = 0, n = sizeof body - 1;
    ck_assert_int_eq(ds_mime_next(body, n, "b", &at, &part), 1);
    ck_assert_uint_eq(part.body_length, strlen("one\r\n--bx\r\nstill one"));
    char *id = ds_mime_header(part.headers, part.headers_length, "content-id");
    ck_assert_str_eq(id, "<1>");
    free(id);
    ck_assert_int_eq(ds_mime_next(body, n, "b", &at, &part), 1);
    ck_assert_uint_eq(part.body_length, 0);
    ck_assert_int_eq(ds_mime_next(body, n, "b", &at, &part), 1);
    ck_assert(part.body_length == 2 && memcmp(part.body, "LF", 2) == 0);
    ck_assert_int_eq(ds_mime_next(body, n, "b", &at, &part), 0);
    /* Any cut of it is an error or an end, never a read past it (a sanitizer would abort). */
    for (size_t cut = 0; cut < n; cut++) {
        char *copy = malloc(cut + 1);
        memcpy(copy, body, cut);
        at = 0;
        for (int parts = 0; ds_mime_next(copy, cut, "b", &at, &part) == 1; parts++)
            ck_assert_int_lt(parts, 4);
        ds_mime_closing(copy, cut, "b", true);
        free(copy);
    }
}
END_TEST

START_TEST(boundaries)
{
    char boundary[MR_BOUNDARY_MAX + 1];
    ck_assert_int_eq(ds_mime_boundary("multipart/related; a=b; Boundary=\"x y\"", boundary), 0);
    ck_assert_str_eq(boundary, "x y");
    ck_assert_int_eq(ds_mime_boundary("multipart/mixed;boundary=xy; charset=z", boundary), 0);
    ck_assert_str_eq(boundary, "xy");
    ck_assert_int_eq(ds_mime_boundary(NULL, boundary), -1);
    ck_assert_int_eq(ds_mime_boundary("multipart/mixed", boundary), -1);
    ck_assert_int_eq(ds_mime_boundary("multipart/mixed; boundary=", boundary), -1);
    ck_assert_int_eq(ds_mime_boundary("multipart/mixed; boundary=\"open", boundary), -1);
    char longest[200] = "multipart/related; boundary=";
    memset(longest + strlen(longest), 'x', 71);
    ck_assert_int_eq(ds_mime_boundary(longest, boundary), -1);
    ck_assert_int_eq(ds_mime_closing("data\r\n--b--\r\n", 13, "b", 0), 4);
    ck_assert_int_eq(ds_mime_closing("--b--", 5, "b", 1), 0);
    ck_assert_int_eq(ds_mime_closing("--b--", 5, "b", 0), -1);
    ck_assert_int_eq(ds_mime_closing("data--b--", 9, "b", 1), -1);
}
END_TEST

START_TEST(ordered_names)
{
    enum { N = 3000 };
    struct ds_names *names = ds_names_new();
    char name[32];
    for (unsigned i = 0; i < N; i++) { /* 7919 and N have no common factor: every number once, in no order */
        snprintf(name, sizeof name, "%u", i * 7919 % N);
        ck_assert_int_eq(ds_names_put(names, ds_object_new(name)), 0);
    }
    ck_assert_int_eq(ds_names_put(names, ds_object_new("17")), 0); /* in place of itself */
    ck_assert_uint_eq(ds_names_count(names), N);
    for (unsigned i = 0; i < N; i += 2) {
        snprintf(name, sizeof name, "%u", i);
        ds_names_remove(names, name);
        ds_names_remove(names, name); /* nothing there: nothing happens */
    }
    ck_assert_uint_eq(ds_names_count(names), N / 2);
    unsigned seen = 0;
    char last[32] = "";
    for (struct ds_object *object = ds_names_next(names, "", false); object;
         object = ds_names_next(names, last, true), seen++) {
        ck_assert_int_gt(strcmp(object->name, last), 0);
        ck_assert_int_eq(atoi(object->name) % 2, 1);
        snprintf(last, sizeof last, "%s", object->name);
    }
    ck_assert_uint_eq(seen, N / 2);
    ck_assert_str_eq(ds_names_next(names, "17", 0)->name, "17");
    ck_assert_str_eq(ds_names_next(names, "17", 1)->name, "1701");
    ck_assert_ptr_null(ds_names_find(names, "18"));
    ds_names_destroy(names);
}
END_TEST

START_TEST(names_that_are_no_paths)
{
    static const char *const plain[] = {"a", "a/b", "...", ".hidden", "x/.devstore/y", "%"};
    static const char *const other[] = {"",   "/",      "a/",  "/a",        "a//b",       ".",
                                        "..", "a/../b", "./a", ".devstore", ".devstore/x"};
    char long_name[MR_NAME_MAX + 1];
    memset(long_name, '%', MR_NAME_MAX);
    long_name[MR_NAME_MAX] = 0;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        char *path = ds_folder_plain_path(plain[i]);
        ck_assert_str_eq(path, plain[i]);
        free(path);
    }
    for (size_t i = 0; i <= sizeof other / sizeof *other; i++) {
        const char *name = i < sizeof other / sizeof *other ? other[i] : long_name;
        ck_assert_ptr_null(ds_folder_plain_path(name));
        char *path = ds_folder_side_path(name);
        if (*name) {
            char *back = ds_folder_side_name(path + strlen(".devstore/"));
            ck_assert_str_eq(back, name);
            free(back);
        }
        for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
            ck_assert_uint_le(strcspn(part, "/"), 255);
        free(path);
    }
    ck_assert_ptr_null(ds_folder_side_name("x"));
    ck_assert_ptr_null(ds_folder_side_name("x=/y="));
    ck_assert_ptr_null(ds_folder_side_name("%="));
    ck_assert_ptr_null(ds_folder_side_name(""));
}
END_TEST

START_TEST(synthetic_sums)
{
    /* Around the slab's end and the prefix sums' steps; the sums must be those of the bytes. */
    static const uint64_t sizes[] = {0, 1, 63, 64, 4096, (16u << 20) - 1, 16u << 20, 37u << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct ds_synthetic *synthetic = ds_synthetic_new(MR_SHAPE_FLAT, 100, sizes[i] / 2, sizes[i], i);
        for (uint64_t k = 0; k < 100; k += 33) {
            struct ds_object *object = ds_synthetic_object(synthetic, k);
            ck_assert(object->size >= sizes[i] / 2 && object->size <= sizes[i]);
            uint32_t crc;
            ck_assert_int_eq(ds_object_crc(object, &crc), 0);
            ck_assert_uint_eq(crc, mr_crc32c(0, object->one.data, object->size));
            ds_object_unref(object);
        }
        ds_synthetic_destroy(synthetic);
    }
}
END_TEST

START_TEST(synthetic_names)
{
    struct ds_synthetic *synthetic = ds_synthetic_new(MR_SHAPE_FLAT, 1000000, 10, 10, 0);
    ck_assert_uint_eq(ds_synthetic_seek(synthetic, "", 0), 0);
    ck_assert_uint_eq(ds_synthetic_seek(synthetic, "obj-000123456", 0), 123456);
    ck_assert_uint_eq(ds_synthetic_seek(synthetic, "obj-000123456", 1), 123457);
    ck_assert_uint_eq(ds_synthetic_seek(synthetic, "obj-000123456x", 0), 123457);
    ck_assert_uint_eq(ds_synthetic_seek(synthetic, "p", 0), 1000000);
    ck_assert_ptr_null(ds_synthetic_object(synthetic, 1000000));
    struct ds_object *last = ds_synthetic_object(synthetic, 999999);
    ck_assert_str_eq(last->name, "obj-000999999");
    ds_object_unref(last);
    ds_synthetic_destroy(synthetic);
    ck_assert_ptr_null(ds_synthetic_new(MR_SHAPE_FLAT, 2000000000, 1, 1, 0));
    ck_assert_ptr_null(ds_synthetic_new(MR_SHAPE_FLAT, 1, 2, 1, 0));
    ck_assert_ptr_null(ds_synthetic_new(MR_SHAPE_FLAT, 1, 0, UINT64_MAX, 0));
}
END_TEST

START_TEST(shapes_of_names)
{
    static const uint64_t counts[] = {1, 2, 1015, 1016, 30000};
    for (unsigned shape = 0; shape < MR_SHAPES; shape++) {
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            struct ds_synthetic *synthetic = ds_synthetic_new((enum ds_shape)shape, counts[k], 5, 5, 1);
            char last[MR_NAME_MAX + 1] = "";
            for (uint64_t i = 0; i < counts[k]; i++) {
                char name[MR_NAME_MAX + 1];
                size_t length = ds_shape_name((enum ds_shape)shape, counts[k], i, name);
                ck_assert_uint_eq(strlen(name), length);
                ck_assert(length >= 1 && length <= MR_NAME_MAX && ds_utf8_valid(name, length));
                ck_assert_msg(strcmp(last, name) < 0, "%s: \"%s\" is not before \"%s\"", ds_shape_names[shape], last,
                              name);
                if (i % 97 == 0 || i + 1 == counts[k]) {
                    ck_assert_uint_eq(ds_synthetic_seek(synthetic, name, 0), i);
                    ck_assert_uint_eq(ds_synthetic_seek(synthetic, name, 1), i + 1);
                }
                memcpy(last, name, length + 1);
            }
            ds_synthetic_destroy(synthetic);
        }
    }
}
END_TEST

static void check_route(const char *method, const char *uri, enum ds_op op, int bad, const char *object)
{
    struct ds_request request;
    ck_assert_int_eq(ds_request_init(&request, method, uri), 0);
    ck_assert_msg(request.op == op && request.bad == bad, "%s %s: %s %d", method, uri, ds_op_names[request.op],
                  request.bad);
    if (object)
        ck_assert_str_eq(request.object, object);
    ds_request_close(&request);
}

START_TEST(routes)
{
    check_route("GET", "/storage/v1/b/b/o/a%2Fb?alt=media", MR_OP_GET, 0, "a/b");
    check_route("HEAD", "/storage/v1/b/b/o/a%2Fcompose", MR_OP_STAT, 0, "a/compose");
    check_route("POST", "/storage/v1/b/b/o/a/compose", MR_OP_COMPOSE, 0, "a");
    check_route("GET", "/download/storage/v1/b/b/o/x", MR_OP_GET, 0, "x");
    check_route("GET", "/bucket/a/b%2Fc//d/e/f/g/h/i/j/k", MR_OP_GET, 0, "a/b/c//d/e/f/g/h/i/j/k");
    check_route("GET", "/storage/v1/b/b/o?prefix=%zz", MR_OP_OTHER, 400, NULL);
    check_route("GET", "/storage/v1/b/b/o/x/y/z/1/2/3/4/5", MR_OP_OTHER, 404, NULL);
    check_route("POST", "/storage/v1/b/b/o/x", MR_OP_OTHER, 405, NULL);
    check_route("PATCH", "/storage/v1/b/b/o/x", MR_OP_OTHER, 405, NULL);
    check_route("POST", "/storage/v1/b/b/o/x/rewriteTo/b/c/o/y", MR_OP_OTHER, 404, NULL);
    check_route("POST", "/storage/v1/b/b/o/x/copyTo/b/c/o/y", MR_OP_COPY, 0, "x");
    check_route("POST", "/storage/v1/b/b/o/x/moveTo/o/y", MR_OP_COPY, 0, "x");
    check_route("GET", "/storage/v1/b/b/o/x/copyTo/b/c/o/y", MR_OP_OTHER, 405, NULL);
    check_route("POST", "/upload/storage/v1/b/b/o?uploadType=resumable", MR_OP_RESUMABLE, 0, NULL);
    check_route("PUT", "/upload/storage/v1/b/b/o?uploadType=resumable&upload_id=1", MR_OP_CHUNK, 0, NULL);
    check_route("DELETE", "/upload/storage/v1/b/b/o?upload_id=1", MR_OP_CANCEL, 0, NULL);
    check_route("GET", "/bucket", MR_OP_LIST, 0, NULL);
    check_route("GET", "/bucket/?uploads", MR_OP_UPLOADS, 0, NULL);
    check_route("POST", "/bucket/x?uploads", MR_OP_INITIATE, 0, "x");
    check_route("PUT", "/bucket/x?partNumber=1&uploadId=1", MR_OP_PART, 0, "x");
    check_route("POST", "/bucket/x/y?uploadId=1", MR_OP_COMPLETE, 0, "x/y");
    check_route("DELETE", "/bucket/x?uploadId=1", MR_OP_ABORT, 0, "x");
    check_route("GET", "", MR_OP_OTHER, 404, NULL);
    check_route("GET", "?", MR_OP_OTHER, 404, NULL);
}
END_TEST

static void check_xml(const char *text, int more, const char *name, const char *content)
{
    struct ds_xml_view rest = {text, text + strlen(text)};
    ds_xml_skip_prolog(&rest);
    struct ds_xml_view found, inside;
    ck_assert_msg(ds_xml_next(&rest, &found, &inside) == more, "%s", text);
    if (more != 1)
        return;
    ck_assert(ds_xml_is(&found, name));
    char string[64];
    ck_assert_int_eq(ds_xml_string(&inside, string, sizeof string), 0);
    ck_assert_str_eq(string, content);
}

START_TEST(xml_elements)
{
    check_xml("", 0, NULL, NULL);
    check_xml(" <?xml version='1.0'?> <!-- <a> --> ", 0, NULL, NULL);
    check_xml("<?xml?><a x='1'> b&amp;&quot;&lt;&gt;&apos; </a>", 1, "a", "b&\"<>'");
    check_xml("<a/>", 1, "a", "");
    check_xml("<a><ab>1</ab></a >", 1, "a", "<ab>1</ab>");
    static const char *const bad[] = {"a",      "<",    "<>",       "<a", "<a>", "<a></b>",
                                      "<a></a", "<a<>", "< a></a>", "<?", "<!--"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_xml(bad[i], -1, NULL, NULL);
    struct ds_xml_view three = {"abc", NULL};
    three.end = three.at + 3;
    char few[3];
    ck_assert_int_eq(ds_xml_string(&three, few, sizeof few), -1);
    struct ds_text out = {0};
    ds_xml_put(&out, "n", "a<b>&\"\x01");
    ck_assert_str_eq(out.data, "<n>a&lt;b&gt;&amp;&quot;&#1;</n>");
    ds_text_close(&out);
}
END_TEST

START_TEST(paces)
{
    struct ds_pace pace;
    ds_pace_init(&pace, 0);
    ds_pace_charge(&pace, 5, 1000);
    ck_assert(ds_pace_ready(&pace) == 0 && ds_pace_piece(&pace) == UINT64_MAX);
    ds_pace_close(&pace);
    ds_pace_init(&pace, 1000);
    ck_assert_uint_eq(ds_pace_piece(&pace), 10);
    const int64_t second = 1000000000;
    ds_pace_charge(&pace, 10 * second, 500);
    ck_assert_int_eq(ds_pace_ready(&pace), 10 * second + second / 2);
    ds_pace_charge(&pace, 10 * second, 500); /* somebody else at the same time */
    ck_assert_int_eq(ds_pace_ready(&pace), 11 * second);
    ds_pace_charge(&pace, 20 * second, 1000); /* what was not used is lost, but for 10 ms */
    ck_assert_int_eq(ds_pace_ready(&pace), 21 * second - second / 100);
    ds_pace_close(&pace);
}
END_TEST

START_TEST(fault_specifications)
{
    struct ds_fault fault;
    ck_assert_int_eq(ds_fault_parse("keep-less:first=1:300000", &fault), 0);
    ck_assert(fault.op == MR_OP_CHUNK && fault.bytes == 300000);
    free(fault.glob);
    ck_assert_int_eq(ds_fault_parse("egress:1:7:insert:a", &fault), 0);
    ck_assert(fault.op == MR_OP_UPLOAD && fault.retry_after_s == 7);
    free(fault.glob);
    ck_assert_int_eq(ds_fault_parse("status:first=3:429/2:list:a:b", &fault), 0);
    ck_assert(fault.first == 3 && fault.status == 429 && fault.retry_after_s == 2 && fault.op == MR_OP_LIST);
    ck_assert_str_eq(fault.glob, "a:b");
    free(fault.glob);
    ck_assert_int_eq(ds_fault_parse("stall:0.5:1.5", &fault), 0);
    ck_assert(fault.rate == 0.5 && fault.seconds == 1.5 && fault.op == MR_OP_GET);
    free(fault.glob);
    ck_assert_int_eq(ds_fault_parse("short:1::*.png", &fault), 0);
    ck_assert(!fault.has_arg);
    ck_assert_str_eq(fault.glob, "*.png");
    free(fault.glob);
    static const char *const bad[] = {"",
                                      ":",
                                      "status",
                                      "status:",
                                      "status:1.5",
                                      "status:first=x",
                                      "status:over=0",
                                      "status:1:99",
                                      "wrong:1:-3",
                                      "changed:1:5",
                                      "stall:1:x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(ds_fault_parse(bad[i], &fault) < 0, "%s", bad[i]);
}
END_TEST

static unsigned draw(struct ds_faults *faults, unsigned objects, unsigned times)
{
    unsigned hits = 0;
    for (unsigned i = 0; i < objects * times; i++) {
        char uri[64];
        snprintf(uri, sizeof uri, "/bucket/object-%u", i % objects);
        struct ds_request request;
        ck_assert_int_eq(ds_request_init(&request, "GET", uri), 0);
        hits += ds_faults_draw(faults, &request, false) != NULL;
        ds_request_close(&request);
    }
    return hits;
}

START_TEST(fault_draws)
{
    struct ds_faults *faults = ds_faults_new(1);
    ck_assert_int_eq(ds_faults_add(faults, "status:first=2"), 0);
    ck_assert_int_eq(ds_faults_add(faults, "wrong:first=1"), 0);
    ck_assert_uint_eq(draw(faults, 3000, 5), 3000 * 3); /* two of the first kind, then one of the second */
    ds_faults_destroy(faults);
    faults = ds_faults_new(1);
    ck_assert_int_eq(ds_faults_add(faults, "status:0.25"), 0);
    unsigned hits = draw(faults, 1000, 10);
    ck_assert(hits > 2200 && hits < 2800); /* 6 standard deviations of 43 around 2500, and the same in each run */
    ds_faults_destroy(faults);
    faults = ds_faults_new(1);
    ck_assert_int_eq(ds_faults_add(faults, "status:over=10"), 0); /* one comes at once, and one may be saved up */
    int64_t began_ns = mr_clock_mono_ns();
    hits = draw(faults, 1000, 1);
    ck_assert_int_ge(2 + (mr_clock_mono_ns() - began_ns) / (100 * MR_MILLISECOND_NS), 1000 - hits);
    ck_assert_uint_ge(1000 - hits, 1);
    ds_faults_destroy(faults);
    ck_assert_ptr_null(ds_faults_draw(NULL, NULL, 0));
}
END_TEST

START_TEST(synthetic_specifications)
{
    struct ds_synthetic_spec spec;
    ck_assert_int_eq(ds_synthetic_spec_parse("bucket:10:1KiB-2KiB:9", 5, &spec), 0);
    ck_assert(spec.count == 10 && spec.size_min == 1024 && spec.size_max == 2048 && spec.seed == 9);
    ck_assert_int_eq(ds_synthetic_spec_parse("bucket:10:7", 5, &spec), 0);
    ck_assert(spec.size_min == 7 && spec.size_max == 7 && spec.seed == 5);
    ck_assert_int_eq(ds_synthetic_spec_parse("bucket:runs:10:7:3", 5, &spec), 0);
    ck_assert(spec.shape == MR_SHAPE_RUNS && spec.count == 10 && spec.size_max == 7 && spec.seed == 3);
    static const char *const bad[] = {"b:flat", "b:flat:1", "b:odd:1:1", "b:flat:1:1:1:1", "",          "b",
                                      "b:1",    "b:x:1",    "b:1:x",     "b:1:1:x",        "b:1:1:1:1", "b:1:1-"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(ds_synthetic_spec_parse(bad[i], 0, &spec) < 0, "%s", bad[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("devstore");
    TCase *tests = tcase_create("devstore");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, percent_encoding);
    tcase_add_test(tests, utf8);
    tcase_add_test(tests, keys_in_xml);
    tcase_add_test(tests, lists_of_etags);
    tcase_add_test(tests, s3_sums_join);
    tcase_add_test(tests, numbers);
    tcase_add_test(tests, ranges);
    tcase_add_test(tests, tokens);
    tcase_add_test(tests, json_strings);
    tcase_add_test(tests, field_masks);
    tcase_add_test(tests, multipart);
    tcase_add_test(tests, boundaries);
    tcase_add_test(tests, ordered_names);
    tcase_add_test(tests, names_that_are_no_paths);
    tcase_add_test(tests, synthetic_sums);
    tcase_add_test(tests, synthetic_names);
    tcase_add_test(tests, shapes_of_names);
    tcase_add_test(tests, routes);
    tcase_add_test(tests, xml_elements);
    tcase_add_test(tests, paces);
    tcase_add_test(tests, fault_specifications);
    tcase_add_test(tests, fault_draws);
    tcase_add_test(tests, synthetic_specifications);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
