/*
 * aws_imds.c - keys of the EC2 instance's role, from its metadata service, version 2
 * (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html). Version 1 is used
 * if the service has no version 2, or its answer does not come through, unless that is turned off.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "worker/store/aws_impl.h"

#define IMDS_HOST     "http://169.254.169.254"
#define IMDS_HOST_6   "http://[fd00:ec2::254]"
#define TTL_S         "21600"
#define TIMEOUT_S     1
#define TIMEOUT_S_MAX 600
#define TRIES         3
#define STALE_LIFE_S  600 /* of expired keys that the service still returns: then they are fetched again */
#define TOKEN_PATH    "/latest/api/token"
#define ROLE_PATH     "/latest/meta-data/iam/security-credentials/"
#define ROLE_NAME_MAX 256

struct imds {
    struct mr_aws_source base;
    struct mr_auth_call call;
    struct mr_text session;
    char *url;
    char role[ROLE_NAME_MAX];
    char unread[sizeof((struct mr_aws_files *)NULL)->unread];
    bool chosen; /* the environment or the profile names the service */
    bool no_v1;
    bool lost;           /* the answer with the session token: version 1 is tried */
    unsigned timeout_ms; /* of one try */
};

static int next(struct imds *imds);

static void aws_imds_fail(struct imds *imds)
{
    mr_aws_fail(&imds->base);
}

static void aws_imds_go_on(struct imds *imds, int rc)
{
    if (rc != 0 || next(imds) != 0)
        aws_imds_fail(imds);
}

static bool is_lost(const struct mr_auth_answer *answer)
{
    return answer->code == MR_E_TIMEOUT && answer->sent;
}

static void explain_lost(const struct imds *imds, const char *text)
{
    mr_error_set(MR_E_DENIED,
                 "the instance's metadata service at %.100s takes the request for a session token and does not answer "
                 "(%s): in a container its answer is lost where the instance's hop limit is 1; aws ec2 "
                 "modify-instance-metadata-options --http-put-response-hop-limit 2 --instance-id ID, or give the "
                 "container keys of its own",
                 imds->url, text);
}

/* Why there is no session token: usually there is no service, or its response does not reach the container. */
static void explain(const struct imds *imds, const struct mr_auth_answer *answer)
{
    char text[200];
    snprintf(text, sizeof text, "%s", answer->text);
    if (is_lost(answer))
        explain_lost(imds, text);
    else if (imds->chosen)
        mr_error_set(MR_E_DENIED,
                     "no metadata service at %.100s (%s): correct or unset AWS_EC2_METADATA_SERVICE_ENDPOINT",
                     imds->url, text);
    else
        mr_error_set(MR_E_DENIED,
                     "no credentials: none in the environment, in ~/.aws or of a container, and no metadata service "
                     "at %.100s (%s); run aws configure or aws sso login and set AWS_PROFILE, or set AWS_ACCESS_KEY_ID "
                     "and AWS_SECRET_ACCESS_KEY, or [s3] auth = \"anonymous\" for a public bucket",
                     imds->url, text);
    if (imds->unread[0])
        mr_error_append("%s", imds->unread);
}

/* If the service has no version 2, or its answer is lost, it continues without a session token where version 1 is
 * allowed. */
static void on_session(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct imds *imds = call->arg;
    int rc = -1;
    bool no_v2 = answer->status == 403 || answer->status == 404 || answer->status == 405;
    imds->lost = is_lost(answer) && !imds->no_v1;
    if (imds->lost) {
        rc = 0;
    } else if (answer->code != MR_OK) {
        explain(imds, answer);
    } else if (no_v2 && imds->no_v1) {
        mr_error_set(MR_E_DENIED,
                     "the instance's metadata service at %.100s has no version 2 (HTTP status %d), and version 1 is "
                     "turned off (AWS_EC2_METADATA_V1_DISABLED)",
                     imds->url, answer->status);
    } else if (no_v2) {
        rc = 0;
    } else if (mr_auth_answer_check(call, answer, "session token") == 0) {
        mr_text_add(&imds->session, answer->body, answer->length);
        rc = imds->session.failed || mr_auth_is_token(imds->session.data) ? 0 : -1;
        if (rc != 0)
            mr_error_set(MR_E_DENIED, "the instance's metadata service at %.100s gives no session token: is it one?",
                         imds->url);
    }
    aws_imds_go_on(imds, rc);
}

static void on_role(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct imds *imds = call->arg;
    bool missing = answer->status == 404;
    int rc = mr_auth_answer_check(call, answer, "role");
    if (rc != 0 && imds->lost && !missing)
        explain_lost(imds, answer->code == MR_OK ? "and refuses version 1" : "nor to version 1");
    if (rc == 0) {
        size_t length = strcspn(answer->body, "\r\n");
        answer->body[length] = 0;
        if (length == 0 || length >= ROLE_NAME_MAX || strpbrk(answer->body, " \t/?#")) {
            mr_error_set(MR_E_DENIED, "the instance's metadata service at %.100s names no role", imds->url);
            missing = length == 0;
            rc = -1;
        } else {
            memcpy(imds->role, answer->body, length + 1);
        }
    }
    if (missing)
        mr_error_append("this instance has no role: attach an instance profile (aws ec2 "
                        "associate-iam-instance-profile)");
    aws_imds_go_on(imds, rc);
}

static void on_keys(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct imds *imds = call->arg;
    struct mr_aws_found found;
    imds->role[0] = 0; /* the next start requests it again: it may change */
    if (mr_auth_answer_check(call, answer, "keys") != 0 ||
        mr_aws_found_in_json(&found, answer->body, answer->length, "Token", imds->base.origin) != 0) {
        aws_imds_fail(imds);
        return;
    }
    int64_t now_s = mr_clock_wall_ns() / MR_SECOND_NS;
    if (found.expires_s && found.expires_s <= now_s)
        found.expires_s = now_s + STALE_LIFE_S; /* the service could not renew them: S3 may still take them */
    mr_aws_give(&imds->base, &found);
}

/* rest: appended to path, URL-encoded. done determines the header that the request carries. */
static int aws_imds_ask(struct imds *imds, const char *method, const char *path, const char *rest,
                        void (*done)(struct mr_auth_call *call, struct mr_auth_answer *answer))
{
    struct mr_auth_call *call = &imds->call;
    mr_auth_call_init(call, imds->base.http, method, imds->url);
    mr_text_puts(&call->url, path);
    mr_text_put_encoded(&call->url, rest, strlen(rest));
    if (done == on_session)
        mr_auth_call_line(call, "X-aws-ec2-metadata-token-ttl-seconds", TTL_S);
    else if (imds->session.length)
        mr_auth_call_line(call, "X-aws-ec2-metadata-token", imds->session.data);
    call->tries = TRIES;
    call->timeout_ms = imds->timeout_ms;
    call->direct = true;
    call->done = done;
    call->arg = imds;
    return mr_auth_call_send(call);
}

/* Requests the role's name, then its keys. -1 with mr_error. */
static int next(struct imds *imds)
{
    if (imds->session.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return -1;
    }
    if (!imds->role[0])
        return aws_imds_ask(imds, "GET", ROLE_PATH, "", on_role);
    return aws_imds_ask(imds, "GET", ROLE_PATH, imds->role, on_keys);
}

static void imds_cancel(struct mr_aws_source *source)
{
    struct imds *imds = (struct imds *)source;
    mr_auth_call_close(&imds->call);
    mr_auth_text_wipe(&imds->session);
    imds->role[0] = 0;
}

static int imds_start(struct mr_aws_source *source)
{
    struct imds *imds = (struct imds *)source;
    imds_cancel(source);
    mr_auth_text_reserve(&imds->session, MR_AUTH_TOKEN_MAX);
    return aws_imds_ask(imds, "PUT", TOKEN_PATH, "", on_session);
}

static void imds_destroy(struct mr_aws_source *source)
{
    imds_cancel(source);
    free(((struct imds *)source)->url);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops ops = {imds_start, imds_cancel, imds_destroy};

/* The variable of the environment, else the key of the profile. */
static const char *setting(const struct mr_aws_files *files, const char *variable, const char *key)
{
    const char *value = mr_auth_env(variable);
    struct mr_aws_profile profile;
    if (!value && mr_aws_profile_find(files, files->profile, &profile))
        value = mr_aws_profile_get(files, &profile, key);
    return value && value[0] ? value : NULL;
}

/* Of one try, as botocore has it. */
static unsigned timeout_ms(const struct mr_aws_files *files)
{
    const char *text = setting(files, "AWS_METADATA_SERVICE_TIMEOUT", "metadata_service_timeout");
    long seconds = text ? strtol(text, NULL, 10) : TIMEOUT_S;
    return 1000u * (unsigned)(seconds < 1 ? TIMEOUT_S : seconds > TIMEOUT_S_MAX ? TIMEOUT_S_MAX : seconds);
}

struct mr_aws_source *mr_aws_imds_new(struct mr_http *http, const struct mr_aws_files *files)
{
    if (mr_aws_is_true(mr_auth_env("AWS_EC2_METADATA_DISABLED"))) {
        mr_error_set(MR_E_DENIED,
                     "no credentials: none in the environment, in %.300s (profile \"%.100s\"), in %.300s or of a "
                     "container, and AWS_EC2_METADATA_DISABLED says not to ask the instance; run aws configure or aws "
                     "sso login and set AWS_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or [s3] auth "
                     "= \"anonymous\" for a public bucket",
                     files->config_path, files->profile, files->credentials_path);
        if (files->unread[0])
            mr_error_append("%s", files->unread);
        return NULL;
    }
    const char *mode = setting(files, "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode");
    const char *chosen = setting(files, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint");
    const char *url = chosen ? chosen : mode && strcasecmp(mode, "ipv6") == 0 ? IMDS_HOST_6 : IMDS_HOST;
    if ((strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) || strpbrk(url, " \t\r\n?#@")) {
        mr_error_set(MR_E_DENIED, "AWS_EC2_METADATA_SERVICE_ENDPOINT=%.200s is not of the form http://host[:port]",
                     url);
        return NULL;
    }
    char origin[200];
    snprintf(origin, sizeof origin, "the instance's metadata service at %.100s", url);
    struct imds *imds = mr_aws_source_make(sizeof *imds, &ops, http, origin);
    if (!imds)
        return NULL;
    imds->chosen = chosen != NULL;
    memcpy(imds->unread, files->unread, sizeof imds->unread);
    imds->timeout_ms = timeout_ms(files);
    imds->no_v1 = mr_aws_is_true(setting(files, "AWS_EC2_METADATA_V1_DISABLED", "ec2_metadata_v1_disabled"));
    if (mr_text_dup(&imds->url, url) != 0) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        imds_destroy(&imds->base);
        return NULL;
    }
    size_t length = strlen(imds->url);
    while (imds->url[length - 1] == '/')
        imds->url[--length] = 0;
    return &imds->base;
}
