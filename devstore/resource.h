/* resource.h - the JSON resource of an object ("storage#object"), whole or in part. */
#ifndef MR_DEVSTORE_RESOURCE_H
#define MR_DEVSTORE_RESOURCE_H

#include <stdint.h>

#include "devstore/bucket.h"
#include "devstore/fields.h"
#include "devstore/request.h"
#include "devstore/text.h"

struct ds_resource {
    uint32_t wanted;                    /* one bit a field, from ds_resource_init */
    const char *bucket, *storage_class; /* the class of objects without one */
    char base[300];                     /* "http://host:port", the start of its links */
};

/* node: of `fields`, the one that stands for the object. 0 or -1 (USAGE: unknown field). */
int ds_resource_init(struct ds_resource *resource, const struct ds_bucket *bucket, const struct ds_request *request,
                     const struct ds_fields *fields, int node);
/* Whether the crc32c is among the fields: ds_resource_write then needs it computed. */
int ds_resource_wants_crc(const struct ds_resource *resource);
/* Appends the JSON object. crc32c is left out when it cannot be computed (the file was removed). */
void ds_resource_write(const struct ds_resource *resource, struct ds_object *object, struct ds_text *out);
/* "http://" or "https://" and the Host header, or localhost if that contains anything unexpected. */
void ds_resource_base(const struct ds_request *request, char base[300]);

#endif
