/*
 * s3_auth.h - signatures of version 4, in the Authorization header, and those of the chunks of a body.
 * https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html
 *
 * Without a key (struct ds_s3_settings) nothing is verified but what a request says of its own body.
 */
#ifndef MR_DEVSTORE_S3_AUTH_H
#define MR_DEVSTORE_S3_AUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "devstore/request.h"
#include "devstore/s3.h"

/* What a request's signature says. One block of memory. */
struct ds_s3_auth {
    bool verified;             /* the key is known: chunks are verified too */
    uint8_t key[32];           /* that signs */
    char date[17], scope[160]; /* "20130524T000000Z", "20130524/us-east-1/s3/aws4_request" */
    char signature[65];        /* of the request, then of its last chunk */
    bool has_hash;             /* the body's SHA-256 is */
    uint8_t hash[32];
    bool chunked;                /* the body is aws-chunked */
    bool signed_chunks, trailer; /* with signatures; with a trailer */
};

/* Sets request->auth. 0, or -1: the reply says why the request is refused. */
int ds_s3_auth_check(const struct ds_s3_settings *settings, struct ds_request *request, struct ds_reply *reply);
/* Checks the signature of the next chunk, whose bytes have this SHA-256 (trailer: of the trailer). 0 or -1 (DENIED). */
int ds_s3_auth_chunk(struct ds_s3_auth *auth, const uint8_t hash[32], bool trailer, const char *signature);

#define MR_S3_SESSION_MAX 80
struct ds_s3_session_key {
    char id[MR_S3_SESSION_MAX], secret[65], token[65];
};
/* Credentials of CreateSession that are valid until `until`, in seconds since 1970. They are derived from their id. */
void ds_s3_session_make(const struct ds_s3_settings *settings, int64_t until, struct ds_s3_session_key *key);

void ds_s3_sha256(const void *bytes, size_t length, uint8_t hash[32]);
void ds_s3_hex(const uint8_t *bytes, size_t length, char *out); /* 2 * length characters and a NUL */
/* 0, or -1: they are not 2 * length hexadecimal digits. */
int ds_s3_unhex(const char *text, uint8_t *bytes, size_t length);

#endif
