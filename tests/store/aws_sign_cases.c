/*
 * aws_sign_cases.c - signs requests for test_aws_sign.py, with one signer for all of them. On standard input: records that
 * end with byte 0x1e, of fields that end with 0x1f: access key, secret, session token or nothing, region, service,
 * method, URL, date, payload or nothing, body, header lines. Prints the value of each Authorization line, or the error.
 * With an argument: how many times each is signed, and then on standard error the nanoseconds of CPU that one takes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "worker/store/aws_sign.h"

enum { ACCESS, SECRET, TOKEN, REGION, SERVICE, METHOD, URL, DATE, PAYLOAD, BODY, LINES, FIELDS = LINES + 40 };

static const char *or_null(const char *text)
{
    return text[0] ? text : NULL;
}

static void sign(struct mr_aws_signer *signer, char *record, long times)
{
    char *fields[FIELDS], *end;
    unsigned count = 0;
    for (; count < FIELDS && (end = strchr(record, 0x1f)); record = end + 1) {
        fields[count++] = record;
        *end = 0;
    }
    if (count < LINES)
        exit(2);
    struct mr_aws_sign request = {
        .access_key_id = fields[ACCESS],
        .secret_access_key = fields[SECRET],
        .session_token = or_null(fields[TOKEN]),
        .region = fields[REGION],
        .service = or_null(fields[SERVICE]),
        .method = fields[METHOD],
        .url = fields[URL],
        .date = fields[DATE],
        .payload = or_null(fields[PAYLOAD]),
        .body = fields[BODY],
        .body_length = strlen(fields[BODY]),
        .lines = (const char *const *)fields + LINES,
        .line_count = count - LINES,
        .signer = signer,
    };
    struct mr_text text = {0};
    clock_t began = clock();
    int rc = 0;
    for (long i = 0; i < times; i++) {
        mr_text_clear(&text);
        rc = mr_aws_sign(&text, &request);
    }
    if (times > 1)
        fprintf(stderr, "%.0f\n", 1e9 * (double)(clock() - began) / CLOCKS_PER_SEC / (double)times);
    printf("%s\n", rc == 0 ? text.data : mr_error_text());
    mr_text_close(&text);
}

int main(int argc, char **argv)
{
    static char input[8 << 20];
    struct mr_aws_signer *signer = mr_aws_signer_new();
    size_t length = fread(input, 1, sizeof input - 1, stdin);
    input[length] = 0;
    char *record = input, *end;
    for (; signer && (end = strchr(record, 0x1e)); record = end + 1) {
        *end = 0;
        sign(signer, record, argc > 1 ? atol(argv[1]) : 1);
    }
    mr_aws_signer_destroy(signer);
    return 0;
}
