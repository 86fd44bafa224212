#include "devstore/tls.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define DAY_S  (24L * 60 * 60)
#define LIFE_S (3650 * DAY_S)

static int add_extension(X509 *certificate, X509 *issuer, int kind, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    int rc = extension && X509_add_ext(certificate, extension, -1) ? 0 : -1;
    X509_EXTENSION_free(extension);
    return rc;
}

/* A certificate of `name` for this key, without extensions and signature. */
static X509 *begin_certificate(const char *name, EVP_PKEY *key, long serial)
{
    X509 *certificate = X509_new();
    if (!certificate)
        return NULL;
    X509_NAME *subject = X509_get_subject_name(certificate);
    if (X509_set_version(certificate, X509_VERSION_3) && ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial) &&
        X509_gmtime_adj(X509_getm_notBefore(certificate), -DAY_S) &&
        X509_gmtime_adj(X509_getm_notAfter(certificate), LIFE_S) && X509_set_pubkey(certificate, key) &&
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0))
        return certificate;
    X509_free(certificate);
    return NULL;
}

/* Self-signed. */
static X509 *make_authority(EVP_PKEY *key)
{
    X509 *made = begin_certificate("millrace-devstore, for one run", key, 1);
    if (made && X509_set_issuer_name(made, X509_get_subject_name(made)) &&
        add_extension(made, made, NID_basic_constraints, "critical,CA:TRUE") == 0 &&
        add_extension(made, made, NID_key_usage, "critical,keyCertSign") == 0 &&
        add_extension(made, made, NID_subject_key_identifier, "hash") == 0 && X509_sign(made, key, EVP_sha256()) > 0)
        return made;
    X509_free(made);
    return NULL;
}

static X509 *make_certificate(const char *host, EVP_PKEY *key, X509 *authority, EVP_PKEY *authority_key)
{
    unsigned char address[16];
    char names[400];
    bool is_address = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    snprintf(names, sizeof names, "DNS:localhost,IP:127.0.0.1,IP:::1,%s:%.250s", is_address ? "IP" : "DNS", host);
    X509 *made = begin_certificate("millrace-devstore", key, 2);
    if (made && X509_set_issuer_name(made, X509_get_subject_name(authority)) &&
        add_extension(made, authority, NID_basic_constraints, "critical,CA:FALSE") == 0 &&
        add_extension(made, authority, NID_ext_key_usage, "serverAuth") == 0 &&
        add_extension(made, authority, NID_authority_key_identifier, "keyid") == 0 &&
        add_extension(made, authority, NID_subject_alt_name, names) == 0 &&
        X509_sign(made, authority_key, EVP_sha256()) > 0)
        return made;
    X509_free(made);
    return NULL;
}

/* What was written to the memory, malloc'ed; NULL: nothing. Frees the BIO, which may be NULL. */
static char *text_of(BIO *memory, int written)
{
    char *data = NULL;
    long length = memory && written ? BIO_get_mem_data(memory, &data) : 0;
    char *text = length > 0 ? strndup(data, (size_t)length) : NULL;
    BIO_free(memory);
    return text;
}

static char *certificate_text(X509 *certificate)
{
    BIO *memory = BIO_new(BIO_s_mem());
    return text_of(memory, memory && PEM_write_bio_X509(memory, certificate));
}

static char *key_text(EVP_PKEY *key)
{
    BIO *memory = BIO_new(BIO_s_mem());
    return text_of(memory, memory && PEM_write_bio_PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL));
}

int ds_tls_make(const char *host, struct ds_tls *tls)
{
    EVP_PKEY *authority_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
    X509 *authority = authority_key ? make_authority(authority_key) : NULL;
    X509 *certificate = authority && key ? make_certificate(host, key, authority, authority_key) : NULL;
    *tls = (struct ds_tls){0};
    if (certificate)
        *tls = (struct ds_tls){.key = key_text(key),
                               .certificate = certificate_text(certificate),
                               .authority = certificate_text(authority)};
    X509_free(certificate);
    X509_free(authority);
    EVP_PKEY_free(key);
    EVP_PKEY_free(authority_key);
    if (tls->key && tls->certificate && tls->authority)
        return 0;
    ds_tls_close(tls);
    mr_error_set(MR_E_INTERNAL, "cannot make a certificate for \"%.200s\"", host);
    return -1;
}

void ds_tls_close(struct ds_tls *tls)
{
    free(tls->key);
    free(tls->certificate);
    free(tls->authority);
    *tls = (struct ds_tls){0};
}
