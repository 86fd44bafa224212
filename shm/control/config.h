/*
 * config.h - the configuration as every process of a run knows it, and the one table of its keys.
 *
 * The table (mr_config_keys) has name, type, default, range, unit and meaning of each key. Defaults, range checks,
 * `millrace check` and docs/configuration.md are made from it: a new key is one field and one row. The TOML text is
 * read by the supervisor alone (supervisor/config_toml.h); workers get the result as a msgpack map in a memfd.
 * No credentials are in here: workers find those themselves.
 */
#ifndef MR_SHM_CONTROL_CONFIG_H
#define MR_SHM_CONTROL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/strings.h"
#include "shm/memory/segment.h"

enum mr_tail { MR_TAIL_SHORT, MR_TAIL_DROP, MR_TAIL_PAD };
enum mr_on_error { MR_ON_ERROR_RAISE, MR_ON_ERROR_SKIP, MR_ON_ERROR_REPLACE };
enum mr_huge_pages { MR_HUGE_PAGES_AUTO, MR_HUGE_PAGES_NEVER };
enum mr_compose { MR_COMPOSE_AUTO, MR_COMPOSE_ALWAYS, MR_COMPOSE_NEVER };
enum mr_prepare { MR_PREPARE_AUTO, MR_PREPARE_ALWAYS, MR_PREPARE_NEVER };
enum mr_auth_mode { MR_AUTH_DEFAULT, MR_AUTH_ANONYMOUS };
/* Those of [s3] in the order of worker/store/s3.h. */
#define MR_S3_KMS 2 /* of s3.encryption: from here on with a key of KMS */
enum mr_requester { MR_OWNER_PAYS, MR_REQUESTER_PAYS };
enum mr_cleartext { MR_CLEARTEXT_REFUSE, MR_CLEARTEXT_ALLOW };

#define MR_CONFIG_PRIVATE_CKPT_BYTES (UINT64_C(256) << 20) /* checkpoint.arena_bytes of a private supervisor */
#define MR_ENVIRONMENT_FD            "MILLRACE_CONFIG_FD"  /* a tool's descriptor of the configuration */

/* Numbers are uint64_t and choices are uint64_t that hold the enum, so that one table can describe all fields. A string
 * is never NULL; "" stands for "not set". */
struct mr_config_dataset {
    char *name;             /* of [dataset.NAME] */
    struct mr_strings uris; /* uri or uris: at least one */
    uint64_t tail;          /* enum mr_tail */
    uint64_t on_error;      /* enum mr_on_error */
    char *index;            /* path or URI of its saved index */
};

/* The keys of [s3], and of each [endpoint.NAME]. */
struct mr_config_s3 {
    char *endpoint, *region, *profile;
    uint64_t auth;           /* enum mr_auth_mode */
    uint64_t addressing;     /* enum mr_s3_addressing */
    uint64_t checksums;      /* enum mr_s3_checksums */
    uint64_t encryption;     /* enum mr_s3_encryption */
    uint64_t requester_pays; /* enum mr_requester */
    char *kms_key_id, *customer_key_file;
    uint64_t cleartext_credentials; /* enum mr_cleartext */
};

struct mr_config_endpoint {
    char *name;                /* of [endpoint.NAME] */
    struct mr_strings buckets; /* those of s3:// that are there; one that ends in "*" stands for all that begin so */
    struct mr_config_s3 s3;
};

struct mr_config {
    struct {
        uint64_t arena_bytes; /* 0: auto: as much as is used, up to mr_config_arena_bytes */
        uint64_t batch_bytes; /* 0: auto (mr_config_batch_bytes) */
        uint64_t backing;     /* enum mr_backing */
        uint64_t huge_pages;  /* enum mr_huge_pages */
    } memory;
    struct {
        uint64_t window, max;
    } lanes;
    struct {
        uint64_t workers;
        uint64_t max_age_s; /* 0: always list */
        uint64_t cache_bytes, cache_files;
        struct mr_strings exclude_classes; /* storage classes that are left out of the index */
    } list;
    struct {
        uint64_t workers;
        uint64_t connections; /* a worker; 0: auto */
        uint64_t receive_buffer_bytes;
        uint64_t range_threshold_bytes; /* objects of this size and more are fetched in parallel ranges */
        uint64_t range_bytes;
        uint64_t compose; /* enum mr_compose */
        uint64_t compose_max_bytes, compose_max_objects;
    } fetch;
    struct {
        uint64_t attempts, base_ms, cap_ms, deadline_ms;
    } retry;
    struct {
        uint64_t connect_timeout_ms, stall_timeout_ms, stall_min_ms;
        char *proxy, *ca_bundle;
        struct mr_strings headers; /* lines "name: value" */
    } http;
    struct {
        uint64_t workers;
        uint64_t part_bytes;
        uint64_t arena_bytes; /* 0: the supervisor chooses (mr_config_ckpt_arena_bytes) */
        uint64_t prepare;     /* enum mr_prepare */
        uint64_t drain_s;
    } checkpoint;
    struct {
        char *endpoint;
        uint64_t auth;                  /* enum mr_auth_mode */
        uint64_t cleartext_credentials; /* enum mr_cleartext */
        char *user_project;
    } gcs;
    struct mr_config_s3 s3;
    struct {
        uint64_t level; /* enum mr_log_level */
        char *epochs;   /* "": none */
    } log;
    struct {
        uint64_t interval_s;
    } metrics;
    struct {
        uint64_t silence_ms;
    } supervisor;
    struct mr_config_dataset *datasets; /* [dataset.NAME], in the order of the file */
    size_t dataset_count;
    struct mr_config_endpoint *endpoints; /* [endpoint.NAME], sorted by name */
    size_t endpoint_count;
};

enum mr_key_type {
    MR_KEY_U64,     /* integer; uint64_t */
    MR_KEY_BYTES,   /* integer or size text such as "512MiB"; uint64_t */
    MR_KEY_CHOICE,  /* one of `choices`; uint64_t, its position there */
    MR_KEY_STRING,  /* char * */
    MR_KEY_STRINGS, /* array of strings, or one string; struct mr_strings */
    MR_KEY_LINES,   /* a table of strings; struct mr_strings of "name: value" */
};

struct mr_config_key {
    const char *section; /* "dataset" is [dataset.NAME], "endpoint" [endpoint.NAME]; the rest are [section] */
    const char *name;
    enum mr_key_type type;
    size_t offset;              /* in struct mr_config, mr_config_dataset or mr_config_endpoint */
    uint64_t fallback;          /* U64, BYTES, CHOICE: the default. Strings: "", lists: empty */
    uint64_t min, max;          /* U64 and BYTES. `fallback` may lie outside: a special value, such as 0 for "chosen" */
    const char *const *choices; /* CHOICE: NULL-terminated */
    const char *unit;           /* "bytes", "ms", ...; "" */
    const char *special;        /* how `fallback` is written where it is a special value; NULL otherwise */
    bool has_auto;              /* the special value is given and printed as "auto" */
    bool live;                  /* `millrace reload` applies it to a running supervisor */
    const char *meaning;        /* one or two sentences without newline */
};

const struct mr_config_key *mr_config_keys(unsigned *count);
/* NULL when there is none of that name. */
const struct mr_config_key *mr_config_key_find(const char *section, const char *name);
/* Whether it is of [dataset.NAME] or [endpoint.NAME], of which there may be several. */
bool mr_config_key_is_named(const struct mr_config_key *key);
/* The present name of a key that was renamed; NULL for any other name. */
const char *mr_config_renamed(const char *section, const char *name);
/* The section's or key's name that is nearest to a wrong one, or NULL when none is similar. section NULL: sections. */
const char *mr_config_nearest(const char *section, const char *wrong);

/* Whether two of the structs that the key belongs to have the same value of it. */
bool mr_config_is_same(const struct mr_config_key *key, const void *base, const void *other);

/* All defaults, no data set. 0 or -1 (NO_MEMORY). */
int mr_config_init(struct mr_config *config);
/* Frees what it holds; safe on a zeroed one and twice. */
void mr_config_close(struct mr_config *config);
/* A new data set with its defaults: CONFIG when the name is taken, is empty, or has characters other than A-Z a-z 0-9 _
 * - and the dot. */
struct mr_config_dataset *mr_config_add_dataset(struct mr_config *config, const char *name);
const struct mr_config_dataset *mr_config_find_dataset(const struct mr_config *config, const char *name);

/* The same of an endpoint, whose name has letters, digits, '-' and '.'. */
struct mr_config_endpoint *mr_config_add_endpoint(struct mr_config *config, const char *name);
const struct mr_config_endpoint *mr_config_find_endpoint(const struct mr_config *config, const char *name);
/* How a bucket of s3:// is reached: one called "NAME+bucket" (base/uri.h) by [endpoint.NAME]; else by the endpoint that
 * names the bucket, whole before "begins*" and a longer one before a shorter; else by [s3]. *plain: the bucket's own
 * name, in `bucket`. NULL (CONFIG): there is no such endpoint. */
const struct mr_config_s3 *mr_config_s3_of(const struct mr_config *config, const char *bucket, const char **plain);

/* Sets one value; base: the struct mr_config, mr_config_dataset or mr_config_endpoint that the key belongs to. 0, or -1
 * (CONFIG) with the range, the choices or the type that would be right. set_u64 takes U64 and BYTES; set_text takes
 * BYTES ("512MiB"), CHOICE, STRING, and adds an item to STRINGS and LINES. */
int mr_config_set_u64(const struct mr_config_key *key, void *base, uint64_t value);
int mr_config_set_text(const struct mr_config_key *key, void *base, const char *text);

/* What concerns more than one key: a data set without a URI, a bad URI, a cap below its base. 0 or -1 (CONFIG). */
int mr_config_check(const struct mr_config *config);
/* memory.arena_bytes, or if that is auto (0) the bound: an eighth of the memory limit within 256 MiB and 8 GiB, and no
 * more than half of what is available. */
uint64_t mr_config_arena_bytes(const struct mr_config *config, uint64_t memory_limit_bytes, uint64_t available_bytes);
/* memory.batch_bytes, or if that is auto (0) an eighth of the memory limit. */
uint64_t mr_config_batch_bytes(const struct mr_config *config, uint64_t memory_limit_bytes);
/* checkpoint.arena_bytes, or if that is 0 a sixteenth of the memory limit within 256 MiB and 4 GiB. */
uint64_t mr_config_ckpt_arena_bytes(const struct mr_config *config, uint64_t memory_limit_bytes);

/* A memfd with the configuration as one msgpack map, for a worker; -1 on error. The caller closes it. */
int mr_config_to_fd(const struct mr_config *config);
/* Reads the whole file from offset 0, whatever its position; fills *config, which must not be initialised before.
 * Unknown keys are ignored and missing ones keep their defaults. -1: PROTOCOL, IO, NO_MEMORY, or CONFIG for a value out
 * of range. fd stays the caller's. */
int mr_config_from_fd(struct mr_config *config, int fd);

#endif
