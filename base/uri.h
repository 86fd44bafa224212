/*
 * uri.h - gs://bucket/key, s3://bucket/key, file:///absolute/path, and plain paths (taken as file).
 *
 * s3+NAME://bucket/key is at the endpoint of that name of the configuration. It has the bucket "NAME+bucket", which no
 * other bucket can be called: so all that goes by scheme and bucket keeps the two apart.
 */
#ifndef MR_BASE_URI_H
#define MR_BASE_URI_H

#include <stdbool.h>

enum mr_scheme { MR_SCHEME_FILE, MR_SCHEME_GS, MR_SCHEME_S3 };

#define MR_URI_ENDPOINT_MAX 32                          /* bytes of an endpoint's name */
#define MR_URI_PLACE_SIZE   (MR_URI_ENDPOINT_MAX + 240) /* of "s3+NAME://bucket" */

struct mr_uri {
    enum mr_scheme scheme;
    char *bucket; /* gs, s3: the bucket, of s3+NAME:// "NAME+bucket"; file: "" */
    char *key;    /* the object's name or a prefix, unescaped as given; file: an absolute path. May be "" */
};

/*
 * Parses text; gs and gcs are the same. The key is what follows the bucket's slash, byte for byte: object
 * names may hold any UTF-8, "//" and "?" included. 0, or -1 (USAGE) with the reason. Free with mr_uri_close.
 */
int mr_uri_init(struct mr_uri *uri, const char *text);
void mr_uri_close(struct mr_uri *uri);
/* "gs", "s3", "file". */
const char *mr_scheme_name(enum mr_scheme scheme);
/* "gs://bucket", "s3+NAME://bucket"; of a file "file://". Returns out. */
const char *mr_uri_place(enum mr_scheme scheme, const char *bucket, char out[MR_URI_PLACE_SIZE]);
/* What a name or a path is put behind: the same with its slash, of a file "file://". Returns out. */
const char *mr_uri_root(enum mr_scheme scheme, const char *bucket, char out[MR_URI_PLACE_SIZE]);
/* malloc'ed "gs://bucket/key" (file: "file:///path"). key may be NULL for none. */
char *mr_uri_format(enum mr_scheme scheme, const char *bucket, const char *key);

/* Is this "[http[s]://]host[:port]", also with slashes behind it, or with a path where it may have one? */
bool mr_uri_is_endpoint(const char *text, bool may_have_path);
/* malloc'ed: the same with its scheme, in lower case, and without slashes at its end. Without a scheme it gets http:// on
 * this machine and where is_clear, else https://, since credentials are sent there. NULL with mr_error: no memory. */
char *mr_uri_endpoint(const char *text, bool is_clear);
/* Is the host of "host[:port]" or "http[s]://host[:port]" this machine by its name alone: localhost, 127.*, [::1]? */
bool mr_uri_is_loopback(const char *endpoint);
/* Would credentials for this endpoint cross a network in clear text: http:// to another machine? */
bool mr_uri_is_cleartext(const char *endpoint);

#endif
