/* http_trace.c - requests as spans for `millrace trace` (shm/trace/trace.h). */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "worker/store/http_impl.h"

/* Only the path: what follows a `?` is of no use in a trace, and may be secret. */
void mr_http_trace_begin(struct mr_http_call *call, const struct mr_http_request *request)
{
    call->target[0] = '\0';
    if (!mr_trace_is_on())
        return;
    const char *authority = strstr(request->url, "://");
    const char *path = strchr(authority ? authority + 3 : request->url, '/');
    size_t length = path ? strcspn(path, "?") : 0, room = sizeof call->target - 2 - strlen(request->method);
    size_t cut = length > room ? length - room : 0;
    snprintf(call->target, sizeof call->target, "%s %.*s", request->method, (int)(length - cut),
             path ? path + cut : "");
}

void mr_http_trace_end(const struct mr_http_call *call)
{
    if (call->target[0] == '\0' || !mr_trace_is_on())
        return;
    mr_trace_emit(&(struct mr_trace_record){.kind = MR_SPAN_REQUEST,
                                            .code = (uint32_t)call->status,
                                            .begin_ns = call->started_ns,
                                            .end_ns = mr_clock_mono_ns(), /* now_ns may be older */
                                            .bytes = call->received + call->body_length},
                  call->target);
}
