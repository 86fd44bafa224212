#include "worker/tool/dead_uploads.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "worker/cleanup/upload_record.h"

#define ENDPOINTS_MAX 16

struct endpoint {
    char name[300], uri[400], path[600];
    int64_t begun_s;
    unsigned count;
};

struct dead {
    const char *bucket;
    struct endpoint endpoints[ENDPOINTS_MAX];
    unsigned count;
};

/* Called for each recorded upload: counts it under its endpoint, of which it keeps the oldest. Endpoints beyond
 * ENDPOINTS_MAX are left out. */
static void found(void *arg, const struct mr_upload_entry *entry, const char *path)
{
    struct dead *dead = arg;
    unsigned i = 0;
    if (dead->bucket && strcmp(dead->bucket, entry->bucket) != 0)
        return;
    while (i < dead->count && strcmp(dead->endpoints[i].name, entry->endpoint) != 0)
        i++;
    if (i == ENDPOINTS_MAX)
        return;
    struct endpoint *endpoint = &dead->endpoints[i];
    if (i == dead->count)
        snprintf(dead->endpoints[dead->count++].name, sizeof endpoint->name, "%s", entry->endpoint);
    if (endpoint->count++ > 0 && endpoint->begun_s <= entry->begun_s)
        return;
    endpoint->begun_s = entry->begun_s;
    mr_upload_uri(entry, endpoint->uri, sizeof endpoint->uri);
    snprintf(endpoint->path, sizeof endpoint->path, "%s", path);
}

void mr_tool_dead_uploads(const char *bucket, void (*say)(void *arg, const char *line), void *arg)
{
    static struct dead dead; /* 20 KiB */
    dead = (struct dead){.bucket = bucket};
    mr_upload_each_dead(found, &dead);
    for (unsigned i = 0; i < dead.count; i++) {
        const struct endpoint *endpoint = &dead.endpoints[i];
        int64_t minutes = (mr_clock_wall_ns() / MR_SECOND_NS - endpoint->begun_s) / 60;
        char line[1600];
        snprintf(line, sizeof line,
                 "dead runs of this machine have left %u unfinished upload%s at %s, the oldest of %s, begun %" PRId64
                 " minutes ago: the next run that saves there removes them. If that store no longer exists, remove %s",
                 endpoint->count, endpoint->count == 1 ? "" : "s", endpoint->name, endpoint->uri,
                 minutes > 0 ? minutes : 0, endpoint->path);
        say(arg, line);
    }
}
