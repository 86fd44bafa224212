/*
 * aws_role.c - keys of a role, from the Security Token Service: AssumeRole, signed by other keys, or
 * AssumeRoleWithWebIdentity, for a token from a file (https://docs.aws.amazon.com/STS/latest/APIReference/).
 */
#include <errno.h>
#include <expat.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/store/aws_impl.h"
#include "worker/store/aws_partition.h"
#include "worker/store/aws_sign.h"

#define GLOBAL_REGION "us-east-1" /* the region of the STS that has none in its name */
#define DEPTH_MAX     16

/* ---- the response: XML ---- */

enum { ID, SECRET, TOKEN, END, CODE, MESSAGE, FIELDS };

struct sts_xml {
    XML_Parser parser;
    struct mr_text values[FIELDS];
    int open; /* the field whose text is read; FIELDS: none */
    unsigned depth;
};

/* The parser's memory may hold keys: it is overwritten before it is freed. */
static void wiping_free(void *memory)
{
    if (memory)
        OPENSSL_cleanse(memory, malloc_usable_size(memory));
    free(memory);
}

static void *wiping_realloc(void *memory, size_t size)
{
    void *larger = malloc(size);
    size_t kept = memory ? malloc_usable_size(memory) : 0;
    if (larger && memory) {
        memcpy(larger, memory, kept < size ? kept : size);
        wiping_free(memory);
    }
    return larger;
}

/* Opens a field at the first element with its name, at any depth. Stops at a document that is nested too deep. */
static void on_start(void *arg, const XML_Char *name, const XML_Char **attributes)
{
    static const char *const names[FIELDS] = {"AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration",
                                              "Code",        "Message"};
    struct sts_xml *xml = arg;
    (void)attributes;
    const char *colon = strrchr(name, ':');
    if (++xml->depth > DEPTH_MAX)
        XML_StopParser(xml->parser, XML_FALSE);
    xml->open = FIELDS;
    for (int i = 0; i < FIELDS; i++) {
        if (strcmp(colon ? colon + 1 : name, names[i]) == 0 && !xml->values[i].data)
            xml->open = i;
    }
    if (xml->open < FIELDS)
        mr_auth_text_reserve(&xml->values[xml->open], MR_AUTH_TOKEN_MAX);
}

static void on_text(void *arg, const XML_Char *text, int length)
{
    struct sts_xml *xml = arg;
    if (xml->open < FIELDS && xml->values[xml->open].length + (size_t)length < MR_AUTH_TOKEN_MAX)
        mr_text_add(&xml->values[xml->open], text, (size_t)length);
}

static void aws_role_on_end(void *arg, const XML_Char *name)
{
    struct sts_xml *xml = arg;
    (void)name;
    xml->depth--;
    xml->open = FIELDS;
}

/* false: it is not XML, or there is no memory. xml_close must follow in either case. */
static bool aws_role_parse(struct sts_xml *xml, const char *text, size_t length)
{
    static const XML_Memory_Handling_Suite wiping = {malloc, wiping_realloc, wiping_free};
    *xml = (struct sts_xml){.parser = XML_ParserCreate_MM(NULL, &wiping, NULL), .open = FIELDS};
    if (!xml->parser)
        return false;
    XML_SetUserData(xml->parser, xml);
    XML_SetElementHandler(xml->parser, on_start, aws_role_on_end);
    XML_SetCharacterDataHandler(xml->parser, on_text);
    bool whole = XML_Parse(xml->parser, text, (int)length, 1) == XML_STATUS_OK;
    XML_ParserFree(xml->parser);
    for (int i = 0; i < FIELDS; i++)
        whole = whole && !xml->values[i].failed;
    return whole;
}

static void xml_close(struct sts_xml *xml)
{
    for (int i = 0; i < FIELDS; i++)
        mr_auth_text_wipe(&xml->values[i]);
}

/* ---- a role ---- */

struct role {
    struct mr_aws_source base;
    struct mr_auth_call call;
    struct mr_aws_source *inner;
    char *url, *region, *role_arn, *session_name, *external_id, *token_file;
    unsigned duration_s;
};

/* The remedy for an error code; "": none is known. */
static const char *advice(const struct role *role, const char *code)
{
    static const struct {
        const char *code, *of_keys, *of_web;
    } all[] = {
        {"AccessDenied",
         "the role's trust policy must allow these keys sts:AssumeRole (and the external_id), and their own policy too",
         "the role's trust policy must allow this identity provider, audience and subject"},
        {"ExpiredToken", "the keys of the source have ended: renew them", "the token in the file has ended"},
        {"ExpiredTokenException", "the keys of the source have ended: renew them",
         "the token in the file has ended: what writes it must run"},
        {"InvalidIdentityToken", "",
         "the token is not of a provider that this account knows: create the OIDC provider"},
        {"InvalidClientTokenId", "the keys of the source do not exist (any more)", ""},
        {"SignatureDoesNotMatch", "the secret key of the source is wrong", ""},
        {"RegionDisabledException", "STS is not active in this region: choose another in AWS_REGION",
         "STS is not active in this region: choose another in AWS_REGION"},
        {"ValidationError", "correct role_arn, role_session_name or duration_seconds",
         "correct role_arn or role_session_name"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(code, all[i].code) == 0)
            return role->token_file ? all[i].of_web : all[i].of_keys;
    }
    return "";
}

/* Sets mr_error for a request that failed, in STS's words where it has any. */
static void aws_role_refuse(const struct role *role, const struct mr_auth_call *call,
                            const struct mr_auth_answer *answer, const struct sts_xml *xml)
{
    const struct mr_text *code = &xml->values[CODE], *message = &xml->values[MESSAGE];
    if (answer->code != MR_OK || !code->length) {
        mr_auth_answer_check(call, answer, "keys of the role");
        return;
    }
    char words[400] = "";
    if (message->length)
        mr_text_quote(words, sizeof words, message->data, message->length);
    bool is_clock = strstr(words, "Signature expired") || strstr(words, "Signature not yet current");
    const char *what = is_clock ? "set this machine's clock" : advice(role, code->data);
    mr_error_set(mr_auth_worth_a_repeat(answer) ? MR_E_BUSY : MR_E_DENIED,
                 "the role %.200s is refused: %.60s: %s (HTTP status %d)%s%s", role->role_arn, code->data, words,
                 answer->status, what[0] ? "; " : "", what);
}

static void aws_role_on_answer(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct role *role = call->arg;
    struct sts_xml xml = {.open = FIELDS};
    bool whole = answer->code == MR_OK && aws_role_parse(&xml, answer->body, answer->length);
    struct mr_aws_found found = {.text = ""};
    int rc = -1;
    if (answer->code != MR_OK || answer->status / 100 != 2) {
        aws_role_refuse(role, call, answer, &xml);
    } else if (!whole || !xml.values[ID].length || !xml.values[SECRET].length || !xml.values[TOKEN].length) {
        mr_error_set(MR_E_DENIED, "the answer of %.200s has no keys: is it the Security Token Service?", role->url);
    } else if (xml.values[END].length && (found.expires_s = mr_aws_parse_time(xml.values[END].data)) < 0) {
        mr_error_set(MR_E_DENIED, "the answer of %.200s has an Expiration that is not a time (2026-01-02T03:04:05Z)",
                     role->url);
    } else {
        found.access_key_id = xml.values[ID].data;
        found.secret_access_key = xml.values[SECRET].data;
        found.session_token = xml.values[TOKEN].data;
        rc = 0;
    }
    if (rc == 0) {
        mr_aws_give(&role->base, &found);
    } else {
        mr_error_append("%s", role->base.origin);
        mr_aws_fail(&role->base);
    }
    xml_close(&xml);
}

/* What the two actions have in common; the caller adds the rest and sends it. */
static void aws_role_begin(struct role *role, const char *action)
{
    struct mr_auth_call *call = &role->call;
    char name[64], number[16];
    snprintf(name, sizeof name, "millrace-%lld", (long long)(mr_clock_wall_ns() / MR_SECOND_NS));
    mr_auth_call_init(call, role->base.http, "POST", role->url);
    mr_text_puts(&call->url, "/");
    mr_auth_call_line(call, "Content-Type", "application/x-www-form-urlencoded");
    mr_auth_call_field(call, "Action", action);
    mr_auth_call_field(call, "Version", "2011-06-15");
    mr_auth_call_field(call, "RoleArn", role->role_arn);
    mr_auth_call_field(call, "RoleSessionName", role->session_name ? role->session_name : name);
    if (role->external_id)
        mr_auth_call_field(call, "ExternalId", role->external_id);
    snprintf(number, sizeof number, "%u", role->duration_s);
    if (role->duration_s)
        mr_auth_call_field(call, "DurationSeconds", number);
    call->done = aws_role_on_answer;
    call->arg = role;
}

static int send_signed(struct role *role, const struct mr_aws_found *keys)
{
    aws_role_begin(role, "AssumeRole");
    struct mr_auth_call *call = &role->call;
    struct mr_text authorization = {0};
    mr_auth_text_reserve(&authorization, 1024);
    char date[MR_AWS_DATE_SIZE];
    mr_aws_sign_date(date);
    const struct mr_aws_sign request = {.access_key_id = keys->access_key_id,
                                        .secret_access_key = keys->secret_access_key,
                                        .session_token = keys->session_token,
                                        .region = role->region ? role->region : GLOBAL_REGION,
                                        .service = "sts",
                                        .method = "POST",
                                        .url = call->url.data,
                                        .body = call->body.data,
                                        .body_length = call->body.length,
                                        .date = date};
    int rc = -1;
    if (call->url.failed || call->body.failed)
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request for credentials");
    else
        rc = mr_aws_sign(&authorization, &request);
    if (rc == 0) {
        mr_auth_call_line(call, "X-Amz-Date", date);
        if (keys->session_token)
            mr_auth_call_line(call, "X-Amz-Security-Token", keys->session_token);
        mr_auth_call_line(call, "Authorization", authorization.data);
        rc = mr_auth_call_send(call);
    }
    mr_auth_text_wipe(&authorization);
    return rc;
}

static void on_inner(void *arg, const struct mr_aws_found *keys)
{
    struct role *role = arg;
    if (keys->code == MR_OK && send_signed(role, keys) == 0)
        return;
    if (keys->code != MR_OK)
        mr_error_set(keys->code, "%s", keys->text);
    mr_error_append("%s", role->base.origin);
    mr_aws_fail(&role->base);
}

/* The token is read anew each time: its writer replaces it before it expires. */
static int send_web(struct role *role)
{
    struct mr_text token = {0};
    int rc = -1;
    if (mr_auth_text_read(&token, role->token_file, MR_AUTH_TOKEN_MAX) != 0) {
        mr_error_set(MR_E_DENIED, "the web identity token's file %.300s cannot be read: %s; check that it is mounted",
                     role->token_file, strerror(errno));
    } else {
        while (token.length > 0 && strchr(" \t\r\n", token.data[token.length - 1]))
            token.data[--token.length] = 0;
        if (!mr_auth_is_token(token.data) || strlen(token.data) != token.length) {
            mr_error_set(MR_E_DENIED, "%.300s holds no web identity token", role->token_file);
        } else {
            aws_role_begin(role, "AssumeRoleWithWebIdentity");
            mr_auth_call_field(&role->call, "WebIdentityToken", token.data);
            rc = mr_auth_call_send(&role->call);
        }
    }
    mr_auth_text_wipe(&token);
    if (rc != 0)
        mr_error_append("%s", role->base.origin);
    return rc;
}

static int role_start(struct mr_aws_source *source)
{
    struct role *role = (struct role *)source;
    return role->inner ? role->inner->ops->start(role->inner) : send_web(role);
}

static void role_cancel(struct mr_aws_source *source)
{
    struct role *role = (struct role *)source;
    if (role->inner)
        role->inner->ops->cancel(role->inner);
    mr_auth_call_close(&role->call);
}

static void role_destroy(struct mr_aws_source *source)
{
    struct role *role = (struct role *)source;
    role_cancel(source);
    mr_aws_source_destroy(role->inner);
    char *strings[] = {role->url,          role->region,      role->role_arn,
                       role->session_name, role->external_id, role->token_file};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        free(strings[i]);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops ops = {role_start, role_cancel, role_destroy};

struct mr_aws_source *mr_aws_role_new(struct mr_http *http, const char *origin, const struct mr_aws_files *files,
                                      const struct mr_aws_role *options, struct mr_aws_source *inner)
{
    struct role *role = mr_aws_source_make(sizeof *role, &ops, http, origin);
    if (!role) {
        mr_aws_source_destroy(inner);
        return NULL;
    }
    role->inner = inner;
    role->duration_s = options->duration_s;
    if (inner) {
        inner->done = on_inner;
        inner->arg = role;
    }
    const char *region = mr_aws_region(files);
    char otherwise[200] = "https://sts.amazonaws.com";
    if (region)
        snprintf(otherwise, sizeof otherwise, "https://sts.%.60s.%s", region, mr_aws_domain(region));
    if (mr_aws_secret_endpoint(files, "sts", otherwise, &role->url) == 0) {
        if (mr_text_dup(&role->region, region) == 0 && mr_text_dup(&role->role_arn, options->role_arn) == 0 &&
            mr_text_dup(&role->session_name, options->session_name) == 0 &&
            mr_text_dup(&role->external_id, options->external_id) == 0 &&
            (!options->token_file || (role->token_file = mr_aws_path(options->token_file))))
            return &role->base;
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
    }
    role_destroy(&role->base);
    return NULL;
}
