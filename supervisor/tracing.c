/* tracing.c - see tracing.h. `on` of the ring is set only while `reader` is a connected client, so that no process
 * writes after a reader was killed. The memory of the slots is made for the first reader, and stays. */
#include "supervisor/tracing.h"

#include <stddef.h>
#include <unistd.h>

#include "base/error.h"
#include "shm/memory/segment.h"
#include "shm/trace/trace.h"
#include "supervisor/run_impl.h"

#define WHAT "a trace"

int mr_tracing_init(struct mr_supervisor *s)
{
    s->tracing.fd = mr_segment_new(MR_BACKING_MEMFD, WHAT, sizeof *s->tracing.shared, false);
    if (s->tracing.fd < 0 || mr_segment_reserve(s->tracing.fd, WHAT, 0, offsetof(struct mr_trace_shared, slot)) != 0)
        return -1;
    s->tracing.shared = mr_segment_map(s->tracing.fd, sizeof *s->tracing.shared, true, NULL);
    if (!s->tracing.shared)
        return -1;
    mr_trace_format(s->tracing.shared);
    return 0;
}

int mr_tracing_begin(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    if (s->tracing.reader && s->tracing.reader != client) {
        mr_error_set(MR_E_BUSY, "process %d traces this run: end it first", (int)s->tracing.reader->pid);
        return -1;
    }
    if (mr_segment_reserve(s->tracing.fd, WHAT, 0, sizeof *s->tracing.shared) != 0)
        return -1;
    mr_trace_begin(s->tracing.shared);
    s->tracing.reader = client;
    return 0;
}

void mr_tracing_client_gone(struct mr_supervisor *s, const struct mr_client_peer *client)
{
    if (s->tracing.reader != client)
        return;
    mr_trace_end(s->tracing.shared);
    s->tracing.reader = NULL;
}

void mr_tracing_close(struct mr_supervisor *s)
{
    if (s->tracing.shared) {
        mr_trace_end(s->tracing.shared);
        mr_segment_unmap(s->tracing.shared, sizeof *s->tracing.shared);
    }
    if (s->tracing.fd >= 0)
        close(s->tracing.fd);
}
