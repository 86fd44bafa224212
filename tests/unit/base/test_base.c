/* test_base.c - errors, checksums, URIs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/crc64nvme.h"
#include "base/error.h"
#include "base/uri.h"
#include "tests/unit/suite.h"

START_TEST(error_carries_context)
{
    mr_error_set(MR_E_NOT_FOUND, "no object \"%s\"", "a/b");
    mr_error_append("bucket %s", "x");
    ck_assert_str_eq(mr_error_text(), "bucket x: no object \"a/b\"");
    ck_assert_int_eq(mr_error_code(), MR_E_NOT_FOUND);
    mr_error_set(MR_E_IO, "again: %s", mr_error_text()); /* its own text as an argument */
    ck_assert_str_eq(mr_error_text(), "again: bucket x: no object \"a/b\"");
    ck_assert_str_eq(mr_code_name(9999), "unknown");
    ck_assert_int_eq(mr_code_exit_status(MR_E_CONFIG), 2);
}
END_TEST

/* What a server or a name says must not move a terminal's cursor, nor look like another line of the log. */
START_TEST(messages_have_no_control_characters)
{
    mr_error_set(MR_E_IO, "%s",
                 "a\x1b[31mb\nc\td\x7f"
                 "e\xc2\x9b"
                 "f \xc3\xa4");
    ck_assert_str_eq(mr_error_text(), "a?[31mb c d?e??f \xc3\xa4");
    mr_error_append("%s", "g\rh");
    ck_assert_str_eq(mr_error_text(), "g?h: a?[31mb c d?e??f \xc3\xa4");
}
END_TEST

START_TEST(crc32c_known_values)
{
    ck_assert_uint_eq(mr_crc32c(0, "123456789", 9), 0xe3069283u); /* RFC 3720 B.4's check value */
    ck_assert_uint_eq(mr_crc32c(0, "", 0), 0);
    char text[9];
    mr_crc32c_to_base64(0xe3069283u, text);
    ck_assert_str_eq(text, "4waSgw==");
    uint32_t crc;
    ck_assert_int_eq(mr_crc32c_from_base64("4waSgw==", 8, &crc), 0);
    ck_assert_uint_eq(crc, 0xe3069283u);
    ck_assert_int_eq(mr_crc32c_from_base64("4waSgw=", 7, &crc), -1);
    ck_assert_int_eq(mr_crc32c_from_base64("4waS!w==", 8, &crc), -1);
    ck_assert_int_eq(mr_crc32c_from_base64("4waSgx==", 8, &crc), -1); /* padding bits set */
}
END_TEST

START_TEST(crc64nvme)
{
    ck_assert_uint_eq(mr_crc64nvme(0, "123456789", 9), UINT64_C(0xae8b14860a799888)); /* the catalogue's check value */
    ck_assert_uint_eq(mr_crc64nvme(0, "", 0), 0);
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)mr_mix64(i);
    for (uint64_t seed = 0; seed < 300; seed++) {
        size_t whole = mr_mix64(seed) % sizeof data, cut = mr_mix64(seed + 1000) % (whole + 1);
        uint64_t a = mr_crc64nvme(0, data, cut), b = mr_crc64nvme(0, data + cut, whole - cut);
        ck_assert_uint_eq(mr_crc64nvme_combine(a, b, whole - cut), mr_crc64nvme(0, data, whole));
        ck_assert_uint_eq(mr_crc64nvme(a, data + cut, whole - cut), mr_crc64nvme(0, data, whole));
        uint32_t c = mr_crc32c(0, data, cut), d = mr_crc32c(0, data + cut, whole - cut);
        ck_assert_uint_eq(mr_crc_combine(0x82f63b78u, c, d, whole - cut), mr_crc32c(0, data, whole));
    }
}
END_TEST

START_TEST(crc64nvme_known_values)
{
    /* The NVM Command Set specification's test vectors, and the check value of the catalogue of CRCs. */
    static unsigned char block[4096];
    ck_assert_uint_eq(mr_crc64nvme(0, "123456789", 9), UINT64_C(0xae8b14860a799888));
    ck_assert_uint_eq(mr_crc64nvme(0, "", 0), 0);
    ck_assert_uint_eq(mr_crc64nvme(0, block, sizeof block), UINT64_C(0x6482d367eb22b64e));
    memset(block, 0xff, sizeof block);
    ck_assert_uint_eq(mr_crc64nvme(0, block, sizeof block), UINT64_C(0xc0ddba7302eca3ac));
    ck_assert_uint_eq(mr_crc64nvme_by_tables(0, block, sizeof block), UINT64_C(0xc0ddba7302eca3ac));
}
END_TEST

START_TEST(crc64nvme_is_the_same_by_tables_at_any_cut)
{
    static unsigned char data[1500];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)mr_mix64(i);
    for (size_t length = 0; length + 16 < sizeof data; length += 7) {
        const unsigned char *at = data + length % 16;
        uint64_t crc = mr_crc64nvme(0, at, length);
        ck_assert_uint_eq(crc, mr_crc64nvme_by_tables(0, at, length));
        ck_assert_uint_eq(crc, mr_crc64nvme(mr_crc64nvme(0, at, length / 3), at + length / 3, length - length / 3));
    }
}
END_TEST

START_TEST(checksums_as_text)
{
    struct mr_checksum sum = {MR_CHECKSUM_CRC64NVME, 0}, back = {MR_CHECKSUM_NONE, 5};
    char text[MR_CHECKSUM_TEXT_SIZE];
    mr_checksum_add(&sum, "123456789", 9);
    ck_assert_str_eq(mr_checksum_to_base64(&sum, text), "rosUhgp5mIg=");
    ck_assert_int_eq(mr_checksum_from_base64(&back, MR_CHECKSUM_CRC64NVME, text, 12), 0);
    ck_assert_uint_eq(back.value, sum.value);
    static const char *const bad[] = {
        "rosUhgp5mIg", "rosUhgp5mIh=", "rosUhgp5mI==", "rosUhgp5mIg=-3", "ros Uhgp5mIg", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(mr_checksum_from_base64(&back, MR_CHECKSUM_CRC64NVME, bad[i], strlen(bad[i])), -1);
    sum = (struct mr_checksum){MR_CHECKSUM_CRC32C, 0};
    mr_checksum_add(&sum, "123456789", 9);
    ck_assert_str_eq(mr_checksum_to_base64(&sum, text), "4waSgw==");
    ck_assert_str_eq(mr_checksum_name(MR_CHECKSUM_CRC64NVME), "crc64nvme");
    sum = (struct mr_checksum){MR_CHECKSUM_NONE, 7};
    mr_checksum_add(&sum, "1", 1);
    ck_assert_uint_eq(sum.value, 7);
    ck_assert_str_eq(mr_checksum_to_base64(&sum, text), "");
}
END_TEST

START_TEST(crc32c_combine_property)
{
    unsigned char data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)mr_mix64(i);
    for (uint64_t seed = 0; seed < 300; seed++) {
        size_t whole = mr_mix64(seed) % (sizeof data + 1), cut = whole ? mr_mix64(seed ^ 77) % (whole + 1) : 0;
        uint32_t a = mr_crc32c(0, data, cut), b = mr_crc32c(0, data + cut, whole - cut);
        ck_assert_uint_eq(mr_crc32c_combine(a, b, whole - cut), mr_crc32c(0, data, whole));
        ck_assert_uint_eq(mr_crc32c(a, data + cut, whole - cut), mr_crc32c(0, data, whole));
    }
}
END_TEST

START_TEST(uri_forms)
{
    static const struct {
        const char *text;
        int scheme;
        const char *bucket, *key;
    } good[] = {
        {"gs://b", MR_SCHEME_GS, "b", ""},
        {"gcs://b/", MR_SCHEME_GS, "b", ""},
        {"gs://b//x?y#z%20", MR_SCHEME_GS, "b", "/x?y#z%20"},
        {"s3://b.c/k/", MR_SCHEME_S3, "b.c", "k/"},
        {"s3+there.2://b/k", MR_SCHEME_S3, "there.2+b", "k"},
        {"file:///tmp/x", MR_SCHEME_FILE, "", "/tmp/x"},
        {"/tmp/y", MR_SCHEME_FILE, "", "/tmp/y"},
    };
    static const char *const bad[] = {"",
                                      "gs://",
                                      "gs:///k",
                                      "http://b/k",
                                      "file://host/x",
                                      "s3+://b",
                                      "s3+a+b://c/d",
                                      "s3+a:///k",
                                      "s3://a+b/c",
                                      "s3+a://b+c/d",
                                      "s3+a23456789012345678901234567890123://b"};
    struct mr_uri uri;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_int_eq(mr_uri_init(&uri, good[i].text), 0);
        ck_assert_int_eq(uri.scheme, good[i].scheme);
        ck_assert_str_eq(uri.bucket, good[i].bucket);
        ck_assert_str_eq(uri.key, good[i].key);
        mr_uri_close(&uri);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(mr_uri_init(&uri, bad[i]), -1);
        ck_assert_int_eq(mr_error_code(), MR_E_USAGE);
    }
    char place[MR_URI_PLACE_SIZE];
    ck_assert_str_eq(mr_uri_place(MR_SCHEME_S3, "there+b", place), "s3+there://b");
    ck_assert_str_eq(mr_uri_place(MR_SCHEME_GS, "b", place), "gs://b");
    ck_assert_str_eq(mr_uri_place(MR_SCHEME_FILE, "", place), "file://");
    ck_assert_str_eq(mr_uri_root(MR_SCHEME_S3, "there+b", place), "s3+there://b/");
    ck_assert_str_eq(mr_uri_root(MR_SCHEME_FILE, "", place), "file://");
    char *formatted = mr_uri_format(MR_SCHEME_S3, "there+b", "k");
    ck_assert_str_eq(formatted, "s3+there://b/k");
    free(formatted);
    char longer[400];
    snprintf(longer, sizeof longer, "gs://%0300d/k", 1);
    ck_assert_int_eq(mr_uri_init(&uri, longer), -1);
    ck_assert_ptr_nonnull(strstr(mr_error_text(), "the bucket name is too long"));
}
END_TEST

START_TEST(endpoints)
{
    static const char *const good[] = {"http://a",       "HTTPS://a.b:65535/", "a:1",       "10.0.0.1",
                                       "http://[::1]",   "[fe80::1]:9000",     "a:80/path", "[fe80::1%25eth0]:9000",
                                       "[fe80::1%eth0]", "http://a:/"};
    static const char *const bad[] = {
        "",     "a:",     "http://", "ftp://a",    "http:/a",       "://a",          "a b",   "a?b",
        "u@a",  "a#b",    "a:0",     "a:65536",    "a:1000000000",  "a:99999999999", "a:80x", ":80",
        "[::1", "[::1]x", "[a.b]x",  "http://a:b", "http://a:80:1", "http://\na"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        ck_assert_msg(mr_uri_is_endpoint(good[i], true), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(!mr_uri_is_endpoint(bad[i], true), "%s", bad[i]);
    ck_assert(!mr_uri_is_endpoint("a:80/path", false));
    ck_assert(mr_uri_is_endpoint("http://a:80//", false));
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("base");
    tcase_add_test(tc, error_carries_context);
    tcase_add_test(tc, messages_have_no_control_characters);
    tcase_add_test(tc, crc32c_known_values);
    tcase_add_test(tc, crc32c_combine_property);
    tcase_add_test(tc, crc64nvme);
    tcase_add_test(tc, crc64nvme_known_values);
    tcase_add_test(tc, crc64nvme_is_the_same_by_tables_at_any_cut);
    tcase_add_test(tc, checksums_as_text);
    tcase_add_test(tc, uri_forms);
    tcase_add_test(tc, endpoints);
    return mr_suite_run("base", tc);
}
