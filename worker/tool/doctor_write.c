#include "worker/tool/doctor_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "worker/store/upload_parts.h"

#define SMALL      65536u
#define REMOVE_NS  (5 * MR_SECOND_NS)
#define PART_LEAST ((uint64_t)5 << 20) /* of S3 and GCS */

enum verdict { HONOURED, IGNORED, REFUSED };
static const char *const verdicts[] = {"honoured", "ignored", "refused"};

struct probe {
    struct mr_tool *tool;
    struct mr_store *store;
    mr_doctor_line_fn *line;
    const struct mr_uri *uri;
    char place[MR_URI_PLACE_SIZE];
    char name[1200], other[1210]; /* of the two objects */
    unsigned char *data;          /* PART_LEAST */
    /* The last answer's. */
    uint64_t generation;
    char etag[MR_ETAG_SIZE], id[MR_STORE_NAME_MAX], text[600];
    bool has_crc32c;
    bool left;     /* something could not be removed, so its name cannot be used again */
    char why[620]; /* text of the last failure that was not the refusal expected */
};

/* ---- single requests, each once: 0, or -1 with mr_error ---- */

/* Waits, even after a signal, for the answer to a request that has been sent, but for REMOVE_NS at most. Returns its
 * code. */
static enum mr_code settle(struct probe *p, struct mr_store_call *call)
{
    p->tool->code = MR_E_TIMEOUT; /* where no answer comes */
    int64_t until_ns = mr_clock_mono_ns() + REMOVE_NS;
    while (call && !p->tool->answered && mr_clock_mono_ns() < until_ns)
        if (mr_http_step(p->tool->net.http, 100, -1) < 0)
            break;
    if (call && !p->tool->answered)
        mr_store_cancel(call);
    p->tool->answered = false;
    return p->tool->code;
}

/* The same for a removal, for which NOT_FOUND counts as success. A failure sets p->left. */
static void settle_removal(struct probe *p, struct mr_store_call *call)
{
    enum mr_code code = settle(p, call);
    p->left = p->left || (code != MR_OK && code != MR_E_NOT_FOUND);
}

/* 0, or -1 with the error's text in p->text. After a signal a new request is not sent (-1, no text), but one that was
 * sent is settled. */
static int await(struct probe *p, struct mr_store_call *call)
{
    bool answered = true;
    if (call && mr_tool_interrupted()) { /* it would be sent in the next step, which will not come */
        mr_store_cancel(call);
        return -1;
    }
    int rc = call ? mr_tool_wait(p->tool, &answered) : -1;
    if (!answered) /* what it creates must be known, to be removed */
        settle(p, call);
    if (rc != 0)
        snprintf(p->text, sizeof p->text, "%s", mr_error_text());
    return rc;
}

static void on_item(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    struct probe *p = arg;
    mr_tool_answer(p->tool, result);
    if (!item)
        return;
    p->generation = item->generation;
    p->has_crc32c = item->has_crc32c;
    snprintf(p->etag, sizeof p->etag, "%s", item->etag);
}

static void on_word(void *arg, const struct mr_store_result *result, const char *word)
{
    struct probe *p = arg;
    mr_tool_answer(p->tool, result);
    snprintf(p->id, sizeof p->id, "%s", word ? word : "");
}

static void doctor_write_on_part(void *arg, const struct mr_store_result *result, const char *etag)
{
    struct probe *p = arg;
    mr_tool_answer(p->tool, result);
    snprintf(p->etag, sizeof p->etag, "%s", etag ? etag : "");
}

static void doctor_write_on_complete(void *arg, const struct mr_store_result *result, uint64_t generation)
{
    struct probe *p = arg;
    mr_tool_answer(p->tool, result);
    p->generation = generation;
}

static void on_removed(void *arg, const struct mr_store_result *result)
{
    mr_tool_answer(((struct probe *)arg)->tool, result);
}

static void on_each(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    struct probe *p = arg;
    mr_tool_answer(p->tool, each ? each : result);
}

/* Writes SMALL bytes, the first of which is `first`; a crc_off other than 0 makes their checksum wrong. match, etag:
 * the version to be replaced; 0: there must be none. */
static int insert(struct probe *p, const char *name, unsigned char first, uint32_t crc_off, uint64_t match,
                  const char *etag)
{
    p->data[0] = first;
    const struct mr_store_insert_request request = {.name = name,
                                                    .name_length = strlen(name),
                                                    .body = p->data,
                                                    .length = SMALL,
                                                    .crc32c = mr_crc32c(0, p->data, SMALL) + crc_off,
                                                    .generation_match = match,
                                                    .etag = etag};
    return await(p, mr_store_insert(p->store, &request, on_item, p));
}

static int look(struct probe *p, const char *name)
{
    return await(p, mr_store_stat(p->store, name, strlen(name), 0, on_item, p));
}

static void doctor_write_drop(struct probe *p, const char *name)
{
    settle_removal(p, mr_store_delete(p->store, name, strlen(name), 0, on_removed, p));
}

static void drop_upload(struct probe *p, const char *name)
{
    char id[sizeof p->id];
    snprintf(id, sizeof id, "%s", p->id);
    if (id[0])
        settle_removal(p, mr_store_parts_abort(p->store, name, strlen(name), id, on_removed, p));
    p->id[0] = 0;
}

/* Writes an object in `count` upload parts, all but the last of `length` bytes, and declares its size as size_off more.
 * On failure the upload is aborted. */
static int upload(struct probe *p, const char *name, unsigned count, uint64_t length, uint64_t size_off)
{
    struct mr_upload_part parts[2] = {{.number = 1}, {.number = 2}};
    uint32_t crc = 0;
    p->id[0] = 0;
    int rc = await(p, mr_store_parts_begin(p->store, name, strlen(name), NULL, on_word, p));
    for (unsigned i = 0; rc == 0 && i < count; i++) {
        uint64_t bytes = i + 1 < count ? length : SMALL;
        const struct mr_upload_part_request part = {.name = name,
                                                    .name_length = strlen(name),
                                                    .id = p->id,
                                                    .number = i + 1,
                                                    .offset = i * length,
                                                    .data = p->data,
                                                    .length = bytes,
                                                    .crc32c = mr_crc32c(0, p->data, bytes)};
        parts[i].crc32c = part.crc32c;
        crc = i ? mr_crc32c_combine(crc, part.crc32c, bytes) : part.crc32c;
        rc = await(p, mr_upload_part_send(p->store, &part, doctor_write_on_part, p));
        snprintf(parts[i].etag, sizeof parts[i].etag, "%s", p->etag);
    }
    const struct mr_store_complete_request complete = {.name = name,
                                                       .name_length = strlen(name),
                                                       .id = p->id,
                                                       .parts = parts,
                                                       .count = count,
                                                       .size = (count - 1) * length + SMALL + size_off,
                                                       .crc32c = crc};
    if (rc == 0)
        rc = await(p, mr_store_parts_complete(p->store, &complete, doctor_write_on_complete, p));
    if (rc != 0) {
        enum mr_code code = mr_error_code();
        char text[sizeof p->text];
        snprintf(text, sizeof text, "%s", p->text);
        drop_upload(p, name);
        mr_error_set(code, "%s", text);
    }
    return rc;
}

/* ---- what it says ---- */

#define LINE(p, level, what, ...)                   \
    do {                                            \
        char text_[2400];                           \
        snprintf(text_, sizeof text_, __VA_ARGS__); \
        (p)->line(level, what, text_);              \
    } while (0)

/* One thing that a store may do or not. */
struct finding {
    const char *what;
    enum verdict verdict;
};

/* "of new objects honoured, of deletes ignored"; returns whether all are honoured. */
static bool put_findings(char *out, size_t size, const struct finding *findings, unsigned count)
{
    bool all = true;
    out[0] = 0;
    for (unsigned i = 0; i < count; i++) {
        size_t n = strlen(out);
        snprintf(out + n, size - n, "%s%s %s", i ? ", " : "", findings[i].what, verdicts[findings[i].verdict]);
        all = all && findings[i].verdict == HONOURED;
    }
    return all;
}

/* Judges the end of a request that had to be refused with `wanted`. The text of any other failure goes to p->why. */
static enum verdict judge(struct probe *p, int rc, enum mr_code wanted)
{
    if (rc == 0 || mr_error_code() == wanted)
        return rc == 0 ? IGNORED : HONOURED;
    snprintf(p->why, sizeof p->why, ": %s", p->text);
    return REFUSED;
}

/* ---- conditions ---- */

/* Deletes an old version while a newer one exists, which must be refused. */
static enum verdict judge_delete(struct probe *p, uint64_t old, const char *old_etag)
{
    const struct mr_store_name name = {
        .name = p->name, .name_length = strlen(p->name), .generation = old, .etag = old_etag};
    return judge(p, await(p, mr_store_delete_batch(p->store, &name, 1, on_each, p)), MR_E_CHANGED);
}

/* 0, or -1: nothing can be written at all, or a signal has come. */
static int check_conditions(struct probe *p)
{
    char old_etag[MR_ETAG_SIZE], found[300];
    struct finding findings[4];
    unsigned count = 0;
    p->why[0] = 0;
    if (insert(p, p->name, 1, 0, 0, NULL) != 0) {
        if (!mr_tool_interrupted())
            LINE(p, "fail", "writes", "%s", p->text);
        return -1;
    }
    uint64_t old = p->generation;
    snprintf(old_etag, sizeof old_etag, "%s", p->etag);
    findings[count++] = (struct finding){"of new objects", judge(p, insert(p, p->name, 2, 0, 0, NULL), MR_E_EXISTS)};
    if (insert(p, p->name, 3, 0, MR_STORE_ANY, NULL) != 0) /* replaces any version by a new one */
        snprintf(p->why, sizeof p->why, ": %s", p->text);
    findings[count++] =
        (struct finding){"of replaced ones", judge(p, insert(p, p->name, 4, 0, old, old_etag), MR_E_CHANGED)};
    if (p->uri->scheme != MR_SCHEME_GS && mr_store_has_parts(p->store)) /* those to gs take no conditions */
        findings[count++] =
            (struct finding){"of uploads in parts", judge(p, upload(p, p->name, 1, SMALL, 0), MR_E_EXISTS)};
    findings[count++] = (struct finding){"of deletes", judge_delete(p, old, old_etag)};
    if (mr_tool_interrupted())
        return -1;
    bool all = put_findings(found, sizeof found, findings, count);
    LINE(p, all ? "ok" : "note", "conditions", "%s: %s%s%s", p->place, found,
         all ? "" : "; without them the last of two writers wins, and a look-up before is all there is", p->why);
    return 0;
}

/* ---- checksums and sizes ---- */

/* Whether the store refused the request for what was wrong with it. */
static bool is_refused(int rc)
{
    enum mr_code code = mr_error_code();
    return rc != 0 && code != MR_E_BUSY && code != MR_E_NET && code != MR_E_TIMEOUT && code != MR_E_DENIED;
}

/* p->store sends checksums whatever the configuration says. false: the store accepts none. *good: it keeps and compares
 * them. */
static bool look_at_checksums(struct probe *p, bool *good)
{
    bool kept, compared, parts, sizes;
    if (insert(p, p->other, 5, 0, MR_STORE_ANY, NULL) != 0 || look(p, p->other) != 0)
        return false;
    kept = p->has_crc32c;
    compared = is_refused(insert(p, p->other, 6, 1, MR_STORE_ANY, NULL));
    doctor_write_drop(p, p->other);
    p->has_crc32c = false;
    bool uploaded = upload(p, p->other, 1, SMALL, 0) == 0;
    parts = uploaded && look(p, p->other) == 0 && p->has_crc32c;
    doctor_write_drop(p, p->other);
    sizes = uploaded && is_refused(upload(p, p->other, 1, SMALL, 1));
    if (p->left)
        return true;
    *good = kept && compared && parts;
    if (!mr_tool_interrupted())
        LINE(p, *good ? "ok" : "note", "checksums",
             "%s: CRC32C of objects %s and %s, of uploads in parts %s; the size of those %s: [s3] checksums = \"%s\" "
             "suits it",
             p->place, compared ? "compared" : "not compared", kept ? "kept" : "not kept", parts ? "kept" : "not kept",
             sizes ? "compared" : "not compared", *good ? "always" : "auto");
    return true;
}

/* For s3 only, where [s3] checksums decides whether they are sent. */
static void check_checksums(struct probe *p)
{
    struct mr_store *usual = p->store;
    bool good = false;
    p->store = mr_net_store_summed(&p->tool->net, p->uri->bucket);
    bool taken = p->store && look_at_checksums(p, &good);
    if (!taken && !mr_tool_interrupted())
        LINE(p, "note", "checksums", "%s: it takes no CRC32C, so [s3] checksums = \"always\" does not suit it: %s",
             p->place, p->store ? p->text : mr_error_text());
    if (p->store) {
        doctor_write_drop(p, p->other);
        mr_store_close(p->store);
    }
    p->store = usual;
}

/* Reports the smallest size that the store accepts for upload parts other than the last. */
static void check_parts(struct probe *p)
{
    if (!mr_store_has_parts(p->store) || p->left)
        return;
    bool small = upload(p, p->other, 2, SMALL, 0) == 0;
    bool taken = small || upload(p, p->other, 2, PART_LEAST, 0) == 0;
    doctor_write_drop(p, p->other);
    if (mr_tool_interrupted())
        return;
    if (taken)
        LINE(p, "ok", "upload parts", "%s: %s", p->place,
             small ? "of 64 KiB, and larger" : "of 5 MiB at least, but for the last");
    else if (mr_store_has_parts(p->store))
        LINE(p, "note", "upload parts", "%s: none of 64 KiB, and none of 5 MiB: checkpoints will fail: %s", p->place,
             p->text);
    else
        LINE(p, "note", "upload parts", "%s: it has none: checkpoints are written as one stream each", p->place);
}

int mr_doctor_write(struct mr_tool *tool, const struct mr_uri *uri, mr_doctor_line_fn *line)
{
    static struct probe probe;
    struct probe *p = &probe;
    *p = (struct probe){.tool = tool, .line = line, .uri = uri};
    p->store = mr_net_store(&tool->net, uri->scheme, uri->bucket);
    p->data = calloc(1, PART_LEAST);
    if (!p->store || !p->data) {
        free(p->data);
        mr_error_set(MR_E_NO_MEMORY, "no memory to look at writes");
        return -1;
    }
    mr_uri_place(uri->scheme, uri->bucket, p->place);
    snprintf(p->name, sizeof p->name, "%.1100s.millrace-doctor-%016" PRIx64, uri->key, mr_random64());
    snprintf(p->other, sizeof p->other, "%.1190s-2", p->name);
    if (check_conditions(p) == 0) {
        if (uri->scheme == MR_SCHEME_S3)
            check_checksums(p);
        check_parts(p);
    }
    bool interrupted = mr_tool_interrupted();
    doctor_write_drop(p, p->name);
    if (p->left && !interrupted)
        LINE(p, "fail", "writes",
             "%.300s: %.1100s* could not be removed: remove it, and check that deletes are allowed", p->place, p->name);
    free(p->data);
    return interrupted ? -1 : 0;
}
