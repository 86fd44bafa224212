#include "devstore/s3_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "devstore/xml.h"

/* https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html */
static const struct {
    const char *code;
    unsigned status;
    const char *message;
} errors[] = {
    {"AccessDenied", 403, "Access Denied"},
    {"AuthorizationHeaderMalformed", 400, "The authorization header that you provided is not valid."},
    {"BadDigest", 400, "The Content-MD5 or checksum value that you specified did not match what the server received."},
    {"BucketAlreadyExists", 409, "The requested bucket name is not available."},
    {"BucketAlreadyOwnedByYou", 409, "Your previous request to create the named bucket succeeded and you own it."},
    {"ConditionalRequestConflict", 409, "A conflicting operation occurred during the upload."},
    {"EntityTooLarge", 400, "Your proposed upload exceeds the maximum allowed object size."},
    {"EntityTooSmall", 400, "Your proposed upload is smaller than the minimum allowed object size."},
    {"ExpiredToken", 400, "The provided token has expired."},
    {"IncompleteBody", 400, "You did not provide the number of bytes specified by the Content-Length HTTP header."},
    {"InternalError", 500, "We encountered an internal error. Please try again."},
    {"InvalidAccessKeyId", 403, "The AWS Access Key Id you provided does not exist in our records."},
    {"InvalidArgument", 400, "Invalid Argument"},
    {"InvalidBucketName", 400, "The specified bucket is not valid."},
    {"InvalidDigest", 400, "The Content-MD5 or checksum value that you specified is not valid."},
    {"InvalidObjectState", 403, "The operation is not valid for the object's storage class"},
    {"InvalidPart", 400, "One or more of the specified parts could not be found."},
    {"InvalidPartNumber", 416, "The requested partnumber is not satisfiable"},
    {"InvalidPartOrder", 400, "The list of parts was not in ascending order."},
    {"InvalidRange", 416, "The requested range is not satisfiable"},
    {"InvalidRequest", 400, "Invalid Request"},
    {"InvalidToken", 400, "The provided token is malformed or otherwise invalid."},
    {"InvalidURI", 400, "Couldn't parse the specified URI."},
    {"KeyTooLongError", 400, "Your key is too long"},
    {"MalformedTrailerError", 400, "The request contained trailing data that was not well-formed."},
    {"MalformedXML", 400, "The XML you provided was not well-formed or did not validate against our schema."},
    {"MethodNotAllowed", 405, "The specified method is not allowed against this resource."},
    {"MissingContentLength", 411, "You must provide the Content-Length HTTP header."},
    {"NoSuchBucket", 404, "The specified bucket does not exist"},
    {"NoSuchKey", 404, "The specified key does not exist."},
    {"NoSuchUpload", 404, "The specified multipart upload does not exist."},
    {"NotImplemented", 501, "A header or a parameter implies functionality that the development store does not have."},
    {"NotModified", 304, ""},
    {"OperationAborted", 409, "A conflicting conditional operation is currently in progress against this resource."},
    {"PermanentRedirect", 301, "The bucket you are attempting to access must be addressed by another endpoint."},
    {"PreconditionFailed", 412, "At least one of the pre-conditions you specified did not hold"},
    {"RequestTimeTooSkewed", 403, "The difference between the request time and the current time is too large."},
    {"RequestTimeout", 400, "Your socket connection to the server was not read from or written to in time."},
    {"ServiceUnavailable", 503, "Service is unable to handle request."},
    {"SignatureDoesNotMatch", 403, "The request signature we calculated does not match the signature you provided."},
    {"SlowDown", 503, "Please reduce your request rate."},
    {"TemporaryRedirect", 307, "You are being redirected to the bucket while the DNS server is being updated."},
    {"XAmzContentSHA256Mismatch", 400, "The provided 'x-amz-content-sha256' header does not match what was computed."},
};

static int s3_error_find(const char *code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (strcmp(code, errors[i].code) == 0)
            return (int)i;
    }
    return -1;
}

unsigned ds_s3_error_status(const char *code)
{
    int i = s3_error_find(code);
    return i < 0 ? 0 : errors[i].status;
}

const char *ds_s3_error_message(const char *code)
{
    int i = s3_error_find(code);
    return i < 0 ? "" : errors[i].message;
}

void ds_s3_error_said(struct ds_reply *reply, const struct ds_request *request, const char *code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char message[2048];
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    unsigned status = ds_s3_error_status(code);
    ds_reply_error(reply, request, status ? status : 400, code, "%s", message);
}

void ds_s3_error(struct ds_reply *reply, const struct ds_request *request, const char *code)
{
    ds_s3_error_said(reply, request, code, "%s", ds_s3_error_message(code));
}

void ds_s3_error_add(struct ds_reply *reply, const char *name, const char *value)
{
    static const char end[] = "</Error>";
    struct ds_text *body = &reply->body;
    /* A client's header may contain anything: what is not UTF-8 is left out. */
    if (body->failed || body->length < sizeof end - 1 || !ds_utf8_valid(value, strlen(value)))
        return;
    body->length -= sizeof end - 1;
    ds_xml_put(body, name, value);
    ds_text_puts(body, end);
}
