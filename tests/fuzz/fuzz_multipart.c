/* fuzz_multipart.c - the answer to a batch, whatever it holds. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fuzz.h"
#include "worker/store/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct mr_multipart multipart;
    if (mr_multipart_init(&multipart, text, size) != 0) {
        if (mr_error_text()[0] == 0)
            abort();
        return 0;
    }
    struct mr_multipart_part part;
    size_t parts = 0;
    while (mr_multipart_next(&multipart, &part)) {
        if (part.body < text || part.body + part.body_length > text + size || part.id < -1 || part.status < 0 ||
            part.status > 999 || parts++ > size)
            abort();
    }
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "--batch_x\r\nContent-Type: application/http\r\nContent-ID: <response-a+1>\r\n\r\nHTTP/1.1 204 No Content\r\n"
        "Content-Length: 0\r\n\r\n\r\n--batch_x\r\nContent-Type: application/http\r\nContent-ID: <response-a+2>\r\n\r\n"
        "HTTP/1.1 503 X\r\nRetry-After: 2\r\n\r\n{\"error\":{\"message\":\"busy\"}}\r\n--batch_x--\r\n",
        "preamble\n--b\n\nHTTP/1.1 200 OK\n\n--b\n--b--\n",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
