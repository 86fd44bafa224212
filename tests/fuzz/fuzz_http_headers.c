/* fuzz_http_headers.c - header lines of an answer, whatever they hold. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "worker/store/headers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_http_headers headers;
    memset(&headers, 0, sizeof headers);
    const char *at = (const char *)data, *end = at + size;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline + 1 : end) - at);
        int status = mr_http_headers_status(at, length);
        if (status != 0 && (status < 100 || status > 999))
            abort();
        mr_http_headers_line(&headers, at, length);
        const char *url;
        size_t url_length;
        if (mr_http_headers_location(at, length, &url, &url_length) && (url < at || url + url_length > at + length))
            abort();
        at += length;
    }
    if (headers.has_content_range &&
        (headers.range_first > headers.range_last || headers.range_last >= headers.range_total))
        abort();
    if (headers.has_kept && (headers.kept == 0 || headers.kept > INT64_MAX))
        abort();
    if (strlen(headers.etag) >= sizeof headers.etag || headers.retry_after_ms > 3600 * 1000)
        abort();
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/100\r\nContent-Length: 10\r\nETag: \"abc\"\r\n"
        "x-goog-generation: 1700000000000001\r\nx-goog-hash: crc32c=4waSgw==,md5=AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "x-goog-stored-content-length: 100\r\nRetry-After: 3\r\n\r\n",
        "HTTP/1.1 308 Resume Incomplete\r\nRange: bytes=0-262143\r\nLocation: http://h/upload?upload_id=x\r\n",
        "HTTP/1.0 429\r\nretry-after: Wed, 21 Oct 2195 07:28:00 GMT\r\n",
        "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\nMetadata-Flavor: Google\r\nServer:   spaced  \r\n: \r\nnothing\r\n",
        "Date: no date that there is, and longer than any that a server would ever have sent us\r\nDate: x\r\n",
        "Content-Range: bytes 5-4/3\r\nContent-Range: bytes */100\r\nContent-Range: items 0-1/2\r\nRange: "
        "bytes=1-2\r\n",
        "Content-Length: 1 2\r\nETag: \r\nx-goog-hash: crc32c=4waSgw==x, crc32c=!!!!!!!!\r\nRetry-After: "
        "9999999999999\r\n",
        "Content-Encoding: gzip\r\nX-GUploader-Response-Body-Transformations: gunzipped\r\n",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
