/* tls.h - a certificate for one run of the server, and the authority that signs it: both generated, neither stored. */
#ifndef MR_DEVSTORE_TLS_H
#define MR_DEVSTORE_TLS_H

struct ds_tls {
    char *key, *certificate; /* the server's, PEM */
    char *authority;         /* the certificate for clients to trust, PEM; its key is not kept */
};

/* For a server at this host, localhost, 127.0.0.1 and ::1; valid from yesterday, for 10 years. 0, or -1 with an
 * error. */
int ds_tls_make(const char *host, struct ds_tls *tls);
/* Safe on a zeroed one. */
void ds_tls_close(struct ds_tls *tls);

#endif
