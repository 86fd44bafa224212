/* config_keys.c - the table of configuration keys; config.h lists what is made from it. */
#include "shm/control/config.h"

#include <string.h>

#include "base/silence.h"
#include "shm/ring/board.h"
#include "shm/ring/lane.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)
#define GIB (MIB * 1024)
#define TIB (GIB * 1024)

static const char *const tails[] = {"short", "drop", "pad", NULL};
static const char *const on_errors[] = {"raise", "skip", "replace", NULL};
static const char *const backings[] = {"auto", "posix", "memfd", NULL};
static const char *const composes[] = {"auto", "always", "never", NULL};
static const char *const prepares[] = {"auto", "always", "never", NULL};
static const char *const huge_pages[] = {"auto", "never", NULL};
static const char *const cleartexts[] = {"refuse", "allow", NULL};
static const char *const auths[] = {"default", "anonymous", NULL};
static const char *const addressings[] = {"auto", "path", "virtual", NULL};
static const char *const checksums[] = {"auto", "always", "never", NULL};
static const char *const encryptions[] = {"none", "AES256", "aws:kms", "aws:kms:dsse", NULL};
static const char *const requesters[] = {"no", "yes", NULL};
static const char *const log_levels[] = {"error", "warning", "info", "debug", NULL};

#define DATASET(section_, name_, type_, field) section_, name_, type_, offsetof(struct mr_config_dataset, field)
#define FIELD(section_, name_, type_)          #section_, #name_, type_, offsetof(struct mr_config, section_.name_)
#define NUMBER(fallback_, min_, max_, unit_)   .fallback = (fallback_), .min = (min_), .max = (max_), .unit = unit_
#define CHOICE(fallback_, choices_)            .fallback = (fallback_), .choices = (choices_), .unit = ""

/* The keys of [s3] and of [endpoint.NAME], which have the same. */
#define S3_FIELD(name_, type_) \
    "s3", #name_, type_, offsetof(struct mr_config, s3) + offsetof(struct mr_config_s3, name_)
#define ENDPOINT_FIELD(name_, type_) \
    "endpoint", #name_, type_, offsetof(struct mr_config_endpoint, s3) + offsetof(struct mr_config_s3, name_)
#define SAID(text)     text
#define AS_OF_S3(text) "As of [s3], for this endpoint."
#define S3_ROWS(AT, SAY)                                                                                               \
    {AT(endpoint, MR_KEY_STRING), .unit = "",                                                                          \
     .meaning =                                                                                                        \
         SAY("Base URL of a store that speaks S3; without a scheme https://, on this machine http://. When empty "     \
             "AWS_ENDPOINT_URL_S3 counts, then AWS_ENDPOINT_URL, the AWS profile, and AWS's own for the region.")},    \
        {AT(region, MR_KEY_STRING), .unit = "",                                                                        \
         .meaning = SAY("The region that requests are signed for. When empty AWS_REGION counts, then "                 \
                        "AWS_DEFAULT_REGION, the AWS "                                                                 \
                        "profile, and us-east-1; AWS's answers correct it.")},                                         \
        {AT(profile, MR_KEY_STRING), .unit = "",                                                                       \
         .meaning =                                                                                                    \
             SAY("The profile of ~/.aws/config and ~/.aws/credentials. When empty AWS_PROFILE counts; keys of the "    \
                 "environment go before that, and behind this.")},                                                     \
        {AT(auth, MR_KEY_CHOICE), CHOICE(MR_AUTH_DEFAULT, auths),                                                      \
         .meaning = SAY("default: credentials as the AWS tools find them. anonymous: requests are not signed.")},      \
        {AT(cleartext_credentials, MR_KEY_CHOICE), CHOICE(MR_CLEARTEXT_REFUSE, cleartexts),                            \
         .meaning = SAY("Whether the services that give keys (STS, SSO) may be http:// on another machine. Requests "  \
                        "to the store "                                                                                \
                        "are signed, and carry no key.")},                                                             \
        {AT(addressing, MR_KEY_CHOICE), CHOICE(0, addressings),                                                        \
         .meaning = SAY("Where the bucket's name goes: path puts it behind the host, virtual in front of it; auto is " \
                        "the profile's addressing_style, else virtual at AWS, but for names that no host can have, "   \
                        "and path elsewhere, as the AWS tools do.")},                                                  \
        {AT(checksums, MR_KEY_CHOICE), CHOICE(0, checksums),                                                           \
         .meaning = SAY(                                                                                               \
             "Whether uploads carry a CRC32C: auto to AWS alone, since other stores may refuse it. never: nor are "    \
             "downloads asked for the checksum that the store has.")},                                                 \
        {AT(encryption, MR_KEY_CHOICE), CHOICE(0, encryptions),                                                        \
         .meaning = SAY("How S3 is told to encrypt what is written. none: as the bucket's default says.")},            \
        {AT(kms_key_id, MR_KEY_STRING), .unit = "",                                                                    \
         .meaning = SAY("The KMS key for encryption = aws:kms. When empty AWS's own.")},                               \
        {AT(customer_key_file, MR_KEY_STRING), .unit = "",                                                             \
         .meaning = SAY(                                                                                               \
             "A file with the 32 bytes of a key of your own (SSE-C), which goes with each request for an object's "    \
             "bytes, over https:// alone.")},                                                                          \
        {AT(requester_pays, MR_KEY_CHOICE), CHOICE(MR_OWNER_PAYS, requesters),                                         \
         .meaning = SAY("yes: the account of the credentials is billed for requests to requester-pays buckets.")},

static const struct mr_config_key keys[] = {
    {DATASET("dataset", "uri", MR_KEY_STRINGS, uris), .unit = "",
     .meaning = "Where the objects are: gs://bucket/prefix/, s3://bucket/prefix/, file:///folder/. All names that "
                "begin so belong to the data set: end a folder's with a slash."},
    {DATASET("dataset", "uris", MR_KEY_STRINGS, uris), .unit = "",
     .meaning = "Several places of one bucket, as an array, in place of uri."},
    {DATASET("dataset", "tail", MR_KEY_CHOICE, tail), CHOICE(MR_TAIL_SHORT, tails),
     .meaning =
         "The last step, where fewer samples are left than all ranks need: short deals them out evenly, drop leaves "
         "them out, pad repeats samples from the epoch's start."},
    {DATASET("dataset", "on_error", MR_KEY_CHOICE, on_error), CHOICE(MR_ON_ERROR_RAISE, on_errors),
     .meaning = "A sample that cannot be read: raise an exception, skip it, or replace it by another one."},
    {DATASET("dataset", "index", MR_KEY_STRING, index), .unit = "",
     .meaning = "A saved index, as a path or a gs:// or s3:// URI: it is used where it is there and not older than "
                "list.max_age_s, else the data set is listed and saved there. The first of several nodes saves, the "
                "others read."},

    {FIELD(memory, arena_bytes, MR_KEY_BYTES), NUMBER(0, 1 * MIB, 16 * TIB, "bytes"),
     .special = "as much as is used, up to 1/8 of the memory, 256MiB to 8GiB", .has_auto = true,
     .meaning =
         "Shared memory for downloaded objects, all fetch workers together. auto begins with some MiB and grows in "
         "steps with what readers ask for; its bound is of the smaller of the machine's memory and the cgroup's limit. "
         "A size is taken at the start."},
    {FIELD(memory, batch_bytes, MR_KEY_BYTES), NUMBER(0, 1 * MIB, 16 * TIB, "bytes"), .special = "1/8 of the memory",
     .has_auto = true, .live = true,
     .meaning =
         "Memory for batches on their way from DataLoader workers to the training loop, on this node: each rank's "
         "loaders get their part of it. It is taken as batches need it; what does not fit goes as torch sends it. "
         "Loaders that start workers later use a changed value."},
    {FIELD(memory, backing, MR_KEY_CHOICE), CHOICE(MR_BACKING_AUTO, backings),
     .meaning =
         "What shared memory is made of: posix is unnamed files in /dev/shm, memfd is memfd_create(2), auto is posix "
         "where it fits."},
    {FIELD(memory, huge_pages, MR_KEY_CHOICE), CHOICE(MR_HUGE_PAGES_AUTO, huge_pages),
     .meaning = "auto: the arena has huge pages where the machine allows it "
                "(/sys/kernel/mm/transparent_hugepage/shmem_enabled is not never) and backing is not posix."},

    {FIELD(lanes, window, MR_KEY_U64), NUMBER(0, MR_LANE_WINDOW_MIN, MR_LANE_WINDOW_MAX, "samples"),
     .special = "256 at first, up to 1024 while the reader waits", .has_auto = true,
     .meaning = "How far each reader looks ahead; a number is rounded up to a power of two, either to at least two "
                "batches."},
    {FIELD(lanes, max, MR_KEY_U64), NUMBER(256, 1, 4000, "lanes"),
     .meaning = "Readers (ranks, DataLoader workers) that may be open at once."},

    {FIELD(list, workers, MR_KEY_U64), NUMBER(4, 1, 32, "processes"),
     .meaning = "Processes that list a data set; they end when the listing is done."},
    {FIELD(list, max_age_s, MR_KEY_U64), NUMBER(0, 0, UINT64_C(10) * 366 * 86400, "s"),
     .meaning =
         "A cached index of the same data set that is not older is used in place of a new listing. For a data set "
         "with an index of its own, the age from which that is listed again. 0: data sets are listed each time, and an "
         "index of their own is used at any age."},
    {FIELD(list, cache_bytes, MR_KEY_BYTES), NUMBER(4 * GIB, 0, 16 * TIB, "bytes"),
     .meaning =
         "Most bytes of the indexes in the cache folder ($XDG_CACHE_HOME/millrace/index); 0 keeps none. A resume "
         "finds the listing of its state there."},
    {FIELD(list, cache_files, MR_KEY_U64), NUMBER(64, 0, 100000, "files"),
     .meaning = "Most indexes in the cache folder; of the places that have most, those that were not used for longest "
                "go. 0 keeps "
                "none."},
    {FIELD(list, exclude_classes, MR_KEY_STRINGS), .unit = "",
     .meaning = "Storage classes whose objects are left out (and counted), such as ARCHIVE."},

    {FIELD(fetch, workers, MR_KEY_U64), NUMBER(2, 1, MR_PRODUCERS_MAX, "processes"),
     .meaning =
         "Processes that download. Fewer are started where the arena is too small for three of the largest objects "
         "in each."},
    {FIELD(fetch, connections, MR_KEY_U64), NUMBER(0, 1, 1024, "connections"), .live = true,
     .special = "as many as pay, up to 1024", .has_auto = true,
     .meaning = "Requests that each fetch worker has in flight at most. auto finds the number by what it brings "
                "(docs/tuning.md), within a quarter of the descriptors that the process may have."},
    {FIELD(fetch, receive_buffer_bytes, MR_KEY_BYTES), NUMBER(512 * KIB, 16 * KIB, 8 * MIB, "bytes"),
     .meaning = "Receive buffer of each connection."},
    {FIELD(fetch, range_threshold_bytes, MR_KEY_BYTES), NUMBER(32 * MIB, 1 * MIB, 16 * TIB, "bytes"), .live = true,
     .meaning = "Objects of this size and more are downloaded in several ranges at once."},
    {FIELD(fetch, range_bytes, MR_KEY_BYTES), NUMBER(16 * MIB, 256 * KIB, 16 * GIB, "bytes"), .live = true,
     .meaning = "The size of one such range."},
    {FIELD(fetch, compose, MR_KEY_CHOICE), CHOICE(MR_COMPOSE_AUTO, composes), .live = true,
     .meaning =
         "Small objects are composed into a temporary one, which one request downloads: auto where permissions, costs "
         "and measured speed say so, always, or never. docs/compose.md has what it costs."},
    {FIELD(fetch, compose_max_bytes, MR_KEY_BYTES), NUMBER(100000000, 4 * KIB, 16 * GIB, "bytes"), .live = true,
     .meaning = "The most bytes of one composed object; never more than a quarter of a fetch worker's arena."},
    {FIELD(fetch, compose_max_objects, MR_KEY_U64), NUMBER(32, 2, 32, "objects"), .live = true,
     .meaning = "The most objects of one composed object."},

    {FIELD(retry, attempts, MR_KEY_U64), NUMBER(0, 1, 1000, "requests"), .special = "no limit", .live = true,
     .meaning = "Failures in a row, without progress, after which a thing has failed; deadline_ms holds in any case."},
    {FIELD(retry, base_ms, MR_KEY_U64), NUMBER(500, 1, 60000, "ms"), .live = true,
     .meaning =
         "The longest wait before the second request; it doubles with each further one, and a random part of it is "
         "waited."},
    {FIELD(retry, cap_ms, MR_KEY_U64), NUMBER(32000, 1, 3600000, "ms"), .live = true,
     .meaning = "The longest wait between two requests."},
    {FIELD(retry, deadline_ms, MR_KEY_U64), NUMBER(300000, 100, 86400000, "ms"), .live = true,
     .meaning = "After this time without progress no further request is made for a thing."},

    {FIELD(http, connect_timeout_ms, MR_KEY_U64), NUMBER(10000, 10, 600000, "ms"),
     .meaning = "Time for the name's look-up, the connection and TLS."},
    {FIELD(http, stall_timeout_ms, MR_KEY_U64), NUMBER(20000, 10, 3600000, "ms"),
     .meaning = "A transfer without a byte for so long is resumed on a new connection. Downloads learn a shorter time: "
                "twice the 99th percentile of the waits of earlier ones."},
    {FIELD(http, stall_min_ms, MR_KEY_U64), NUMBER(1500, 10, 3600000, "ms"),
     .meaning = "The learnt time is never shorter. From stall_timeout_ms on nothing is learnt."},
    {FIELD(http, proxy, MR_KEY_STRING), .unit = "",
     .meaning = "URL of a proxy. When empty the usual environment variables count (https_proxy, no_proxy)."},
    {FIELD(http, ca_bundle, MR_KEY_STRING), .unit = "",
     .meaning = "PEM file with the certificates to trust. When empty the system's."},
    {FIELD(http, headers, MR_KEY_LINES), .unit = "",
     .meaning =
         "Header fields that are added to every request to the store, and to none for a token: headers = { name = "
         "\"value\" }. `millrace check` does not show the values."},

    {FIELD(checkpoint, workers, MR_KEY_U64), NUMBER(2, 1, 64, "processes"),
     .meaning = "Processes that upload checkpoints, and how many checkpoints of a node are expected to share "
                "the memory. The old name, writers, is still accepted."},
    {FIELD(checkpoint, part_bytes, MR_KEY_BYTES), NUMBER(64 * MIB, 5 * MIB, 5 * GIB, "bytes"),
     .meaning =
         "The size of a part of an upload. A file has at most 10,000 parts. Smaller where the memory has no room "
         "for eight parts of each writer, which are as many connections."},
    {FIELD(checkpoint, arena_bytes, MR_KEY_BYTES), NUMBER(0, 10 * MIB, 16 * TIB, "bytes"),
     .special = "1/16 of the memory, 256MiB to 4GiB", .has_auto = true,
     .meaning = "Shared memory for checkpoints on their way to the store, all writers of a node together. A private "
                "supervisor takes 256MiB."},
    {FIELD(checkpoint, prepare, MR_KEY_CHOICE), CHOICE(MR_PREPARE_AUTO, prepares),
     .meaning = "When that memory is taken and its workers start. auto: when a process says that it will save "
                "(millrace.checkpoint.prepare, a Lightning CheckpointIO or strategy, a dcp.StorageWriter, a "
                "DatafluxCheckpoint), at low priority; always: when the supervisor starts; never: with the first save, "
                "which waits for it."},
    {FIELD(checkpoint, drain_s, MR_KEY_U64), NUMBER(300, 0, 86400, "s"),
     .meaning =
         "How long a save that was promised (close(wait=False)) may still take after the training command, or the "
         "supervisor, has ended."},

    {FIELD(gcs, endpoint, MR_KEY_STRING), .unit = "",
     .meaning = "Base URL of the storage service; without a scheme https://, on this machine http://. When empty "
                "STORAGE_EMULATOR_HOST counts, then https://storage.googleapis.com."},
    {FIELD(gcs, auth, MR_KEY_CHOICE), CHOICE(MR_AUTH_DEFAULT, auths),
     .meaning = "default: application default credentials; none for an emulator. anonymous: no credentials."},
    {FIELD(gcs, cleartext_credentials, MR_KEY_CHOICE), CHOICE(MR_CLEARTEXT_REFUSE, cleartexts),
     .meaning =
         "Whether credentials may go to an endpoint that is http:// on another machine, where anyone who listens can "
         "take them."},
    {FIELD(gcs, user_project, MR_KEY_STRING), .unit = "",
     .meaning = "The project that pays for requester-pays buckets."},

    S3_ROWS(S3_FIELD, SAID)

        {"endpoint", "buckets", MR_KEY_STRINGS, offsetof(struct mr_config_endpoint, buckets), .unit = "",
         .meaning =
             "The buckets of s3:// that are at this endpoint; \"logs-*\" stands for all that begin so. Each bucket "
             "is also reached as s3+NAME://bucket/."},
    S3_ROWS(ENDPOINT_FIELD, AS_OF_S3)

        {FIELD(log, level, MR_KEY_CHOICE), CHOICE(MR_LOG_INFO, log_levels), .live = true,
         .meaning = "Which lines go to standard error."},
    {FIELD(log, epochs, MR_KEY_STRING), .unit = "", .live = true,
     .meaning =
         "A file that each rank of this node appends a line of JSON to at the end of an epoch: what a step took, "
         "what it waited for, and why. A path without a leading / begins at the training's working directory."},
    {FIELD(metrics, interval_s, MR_KEY_U64), NUMBER(0, 1, 86400, "s"), .special = "never", .live = true,
     .meaning = "A log line with throughput and the stage that limits it comes this often."},
    {FIELD(supervisor, silence_ms, MR_KEY_U64), NUMBER(MR_SILENCE_MS, 100, 86400000, "ms"),
     .meaning =
         "A wait for a supervisor that gives no sign of life (stopped by SIGSTOP, a debugger, or without CPU) is "
         "warned about after half of this time, and ends with SupervisorGone after all of it. Workers that have been "
         "stopped for half of it are named in the log."},
};

/* Old names, which are still accepted, with a warning. */
static const struct {
    const char *section, *old, *present;
} renamed[] = {
    {"checkpoint", "writers", "workers"},
};

const struct mr_config_key *mr_config_keys(unsigned *count)
{
    *count = sizeof keys / sizeof keys[0];
    return keys;
}

const struct mr_config_key *mr_config_key_find(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

const char *mr_config_renamed(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++)
        if (strcmp(renamed[i].section, section) == 0 && strcmp(renamed[i].old, name) == 0)
            return renamed[i].present;
    return NULL;
}

/* Edits (insert, delete, change, swap of neighbours) from a to b; longer words than the table's count as far away. */
static unsigned edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    size_t m = strlen(a), n = strlen(b);
    if (m > LONGEST || n > LONGEST)
        return LONGEST;
    unsigned rows[3][LONGEST + 1];
    for (size_t j = 0; j <= n; j++)
        rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= m; i++) {
        unsigned *now = rows[i % 3], *before = rows[(i + 2) % 3], *two_before = rows[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_before[j - 2] + 1 < best)
                best = two_before[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[m % 3][n];
}

const char *mr_config_nearest(const char *section, const char *wrong)
{
    const char *nearest = NULL;
    unsigned best = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *candidate = !section ? keys[i].section : keys[i].name;
        if (section && strcmp(section, keys[i].section) != 0)
            continue;
        unsigned distance = edit_distance(wrong, candidate);
        /* "arena" is far from "arena_bytes" in edits, but clearly meant. */
        if (wrong[0] != '\0' && strncmp(wrong, candidate, strlen(wrong)) == 0)
            distance = distance < 1 ? distance : 1;
        if (distance <= strlen(candidate) / 2 && (!nearest || distance < best)) {
            nearest = candidate;
            best = distance;
        }
    }
    return nearest;
}
