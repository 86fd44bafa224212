#include "shm/control/config.h"

#include <ctype.h>
#include <errno.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "base/unpack.h"
#include "base/uri.h"

#define LETTERS     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define ENCODED_MAX (16u << 20) /* a configuration is some kilobytes; more in a descriptor is not one of ours */

static void *field(const struct mr_config_key *key, void *base)
{
    return (char *)base + key->offset;
}

static const void *field_const(const struct mr_config_key *key, const void *base)
{
    return (const char *)base + key->offset;
}

/* Whose keys: of the sections that are there once, of [dataset.NAME], of [endpoint.NAME]. */
enum level { SECTIONS, DATASET, ENDPOINT };

static enum level level_of(const struct mr_config_key *key)
{
    return strcmp(key->section, "dataset") == 0 ? DATASET : strcmp(key->section, "endpoint") == 0 ? ENDPOINT : SECTIONS;
}

bool mr_config_key_is_named(const struct mr_config_key *key)
{
    return level_of(key) != SECTIONS;
}

/* The keys of a level: *i goes through the table, from 0. NULL at its end. */
static const struct mr_config_key *next_key(enum level level, unsigned *i)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    while (*i < count) {
        const struct mr_config_key *key = &keys[(*i)++];
        if (level_of(key) == level)
            return key;
    }
    return NULL;
}

static int no_memory(void)
{
    mr_error_set(MR_E_NO_MEMORY, "no memory for the configuration");
    return -1;
}

_Static_assert(offsetof(struct mr_config_dataset, name) == 0 && offsetof(struct mr_config_endpoint, name) == 0,
               "add_named");

/* ---- life ---- */

/* Each field owns its value afterwards; lists stay empty. */
static int set_defaults(void *base, enum level level)
{
    unsigned i = 0;
    for (const struct mr_config_key *key; (key = next_key(level, &i));) {
        switch (key->type) {
        case MR_KEY_U64:
        case MR_KEY_BYTES:
        case MR_KEY_CHOICE:
            *(uint64_t *)field(key, base) = key->fallback;
            break;
        case MR_KEY_STRING:
            if (!(*(char **)field(key, base) = strdup("")))
                return no_memory();
            break;
        case MR_KEY_STRINGS:
        case MR_KEY_LINES:
            break;
        }
    }
    return 0;
}

static void free_fields(void *base, enum level level)
{
    unsigned i = 0;
    for (const struct mr_config_key *key; (key = next_key(level, &i));) {
        if (key->type == MR_KEY_STRING) {
            free(*(char **)field(key, base));
            *(char **)field(key, base) = NULL;
        } else if (key->type == MR_KEY_STRINGS || key->type == MR_KEY_LINES) {
            mr_strings_close(field(key, base)); /* uri and uris share a field: closing twice is harmless */
        }
    }
}

int mr_config_init(struct mr_config *config)
{
    *config = (struct mr_config){0};
    if (set_defaults(config, SECTIONS) == 0)
        return 0;
    mr_config_close(config);
    return -1;
}

void mr_config_close(struct mr_config *config)
{
    free_fields(config, SECTIONS);
    for (size_t i = 0; i < config->dataset_count; i++) {
        free_fields(&config->datasets[i], DATASET);
        free(config->datasets[i].name);
    }
    for (size_t i = 0; i < config->endpoint_count; i++) {
        free_fields(&config->endpoints[i], ENDPOINT);
        free(config->endpoints[i].name);
    }
    free(config->datasets);
    free(config->endpoints);
    *config = (struct mr_config){0};
}

static bool is_made_of(const char *name, size_t most, const char *characters)
{
    size_t length = strlen(name);
    return length > 0 && length <= most && strspn(name, characters) == length;
}

/* One more of *items, which are of this size and begin with their name: with its defaults, or NULL (NO_MEMORY). */
static void *add_named(void *items, size_t *count, size_t size, enum level level, const char *name)
{
    char **bigger = realloc(*(void **)items, (*count + 1) * size);
    if (!bigger) {
        no_memory();
        return NULL;
    }
    *(void **)items = bigger;
    char **added = (char **)(void *)((char *)bigger + *count * size);
    memset(added, 0, size);
    *added = strdup(name);
    if (!*added || set_defaults(added, level) != 0) {
        free_fields(added, level);
        free(*added);
        no_memory();
        return NULL;
    }
    ++*count;
    return added;
}

struct mr_config_dataset *mr_config_add_dataset(struct mr_config *config, const char *name)
{
    if (!is_made_of(name, 100, LETTERS "_-.")) {
        mr_error_set(MR_E_CONFIG, "a data set's name has 1 to 100 letters, digits and '_', '-', '.'");
        return NULL;
    }
    if (mr_config_find_dataset(config, name)) {
        mr_error_set(MR_E_CONFIG, "the data set '%s' is there twice", name);
        return NULL;
    }
    return add_named(&config->datasets, &config->dataset_count, sizeof *config->datasets, DATASET, name);
}

/* ---- endpoints ---- */

static const struct mr_config_endpoint *find_endpoint(const struct mr_config *config, const char *name, size_t length)
{
    for (size_t i = 0; i < config->endpoint_count; i++) {
        const char *other = config->endpoints[i].name;
        if (strlen(other) == length && memcmp(other, name, length) == 0)
            return &config->endpoints[i];
    }
    return NULL;
}

const struct mr_config_endpoint *mr_config_find_endpoint(const struct mr_config *config, const char *name)
{
    return find_endpoint(config, name, strlen(name));
}

struct mr_config_endpoint *mr_config_add_endpoint(struct mr_config *config, const char *name)
{
    if (!is_made_of(name, MR_URI_ENDPOINT_MAX, LETTERS "-.")) {
        mr_error_set(MR_E_CONFIG, "an endpoint's name has 1 to %d letters, digits and '-', '.'", MR_URI_ENDPOINT_MAX);
        return NULL;
    }
    if (mr_config_find_endpoint(config, name)) {
        mr_error_set(MR_E_CONFIG, "the endpoint '%s' is there twice", name);
        return NULL;
    }
    return add_named(&config->endpoints, &config->endpoint_count, sizeof *config->endpoints, ENDPOINT, name);
}

/* How well an endpoint's buckets name this one: by its whole name best, else by the longest "begins*"; 0: not. */
static size_t names_bucket(const struct mr_config_endpoint *endpoint, const char *bucket)
{
    size_t best = 0;
    for (size_t i = 0; i < endpoint->buckets.count; i++) {
        const char *pattern = endpoint->buckets.items[i];
        size_t length = strlen(pattern), match = 0;
        if (strcmp(pattern, bucket) == 0)
            match = SIZE_MAX;
        else if (length > 0 && pattern[length - 1] == '*' && strncmp(pattern, bucket, length - 1) == 0)
            match = length;
        best = match > best ? match : best;
    }
    return best;
}

const struct mr_config_s3 *mr_config_s3_of(const struct mr_config *config, const char *bucket, const char **plain)
{
    const char *plus = strchr(bucket, '+');
    *plain = plus ? plus + 1 : bucket;
    if (plus) {
        const struct mr_config_endpoint *endpoint = find_endpoint(config, bucket, (size_t)(plus - bucket));
        if (!endpoint)
            mr_error_set(MR_E_CONFIG, "s3+%.*s://%s: the configuration has no [endpoint.%.*s]", (int)(plus - bucket),
                         bucket, *plain, (int)(plus - bucket), bucket);
        return endpoint ? &endpoint->s3 : NULL;
    }
    const struct mr_config_s3 *found = &config->s3;
    size_t best = 0;
    for (size_t i = 0; i < config->endpoint_count; i++) {
        size_t match = names_bucket(&config->endpoints[i], bucket);
        if (match > best) {
            best = match;
            found = &config->endpoints[i].s3;
        }
    }
    return found;
}

const struct mr_config_dataset *mr_config_find_dataset(const struct mr_config *config, const char *name)
{
    for (size_t i = 0; i < config->dataset_count; i++)
        if (strcmp(config->datasets[i].name, name) == 0)
            return &config->datasets[i];
    return NULL;
}

/* ---- values ---- */

static bool are_same_strings(const struct mr_strings *some, const struct mr_strings *others)
{
    bool same = some->count == others->count;
    for (size_t i = 0; same && i < some->count; i++)
        same = strcmp(some->items[i], others->items[i]) == 0;
    return same;
}

bool mr_config_is_same(const struct mr_config_key *key, const void *base, const void *other)
{
    const void *one = (const char *)base + key->offset, *two = (const char *)other + key->offset;
    switch (key->type) {
    case MR_KEY_U64:
    case MR_KEY_BYTES:
    case MR_KEY_CHOICE:
        return *(const uint64_t *)one == *(const uint64_t *)two;
    case MR_KEY_STRING:
        return strcmp(*(char *const *)one, *(char *const *)two) == 0;
    case MR_KEY_STRINGS:
    case MR_KEY_LINES:
        return are_same_strings(one, two);
    default:
        return false;
    }
}

static int wrong_type(const struct mr_config_key *key)
{
    static const char *const wanted[] = {
        [MR_KEY_U64] = "a whole number",
        [MR_KEY_BYTES] = "a number of bytes, or text such as \"512MiB\"",
        [MR_KEY_CHOICE] = "a string",
        [MR_KEY_STRING] = "a string",
        [MR_KEY_STRINGS] = "a string or an array of strings",
        [MR_KEY_LINES] = "a table of strings",
    };
    mr_error_set(MR_E_CONFIG, "'%s' must be %s%s", key->name, wanted[key->type], key->has_auto ? ", or \"auto\"" : "");
    return -1;
}

static void format_number(const struct mr_config_key *key, uint64_t value, char out[32])
{
    if (key->type == MR_KEY_BYTES)
        mr_size_format(value, out);
    else
        snprintf(out, 32, "%llu", (unsigned long long)value);
}

int mr_config_set_u64(const struct mr_config_key *key, void *base, uint64_t value)
{
    if (key->type != MR_KEY_U64 && key->type != MR_KEY_BYTES)
        return wrong_type(key);
    if ((value < key->min || value > key->max) && value != key->fallback) {
        char low[32];
        format_number(key, key->min, low);
        char high[32];
        format_number(key, key->max, high);
        char given[32];
        format_number(key, value, given);
        mr_error_set(MR_E_CONFIG, "'%s' is %s: it must be %s to %s %s", key->name, given, low, high, key->unit);
        return -1;
    }
    *(uint64_t *)field(key, base) = value;
    return 0;
}

static int set_choice(const struct mr_config_key *key, void *base, const char *text)
{
    char list[160] = "";
    for (uint64_t i = 0; key->choices[i]; i++) {
        if (strcmp(text, key->choices[i]) == 0) {
            *(uint64_t *)field(key, base) = i;
            return 0;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", key->choices[i]);
    }
    mr_error_set(MR_E_CONFIG, "'%s' is \"%.60s\": it must be one of %s", key->name, text, list);
    return -1;
}

/* "name: value", as HTTP allows them: a token, and no control characters. */
static int check_header(const struct mr_config_key *key, const char *line)
{
    const char *colon = strchr(line, ':');
    size_t name = colon ? (size_t)(colon - line) : 0;
    bool good = name > 0 && colon[1] == ' ';
    for (size_t i = 0; good && i < name; i++)
        good = isalnum((unsigned char)line[i]) || strchr("!#$%&'*+-.^_`|~", line[i]);
    for (const char *at = line; good && *at != '\0'; at++)
        good = (unsigned char)*at >= 0x20 && *at != 0x7f;
    if (good)
        return 0;
    mr_error_set(MR_E_CONFIG, "'%s' has a field with a bad name or value: '%.*s'", key->name, (int)name, line);
    return -1;
}

int mr_config_set_text(const struct mr_config_key *key, void *base, const char *text)
{
    uint64_t bytes;
    if (key->has_auto && strcmp(text, "auto") == 0)
        return mr_config_set_u64(key, base, key->fallback);
    switch (key->type) {
    case MR_KEY_BYTES:
        if (mr_size_parse(text, &bytes) != 0) {
            mr_error_append("'%s'", key->name);
            return -1;
        }
        return mr_config_set_u64(key, base, bytes);
    case MR_KEY_CHOICE:
        return set_choice(key, base, text);
    case MR_KEY_STRING: {
        char *copy = strdup(text);
        if (!copy)
            return no_memory();
        free(*(char **)field(key, base));
        *(char **)field(key, base) = copy;
        return 0;
    }
    case MR_KEY_LINES:
        if (check_header(key, text) != 0)
            return -1;
        return mr_strings_add(field(key, base), text);
    case MR_KEY_STRINGS:
        if (text[0] == '\0') {
            mr_error_set(MR_E_CONFIG, "'%s' has an empty text: for none, leave it out or write []", key->name);
            return -1;
        }
        return mr_strings_add(field(key, base), text);
    case MR_KEY_U64:
        break;
    }
    return wrong_type(key);
}

/* ---- what concerns more than one key ---- */

static int check_dataset(const struct mr_config_dataset *dataset)
{
    if (dataset->uris.count == 0) {
        mr_error_set(MR_E_CONFIG, "data set '%s' has neither uri nor uris", dataset->name);
        return -1;
    }
    struct mr_uri first = {0};
    int rc = 0;
    for (size_t i = 0; i < dataset->uris.count && rc == 0; i++) {
        struct mr_uri uri = {0};
        if (mr_uri_init(&uri, dataset->uris.items[i]) != 0) {
            mr_error_set(MR_E_CONFIG, "data set '%s': %s", dataset->name, mr_error_text());
            rc = -1;
        } else if (i > 0 && (uri.scheme != first.scheme || strcmp(uri.bucket, first.bucket) != 0)) {
            mr_error_set(MR_E_CONFIG, "data set '%s': its uris must lie in one bucket: '%.200s' and '%.200s' do not",
                         dataset->name, dataset->uris.items[0], dataset->uris.items[i]);
            rc = -1;
        }
        if (i == 0)
            first = uri;
        else
            mr_uri_close(&uri);
    }
    mr_uri_close(&first);
    return rc;
}

/* Parts become smaller where the memory has no room for eight of each writer: the key's meaning describes it. A size
 * that was chosen, and that no writer can ever have, is a mistake. */
static int check_checkpoint(const struct mr_config *config)
{
    const uint64_t chosen = config->checkpoint.part_bytes, arena = config->checkpoint.arena_bytes;
    if (arena == 0 || chosen <= arena / 2 || chosen == mr_config_key_find("checkpoint", "part_bytes")->fallback)
        return 0;
    mr_error_set(
        MR_E_CONFIG,
        "checkpoint.part_bytes (%llu) does not fit twice into checkpoint.arena_bytes (%llu): each writer needs two "
        "parts",
        (unsigned long long)chosen, (unsigned long long)arena);
    return -1;
}

static int check_cleartext(const struct mr_config *config)
{
    if (!mr_uri_is_cleartext(config->gcs.endpoint) || config->gcs.auth == MR_AUTH_ANONYMOUS ||
        config->gcs.cleartext_credentials == MR_CLEARTEXT_ALLOW)
        return 0;
    mr_error_set(MR_E_CONFIG,
                 "gcs.endpoint = \"%.200s\" would get credentials in clear text: write https://, or gcs.auth = "
                 "\"anonymous\", or gcs.cleartext_credentials = \"allow\" where no one else can listen",
                 config->gcs.endpoint);
    return -1;
}

static int check_url(const char *endpoint, const char *section, bool may_have_path)
{
    if (!endpoint[0] || mr_uri_is_endpoint(endpoint, may_have_path))
        return 0;
    mr_error_set(MR_E_CONFIG, "%s.endpoint = \"%.200s\" is not of the form http[s]://host[:port]", section, endpoint);
    return -1;
}

static int check_encryption(const struct mr_config_s3 *s3, const char *section)
{
    if (!s3->kms_key_id[0] || s3->encryption >= MR_S3_KMS)
        return 0;
    mr_error_set(MR_E_CONFIG, "%s.kms_key_id is set, and %s.encryption is neither aws:kms nor aws:kms:dsse", section,
                 section);
    return -1;
}

/* A bucket may be listed by one endpoint only. Endpoints before this one have been checked. */
static int check_endpoint(const struct mr_config *config, const struct mr_config_endpoint *endpoint)
{
    char section[MR_URI_ENDPOINT_MAX + 10];
    snprintf(section, sizeof section, "endpoint.%s", endpoint->name);
    for (size_t i = 0; i < endpoint->buckets.count; i++) {
        const char *bucket = endpoint->buckets.items[i], *star = strchr(bucket, '*');
        if (!bucket[0] || strchr(bucket, '/') || strchr(bucket, '+') || (star && star[1])) {
            mr_error_set(MR_E_CONFIG, "%s.buckets: \"%.100s\" is not a bucket's name; a \"*\" may stand at its end",
                         section, bucket);
            return -1;
        }
        for (const struct mr_config_endpoint *other = config->endpoints; other < endpoint; other++) {
            for (size_t j = 0; j < other->buckets.count; j++) {
                if (strcmp(other->buckets.items[j], bucket) == 0) {
                    mr_error_set(MR_E_CONFIG, "the bucket \"%.100s\" is in endpoint.%s and in %s", bucket, other->name,
                                 section);
                    return -1;
                }
            }
        }
    }
    return check_url(endpoint->s3.endpoint, section, false) == 0 ? check_encryption(&endpoint->s3, section) : -1;
}

int mr_config_check(const struct mr_config *config)
{
    if (check_url(config->gcs.endpoint, "gcs", true) != 0 || check_url(config->s3.endpoint, "s3", false) != 0 ||
        check_encryption(&config->s3, "s3") != 0)
        return -1;
    for (size_t i = 0; i < config->endpoint_count; i++)
        if (check_endpoint(config, &config->endpoints[i]) != 0)
            return -1;
    if (config->retry.cap_ms < config->retry.base_ms) {
        mr_error_set(MR_E_CONFIG, "retry.cap_ms (%llu) is below retry.base_ms (%llu)",
                     (unsigned long long)config->retry.cap_ms, (unsigned long long)config->retry.base_ms);
        return -1;
    }
    if (config->fetch.range_bytes > config->fetch.range_threshold_bytes) {
        mr_error_set(MR_E_CONFIG, "fetch.range_bytes (%llu) is above fetch.range_threshold_bytes (%llu)",
                     (unsigned long long)config->fetch.range_bytes,
                     (unsigned long long)config->fetch.range_threshold_bytes);
        return -1;
    }
    if (check_checkpoint(config) != 0 || check_cleartext(config) != 0)
        return -1;
    for (size_t i = 0; i < config->dataset_count; i++)
        if (check_dataset(&config->datasets[i]) != 0)
            return -1;
    return 0;
}

uint64_t mr_config_arena_bytes(const struct mr_config *config, uint64_t memory_limit_bytes, uint64_t available_bytes)
{
    const uint64_t least = UINT64_C(256) << 20, most = UINT64_C(8) << 30;
    if (config->memory.arena_bytes != 0)
        return config->memory.arena_bytes;
    uint64_t bound = memory_limit_bytes / 8;
    bound = bound < least ? least : bound > most ? most : bound;
    return bound < available_bytes / 2 ? bound : available_bytes / 2; /* the training takes some meanwhile */
}

uint64_t mr_config_batch_bytes(const struct mr_config *config, uint64_t memory_limit_bytes)
{
    return config->memory.batch_bytes != 0 ? config->memory.batch_bytes : memory_limit_bytes / 8;
}

uint64_t mr_config_ckpt_arena_bytes(const struct mr_config *config, uint64_t memory_limit_bytes)
{
    const uint64_t least = UINT64_C(256) << 20, most = UINT64_C(4) << 30;
    if (config->checkpoint.arena_bytes != 0)
        return config->checkpoint.arena_bytes;
    uint64_t share = memory_limit_bytes / 16;
    return share < least ? least : share > most ? most : share;
}

/* ---- to and from a worker ---- */

static void full_name(const struct mr_config_key *key, char out[80])
{
    snprintf(out, 80, "%s.%s", key->section, key->name);
}

static void pack_text(msgpack_packer *packer, const char *text)
{
    msgpack_pack_str_with_body(packer, text, strlen(text));
}

/* As next_key, without `uri`, which has the same field as `uris`. */
static const struct mr_config_key *next_packed(enum level level, unsigned *i)
{
    const struct mr_config_key *key;
    do {
        key = next_key(level, i);
    } while (key && level == DATASET && strcmp(key->name, "uri") == 0);
    return key;
}

static void pack_fields(msgpack_packer *packer, const void *base, enum level level)
{
    unsigned i = 0;
    for (const struct mr_config_key *key; (key = next_packed(level, &i));) {
        char name[80];
        full_name(key, name);
        pack_text(packer, name);
        const void *at = field_const(key, base);
        if (key->type == MR_KEY_STRING) {
            pack_text(packer, *(char *const *)at);
        } else if (key->type == MR_KEY_STRINGS || key->type == MR_KEY_LINES) {
            const struct mr_strings *strings = at;
            msgpack_pack_array(packer, strings->count);
            for (size_t j = 0; j < strings->count; j++)
                pack_text(packer, strings->items[j]);
        } else {
            msgpack_pack_uint64(packer, *(const uint64_t *)at);
        }
    }
}

static unsigned packed_count(enum level level)
{
    unsigned i = 0, packed = 0;
    while (next_packed(level, &i))
        packed++;
    return packed;
}

static void pack_named(msgpack_packer *packer, const char *name, const void *base, enum level level)
{
    msgpack_pack_map(packer, packed_count(level) + 1);
    pack_text(packer, "name");
    pack_text(packer, name);
    pack_fields(packer, base, level);
}

/* A msgpack_sbuffer that cannot grow keeps no error, so this one does. */
struct buffer {
    msgpack_sbuffer bytes;
    bool failed;
};

static int buffer_write(void *data, const char *bytes, size_t length)
{
    struct buffer *buffer = data;
    if (msgpack_sbuffer_write(&buffer->bytes, bytes, length) != 0)
        buffer->failed = true;
    return buffer->failed ? -1 : 0;
}

int mr_config_to_fd(const struct mr_config *config)
{
    struct buffer buffer = {.failed = false};
    int fd = -1;
    msgpack_sbuffer_init(&buffer.bytes);
    msgpack_packer packer;
    msgpack_packer_init(&packer, &buffer, buffer_write);
    msgpack_pack_map(&packer, packed_count(SECTIONS) + 2);
    pack_fields(&packer, config, SECTIONS);
    pack_text(&packer, "datasets");
    msgpack_pack_array(&packer, config->dataset_count);
    for (size_t i = 0; i < config->dataset_count; i++)
        pack_named(&packer, config->datasets[i].name, &config->datasets[i], DATASET);
    pack_text(&packer, "endpoints");
    msgpack_pack_array(&packer, config->endpoint_count);
    for (size_t i = 0; i < config->endpoint_count; i++)
        pack_named(&packer, config->endpoints[i].name, &config->endpoints[i], ENDPOINT);
    if (buffer.failed) {
        no_memory();
        goto out;
    }
    fd = memfd_create("millrace-config", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, buffer.bytes.data, buffer.bytes.size, 0) != (ssize_t)buffer.bytes.size) {
        mr_error_set_errno(errno, "cannot write the configuration for a worker");
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
out:
    msgpack_sbuffer_destroy(&buffer.bytes);
    return fd;
}

static int bad_value(const char *name)
{
    mr_error_set(MR_E_PROTOCOL, "the encoded configuration has a bad value for %s", name);
    return -1;
}

/* A copy with its NUL, or NULL (PROTOCOL, NO_MEMORY). */
static char *text_of(const msgpack_object *object, const char *name)
{
    const char *at;
    size_t length;
    if (!mr_unpack_bytes(object, &at, &length) || memchr(at, '\0', length)) {
        bad_value(name);
        return NULL;
    }
    char *text = strndup(at, length);
    if (!text)
        no_memory();
    return text;
}

static int take_text(const struct mr_config_key *key, void *base, const msgpack_object *object, const char *name)
{
    char *text = text_of(object, name);
    if (!text)
        return -1;
    int rc = mr_config_set_text(key, base, text);
    free(text);
    return rc;
}

/* The other side is a program of ours, but a value of another type or range is refused, never converted. */
static int take_value(const struct mr_config_key *key, void *base, const msgpack_object *object, const char *name)
{
    switch (key->type) {
    case MR_KEY_U64:
    case MR_KEY_BYTES:
        if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return bad_value(name);
        return mr_config_set_u64(key, base, object->via.u64);
    case MR_KEY_CHOICE: {
        uint64_t count = 0;
        while (key->choices[count])
            count++;
        if (object->type != MSGPACK_OBJECT_POSITIVE_INTEGER || object->via.u64 >= count)
            return bad_value(name);
        *(uint64_t *)field(key, base) = object->via.u64;
        return 0;
    }
    case MR_KEY_STRING:
        return take_text(key, base, object, name);
    case MR_KEY_STRINGS:
    case MR_KEY_LINES:
        if (object->type != MSGPACK_OBJECT_ARRAY)
            return bad_value(name);
        for (uint32_t i = 0; i < object->via.array.size; i++)
            if (take_text(key, base, &object->via.array.ptr[i], name) != 0)
                return -1;
        return 0;
    }
    return bad_value(name);
}

static int take_fields(void *base, enum level level, const msgpack_object *map)
{
    unsigned i = 0;
    for (const struct mr_config_key *key; (key = next_packed(level, &i));) {
        char name[80];
        full_name(key, name);
        const msgpack_object *object = mr_unpack_find(map, name);
        if (object && take_value(key, base, object, name) != 0)
            return -1;
    }
    return 0;
}

/* The data sets, or the endpoints. */
static int take_named(struct mr_config *config, const char *what, enum level level, const msgpack_object *list)
{
    if (!list)
        return 0;
    if (list->type != MSGPACK_OBJECT_ARRAY)
        return bad_value(what);
    for (uint32_t i = 0; i < list->via.array.size; i++) {
        const msgpack_object *map = &list->via.array.ptr[i];
        const msgpack_object *named = mr_unpack_find(map, "name");
        char *name = named ? text_of(named, "name") : NULL;
        void *added = !name              ? NULL
                      : level == DATASET ? (void *)mr_config_add_dataset(config, name)
                                         : (void *)mr_config_add_endpoint(config, name);
        free(name);
        if (!added)
            return bad_value(what);
        if (take_fields(added, level, map) != 0)
            return -1;
    }
    return 0;
}

int mr_config_from_fd(struct mr_config *config, int fd)
{
    int rc = -1;
    char *bytes = NULL;
    msgpack_zone zone;
    *config = (struct mr_config){0};
    if (!msgpack_zone_init(&zone, MSGPACK_ZONE_CHUNK_SIZE))
        return no_memory();
    struct stat status;
    if (fstat(fd, &status) != 0) {
        mr_error_set_errno(errno, "cannot read the encoded configuration");
        goto out;
    }
    if (status.st_size <= 0 || status.st_size > ENCODED_MAX) {
        mr_error_set(MR_E_PROTOCOL, "an encoded configuration of %lld bytes", (long long)status.st_size);
        goto out;
    }
    bytes = malloc((size_t)status.st_size);
    if (!bytes) {
        no_memory();
        goto out;
    }
    if (pread(fd, bytes, (size_t)status.st_size, 0) != status.st_size) {
        mr_error_set(MR_E_IO, "cannot read the encoded configuration");
        goto out;
    }
    msgpack_object root;
    if (mr_unpack(&zone, bytes, (size_t)status.st_size, &root) != 0)
        goto out;
    if (root.type != MSGPACK_OBJECT_MAP) {
        bad_value("the whole");
        goto out;
    }
    if (mr_config_init(config) != 0)
        goto out;
    if (take_fields(config, SECTIONS, &root) == 0 &&
        take_named(config, "datasets", DATASET, mr_unpack_find(&root, "datasets")) == 0 &&
        take_named(config, "endpoints", ENDPOINT, mr_unpack_find(&root, "endpoints")) == 0)
        rc = 0;
    else
        mr_config_close(config);
out:
    free(bytes);
    msgpack_zone_destroy(&zone);
    return rc;
}
