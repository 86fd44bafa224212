/*
 * auth_aws.c - a subject token from AWS: a signed GetCallerIdentity request that Google's token server sends on
 * (https://google.aip.dev/auth/4117). Region and keys come from the environment, else from the metadata server of the
 * EC2 instance.
 */
#include <stdlib.h>
#include <string.h>

#include "base/container.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"
#include "worker/store/aws_sign.h"

struct aws_keys {
    const char *access_key_id, *secret_access_key, *session_token; /* the last may be NULL */
};

struct mr_auth_aws {
    struct mr_auth_subject *subject;
    struct mr_auth_call call;
    struct mr_http_timer timer;
    struct mr_text session, role, region, keys; /* responses of the metadata server; key points into keys */
    struct aws_keys key;
};

/* ---- the subject token ---- */

static void put_header(struct mr_text *to, const char *name, const char *value, const char *comma)
{
    mr_text_puts(to, "{\"key\":\"");
    mr_text_puts(to, name);
    mr_text_puts(to, "\",\"value\":");
    mr_auth_put_json(to, value);
    mr_text_puts(to, "}");
    mr_text_puts(to, comma);
}

/* The URL with "{region}" filled in. */
static void put_url(struct mr_text *to, const char *pattern, const char *region)
{
    const char *at = strstr(pattern, "{region}");
    mr_text_add(to, pattern, at ? (size_t)(at - pattern) : strlen(pattern));
    if (at) {
        mr_text_puts(to, region);
        mr_text_puts(to, at + strlen("{region}"));
    }
}

/* Appends the subject token: the signed request, URL-encoded. Region and keys must be known. -1 with mr_error. */
static int make_token(struct mr_auth_aws *aws, struct mr_text *token)
{
    const struct mr_auth_file *file = aws->subject->file;
    struct mr_text url = {0}, authorization = {0}, json = {0};
    int rc = -1;
    mr_auth_text_reserve(&authorization, 2048);
    mr_auth_text_reserve(&json, 2 * MR_AUTH_TOKEN_MAX);
    char date[MR_AWS_DATE_SIZE], host[256];
    mr_aws_sign_date(date);
    put_url(&url, file->from.verify_url, aws->region.data);
    const struct mr_aws_sign request = {.access_key_id = aws->key.access_key_id,
                                        .secret_access_key = aws->key.secret_access_key,
                                        .session_token = aws->key.session_token,
                                        .region = aws->region.data,
                                        .method = "POST",
                                        .url = url.data,
                                        .body = "",
                                        .date = date};
    if (url.failed)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a subject token");
    if (url.failed || mr_aws_sign(&authorization, &request) != 0) {
        mr_error_append("its \"regional_cred_verification_url\"");
        goto out;
    }
    mr_aws_sign_host(url.data, host, sizeof host);
    mr_text_puts(&json, "{\"headers\":[");
    put_header(&json, "Authorization", authorization.data, ",");
    put_header(&json, "host", host, ",");
    put_header(&json, "x-amz-date", date, ",");
    if (aws->key.session_token)
        put_header(&json, "x-amz-security-token", aws->key.session_token, ",");
    put_header(&json, "x-goog-cloud-target-resource", file->audience, "");
    mr_text_puts(&json, "],\"method\":\"POST\",\"url\":");
    mr_auth_put_json(&json, url.data);
    mr_text_puts(&json, "}");
    if (!json.failed)
        mr_text_put_encoded(token, json.data, json.length);
    if (json.failed || token->failed)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a subject token");
    else
        rc = 0;
out:
    mr_text_close(&url);
    mr_auth_text_wipe(&authorization);
    mr_auth_text_wipe(&json);
    return rc;
}

static void next_step(struct mr_auth_aws *aws);

/* Ends the start: calls subject->done, with NULL if the token cannot be made. */
static void auth_aws_finish(struct mr_auth_aws *aws)
{
    struct mr_auth_subject *subject = aws->subject;
    struct mr_text token = {0};
    mr_auth_text_reserve(&token, 4 * MR_AUTH_TOKEN_MAX);
    int rc = make_token(aws, &token);
    subject->done(subject->arg, rc == 0 ? token.data : NULL);
    mr_auth_text_wipe(&token);
}

/* ---- region and keys ---- */

/* Keeps the keys of the instance's role; aws->key points into aws->keys. -1 with mr_error. */
static int take_keys(struct mr_auth_aws *aws, struct mr_auth_answer *answer)
{
    mr_auth_text_reserve(&aws->keys, MR_AUTH_TOKEN_MAX);
    mr_text_add(&aws->keys, answer->body, answer->length);
    struct mr_auth_member members[] = {{"AccessKeyId", NULL}, {"SecretAccessKey", NULL}, {"Token", NULL}};
    if (aws->keys.failed || mr_auth_members(aws->keys.data, aws->keys.length, members, 3) != 0 || !members[0].value ||
        !members[1].value) {
        mr_error_set(MR_E_DENIED, "the instance's metadata server gives no AWS keys");
        return -1;
    }
    aws->key = (struct aws_keys){members[0].value, members[1].value, members[2].value};
    return 0;
}

/* All requests to the metadata server end here: which one it was follows from what is still missing. */
static void auth_aws_on_answer(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct mr_auth_aws *aws = call->arg;
    struct mr_auth_subject *subject = aws->subject;
    int rc = mr_auth_answer_check(call, answer, "AWS metadata");
    struct mr_text *to = call->method[0] == 'P' ? &aws->session : aws->region.length == 0 ? &aws->region : &aws->role;
    if (rc == 0 && aws->region.length && aws->role.length && to != &aws->session) {
        rc = take_keys(aws, answer);
    } else if (rc == 0) {
        size_t n = strcspn(answer->body, "\r\n");
        if (to == &aws->region && n > 0)
            n--; /* an availability zone, "us-east-1d" */
        answer->body[n] = 0;
        mr_text_clear(to);
        mr_text_add(to, answer->body, n);
        if (!mr_auth_is_token(answer->body)) {
            mr_error_set(MR_E_DENIED, "the instance's metadata server gives an empty answer");
            rc = -1;
        }
    }
    if (rc == 0) {
        next_step(aws);
        return;
    }
    mr_error_append(
        "AWS credentials: neither AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, nor those of the "
        "instance");
    subject->done(subject->arg, NULL);
}

/* url: NULL if the file does not name one, which is an error. path: appended to it; may be NULL. */
static int auth_aws_ask(struct mr_auth_aws *aws, const char *method, const char *url, const char *path)
{
    struct mr_auth_call *call = &aws->call;
    if (!url) {
        mr_error_set(MR_E_DENIED,
                     "no AWS credentials: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (the "
                     "file names no metadata URLs)");
        return -1;
    }
    mr_auth_call_init(call, aws->subject->http, method, url);
    if (path) {
        mr_text_puts(&call->url, "/");
        mr_text_puts(&call->url, path);
    }
    if (method[0] == 'P')
        mr_auth_call_line(call, "X-aws-ec2-metadata-token-ttl-seconds", "300");
    else if (aws->session.length)
        mr_auth_call_line(call, "X-aws-ec2-metadata-token", aws->session.data);
    call->direct = true;
    call->done = auth_aws_on_answer;
    call->arg = aws;
    return mr_auth_call_send(call);
}

/* Requests what is still missing. Once all is there, or if a request cannot be sent, calls subject->done. */
static void next_step(struct mr_auth_aws *aws)
{
    const struct mr_auth_file *file = aws->subject->file;
    if (aws->region.length && aws->key.access_key_id) {
        auth_aws_finish(aws);
        return;
    }
    int rc;
    if (file->from.imdsv2_url && !aws->session.length)
        rc = auth_aws_ask(aws, "PUT", file->from.imdsv2_url, NULL);
    else if (!aws->region.length)
        rc = auth_aws_ask(aws, "GET", file->from.region_url, NULL);
    else
        rc = auth_aws_ask(aws, "GET", file->from.url, aws->role.length ? aws->role.data : NULL);
    if (rc != 0)
        aws->subject->done(aws->subject->arg, NULL);
}

static void run_start(struct mr_http_timer *timer)
{
    next_step(MR_CONTAINER_OF(timer, mr_auth_aws, timer));
}

int mr_auth_aws_start(struct mr_auth_subject *subject)
{
    const char *region = mr_auth_env("AWS_REGION") ? mr_auth_env("AWS_REGION") : mr_auth_env("AWS_DEFAULT_REGION");
    mr_auth_aws_cancel(subject);
    struct mr_auth_aws *aws = calloc(1, sizeof *aws);
    if (!aws) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for AWS credentials");
        return -1;
    }
    subject->aws = aws;
    aws->subject = subject;
    if (region)
        mr_text_puts(&aws->region, region);
    if (mr_auth_env("AWS_ACCESS_KEY_ID") && mr_auth_env("AWS_SECRET_ACCESS_KEY"))
        aws->key = (struct aws_keys){mr_auth_env("AWS_ACCESS_KEY_ID"), mr_auth_env("AWS_SECRET_ACCESS_KEY"),
                                     mr_auth_env("AWS_SESSION_TOKEN")};
    aws->timer.run = run_start;
    mr_http_timer_set(subject->http, &aws->timer, 0);
    return 0;
}

void mr_auth_aws_cancel(struct mr_auth_subject *subject)
{
    struct mr_auth_aws *aws = subject->aws;
    if (!aws)
        return;
    mr_http_timer_stop(subject->http, &aws->timer);
    mr_auth_call_close(&aws->call);
    mr_auth_text_wipe(&aws->session);
    mr_auth_text_wipe(&aws->keys);
    mr_text_close(&aws->role);
    mr_text_close(&aws->region);
    free(aws);
    subject->aws = NULL;
}
