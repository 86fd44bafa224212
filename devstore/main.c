#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "devstore/api.h"
#include "devstore/bucket.h"
#include "devstore/counts.h"
#include "devstore/faults.h"
#include "devstore/options.h"
#include "devstore/serve.h"
#include "devstore/sessions.h"
#include "devstore/synthetic.h"
#include "devstore/tls.h"

#define MIB 1048576.0

/* A listening socket, or -1 with an error. */
static int open_listener(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed) {
        mr_error_set(MR_E_USAGE, "--listen %s:%s: %s", host, port, gai_strerror(failed));
        return -1;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 4096) < 0) {
        mr_error_set_errno(errno, "cannot listen on %s:%s", host, port);
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* Writes a file that appears whole. 0, or -1 with an error. */
static int write_file(const char *path, const char *text)
{
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "we");
    if (file && fputs(text, file) >= 0 && fclose(file) == 0 && rename(temporary, path) == 0)
        return 0;
    mr_error_set_errno(errno, "cannot write \"%s\"", path);
    return -1;
}

/* Announces where it listens: on standard output, and the port in a file. */
static int announce(int fd, const struct ds_options *options)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    char port[8];
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
        getnameinfo((struct sockaddr *)&address, length, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0) {
        mr_error_set(MR_E_IO, "cannot find out the port");
        return -1;
    }
    char line[sizeof port + 1];
    snprintf(line, sizeof line, "%s\n", port);
    if (options->port_file && write_file(options->port_file, line) < 0)
        return -1;
    const char *scheme = options->tls_file ? "https" : "http";
    bool is_ipv6 = strchr(options->host, ':') != NULL;
    printf("listening on %s://%s%s%s:%s\n", scheme, is_ipv6 ? "[" : "", options->host, is_ipv6 ? "]" : "", port);
    printf("S3 too: AWS_ENDPOINT_URL_S3=%s://%s%s%s:%s\n", scheme, is_ipv6 ? "[" : "", options->host,
           is_ipv6 ? "]" : "", port);
    fflush(stdout);
    return 0;
}

static struct ds_buckets *open_buckets(const struct ds_options *options)
{
    struct ds_buckets *buckets = ds_buckets_new(options->root, options->memory, &options->bucket);
    for (int i = 0; buckets && i < options->n_synthetic; i++) {
        struct ds_synthetic_spec spec;
        struct ds_synthetic *synthetic = NULL;
        if (ds_synthetic_spec_parse(options->synthetic[i], options->seed, &spec) == 0)
            synthetic = ds_synthetic_new(spec.shape, spec.count, spec.size_min, spec.size_max, spec.seed);
        if (!synthetic || ds_buckets_add_synthetic(buckets, spec.bucket, synthetic) < 0) {
            mr_error_append("--synthetic %s", options->synthetic[i]);
            ds_buckets_destroy(buckets);
            buckets = NULL;
        }
    }
    return buckets;
}

/* Serves until SIGTERM or SIGINT, which are blocked in every thread and taken here. 0 or -1. */
static int serve(const struct ds_options *options, struct ds_buckets *buckets, const sigset_t *signals)
{
    static struct ds_counts counts;
    struct ds_api api = {.buckets = buckets,
                         .counts = &counts,
                         .page_max = options->page_max,
                         .md5 = options->md5,
                         .min_part = options->min_part,
                         .s3 = &options->s3,
                         .denied = (const char **)options->denied,
                         .n_denied = options->n_denied};
    struct ds_serve_options how = {
        .listen_fd = -1,
        .threads = options->threads,
        .log_fd = -1,
        .api = &api,
        .compress = options->compress,
        .download_rate = options->download_mibps * MIB,
        .download_total = options->download_total_mibps * MIB,
        .upload_rate = options->upload_mibps * MIB,
        .upload_total = options->upload_total_mibps * MIB,
    };
    struct ds_serve *server = NULL;
    struct ds_tls tls = {0};
    int rc = -1;
    for (int i = 0; i < MR_OP_COUNT; i++)
        how.latency_ns[i] = (int64_t)(options->latency_ms[i] * (double)MR_MILLISECOND_NS);
    api.faults = ds_faults_new(options->seed);
    api.sessions = ds_sessions_new();
    if (!api.faults || !api.sessions)
        goto out;
    for (int i = 0; i < options->n_faults; i++) {
        if (ds_faults_add(api.faults, options->faults[i]) < 0)
            goto out;
    }
    if (options->log_file) {
        how.log_fd = open(options->log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (how.log_fd < 0) {
            mr_error_set_errno(errno, "cannot open \"%s\"", options->log_file);
            goto out;
        }
    }
    if (options->tls_file && (ds_tls_make(options->host, &tls) < 0 || write_file(options->tls_file, tls.authority) < 0))
        goto out;
    how.key = tls.key;
    how.certificate = tls.certificate;
    how.listen_fd = open_listener(options->host, options->port);
    if (how.listen_fd < 0)
        goto out;
    server = ds_serve_new(&how);
    if (!server || announce(how.listen_fd, options) < 0)
        goto out;
    int number;
    sigwait(signals, &number);
    rc = 0;
out:
    ds_serve_destroy(server);
    ds_tls_close(&tls);
    ds_sessions_destroy(api.sessions);
    ds_faults_destroy(api.faults);
    if (how.log_fd >= 0)
        close(how.log_fd);
    return rc;
}

int main(int argc, char **argv)
{
    struct ds_buckets *buckets = NULL;
    pid_t parent = getppid();
    mr_process_begin();
    mr_log_init("devstore", MR_LOG_INFO);
    struct ds_options options;
    int rc = ds_options_parse(&options, argc, argv);
    if (rc != 0)
        goto out;
    rc = -1;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN); /* a client that leaves is nothing unusual; sendfile has no MSG_NOSIGNAL */
    if (options.exit_with_parent && (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)) {
        mr_error_set(MR_E_GONE, "--exit-with-parent: the parent has already ended");
        goto out;
    }
    buckets = open_buckets(&options);
    if (buckets)
        rc = serve(&options, buckets, &signals);
out:
    if (rc < 0)
        mr_log_error("%s", mr_error_text());
    ds_buckets_destroy(buckets);
    ds_options_close(&options);
    return rc < 0 ? mr_code_exit_status(mr_error_code()) : 0;
}
