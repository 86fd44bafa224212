/* auth_call.c - a request to a token server, with repeats, and the parsing of its response. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/container.h"
#include "base/error.h"
#include "worker/store/auth_impl.h"
#include "worker/store/json.h"

#define TRIES       5
#define TIMEOUT_MS  20000
#define WAIT_MS     500   /* before the first repeat: between half and all of it; doubled for each further one */
#define WAIT_MAX_MS 30000 /* Retry-After is not honoured beyond it */
#define WORD_MAX    40    /* longer words in a server's message may be (part of) a token: not shown */

/* ---- small things ---- */

const char *mr_auth_env(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

const char *mr_auth_home(void)
{
    const char *home = mr_auth_env("HOME");
    struct passwd *user = home ? NULL : getpwuid(getuid());
    if (user)
        home = user->pw_dir;
    return home ? home : "";
}

int mr_auth_text_read(struct mr_text *text, const char *path, size_t max)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    mr_auth_text_reserve(text, max + 2);
    ssize_t got = -1;
    errno = ENOMEM;
    while (!text->failed && text->length <= max) {
        got = read(fd, text->data + text->length, max + 1 - text->length);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        text->length += got > 0 ? (size_t)got : 0;
    }
    if (got >= 0 && text->length > max) {
        errno = EFBIG;
        got = -1;
    }
    int error = errno;
    close(fd);
    if (!text->failed)
        text->data[text->length] = 0;
    errno = error;
    return got < 0 ? -1 : 0;
}

void mr_auth_text_wipe(struct mr_text *text)
{
    if (text->data)
        OPENSSL_cleanse(text->data, text->size);
    mr_text_close(text);
    memset(text, 0, sizeof *text);
}

void mr_auth_text_reserve(struct mr_text *text, size_t size)
{
    if (text->data || text->failed)
        return;
    text->data = malloc(size);
    if (!text->data) {
        text->failed = true;
        return;
    }
    text->size = size;
    text->data[0] = 0;
}

void mr_auth_put_base64(struct mr_text *to, const void *data, size_t length, bool url)
{
    size_t size = (length + 2) / 3 * 4 + 1;
    char *out = malloc(size);
    if (!out) {
        to->failed = true;
        return;
    }
    size_t n = (size_t)EVP_EncodeBlock((unsigned char *)out, data, (int)length);
    while (url && n > 0 && out[n - 1] == '=')
        n--;
    for (size_t i = 0; url && i < n; i++)
        out[i] = out[i] == '+' ? '-' : out[i] == '/' ? '_' : out[i];
    mr_text_add(to, out, n);
    OPENSSL_cleanse(out, size);
    free(out);
}

void mr_auth_put_json(struct mr_text *to, const char *text)
{
    mr_text_put_json(to, text, strlen(text));
}

bool mr_auth_is_token(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    if (n == 0 || n > MR_AUTH_TOKEN_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f)
            return false;
    }
    return true;
}

/* Numbers and words are NUL-terminated in place, but only after everything behind them has been parsed. */
int mr_auth_members(char *text, size_t length, struct mr_auth_member *members, size_t count)
{
    for (size_t i = 0; i < count; i++)
        members[i].value = NULL;
    struct mr_json json;
    mr_json_init(&json, text, length);
    if (mr_json_enter(&json) != 0)
        return -1;
    const char *key;
    char *ends[8];
    size_t end_count = 0;
    int more;
    while ((more = mr_json_key(&json, &key)) == 1) {
        struct mr_auth_member *member = NULL;
        for (size_t i = 0; i < count; i++) {
            if (strcmp(members[i].key, key) == 0)
                member = &members[i];
        }
        enum mr_json_kind kind = mr_json_peek(&json);
        if (member && kind == MR_JSON_STRING) {
            if (mr_json_string(&json, &member->value, NULL) != 0)
                return -1;
            continue;
        }
        const char *start = json.at;
        if (mr_json_skip(&json) != 0)
            return -1;
        if (member && (kind == MR_JSON_NUMBER || kind == MR_JSON_WORD) && *start != 'n' &&
            end_count < sizeof ends / sizeof *ends) {
            member->value = start;
            ends[end_count++] = json.at;
        }
    }
    if (more < 0 || mr_json_finish(&json) != 0)
        return -1;
    while (end_count > 0)
        *ends[--end_count] = 0;
    return 0;
}

/* ---- building ---- */

void mr_auth_call_init(struct mr_auth_call *call, struct mr_http *http, const char *method, const char *url)
{
    mr_auth_call_close(call);
    call->http = http;
    call->method = method;
    call->tries = TRIES;
    call->timeout_ms = TIMEOUT_MS;
    call->patient_until = 0;
    call->direct = false;
    call->line_count = call->failures = 0;
    mr_text_puts(&call->url, url);
    mr_auth_text_reserve(&call->body, 2 * MR_AUTH_TOKEN_MAX);
    mr_auth_text_reserve(&call->lines, 2 * MR_AUTH_TOKEN_MAX);
}

void mr_auth_call_line(struct mr_auth_call *call, const char *name, const char *value)
{
    mr_text_puts(&call->lines, name);
    mr_text_puts(&call->lines, ": ");
    mr_text_puts(&call->lines, value);
    mr_text_add(&call->lines, "", 1);
    call->line_count++;
}

void mr_auth_call_field(struct mr_auth_call *call, const char *key, const char *value)
{
    if (call->body.length)
        mr_text_add(&call->body, "&", 1);
    mr_text_puts(&call->body, key);
    mr_text_add(&call->body, "=", 1);
    mr_text_put_encoded(&call->body, value, strlen(value));
}

void mr_auth_call_client(struct mr_auth_call *call, const struct mr_auth_file *file)
{
    struct mr_text pair = {0};
    mr_auth_text_reserve(&pair, 4096);
    struct mr_text line = {0};
    mr_auth_text_reserve(&line, 8192);
    mr_text_puts(&pair, file->client_id);
    mr_text_puts(&pair, ":");
    mr_text_puts(&pair, file->client_secret ? file->client_secret : "");
    mr_text_puts(&line, "Basic ");
    if (!pair.failed)
        mr_auth_put_base64(&line, pair.data, pair.length, false);
    if (!line.failed)
        mr_auth_call_line(call, "Authorization", line.data);
    mr_auth_text_wipe(&pair);
    mr_auth_text_wipe(&line);
}

/* ---- sending ---- */

/* Sink for the body of a 2xx response. -1 with mr_error, which fails the request, if it is too long. */
static int on_body(void *arg, const struct mr_http_call *http, const void *data, size_t length)
{
    struct mr_auth_call *call = arg;
    (void)http;
    if (length > 2 * MR_AUTH_TOKEN_MAX - call->answer_length) {
        mr_error_set(MR_E_PROTOCOL, "the answer is longer than %u bytes", 2 * MR_AUTH_TOKEN_MAX);
        return -1;
    }
    memcpy(call->answer + call->answer_length, data, length);
    call->answer_length += length;
    return 0;
}

bool mr_auth_answer_says(const struct mr_auth_answer *answer, const char *word)
{
    return answer->code == MR_OK && answer->length > 0 && strstr(answer->body, word);
}

/* Some servers report temporary failures with status 400. */
bool mr_auth_worth_a_repeat(const struct mr_auth_answer *answer)
{
    if (answer->code != MR_OK)
        return mr_code_retryable(answer->code);
    if (answer->status / 100 == 2)
        return false;
    return answer->status == 408 || answer->status == 429 || answer->status / 100 == 5 ||
           mr_auth_answer_says(answer, "\"internal_failure\"") || mr_auth_answer_says(answer, "\"server_error\"") ||
           mr_auth_answer_says(answer, "\"temporarily_unavailable\"") ||
           mr_auth_answer_says(answer, "<Code>Throttling</Code>") || /* of AWS, with status 400 */
           mr_auth_answer_says(answer, "<Code>IDPCommunicationError</Code>");
}

/* Calls done, unless the request is worth a repeat, which is then sent by a timer. */
static void on_done(void *arg, const struct mr_http_result *http)
{
    struct mr_auth_call *call = arg;
    call->call = NULL;
    if (http->status / 100 != 2 && http->body_length <= MR_AUTH_TOKEN_MAX) {
        memcpy(call->answer, http->body, http->body_length);
        call->answer_length = http->body_length;
    }
    call->answer[call->answer_length] = 0;
    struct mr_auth_answer answer = {.code = http->code,
                                    .text = http->text,
                                    .status = http->status,
                                    .sent = http->sent > 0,
                                    .headers = http->headers,
                                    .body = call->answer,
                                    .length = call->answer_length};
    int64_t now = mr_clock_mono_ns();
    if (mr_auth_worth_a_repeat(&answer) && (++call->failures < call->tries || now < call->patient_until)) {
        uint64_t wait = (uint64_t)WAIT_MS << (call->failures - 1);
        wait = wait / 2 + mr_random64() % (wait / 2 + 1);
        if (wait < answer.headers.retry_after_ms)
            wait = answer.headers.retry_after_ms;
        if (wait > WAIT_MAX_MS)
            wait = WAIT_MAX_MS;
        mr_http_timer_set(call->http, &call->timer, now + (int64_t)wait * MR_MILLISECOND_NS);
        return;
    }
    call->done(call, &answer);
}

/* -1 with mr_error: nothing is under way, and done is not called. */
static int send_now(struct mr_auth_call *call)
{
    const char *at = call->lines.data;
    if (call->url.failed || call->body.failed || call->lines.failed || call->line_count > MR_HTTP_MAX_HEADERS) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a request for credentials");
        return -1;
    }
    const char *lines[MR_HTTP_MAX_HEADERS];
    for (unsigned i = 0; i < call->line_count; i++, at += strlen(at) + 1)
        lines[i] = at;
    if (!call->answer)
        call->answer = malloc(2 * MR_AUTH_TOKEN_MAX + 1);
    if (!call->answer) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for an answer with credentials");
        return -1;
    }
    call->answer_length = 0;
    struct mr_http_piece body = {call->body.data, call->body.length};
    struct mr_http_request request = {
        .method = call->method,
        .url = call->url.data,
        .headers = lines,
        .header_count = call->line_count,
        .body = &body,
        .body_count = call->body.data && strcmp(call->method, "GET") != 0,
        .stall_timeout_ms = call->timeout_ms,
        .fresh_connection = call->failures > 0,
        .direct = call->direct,
        .plain = true,
        .sink = on_body,
        .done = on_done,
        .arg = call,
    };
    call->call = mr_http_start(call->http, &request);
    return call->call ? 0 : -1;
}

/* A repeat that cannot be sent ends the call: done gets mr_error. */
static void run_again(struct mr_http_timer *timer)
{
    struct mr_auth_call *call = MR_CONTAINER_OF(timer, mr_auth_call, timer);
    if (send_now(call) == 0)
        return;
    char text[512];
    snprintf(text, sizeof text, "%s", mr_error_text());
    struct mr_auth_answer answer = {.code = mr_error_code(), .text = text, .body = text};
    call->done(call, &answer);
}

int mr_auth_call_send(struct mr_auth_call *call)
{
    call->timer.run = run_again;
    call->failures = 0;
    return send_now(call);
}

void mr_auth_call_close(struct mr_auth_call *call)
{
    if (call->call)
        mr_http_cancel(call->http, call->call);
    call->call = NULL;
    if (call->http)
        mr_http_timer_stop(call->http, &call->timer);
    mr_auth_text_wipe(&call->url);
    mr_auth_text_wipe(&call->body);
    mr_auth_text_wipe(&call->lines);
    if (call->answer)
        OPENSSL_cleanse(call->answer, 2 * MR_AUTH_TOKEN_MAX + 1);
    free(call->answer);
    call->answer = NULL;
}

/* ---- answers ---- */

/* The URL without its query, which may hold secrets. */
static void put_place(const struct mr_auth_call *call, char *out, size_t size)
{
    size_t n = strcspn(call->url.data, "?");
    mr_text_quote(out, size, call->url.data, n);
}

static bool in_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("-_.~+/=", c));
}

/* What may be (part of) a token becomes "[...]": servers may echo what they were sent. */
static void hide_tokens(char *text)
{
    char *to = text;
    for (char *from = text; *from;) {
        size_t n = 0;
        while (in_token(from[n]))
            n++;
        if (n >= WORD_MAX) {
            memcpy(to, "[...]", 5);
            to += 5;
        } else {
            n = n ? n : 1;
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    *to = 0;
}

/* "invalid_grant: Bad Request": {"error", "error_description"} or {"error": {"message"}}. Overwrites the body. */
static void put_words(struct mr_auth_answer *answer, char *out, size_t size)
{
    char *message = strstr(answer->body, "\"message\"");
    out[0] = 0;
    struct mr_auth_member members[] = {{"error", NULL}, {"error_description", NULL}};
    char words[400];
    if (message) { /* Google's other form; the text after the key */
        char *start = strchr(message + 9, '"'), *end = start ? strchr(start + 1, '"') : NULL;
        if (end)
            snprintf(words, sizeof words, "%.*s", (int)(end - start - 1), start + 1);
        else
            words[0] = 0;
    } else if (mr_auth_members(answer->body, answer->length, members, 2) == 0 &&
               (members[0].value || members[1].value)) {
        snprintf(words, sizeof words, "%s%s%s", members[0].value ? members[0].value : "",
                 members[0].value && members[1].value ? ": " : "", members[1].value ? members[1].value : "");
    } else {
        words[0] = 0;
    }
    hide_tokens(words);
    mr_text_quote(out, size, words, strlen(words));
}

int mr_auth_answer_check(const struct mr_auth_call *call, const struct mr_auth_answer *answer, const char *what)
{
    char place[200];
    put_place(call, place, sizeof place);
    if (answer->code != MR_OK) {
        char text[400];
        snprintf(text, sizeof text, "%s", answer->text);
        mr_error_set(answer->code, "no %s from %s: %s", what, place, text);
        return -1;
    }
    if (answer->status / 100 == 2)
        return 0;
    enum mr_code code = mr_auth_worth_a_repeat(answer) ? MR_E_BUSY : MR_E_DENIED;
    struct mr_auth_answer copy = *answer;
    char words[300];
    put_words(&copy, words, sizeof words);
    mr_error_set(code, "no %s from %s: %s%sHTTP status %d%s", what, place, words, words[0] ? " (" : "", answer->status,
                 words[0] ? ")" : "");
    return -1;
}

int mr_auth_answer_token(const struct mr_auth_call *call, struct mr_auth_answer *answer, struct mr_auth_token *token)
{
    char place[200];
    put_place(call, place, sizeof place);
    struct mr_auth_member members[] = {{"access_token", NULL}, {"expires_in", NULL}};
    if (mr_auth_members(answer->body, answer->length, members, 2) != 0 || !mr_auth_is_token(members[0].value)) {
        mr_error_set(MR_E_DENIED, "the answer of %s has no access_token: is it a token server?", place);
        return -1;
    }
    long long seconds = members[1].value ? strtoll(members[1].value, NULL, 10) : 3600;
    if (seconds < 1 || seconds > 86400)
        seconds = seconds < 1 ? 1 : 86400;
    *token = (struct mr_auth_token){.text = "", .value = members[0].value, .lifetime_s = seconds};
    return 0;
}

void mr_auth_fail(struct mr_auth_source *source)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", mr_error_text());
    enum mr_code code = mr_error_code();
    source->done(source->arg, &(struct mr_auth_token){.code = code ? code : MR_E_INTERNAL, .text = text});
}
