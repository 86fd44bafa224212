#include "devstore/s3.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "devstore/faults.h"
#include "devstore/s3_error.h"
#include "devstore/xml.h"

void ds_s3_settings_init(struct ds_s3_settings *settings)
{
    *settings = (struct ds_s3_settings){.session_s = 300};
    for (size_t i = 0; i < sizeof settings->session_secret; i += 8) {
        uint64_t word = mr_random64();
        memcpy(settings->session_secret + i, &word, 8);
    }
}

const char *ds_s3_region(const struct ds_s3_settings *settings)
{
    return settings->region ? settings->region : "us-east-1";
}

int64_t ds_s3_now(const struct ds_s3_settings *settings)
{
    return mr_clock_wall_ns() / MR_SECOND_NS + settings->clock_s;
}

bool ds_s3_is_express(const char *bucket)
{
    static const char end[] = "--x-s3";
    size_t n = strlen(bucket);
    return n > sizeof end - 1 && strcmp(bucket + n - (sizeof end - 1), end) == 0;
}

void ds_s3_xml(struct ds_reply *reply)
{
    ds_reply_header(reply, "Content-Type", "application/xml");
}

/* Encodes as S3 does: a slash stays, a space becomes a plus. */
static void put_encoded(struct ds_text *out, const char *text)
{
    for (; *text; text++) {
        char one[2] = {*text, 0};
        if (*text == '/')
            ds_text_puts(out, "/");
        else if (*text == ' ')
            ds_text_puts(out, "+");
        else
            ds_text_percent(out, one);
    }
}

void ds_s3_put(struct ds_text *out, const char *name, const char *text, bool url)
{
    if (!url) {
        ds_xml_put(out, name, text);
        return;
    }
    ds_text_printf(out, "<%s>", name);
    put_encoded(out, text);
    ds_text_printf(out, "</%s>", name);
}

int ds_s3_page(const struct ds_request *request, const char *key, unsigned *most, struct ds_reply *reply)
{
    const char *text = ds_request_query(request, key);
    uint64_t number = MR_S3_PAGE_MAX;
    if (text && *text && (ds_parse_u64(text, &number) < 0 || number > INT32_MAX)) {
        ds_s3_error_said(reply, request, "InvalidArgument", "Provided %s not an integer or within integer range", key);
        return -1;
    }
    *most = number < MR_S3_PAGE_MAX ? (unsigned)number : MR_S3_PAGE_MAX;
    return 0;
}

int ds_s3_encoding(const struct ds_request *request, struct ds_reply *reply)
{
    const char *text = ds_request_query(request, "encoding-type");
    if (!text || strcmp(text, "url") == 0)
        return text != NULL;
    ds_s3_error_said(reply, request, "InvalidArgument", "Invalid Encoding Method specified in Request");
    return -1;
}

const char *ds_s3_fault_code(const struct ds_fault *fault)
{
    if (fault->kind == MR_FAULT_EGRESS || fault->kind == MR_FAULT_RATE)
        return "SlowDown";
    return fault->kind == MR_FAULT_CODE ? fault->code : ds_status_code(fault->status);
}

void ds_s3_fault_reply(const struct ds_fault *fault, const struct ds_request *request, struct ds_reply *reply)
{
    if (fault->kind == MR_FAULT_STATUS)
        ds_reply_error(reply, request, fault->status, NULL, "Asked for by --fault.");
    else
        ds_s3_error(reply, request, ds_s3_fault_code(fault));
}

bool ds_s3_late_error(const struct ds_request *request, struct ds_reply *reply)
{
    struct ds_text *body = &reply->body;
    if (!request->fault || request->fault->kind != MR_FAULT_LATE)
        return false;
    ds_s3_error(reply, request, request->fault->code);
    reply->status = 200;
    /* The blanks that keep the connection alive come between the declaration and the root. */
    char *root = body->data ? strstr(body->data, "<Error>") : NULL, *error = root ? strdup(root) : NULL;
    if (error) {
        body->length = (size_t)(root - body->data);
        ds_text_puts(body, "   \n   \n");
        ds_text_puts(body, error);
    }
    free(error);
    return true;
}
