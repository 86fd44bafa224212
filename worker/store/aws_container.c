/* aws_container.c - keys from the agent beside a container: ECS, EKS Pod Identity, Greengrass
 * (https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html). */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/store/aws_impl.h"

#define ECS_HOST   "http://169.254.170.2"
#define TIMEOUT_MS 2000
#define TRIES      3

struct container {
    struct mr_aws_source base;
    struct mr_auth_call call;
    char *url;
};

static void aws_container_on_answer(struct mr_auth_call *call, struct mr_auth_answer *answer)
{
    struct container *container = call->arg;
    struct mr_aws_found found;
    if (mr_auth_answer_check(call, answer, "keys") == 0 &&
        mr_aws_found_in_json(&found, answer->body, answer->length, "Token", container->base.origin) == 0) {
        mr_aws_give(&container->base, &found);
        return;
    }
    mr_error_append("the container's credentials (AWS_CONTAINER_CREDENTIALS_*_URI)");
    mr_aws_fail(&container->base);
}

/* Adds the authorization token. The agent replaces it from time to time, so it is read anew. 0, or -1 with mr_error. */
static int put_authorization(struct mr_auth_call *call)
{
    const char *path = mr_auth_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = mr_auth_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    struct mr_text text = {0};
    int rc = 0;
    if (path && mr_auth_text_read(&text, path, MR_AUTH_TOKEN_MAX) != 0) {
        mr_error_set(MR_E_DENIED, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE %.300s cannot be read: %s", path,
                     strerror(errno));
        rc = -1;
    } else {
        if (path)
            token = text.data;
        if (token && (strlen(token) < text.length || strpbrk(token, "\r\n") || !token[0])) {
            mr_error_set(MR_E_DENIED, "%s holds a line end or nothing: it must be the value of a header line",
                         path ? path : "AWS_CONTAINER_AUTHORIZATION_TOKEN");
            rc = -1;
        } else if (token) {
            mr_auth_call_line(call, "Authorization", token);
        }
    }
    mr_auth_text_wipe(&text);
    return rc;
}

static int container_start(struct mr_aws_source *source)
{
    struct container *container = (struct container *)source;
    struct mr_auth_call *call = &container->call;
    mr_auth_call_init(call, source->http, "GET", container->url);
    mr_auth_call_line(call, "Accept", "application/json");
    if (put_authorization(call) != 0)
        return -1;
    call->tries = TRIES;
    call->timeout_ms = TIMEOUT_MS;
    call->direct = strncmp(container->url, "http://", 7) == 0;
    call->done = aws_container_on_answer;
    call->arg = container;
    return mr_auth_call_send(call);
}

static void container_cancel(struct mr_aws_source *source)
{
    mr_auth_call_close(&((struct container *)source)->call);
}

static void container_destroy(struct mr_aws_source *source)
{
    container_cancel(source);
    free(((struct container *)source)->url);
    mr_aws_source_free(source);
}

static const struct mr_aws_source_ops ops = {container_start, container_cancel, container_destroy};

/* Keys are accepted in clear text only from this machine or the agent's own addresses. */
static bool is_allowed(const char *url)
{
    static const char *const hosts[] = {"localhost", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"};
    if (strpbrk(url, " \t\r\n"))
        return false;
    if (strncmp(url, "https://", 8) == 0)
        return url[8] != 0;
    if (strncmp(url, "http://", 7) != 0)
        return false;
    const char *at = url + 7, *end = at + strcspn(at, "/?#");
    char host[64];
    if (memchr(at, '@', (size_t)(end - at)))
        return false;
    size_t length = *at == '[' ? strcspn(++at, "]/?#") : strcspn(at, ":/?#");
    snprintf(host, sizeof host, "%.*s", (int)(length < sizeof host ? length : 0), at);
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        if (strcmp(host, hosts[i]) == 0)
            return true;
    }
    struct in_addr ip4;
    struct in6_addr ip6;
    return (inet_pton(AF_INET, host, &ip4) == 1 && ntohl(ip4.s_addr) >> 24 == 127) ||
           (inet_pton(AF_INET6, host, &ip6) == 1 && IN6_IS_ADDR_LOOPBACK(&ip6));
}

struct mr_aws_source *mr_aws_container_new(struct mr_http *http)
{
    const char *relative = mr_auth_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = mr_auth_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    struct mr_text url = {0};
    if (!relative && !full) {
        mr_error_set(MR_E_DENIED,
                     "no keys of a container: neither AWS_CONTAINER_CREDENTIALS_RELATIVE_URI nor _FULL_URI "
                     "is set");
        return NULL;
    }
    mr_text_puts(&url, relative ? ECS_HOST : full);
    mr_text_puts(&url, relative ? relative : "");
    if (url.failed) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for credentials");
        goto out;
    }
    if (relative && (relative[0] != '/' || strpbrk(relative, " \t\r\n"))) {
        mr_error_set(MR_E_DENIED, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI=%.200s is not a path: it begins with /",
                     relative);
        goto out;
    }
    if (!relative && !is_allowed(full)) {
        mr_error_set(MR_E_DENIED,
                     "AWS_CONTAINER_CREDENTIALS_FULL_URI=%.200s: keys are fetched over https://, or over http:// from "
                     "this machine, 169.254.170.2, 169.254.170.23 or [fd00:ec2::23] only",
                     full);
        goto out;
    }
    char origin[300];
    snprintf(origin, sizeof origin, "the container's agent at %.*s", (int)strcspn(url.data, "?#"), url.data);
    struct container *container = mr_aws_source_make(sizeof *container, &ops, http, origin);
    if (container) {
        container->url = url.data;
        return &container->base;
    }
out:
    mr_text_close(&url);
    return NULL;
}
