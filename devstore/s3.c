#include "devstore/s3.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "devstore/faults.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

void mr_s3_settings_init(struct mr_s3_settings *settings)
{
    *settings = (struct mr_s3_settings){.session_s = 300};
    for (size_t i = 0; i < sizeof settings->session_secret; i += 8) {
        uint64_t word = mr_random64();
        memcpy(settings->session_secret + i, &word, 8);
    }
}

const char *mr_s3_region(const struct mr_s3_settings *settings)
{
    return settings->region ? settings->region : "us-east-1";
}

int64_t mr_s3_now(const struct mr_s3_settings *settings)
{
    return mr_clock_wall_ns() / MR_SECOND_NS + settings->clock_s;
}

bool mr_s3_is_express(const char *bucket)
{
    static const char end[] = "--x-s3";
    size_t n = strlen(bucket);
    return n > sizeof end - 1 && strcmp(bucket + n - (sizeof end - 1), end) == 0;
}

void mr_s3_xml(struct mr_reply *reply)
{
    mr_reply_header(reply, "Content-Type", "application/xml");
}

/* As S3 does it: a slash stays, a space is a plus. */
static void put_encoded(struct mr_text *out, const char *text)
{
    for (; *text; text++) {
        char one[2] = {*text, 0};
        if (*text == '/')
            mr_text_puts(out, "/");
        else if (*text == ' ')
            mr_text_puts(out, "+");
        else
            mr_text_percent(out, one);
    }
}

void mr_s3_put(struct mr_text *out, const char *name, const char *text, bool url)
{
    if (!url) {
        mr_xml_put(out, name, text);
        return;
    }
    mr_text_printf(out, "<%s>", name);
    put_encoded(out, text);
    mr_text_printf(out, "</%s>", name);
}

int mr_s3_page(const struct mr_request *request, const char *key, unsigned *most, struct mr_reply *reply)
{
    const char *text = mr_request_query(request, key);
    uint64_t number = MR_S3_PAGE_MAX;
    if (text && *text && (mr_parse_u64(text, &number) < 0 || number > INT32_MAX)) {
        mr_s3_error_said(reply, request, "InvalidArgument", "Provided %s not an integer or within integer range", key);
        return -1;
    }
    *most = number < MR_S3_PAGE_MAX ? (unsigned)number : MR_S3_PAGE_MAX;
    return 0;
}

int mr_s3_encoding(const struct mr_request *request, struct mr_reply *reply)
{
    const char *text = mr_request_query(request, "encoding-type");
    if (!text || strcmp(text, "url") == 0)
        return text != NULL;
    mr_s3_error_said(reply, request, "InvalidArgument", "Invalid Encoding Method specified in Request");
    return -1;
}

const char *mr_s3_fault_code(const struct mr_fault *fault)
{
    if (fault->kind == MR_FAULT_EGRESS || fault->kind == MR_FAULT_RATE)
        return "SlowDown";
    return fault->kind == MR_FAULT_CODE ? fault->code : mr_status_code(fault->status);
}

void mr_s3_fault_reply(const struct mr_fault *fault, const struct mr_request *request, struct mr_reply *reply)
{
    if (fault->kind == MR_FAULT_STATUS)
        mr_reply_error(reply, request, fault->status, NULL, "Asked for by --fault.");
    else
        mr_s3_error(reply, request, mr_s3_fault_code(fault));
}

bool mr_s3_late_error(const struct mr_request *request, struct mr_reply *reply)
{
    struct mr_text *body = &reply->body;
    if (!request->fault || request->fault->kind != MR_FAULT_LATE)
        return false;
    mr_s3_error(reply, request, request->fault->code);
    reply->status = 200;
    /* What keeps the connection alive stands between the declaration and the root. */
    char *root = body->data ? strstr(body->data, "<Error>") : NULL, *error = root ? strdup(root) : NULL;
    if (error) {
        body->length = (size_t)(root - body->data);
        mr_text_puts(body, "   \n   \n");
        mr_text_puts(body, error);
    }
    free(error);
    return true;
}
