/*
 * Directory buckets of S3 (S3 Express One Zone): where they are, and the sessions that their requests are made in.
 *
 * CreateSession, which is signed with the caller's keys, returns keys that are good for five minutes; they sign all
 * other requests. They are kept like those of any other source (aws_credentials.h): fetched by the first request,
 * replaced before they expire, and fetched anew if the store refuses them. Facts: docs/protocols.md, "S3 Express One
 * Zone".
 */
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/container.h"
#include "worker/store/aws_impl.h"
#include "worker/store/s3_impl.h"

/* ---- prefixes ---- */

size_t mr_s3_prefix_length(const struct s3_store *store, const char *prefix)
{
    const char *slash = prefix && store->zone[0] ? strrchr(prefix, '/') : NULL;
    return !prefix ? 0 : !store->zone[0] ? strlen(prefix) : slash ? (size_t)(slash - prefix) + 1 : 0;
}

void mr_s3_put_prefix(struct s3_call *call, const char *prefix)
{
    size_t length = mr_s3_prefix_length(mr_s3_store(call), prefix);
    if (length == 0)
        return;
    mr_text_puts(&call->target, "&prefix=");
    mr_text_put_encoded(&call->target, prefix, length);
}

/* ---- sessions ---- */

struct session {
    struct mr_aws_source base;
    struct s3_store *store;
    struct s3_call *call; /* NULL: none is under way */
    bool read_only;       /* this one: a session that may write was denied */
};

static int s3_express_ask(struct session *session);

/* Takes <Credentials> of the response. 0, or -1 with mr_error. */
static int take_keys(struct mr_xml *xml, struct mr_aws_found *found)
{
    struct mr_xml_leaf leaf;
    const char *until = "";
    for (size_t i = 0; mr_xml_leaf(xml, i, &leaf); i++) {
        if (strcmp(leaf.name, "AccessKeyId") == 0)
            found->access_key_id = leaf.text;
        else if (strcmp(leaf.name, "SecretAccessKey") == 0)
            found->secret_access_key = leaf.text;
        else if (strcmp(leaf.name, "SessionToken") == 0)
            found->session_token = leaf.text;
        else if (strcmp(leaf.name, "Expiration") == 0)
            until = leaf.text;
    }
    found->expires_s = mr_aws_parse_time(until);
    if (found->access_key_id && found->secret_access_key && found->session_token && found->expires_s >= 0)
        return 0;
    mr_error_set(MR_E_PROTOCOL, "a session without keys, or without an end, was answered");
    return -1;
}

/* Overwrites the keys in the response, and destroys xml (may be NULL). */
static void wipe(struct mr_xml *xml, const struct mr_http_result *http)
{
    struct mr_xml_leaf leaf;
    for (size_t i = 0; xml && mr_xml_leaf(xml, i, &leaf); i++)
        OPENSSL_cleanse(leaf.text, strlen(leaf.text));
    if (http->body_length)
        OPENSSL_cleanse((char *)(uintptr_t)http->body, http->body_length);
    mr_xml_destroy(xml);
}

/* If a session that may write is denied, requests one that may only read. */
static void on_session(struct s3_call *call, struct s3_answer *answer)
{
    struct session *session = call->arg;
    struct mr_xml *xml = answer->result.code == MR_OK ? mr_s3_xml(call, answer, "CreateSessionResult") : NULL;
    struct mr_aws_found found = {.text = ""};
    bool good = xml && take_keys(xml, &found) == 0;
    int64_t date_s = answer->http->headers.date_s;
    if (good && date_s) /* they expire by the server's clock, and are compared with ours */
        found.expires_s += mr_clock_wall_ns() / MR_SECOND_NS - date_s;
    session->call = NULL;
    mr_s3_give(call);
    if (good) {
        mr_aws_give(&session->base, &found);
    } else if (answer->result.status == 403 && strcmp(answer->word, "AccessDenied") == 0 && !session->read_only) {
        session->read_only = true; /* a policy may allow only these */
        if (s3_express_ask(session) != 0)
            mr_aws_fail(&session->base);
    } else {
        if (!xml)
            mr_error_set(answer->result.code, "%s", answer->result.text);
        mr_aws_fail(&session->base);
    }
    wipe(xml, answer->http);
}

static int s3_express_ask(struct session *session)
{
    struct s3_call *call = mr_s3_take(session->store, S3_SESSION, "", 0, session);
    struct mr_http_request http = {.method = "GET"};
    if (!call)
        return -1;
    mr_s3_target(call, "?session");
    mr_s3_line(call, "x-amz-create-session-mode: ", session->read_only ? "ReadOnly" : "ReadWrite");
    mr_s3_more_lines(call, &session->store->of_session);
    session->call = call;
    if (mr_s3_send(call, &http, on_session) == 0)
        return 0;
    session->call = NULL;
    mr_s3_give(call);
    return -1;
}

static int session_start(struct mr_aws_source *base)
{
    struct session *session = (struct session *)base;
    session->read_only = false; /* what was denied before may be allowed by now */
    return s3_express_ask(session);
}

static void session_cancel(struct mr_aws_source *base)
{
    struct session *session = (struct session *)base;
    if (session->call)
        mr_store_cancel(&session->call->base);
}

static void session_destroy(struct mr_aws_source *base)
{
    session_cancel(base);
    mr_aws_source_free(base);
}

void mr_s3_session_forget(struct s3_call *call)
{
    ((struct session *)call->arg)->call = NULL;
}

int mr_s3_express_init(struct s3_store *store, const struct mr_store_options *options)
{
    static const struct mr_aws_source_ops ops = {session_start, session_cancel, session_destroy};
    static const struct mr_s3_options none;
    const struct mr_s3_options *s3 = options->s3 ? options->s3 : &none;
    const char *refused = s3->customer_key_file && s3->customer_key_file[0]          ? "customer_key_file"
                          : s3->encryption == MR_S3_ENCRYPTION_KMS_DSSE              ? "encryption = \"aws:kms:dsse\""
                          : s3->addressing == MR_S3_ADDRESSING_PATH && store->is_aws ? "addressing = \"path\""
                                                                                     : NULL;
    char origin[200];
    if (refused) {
        mr_error_set(MR_E_CONFIG, "s3://%s is a directory bucket (S3 Express One Zone), which knows no [s3] %s",
                     options->bucket, refused);
        return -1;
    }
    struct mr_aws_keys keys;
    if (mr_aws_credentials_get(store->credentials, &keys) && !keys.access_key_id)
        return 0; /* anonymous: nothing is signed */
    snprintf(origin, sizeof origin, "the session of s3://%.120s", options->bucket);
    struct session *session = mr_aws_source_make(sizeof *session, &ops, options->http, origin);
    if (!session)
        return -1;
    session->store = store;
    store->express = mr_aws_credentials_of(&session->base, options->http);
    return store->express ? 0 : -1;
}
