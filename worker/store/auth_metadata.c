/*
 * auth_metadata.c - the metadata server of a machine in Google's cloud
 * (https://cloud.google.com/compute/docs/metadata/overview). It is probed until it has responded once: 3 tries of 3 s.
 * GKE's takes connections only some seconds after a pod has started, and refuses them before: in a pod it is probed for
 * at least 10 s (https://cloud.google.com/kubernetes-engine/docs/how-to/workload-identity, "Limitations").
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"

#define PROBE_MS    3000
#define PROBE_TRIES 3
#define PROBE_POD_S 10
#define TOKEN_PATH  "/computeMetadata/v1/instance/service-accounts/default/token?scopes="

struct metadata {
    struct mr_auth_source base;
    struct mr_auth_call call;
    bool there; /* the probe was answered */
    char *host;
};

/* encode: appended to path, URL-encoded. */
static int send(struct metadata *metadata, const char *path, const char *encode,
                void (*done)(struct mr_auth_call *call, struct mr_auth_answer *answer))
{
    struct mr_auth_call *call = &metadata->call;
    mr_auth_call_init(call, metadata->base.http, "GET", "http://");
    if (!metadata->there) {
        call->tries = PROBE_TRIES;
        call->timeout_ms = PROBE_MS;
        if (mr_auth_env("KUBERNETES_SERVICE_HOST"))
            call->patient_until = mr_clock_mono_ns() + PROBE_POD_S * MR_SECOND_NS;
    }
    mr_text_puts(&call->url, metadata->host);
    mr_text_puts(&call->url, path);
    mr_text_put_encoded(&call->url, encode, strlen(encode));
    mr_auth_call_line(call, "Metadata-Flavor", "Google");
    call->direct = true;
    call->done = done;
    call->arg = metadata;
    return mr_auth_call_send(call);
}

/* 0 also if there was no response: mr_auth_answer_check reports that. */
static int check_flavor(const struct metadata *metadata, const struct mr_auth_answer *answer)
{
    if (answer->code != MR_OK || answer->headers.metadata_flavor_google)
        return 0;
    mr_error_set(
        MR_E_DENIED,
        "%.200s answers without \"Metadata-Flavor: Google\": it is not a metadata server (a proxy may stand in "
        "between); check GCE_METADATA_HOST",
        metadata->host);
    return -1;
}

static void auth_metadata_on_token(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct metadata *metadata = call->arg;
    struct mr_auth_token token;
    bool missing = answer->status == 404;
    if (check_flavor(metadata, answer) == 0 && mr_auth_answer_check(call, answer, "token") == 0 &&
        mr_auth_answer_token(call, answer, &token) == 0) {
        metadata->base.done(metadata->base.arg, &token);
        return;
    }
    if (missing)
        mr_error_append("this machine has no service account: attach one (gcloud compute instances "
                        "set-service-account)");
    mr_auth_fail(&metadata->base);
}

/* A response of any status will do, as long as its flavor is right. */
static void on_probe(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct metadata *metadata = call->arg;
    if (answer->code != MR_OK) {
        mr_error_set(MR_E_DENIED,
                     "no credentials: no file, and no metadata server at %.200s (%.100s); run gcloud auth "
                     "application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file, or [gcs] auth = "
                     "\"anonymous\" for a public bucket",
                     metadata->host, answer->text);
        mr_auth_fail(&metadata->base);
        return;
    }
    if (check_flavor(metadata, answer) != 0) {
        mr_auth_fail(&metadata->base);
        return;
    }
    metadata->there = true;
    if (send(metadata, TOKEN_PATH, MR_AUTH_SCOPE_STORAGE, auth_metadata_on_token) != 0)
        mr_auth_fail(&metadata->base);
}

static int metadata_start(struct mr_auth_source *source)
{
    struct metadata *metadata = (struct metadata *)source;
    if (metadata->there)
        return send(metadata, TOKEN_PATH, MR_AUTH_SCOPE_STORAGE, auth_metadata_on_token);
    return send(metadata, "/", "", on_probe);
}

static void metadata_cancel(struct mr_auth_source *source)
{
    mr_auth_call_close(&((struct metadata *)source)->call);
}

static void metadata_destroy(struct mr_auth_source *source)
{
    metadata_cancel(source);
    free(((struct metadata *)source)->host);
    free(source);
}

static const struct mr_auth_source_ops ops = {metadata_start, metadata_cancel, metadata_destroy};

struct mr_auth_source *mr_auth_metadata_new(struct mr_http *http, const char *host)
{
    struct metadata *metadata = calloc(1, sizeof *metadata);
    if (metadata)
        metadata->host = strdup(host);
    if (!metadata || !metadata->host) {
        free(metadata);
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    metadata->base.ops = &ops;
    metadata->base.http = http;
    return &metadata->base;
}
