#include "devstore/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "devstore/request.h"
#include "devstore/text.h"

static const char help[] =
    "usage: millrace-devstore [--root DIR] [--synthetic BUCKET:COUNT:SIZE] [--listen HOST:PORT] ...\n"
    "\n"
    "A small object store for demos, tests and benchmarks: a part of the Google Cloud Storage JSON and XML APIs and "
    "of\n"
    "Amazon S3's over a folder, over memory, or over objects made up from a seed. Not for production: it knows no\n"
    "encryption and no durability, and anyone who can connect can read, write and delete.\n"
    "\n"
    "Point a client at it with STORAGE_EMULATOR_HOST=http://HOST:PORT, one of S3 with AWS_ENDPOINT_URL_S3.\n"
    "\n"
    "What it serves\n"
    "  --root DIR              each folder in DIR is a bucket, its files are the objects; read at start\n"
    "  --memory                keep what is written in memory; with --root: never write to DIR\n"
    "                          (without --root this is how it works anyway)\n"
    "  --synthetic BUCKET:[SHAPE:]COUNT:SIZE[-SIZE][:SEED]\n"
    "                          COUNT objects obj-000000000, obj-000000001, ... of SIZE bytes (or a size in the "
    "range),\n"
    "                          made up from SEED; sizes take KiB, MiB, GiB. May be repeated. Other SHAPEs of names:\n"
    "                          hashes, deep (folders), prefix (a long one), unicode, runs (of one letter), skewed\n"
    "                          (99 % in one folder), markers (empty objects called FOLDER/), classes (one in four\n"
    "                          is not STANDARD)\n"
    "\n"
    "What its buckets say of themselves\n"
    "  --storage-class CLASS   of buckets, and of objects that say nothing else; default STANDARD\n"
    "  --location NAME         default DEVSTORE\n"
    "  --soft-delete-s N       softDeletePolicy.retentionDurationSeconds; default 0. What is deleted is gone at\n"
    "                          once all the same\n"
    "  --hierarchical          hierarchicalNamespace.enabled\n"
    "  --zonal                 a Rapid bucket: storage class RAPID, one zone, hierarchical, compose is refused\n"
    "  --requester-pays        billing.requesterPays; a request without userProject answers 400\n"
    "  --min-part-bytes N      the least size of an XML multipart upload's parts but the last; default 5MiB\n"
    "  --no-md5                uploads get no md5Hash, which saves the time to sum it\n"
    "\n"
    "What S3's clients meet (their requests are known by their signature, an x-amz- header, or the Host "
    "BUCKET.localhost)\n"
    "  --api s3                what could be a request of either XML API is S3's: for clients that sign nothing\n"
    "  --s3-key ID:SECRET[:TOKEN]\n"
    "                          verify signatures, with this key; may be repeated. Default: any signature is good,\n"
    "                          and none\n"
    "  --s3-region NAME        the only region for which requests may be signed; default: any, and us-east-1 is said\n"
    "  --s3-clock-s N          how far the server's clock is ahead (or, below 0, behind)\n"
    "  --s3-session-s N        how long the credentials of CreateSession are good; default 300\n"
    "  --s3-ignore WHAT        as some stores do: conditions (of writes), or checksums (but Content-MD5)\n"
    "\n"
    "How it serves\n"
    "  --listen HOST:PORT      default 127.0.0.1:0; port 0 is a free port. The first line on standard output is\n"
    "                          \"listening on http://HOST:PORT\"\n"
    "  --port-file FILE        writes the port number to FILE once it listens\n"
    "  --tls FILE              speaks HTTPS, with a certificate that is made up at the start; FILE gets that of the\n"
    "                          authority for clients to trust (millrace: [http] ca_bundle)\n"
    "  --threads N             threads that answer, default 2\n"
    "  --latency-ms [OP:]X     waits this long before each reply (of that operation, see PATTERN); may be repeated.\n"
    "                          Any number of connections wait at a time\n"
    "  --download-mibps X[/Y]  limits each connection's replies to X MiB a second, those of all together to Y;\n"
    "                          0 is no limit. --bandwidth-mibps is the same\n"
    "  --upload-mibps X[/Y]    the same for the bytes of uploads\n"
    "  --page-size N           the most entries in a page of a listing, default 5000\n"
    "  --compress              compresses answers of 1,000 bytes and more for who accepts gzip, but no objects, as\n"
    "                          MinIO and many proxies do\n"
    "  --deny PERMISSION       testIamPermissions does not grant it, and what needs it answers 403\n"
    "                          (storage.objects.list, .get, .create, .delete, .update; storage.buckets.get;\n"
    "                          storage.multipartUploads.create, .abort, .list, .listParts). May be repeated\n"
    "  --fault KIND:RATE[:ARG][:PATTERN]\n"
    "                          makes requests go wrong; may be repeated, the first that hits counts\n"
    "                          KIND  status   answers CODE[/RETRY_AFTER_S] (default 503)\n"
    "                                reset    resets the connection after ARG bytes of the body (default: half)\n"
    "                                short    closes it there, less than Content-Length says\n"
    "                                stall    sends nothing for ARG seconds there (default: until the client leaves)\n"
    "                                wrong    inverts byte ARG of the body (default: the middle one)\n"
    "                                changed  a get finds the object under another generation\n"
    "                                egress   answers 429 about egress bandwidth; ARG: Retry-After\n"
    "                                rate     answers 429 about too many changes; ARG: Retry-After\n"
    "                                keep-less  a resumable upload keeps ARG bytes of a chunk (default: half),\n"
    "                                         rounded down to 256 KiB\n"
    "                                expire   a resumable upload's session has expired: 410\n"
    "                                code     S3: answers the error ARG (SlowDown, RequestTimeout, ExpiredToken, ...)\n"
    "                                late-error  S3: a complete does nothing and answers 200, blanks and\n"
    "                                         the error ARG, default InternalError\n"
    "                          RATE  a probability from 0 to 1; first=N: the first N requests for each object;\n"
    "                                over=N: what comes above N requests a second\n"
    "                          PATTERN  [OP:]GLOB: object names, and one of list, get, stat, upload (or insert),\n"
    "                                compose, copy, delete, batch, bucket, iam; resumable, chunk, cancel;\n"
    "                                initiate, part, complete, abort, parts, uploads; session. Default: get:*\n"
    "                                (status, code: any request; rate: compose:*; keep-less, expire: chunk:*;\n"
    "                                late-error: complete:*)\n"
    "  --seed N                decides which requests a probability hits, and the bytes of synthetic objects\n"
    "  --log FILE              a line for each request: method, target, status, bytes\n"
    "  --exit-with-parent      ends when the process that started it ends\n"
    "\n"
    "  --help, --version\n"
    "\n"
    "GET /_devstore/stats answers what was done so far, as JSON; DELETE sets it back. POST\n"
    "/_devstore/touch?bucket=B&name=O gives an object another generation.\n";

enum {
    OPT_ROOT = 256,
    OPT_MEMORY,
    OPT_SYNTHETIC,
    OPT_LISTEN,
    OPT_PORT_FILE,
    OPT_TLS,
    OPT_THREADS,
    OPT_LATENCY,
    OPT_DOWNLOAD,
    OPT_UPLOAD,
    OPT_PAGE_SIZE,
    OPT_COMPRESS,
    OPT_STORAGE_CLASS,
    OPT_LOCATION,
    OPT_SOFT_DELETE,
    OPT_HIERARCHICAL,
    OPT_ZONAL,
    OPT_REQUESTER_PAYS,
    OPT_MIN_PART,
    OPT_NO_MD5,
    OPT_DENY,
    OPT_API,
    OPT_S3_KEY,
    OPT_S3_REGION,
    OPT_S3_CLOCK,
    OPT_S3_SESSION,
    OPT_S3_IGNORE,
    OPT_LOG,
    OPT_EXIT_WITH_PARENT,
    OPT_FAULT,
    OPT_SEED,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"root", required_argument, NULL, OPT_ROOT},
    {"memory", no_argument, NULL, OPT_MEMORY},
    {"synthetic", required_argument, NULL, OPT_SYNTHETIC},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"port-file", required_argument, NULL, OPT_PORT_FILE},
    {"tls", required_argument, NULL, OPT_TLS},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"latency-ms", required_argument, NULL, OPT_LATENCY},
    {"bandwidth-mibps", required_argument, NULL, OPT_DOWNLOAD},
    {"download-mibps", required_argument, NULL, OPT_DOWNLOAD},
    {"upload-mibps", required_argument, NULL, OPT_UPLOAD},
    {"page-size", required_argument, NULL, OPT_PAGE_SIZE},
    {"compress", no_argument, NULL, OPT_COMPRESS},
    {"storage-class", required_argument, NULL, OPT_STORAGE_CLASS},
    {"location", required_argument, NULL, OPT_LOCATION},
    {"soft-delete-s", required_argument, NULL, OPT_SOFT_DELETE},
    {"hierarchical", no_argument, NULL, OPT_HIERARCHICAL},
    {"zonal", no_argument, NULL, OPT_ZONAL},
    {"requester-pays", no_argument, NULL, OPT_REQUESTER_PAYS},
    {"min-part-bytes", required_argument, NULL, OPT_MIN_PART},
    {"no-md5", no_argument, NULL, OPT_NO_MD5},
    {"deny", required_argument, NULL, OPT_DENY},
    {"api", required_argument, NULL, OPT_API},
    {"s3-key", required_argument, NULL, OPT_S3_KEY},
    {"s3-region", required_argument, NULL, OPT_S3_REGION},
    {"s3-clock-s", required_argument, NULL, OPT_S3_CLOCK},
    {"s3-session-s", required_argument, NULL, OPT_S3_SESSION},
    {"s3-ignore", required_argument, NULL, OPT_S3_IGNORE},
    {"log", required_argument, NULL, OPT_LOG},
    {"exit-with-parent", no_argument, NULL, OPT_EXIT_WITH_PARENT},
    {"fault", required_argument, NULL, OPT_FAULT},
    {"seed", required_argument, NULL, OPT_SEED},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {0},
};

static int usage(const char *option, const char *value, const char *expected)
{
    mr_error_set(MR_E_USAGE, "%s \"%s\": %s is expected; see --help", option, value, expected);
    return -1;
}

/* Replaces an earlier --listen. host and port point into options->listen. 0 or -1 (USAGE). */
static int parse_listen(struct ds_options *options, const char *text)
{
    char *copy = strdup(text), *colon = copy ? strrchr(copy, ':') : NULL;
    free(options->listen);
    options->listen = copy;
    uint64_t port;
    if (!colon || colon == copy || ds_parse_u64(colon + 1, &port) < 0 || port > 65535)
        return usage("--listen", text, "HOST:PORT");
    *colon = 0;
    options->port = colon + 1;
    options->host = copy;
    if (copy[0] == '[' && colon > copy + 1 && colon[-1] == ']') { /* [::1]:80 */
        colon[-1] = 0;
        options->host = copy + 1;
    }
    return 0;
}

static int parse_count(const char *option, const char *text, uint64_t most, unsigned *value)
{
    uint64_t number;
    if (ds_parse_u64(text, &number) < 0 || number == 0 || number > most)
        return usage(option, text, "a number from 1");
    *value = (unsigned)number;
    return 0;
}

static int push(const char *option, const char *text, const char **list, int *count, int most)
{
    if (*count == most) {
        mr_error_set(MR_E_USAGE, "%s is given more than %d times", option, most);
        return -1;
    }
    list[(*count)++] = text;
    return 0;
}

/* [OP:]MILLISECONDS */
static int parse_latency(struct ds_options *options, const char *text)
{
    const char *colon = strchr(text, ':');
    int only = -1;
    for (int i = 0; colon && i < MR_OP_COUNT; i++) {
        if (strlen(ds_op_names[i]) == (size_t)(colon - text) &&
            strncmp(ds_op_names[i], text, (size_t)(colon - text)) == 0)
            only = i;
    }
    if (colon && strncmp(text, "insert:", 7) == 0)
        only = MR_OP_UPLOAD;
    double ms;
    if ((colon && only < 0) || ds_parse_real(colon ? colon + 1 : text, &ms) < 0 || ms > 1e6)
        return usage("--latency-ms", text, "[OP:] and a number of milliseconds");
    for (int i = 0; i < MR_OP_COUNT; i++) {
        if (only < 0 ? i != MR_OP_ADMIN : i == only)
            options->latency_ms[i] = ms;
    }
    return 0;
}

/* MIBPS[/TOTAL] */
static int parse_rate(const char *option, const char *text, double *each, double *total)
{
    char copy[64];
    if (strlen(text) >= sizeof copy)
        goto bad;
    memcpy(copy, text, strlen(text) + 1);
    char *slash = strchr(copy, '/');
    if (slash)
        *slash = 0;
    if (ds_parse_real(copy, each) < 0 || (*each > 0 && *each < 0.001) ||
        (slash && (ds_parse_real(slash + 1, total) < 0 || (*total > 0 && *total < 0.001))))
        goto bad;
    return 0;
bad:
    return usage(option, text, "a number from 0.001, or 0, and perhaps /TOTAL");
}

/* Upper-case words, as all storage classes and locations are; they are written into JSON and headers unescaped. */
static int parse_word(const char *option, const char *text, char *word, size_t size)
{
    if (!*text || strlen(text) >= size || strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != strlen(text))
        return usage(option, text, "a word in capitals");
    memcpy(word, text, strlen(text) + 1);
    return 0;
}

/* Takes an option about buckets. 0, -1 (USAGE), or 2: it is another option. */
static int take_bucket(struct ds_bucket_settings *bucket, int option, const char *value)
{
    switch (option) {
    case OPT_STORAGE_CLASS:
        return parse_word("--storage-class", value, bucket->storage_class, sizeof bucket->storage_class);
    case OPT_LOCATION:
        return parse_word("--location", value, bucket->location, sizeof bucket->location);
    case OPT_SOFT_DELETE:
        return ds_parse_u64(value, &bucket->soft_delete_s) < 0 ? usage("--soft-delete-s", value, "a number of seconds")
                                                               : 0;
    case OPT_HIERARCHICAL:
        bucket->hierarchical = true;
        return 0;
    case OPT_ZONAL:
        bucket->zonal = bucket->hierarchical = true;
        strcpy(bucket->storage_class, "RAPID");
        strcpy(bucket->location_type, "zone");
        return 0;
    case OPT_REQUESTER_PAYS:
        bucket->requester_pays = 1;
        return 0;
    default:
        return 2;
    }
}

/* ID:SECRET[:TOKEN] */
static int parse_key(struct ds_options *options, const char *text)
{
    struct ds_s3_settings *s3 = &options->s3;
    if (s3->n_keys == MR_S3_KEYS_MAX) {
        mr_error_set(MR_E_USAGE, "%s is given more than %d times", "--s3-key", MR_S3_KEYS_MAX);
        return -1;
    }
    char *copy = strdup(text), *rest = copy;
    options->s3_keys[s3->n_keys] = copy;
    struct ds_s3_key key = {.id = strsep(&rest, ":")};
    key.secret = rest ? strsep(&rest, ":") : NULL;
    key.token = rest;
    s3->keys[s3->n_keys++] = key;
    return key.secret && *key.id && *key.secret ? 0 : usage("--s3-key", "...", "ID:SECRET[:TOKEN]");
}

/* Takes an option about S3. 0, -1 (USAGE), or 2: it is another option. */
static int take_s3(struct ds_options *options, int option, const char *value)
{
    struct ds_s3_settings *s3 = &options->s3;
    uint64_t seconds;
    if (!value) /* all of these have one: getopt_long ensures that */
        return 2;
    bool behind = *value == '-';
    switch (option) {
    case OPT_API:
        s3->always = strcmp(value, "s3") == 0;
        return s3->always ? 0 : usage("--api", value, "s3");
    case OPT_S3_KEY:
        return parse_key(options, value);
    case OPT_S3_REGION:
        s3->region = value;
        return strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(value) && *value
                   ? 0
                   : usage("--s3-region", value, "the name of a region");
    case OPT_S3_CLOCK:
        if (ds_parse_u64(value + behind, &seconds) < 0 || seconds > 100000000)
            return usage("--s3-clock-s", value, "a number of seconds");
        s3->clock_s = behind ? -(int64_t)seconds : (int64_t)seconds;
        return 0;
    case OPT_S3_SESSION:
        if (ds_parse_u64(value, &s3->session_s) < 0 || s3->session_s > 100000000)
            return usage("--s3-session-s", value, "a number of seconds");
        return 0;
    case OPT_S3_IGNORE:
        s3->ignore_conditions |= strcmp(value, "conditions") == 0;
        s3->ignore_checksums |= strcmp(value, "checksums") == 0;
        return strcmp(value, "conditions") != 0 && strcmp(value, "checksums") != 0
                   ? usage("--s3-ignore", value, "conditions or checksums")
                   : 0;
    default:
        return 2;
    }
}

/* 0; 1 where it was answered (--help, --version) and nothing else is to be done; -1 (USAGE). */
static int options_take(struct ds_options *options, int option, const char *value)
{
    int rc = take_bucket(&options->bucket, option, value);
    if (rc == 2)
        rc = take_s3(options, option, value);
    if (rc != 2)
        return rc;
    switch (option) {
    case OPT_ROOT:
        options->root = value;
        return 0;
    case OPT_MEMORY:
        options->memory = true;
        return 0;
    case OPT_SYNTHETIC:
        return push("--synthetic", value, options->synthetic, &options->n_synthetic, MR_SYNTHETIC_MAX);
    case OPT_LISTEN:
        return parse_listen(options, value);
    case OPT_PORT_FILE:
        options->port_file = value;
        return 0;
    case OPT_TLS:
        options->tls_file = value;
        return 0;
    case OPT_THREADS:
        return parse_count("--threads", value, 256, &options->threads);
    case OPT_LATENCY:
        return parse_latency(options, value);
    case OPT_DOWNLOAD:
        return parse_rate("--download-mibps", value, &options->download_mibps, &options->download_total_mibps);
    case OPT_UPLOAD:
        return parse_rate("--upload-mibps", value, &options->upload_mibps, &options->upload_total_mibps);
    case OPT_PAGE_SIZE:
        return parse_count("--page-size", value, 1000000, &options->page_max);
    case OPT_MIN_PART:
        return ds_parse_size(value, &options->min_part) < 0 ? usage("--min-part-bytes", value, "a size") : 0;
    case OPT_COMPRESS:
        options->compress = true;
        return 0;
    case OPT_NO_MD5:
        options->md5 = false;
        return 0;
    case OPT_DENY:
        return push("--deny", value, options->denied, &options->n_denied, MR_DENY_MAX);
    case OPT_LOG:
        options->log_file = value;
        return 0;
    case OPT_EXIT_WITH_PARENT:
        options->exit_with_parent = true;
        return 0;
    case OPT_FAULT:
        return push("--fault", value, options->faults, &options->n_faults, MR_FAULT_MAX);
    case OPT_SEED:
        return ds_parse_u64(value, &options->seed) < 0 ? usage("--seed", value, "a number") : 0;
    case OPT_HELP:
        fputs(help, stdout);
        return 1;
    case OPT_VERSION:
        puts("millrace-devstore " MR_VERSION);
        return 1;
    default:
        mr_error_set(MR_E_USAGE, "unknown option, or one without its value; see --help");
        return -1;
    }
}

int ds_options_parse(struct ds_options *options, int argc, char **argv)
{
    *options = (struct ds_options){.page_max = 5000, .threads = 2, .md5 = true, .min_part = UINT64_C(5) << 20};
    ds_bucket_settings_init(&options->bucket);
    ds_s3_settings_init(&options->s3);
    if (parse_listen(options, "127.0.0.1:0") < 0)
        return -1;
    optind = 1;
    int option, rc;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        rc = options_take(options, option, optarg);
        if (rc != 0)
            return rc;
    }
    if (optind < argc)
        return usage("argument", argv[optind], "an option");
    if (!options->root && options->n_synthetic == 0)
        options->memory = true;
    return 0;
}

void ds_options_close(struct ds_options *options)
{
    free(options->listen);
    for (int i = 0; i < MR_S3_KEYS_MAX; i++)
        free(options->s3_keys[i]);
    memset(options, 0, sizeof *options);
}

/* -1 without an error: it is not the name of a shape. */
static int parse_shape(const char *text, enum ds_shape *shape)
{
    for (int i = 0; i < MR_SHAPES; i++) {
        if (strcmp(text, ds_shape_names[i]) == 0) {
            *shape = (enum ds_shape)i;
            return 0;
        }
    }
    return -1;
}

int ds_synthetic_spec_parse(const char *text, uint64_t default_seed, struct ds_synthetic_spec *spec)
{
    char copy[512], *field[5] = {NULL}, *rest = copy;
    size_t n = 0, at = 1;
    if (strlen(text) >= sizeof copy)
        goto bad;
    memcpy(copy, text, strlen(text) + 1);
    for (; rest && n < 5; n++)
        field[n] = strsep(&rest, ":");
    spec->shape = MR_SHAPE_FLAT;
    if (n > 1 && parse_shape(field[1], &spec->shape) == 0)
        at = 2;
    if (rest || n < at + 2 || n > at + 3 || strlen(field[0]) >= sizeof spec->bucket ||
        ds_parse_u64(field[at], &spec->count) < 0)
        goto bad;
    memcpy(spec->bucket, field[0], strlen(field[0]) + 1);
    char *dash = strchr(field[at + 1], '-');
    if (dash)
        *dash = 0;
    spec->seed = default_seed;
    if (ds_parse_size(field[at + 1], &spec->size_min) < 0 ||
        ds_parse_size(dash ? dash + 1 : field[at + 1], &spec->size_max) < 0 ||
        (n == at + 3 && ds_parse_u64(field[at + 2], &spec->seed) < 0))
        goto bad;
    return 0;
bad:
    return usage("--synthetic", text, "BUCKET:[SHAPE:]COUNT:SIZE[-SIZE][:SEED]");
}
