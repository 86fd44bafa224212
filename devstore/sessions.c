#include "devstore/sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

struct mr_sessions {
    pthread_mutex_t lock; /* the table */
    struct mr_session **table;
    size_t n, capacity;
};

struct mr_sessions *mr_sessions_new(void)
{
    struct mr_sessions *sessions = calloc(1, sizeof *sessions);
    if (!sessions) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the table of uploads");
        return NULL;
    }
    pthread_mutex_init(&sessions->lock, NULL);
    return sessions;
}

void mr_sessions_destroy(struct mr_sessions *sessions)
{
    if (!sessions)
        return;
    for (size_t i = 0; i < sessions->n; i++)
        mr_session_unref(sessions->table[i]);
    pthread_mutex_destroy(&sessions->lock);
    free(sessions->table);
    free(sessions);
}

struct mr_session *mr_session_new(struct mr_bucket *bucket, bool multipart)
{
    struct mr_session *session = calloc(1, sizeof *session);
    if (session && !multipart)
        session->pending = malloc(MR_QUANTUM);
    if (!session || (!multipart && !session->pending)) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
        free(session);
        return NULL;
    }
    atomic_init(&session->refs, 1);
    pthread_mutex_init(&session->lock, NULL);
    session->bucket = bucket;
    session->multipart = multipart;
    session->started_us = mr_clock_wall_ns() / 1000;
    session->sink.fd = -1;
    session->total = UINT64_MAX;
    return session;
}

void mr_session_part_drop(struct mr_object *object)
{
    if (object->path)
        unlink(object->path);
    mr_object_unref(object);
}

void mr_session_drop_bytes(struct mr_session *session)
{
    mr_sink_close(&session->sink);
    free(session->pending);
    session->pending = NULL;
    session->pending_length = 0;
}

void mr_session_unref(struct mr_session *session)
{
    if (!session || atomic_fetch_sub_explicit(&session->refs, 1, memory_order_acq_rel) != 1)
        return;
    mr_session_drop_bytes(session);
    for (size_t i = 0; i < session->n_parts; i++)
        mr_session_part_drop(session->parts[i].object);
    free(session->parts);
    mr_object_unref(session->result);
    mr_metadata_close(&session->metadata);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

int mr_session_add_part(struct mr_session *session, unsigned number, struct mr_object *object, const char *etag,
                        const char *sum)
{
    struct mr_session_part part = {.number = number, .object = object};
    size_t at = session->n_parts;
    snprintf(part.etag, sizeof part.etag, "%s", etag);
    snprintf(part.sum, sizeof part.sum, "%s", sum);
    while (at > 0 && session->parts[at - 1].number >= number)
        at--;
    if (at < session->n_parts && session->parts[at].number == number) {
        mr_session_part_drop(session->parts[at].object);
        session->parts[at] = part;
        return 0;
    }
    if (session->n_parts == session->capacity) {
        size_t capacity = session->capacity ? session->capacity * 2 : 16;
        struct mr_session_part *parts = realloc(session->parts, capacity * sizeof *parts);
        if (!parts) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a part");
            mr_session_part_drop(object);
            return -1;
        }
        session->parts = parts;
        session->capacity = capacity;
    }
    memmove(session->parts + at + 1, session->parts + at, (session->n_parts - at) * sizeof *session->parts);
    session->parts[at] = part;
    session->n_parts++;
    return 0;
}

int mr_sessions_add(struct mr_sessions *sessions, struct mr_session *session)
{
    int rc = -1;
    size_t at = 0;
    pthread_mutex_lock(&sessions->lock);
    while (at < sessions->n && sessions->table[at])
        at++;
    if (at == sessions->capacity) {
        size_t capacity = sessions->capacity ? sessions->capacity * 2 : 64;
        struct mr_session **table = realloc(sessions->table, capacity * sizeof(struct mr_session *));
        if (!table) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for an upload");
            goto out;
        }
        sessions->table = table;
        sessions->capacity = capacity;
    }
    sessions->n += at == sessions->n;
    sessions->table[at] = session;
    snprintf(session->id, sizeof session->id, "%zu-%016" PRIx64 "%016" PRIx64, at, mr_random64(), mr_random64());
    atomic_fetch_add_explicit(&session->refs, 1, memory_order_relaxed);
    rc = 0;
out:
    pthread_mutex_unlock(&sessions->lock);
    return rc;
}

struct mr_session *mr_sessions_find(struct mr_sessions *sessions, const char *id, const struct mr_bucket *bucket,
                                    bool multipart)
{
    char *end;
    unsigned long at = strtoul(id, &end, 10);
    if (*end != '-')
        return NULL;
    pthread_mutex_lock(&sessions->lock);
    struct mr_session *found = NULL;
    if (at < sessions->n)
        found = sessions->table[at];
    if (found && strcmp(found->id, id) == 0 && found->bucket == bucket && found->multipart == multipart)
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    else
        found = NULL;
    pthread_mutex_unlock(&sessions->lock);
    return found;
}

struct mr_session *mr_sessions_next(struct mr_sessions *sessions, size_t *place, const struct mr_bucket *bucket)
{
    pthread_mutex_lock(&sessions->lock);
    struct mr_session *found = NULL;
    while (!found && *place < sessions->n) {
        struct mr_session *session = sessions->table[(*place)++];
        if (session && session->multipart && session->bucket == bucket)
            found = session;
    }
    if (found)
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&sessions->lock);
    return found;
}

int mr_sessions_remove(struct mr_sessions *sessions, const struct mr_session *session)
{
    pthread_mutex_lock(&sessions->lock);
    struct mr_session *removed = NULL;
    for (size_t i = 0; i < sessions->n && !removed; i++) {
        if (sessions->table[i] == session) {
            removed = sessions->table[i];
            sessions->table[i] = NULL;
        }
    }
    pthread_mutex_unlock(&sessions->lock);
    mr_session_unref(removed);
    return removed ? 0 : -1;
}
