#include "devstore/compress.h"

#include <isa-l/igzip_lib.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 1000 /* bytes, as MinIO has it */

void ds_compress(struct ds_reply *reply)
{
    struct ds_text *body = &reply->body;
    if (reply->object || body->length < LEAST)
        return;
    size_t room = body->length + 1000;
    struct isal_zstream *stream = calloc(1, sizeof *stream);
    char *out = malloc(room);
    if (stream && out) {
        isal_deflate_stateless_init(stream);
        stream->next_in = (uint8_t *)body->data;
        stream->avail_in = (uint32_t)body->length;
        stream->next_out = (uint8_t *)out;
        stream->avail_out = (uint32_t)room;
        stream->end_of_stream = 1;
        stream->gzip_flag = IGZIP_GZIP;
        if (isal_deflate_stateless(stream) == COMP_OK) {
            body->length = 0;
            ds_text_append(body, out, stream->total_out);
            ds_reply_header(reply, "Content-Encoding", "gzip");
        }
    }
    free(out);
    free(stream);
}
