#include "worker/list/names.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b); /* glibc compares as unsigned bytes */
}

static int names_add(struct mr_names *names, size_t *room, const char *line, size_t number, enum mr_scheme scheme,
                     const char *bucket)
{
    struct mr_uri uri;
    if (mr_uri_init(&uri, line) != 0) {
        mr_error_append("line %zu of the list of objects", number);
        return -1;
    }
    if (uri.scheme != scheme || strcmp(uri.bucket, bucket) != 0 || uri.key[0] == 0) {
        char place[MR_URI_PLACE_SIZE];
        mr_error_set(MR_E_USAGE, "line %zu of the list of objects: \"%.200s\" is not an object of %s", number, line,
                     mr_uri_place(scheme, bucket, place));
        mr_uri_close(&uri);
        return -1;
    }
    if (names->count == *room) {
        size_t more = *room ? *room * 2 : 1024;
        char **bigger = realloc(names->names, more * sizeof *bigger);
        if (!bigger) {
            mr_uri_close(&uri);
            mr_error_set(MR_E_NO_MEMORY, "no memory for a list of %zu objects", more);
            return -1;
        }
        names->names = bigger;
        *room = more;
    }
    names->names[names->count++] = uri.key;
    uri.key = NULL;
    mr_uri_close(&uri);
    return 0;
}

static void make_unique(struct mr_names *names)
{
    size_t kept = 0;
    qsort(names->names, names->count, sizeof *names->names, names_compare);
    for (size_t i = 0; i < names->count; i++) {
        if (kept > 0 && strcmp(names->names[kept - 1], names->names[i]) == 0)
            free(names->names[i]);
        else
            names->names[kept++] = names->names[i];
    }
    names->count = kept;
}

int mr_names_init(struct mr_names *names, int fd, enum mr_scheme scheme, const char *bucket)
{
    char *line = NULL;
    size_t size = 0, room = 0, number = 0;
    int rc = 0, own = dup(fd);
    FILE *in = own >= 0 ? fdopen(own, "r") : NULL;
    memset(names, 0, sizeof *names);
    if (!in || fseek(in, 0, SEEK_SET) != 0) {
        mr_error_set_errno(errno, "cannot read the list of objects");
        rc = -1;
    }
    ssize_t n;
    while (rc == 0 && (n = getline(&line, &size, in)) >= 0) {
        number++;
        if (n > 0 && line[n - 1] == '\n')
            line[--n] = 0;
        if (strlen(line) != (size_t)n) {
            mr_error_set(MR_E_USAGE, "line %zu of the list of objects holds a NUL", number);
            rc = -1;
        } else if (n > 0) {
            rc = names_add(names, &room, line, number, scheme, bucket);
        }
    }
    if (rc == 0 && !feof(in)) { /* -1 is also what a lack of memory gives */
        mr_error_set_errno(errno, "cannot read the list of objects");
        rc = -1;
    }
    free(line);
    if (in)
        fclose(in);
    else if (own >= 0)
        close(own);
    if (rc != 0) {
        mr_names_close(names);
        return -1;
    }
    if (names->count > 0)
        make_unique(names);
    return 0;
}

void mr_names_close(struct mr_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    memset(names, 0, sizeof *names);
}
