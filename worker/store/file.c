/* The calls of the client of local folders. Their work is done in timers of the loop, a slice at a time, since a file
 * cannot be polled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/container.h"
#include "worker/store/file_impl.h"

void mr_file_call_end(struct file_call *call)
{
    mr_http_timer_stop(call->base.store->http, &call->timer);
    mr_store_call_unlink(&call->base);
    if (call->fd >= 0)
        close(call->fd);
    if (call->ended)
        call->ended(call);
    mr_text_close(&call->strings);
    free(call->names);
    free(call->start);
    free(call->end);
    free(call->token);
    free(call);
}

static void run_call(struct mr_http_timer *timer)
{
    struct file_call *call = MR_CONTAINER_OF(timer, file_call, timer);
    mr_http_poke(call->base.store->http);
    call->run(call);
}

void mr_file_call_go_on(struct file_call *call)
{
    mr_http_timer_set(call->base.store->http, &call->timer, 0);
}

struct file_call *mr_file_call_new(struct mr_store *store, void (*run)(struct file_call *call), const char *name,
                                   size_t length, void *arg)
{
    if (length >= MR_STORE_NAME_MAX) {
        mr_error_set(MR_E_USAGE, "a path of %zu bytes is too long", length);
        return NULL;
    }
    struct file_call *call = calloc(1, sizeof *call);
    if (!call) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request to a file");
        return NULL;
    }
    call->run = run;
    call->arg = arg;
    call->fd = -1;
    memcpy(call->name, name, length);
    call->timer.run = run_call;
    mr_store_call_link(store, &call->base);
    mr_file_call_go_on(call);
    return call;
}

struct mr_store_result mr_file_result(const struct file_call *call, int rc, char text[MR_FILE_TEXT])
{
    if (rc == 0)
        return (struct mr_store_result){.code = MR_OK, .text = ""};
    char uri[400];
    snprintf(text, MR_FILE_TEXT, "%s: %s",
             mr_store_uri(call->base.store, uri, sizeof uri, call->name, strlen(call->name)), mr_error_text());
    return (struct mr_store_result){.code = mr_error_code(), .text = text};
}

struct mr_store_item mr_file_item(const struct file_call *call, const struct stat *st)
{
    return (struct mr_store_item){.name = call->name,
                                  .name_length = strlen(call->name),
                                  .size = (uint64_t)st->st_size,
                                  .generation = mr_file_generation(st),
                                  .storage_class = "",
                                  .etag = "",
                                  .created_s = (int64_t)st->st_mtime};
}

int mr_file_check_generation(uint64_t wanted, const struct stat *st)
{
    if (wanted == 0 || mr_file_generation(st) == wanted)
        return 0;
    mr_error_set(MR_E_CHANGED, "changed since the listing: its time of modification is another");
    return -1;
}
