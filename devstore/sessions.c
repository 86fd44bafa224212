#include "devstore/sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

struct ds_sessions {
    pthread_mutex_t lock; /* the table */
    struct ds_session **table;
    size_t n, capacity;
};

struct ds_sessions *ds_sessions_new(void)
{
    struct ds_sessions *sessions = calloc(1, sizeof *sessions);
    if (!sessions) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for the table of uploads");
        return NULL;
    }
    pthread_mutex_init(&sessions->lock, NULL);
    return sessions;
}

void ds_sessions_destroy(struct ds_sessions *sessions)
{
    if (!sessions)
        return;
    for (size_t i = 0; i < sessions->n; i++)
        ds_session_unref(sessions->table[i]);
    pthread_mutex_destroy(&sessions->lock);
    free(sessions->table);
    free(sessions);
}

struct ds_session *ds_session_new(struct ds_bucket *bucket, bool multipart)
{
    struct ds_session *session = calloc(1, sizeof *session);
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

void ds_session_part_drop(struct ds_object *object)
{
    if (object->path)
        unlink(object->path);
    ds_object_unref(object);
}

void ds_session_drop_bytes(struct ds_session *session)
{
    ds_sink_close(&session->sink);
    free(session->pending);
    session->pending = NULL;
    session->pending_length = 0;
}

void ds_session_unref(struct ds_session *session)
{
    if (!session || atomic_fetch_sub_explicit(&session->refs, 1, memory_order_acq_rel) != 1)
        return;
    ds_session_drop_bytes(session);
    for (size_t i = 0; i < session->n_parts; i++)
        ds_session_part_drop(session->parts[i].object);
    free(session->parts);
    ds_object_unref(session->result);
    ds_metadata_close(&session->metadata);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

int ds_session_add_part(struct ds_session *session, unsigned number, struct ds_object *object, const char *etag,
                        const char *sum)
{
    struct ds_session_part part = {.number = number, .object = object};
    size_t at = session->n_parts;
    snprintf(part.etag, sizeof part.etag, "%s", etag);
    snprintf(part.sum, sizeof part.sum, "%s", sum);
    while (at > 0 && session->parts[at - 1].number >= number)
        at--;
    if (at < session->n_parts && session->parts[at].number == number) {
        ds_session_part_drop(session->parts[at].object);
        session->parts[at] = part;
        return 0;
    }
    if (session->n_parts == session->capacity) {
        size_t capacity = session->capacity ? session->capacity * 2 : 16;
        struct ds_session_part *parts = realloc(session->parts, capacity * sizeof *parts);
        if (!parts) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for a part");
            ds_session_part_drop(object);
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

int ds_sessions_add(struct ds_sessions *sessions, struct ds_session *session)
{
    int rc = -1;
    size_t at = 0;
    pthread_mutex_lock(&sessions->lock);
    while (at < sessions->n && sessions->table[at])
        at++;
    if (at == sessions->capacity) {
        size_t capacity = sessions->capacity ? sessions->capacity * 2 : 64;
        struct ds_session **table = realloc(sessions->table, capacity * sizeof(struct ds_session *));
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

struct ds_session *ds_sessions_find(struct ds_sessions *sessions, const char *id, const struct ds_bucket *bucket,
                                    bool multipart)
{
    char *end;
    unsigned long at = strtoul(id, &end, 10);
    if (*end != '-')
        return NULL;
    pthread_mutex_lock(&sessions->lock);
    struct ds_session *found = NULL;
    if (at < sessions->n)
        found = sessions->table[at];
    if (found && strcmp(found->id, id) == 0 && found->bucket == bucket && found->multipart == multipart)
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    else
        found = NULL;
    pthread_mutex_unlock(&sessions->lock);
    return found;
}

struct ds_session *ds_sessions_next(struct ds_sessions *sessions, size_t *place, const struct ds_bucket *bucket)
{
    pthread_mutex_lock(&sessions->lock);
    struct ds_session *found = NULL;
    while (!found && *place < sessions->n) {
        struct ds_session *session = sessions->table[(*place)++];
        if (session && session->multipart && session->bucket == bucket)
            found = session;
    }
    if (found)
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&sessions->lock);
    return found;
}

int ds_sessions_remove(struct ds_sessions *sessions, const struct ds_session *session)
{
    pthread_mutex_lock(&sessions->lock);
    struct ds_session *removed = NULL;
    for (size_t i = 0; i < sessions->n && !removed; i++) {
        if (sessions->table[i] == session) {
            removed = sessions->table[i];
            sessions->table[i] = NULL;
        }
    }
    pthread_mutex_unlock(&sessions->lock);
    ds_session_unref(removed);
    return removed ? 0 : -1;
}
