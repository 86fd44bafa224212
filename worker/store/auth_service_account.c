/*
 * auth_service_account.c - a service account's key: a JWT signed with it is exchanged for a token
 * (https://developers.google.com/identity/protocols/oauth2/service-account#httprest).
 */
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"

#define JWT_LIFETIME_S 3600

struct service_account {
    struct mr_auth_source base;
    const struct mr_auth_file *file;
    const char *scope;
    EVP_PKEY *key;
    struct mr_auth_call call;
};

/* Adds ".<signature>" to what is there. 0, or -1 with mr_error. */
static int auth_service_account_sign(EVP_PKEY *key, struct mr_text *jwt)
{
    unsigned char signature[1024];
    size_t length = sizeof signature;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context && EVP_PKEY_get_size(key) <= (int)sizeof signature &&
                EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
                EVP_DigestSign(context, signature, &length, (const unsigned char *)jwt->data, jwt->length) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    if (!good) {
        mr_error_set(MR_E_DENIED, "the private key of the service account does not sign (RS256)");
        return -1;
    }
    mr_text_add(jwt, ".", 1);
    mr_auth_put_base64(jwt, signature, length, true);
    return 0;
}

/* jwt must be empty: all of it is signed. -1 with mr_error. */
static int make_jwt(const struct service_account *account, struct mr_text *jwt)
{
    const struct mr_auth_file *file = account->file;
    struct mr_text part = {0};
    long long now = mr_clock_wall_ns() / MR_SECOND_NS;
    mr_text_puts(&part, "{\"alg\":\"RS256\",\"typ\":\"JWT\"");
    if (file->private_key_id) {
        mr_text_puts(&part, ",\"kid\":");
        mr_auth_put_json(&part, file->private_key_id);
    }
    mr_text_puts(&part, "}");
    if (!part.failed)
        mr_auth_put_base64(jwt, part.data, part.length, true);
    bool failed = part.failed;
    mr_text_clear(&part);
    char times[80];
    snprintf(times, sizeof times, ",\"iat\":%lld,\"exp\":%lld}", now, now + JWT_LIFETIME_S);
    mr_text_puts(&part, "{\"iss\":");
    mr_auth_put_json(&part, file->client_email);
    mr_text_puts(&part, ",\"scope\":");
    mr_auth_put_json(&part, account->scope);
    mr_text_puts(&part, ",\"aud\":");
    mr_auth_put_json(&part, file->token_uri);
    mr_text_puts(&part, times);
    mr_text_puts(jwt, ".");
    if (!part.failed)
        mr_auth_put_base64(jwt, part.data, part.length, true);
    failed |= part.failed | jwt->failed;
    mr_text_close(&part);
    if (failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a signed request");
        return -1;
    }
    return auth_service_account_sign(account->key, jwt);
}

/* Appends the likely remedy to mr_error. */
static void explain(const struct service_account *account, bool clock_off, bool revoked)
{
    const struct mr_auth_file *file = account->file;
    if (clock_off) {
        struct tm tm;
        time_t wall = (time_t)(mr_clock_wall_ns() / MR_SECOND_NS);
        gmtime_r(&wall, &tm);
        char now[40];
        strftime(now, sizeof now, "%Y-%m-%d %H:%M:%S UTC", &tm);
        mr_error_append("the machine's clock, which says %s, seems to be off: set it (timedatectl set-ntp true)", now);
    } else if (revoked) {
        mr_error_append(
            "key %.60s of %.120s is refused: it was deleted or revoked, or the account was deleted or disabled; "
            "make a new one with gcloud iam service-accounts keys create",
            file->private_key_id ? file->private_key_id : "", file->client_email);
    } else {
        mr_error_append("service account %.120s", file->client_email);
    }
}

static void auth_service_account_on_token(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct service_account *account = call->arg;
    struct mr_auth_token token;
    bool grant = mr_auth_answer_says(answer, "invalid_grant"),
         times = mr_auth_answer_says(answer, "iat") && mr_auth_answer_says(answer, "exp");
    if (mr_auth_answer_check(call, answer, "token") == 0 && mr_auth_answer_token(call, answer, &token) == 0) {
        account->base.done(account->base.arg, &token);
        return;
    }
    explain(account, grant && times, grant);
    mr_auth_fail(&account->base);
}

static int service_account_start(struct mr_auth_source *source)
{
    struct service_account *account = (struct service_account *)source;
    struct mr_text jwt = {0};
    int rc = -1;
    mr_auth_text_reserve(&jwt, 8192);
    if (make_jwt(account, &jwt) != 0)
        goto out;
    mr_auth_call_init(&account->call, source->http, "POST", account->file->token_uri);
    mr_auth_call_line(&account->call, "Content-Type", "application/x-www-form-urlencoded");
    mr_auth_call_field(&account->call, "grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
    mr_auth_call_field(&account->call, "assertion", jwt.data);
    account->call.done = auth_service_account_on_token;
    account->call.arg = account;
    rc = mr_auth_call_send(&account->call);
out:
    mr_auth_text_wipe(&jwt);
    return rc;
}

static void service_account_cancel(struct mr_auth_source *source)
{
    mr_auth_call_close(&((struct service_account *)source)->call);
}

static void service_account_destroy(struct mr_auth_source *source)
{
    struct service_account *account = (struct service_account *)source;
    mr_auth_call_close(&account->call);
    EVP_PKEY_free(account->key);
    free(account);
}

static const struct mr_auth_source_ops ops = {service_account_start, service_account_cancel, service_account_destroy};

/* An encrypted key is refused. Without this, OpenSSL would prompt for its password. */
static int no_password(char *out, int size, int writing, void *arg)
{
    (void)out, (void)size, (void)writing, (void)arg;
    return -1;
}

/* Returns an RSA key that the caller frees; NULL with mr_error. */
static EVP_PKEY *read_key(const char *pem)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    ERR_clear_error();
    if (key && EVP_PKEY_get_base_id(key) != EVP_PKEY_RSA) {
        EVP_PKEY_free(key);
        key = NULL;
    }
    if (!key)
        mr_error_set(MR_E_DENIED,
                     "its \"private_key\" is not an RSA key in PEM form: the file is damaged; make a new key "
                     "with gcloud iam service-accounts keys create");
    return key;
}

struct mr_auth_source *mr_auth_service_account_new(struct mr_http *http, const struct mr_auth_file *file,
                                                   const char *scope)
{
    struct service_account *account = calloc(1, sizeof *account);
    if (!account) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        return NULL;
    }
    account->base.ops = &ops;
    account->base.http = http;
    account->file = file;
    account->scope = scope;
    account->key = read_key(file->private_key);
    if (!account->key) {
        free(account);
        return NULL;
    }
    return &account->base;
}
