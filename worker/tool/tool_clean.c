/*
 * tool_clean.c - `millrace clean`: removes what dead runs have left in a bucket or folder: composed objects, temporary
 * parts of checkpoints, unfinished uploads.
 *
 * It removes by hand what a run removes at its start (temporary.h): after a job's last run, from any machine, or with
 * another age limit. It also removes unfinished uploads, of which a run removes only those of its own machine
 * (clean_uploads.h).
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json_text.h"
#include "base/process.h"
#include "worker/cleanup/run_mark.h"
#include "worker/cleanup/sweep.h"
#include "worker/cleanup/temporary.h"
#include "worker/tool/clean_uploads.h"
#include "worker/tool/dead_uploads.h"
#include "worker/tool/progress.h"
#include "worker/tool/tool.h"

#define MARKS_MAX 10000

struct clean {
    struct mr_tool tool;
    struct mr_uri uri;
    bool dry_run, all, ended;
    int64_t older_than_s;
    struct mr_dead_mark *marks;
    struct mr_run_life life;
    uint64_t young;  /* kept, since their run may live */
    json_t *objects; /* NULL: no --json */
    struct mr_progress progress;
    struct mr_sweep_result result;
    char failure[400];
    json_t *upload_list; /* NULL: no --json */
    struct mr_clean_uploads uploads;
    bool uploads_listed; /* or some of them, before it failed */
};

static bool is_dead(struct clean *clean, const struct mr_store_item *item, int64_t age_s)
{
    struct mr_maker maker;
    bool known = mr_maker_parse(item->name + strlen(MR_TEMPORARY_PREFIX), &maker, NULL);
    return clean->all || mr_temporary_is_dead(known ? &maker : NULL, age_s, clean->older_than_s, clean->marks,
                                              known && mr_run_lives(&clean->life, maker.run, clean->marks));
}

/* Prints the object, or adds it to the list of --json. */
static void tool_clean_show(struct clean *clean, const struct mr_store_item *item, int64_t age_s)
{
    if (age_s < 0) /* unknown, and --all takes it anyway */
        age_s = 0;
    char *uri = mr_uri_format(clean->uri.scheme, clean->uri.bucket, item->name);
    if (clean->objects)
        json_array_append_new(clean->objects, json_pack("{s:o, s:I, s:I, s:I}", "uri", mr_json_from_text(uri), "bytes",
                                                        (json_int_t)item->size, "generation",
                                                        (json_int_t)item->generation, "age_s", (json_int_t)age_s));
    else
        printf("%s\t%" PRIu64 "\t%" PRId64 "\n", uri ? uri : item->name, item->size, age_s);
    free(uri);
}

/* Called by the sweep for each object: whether to remove it. Shows those that it condemns. */
static bool verdict(void *arg, const struct mr_store_item *item, int64_t age_s)
{
    struct clean *clean = arg;
    if (!is_dead(clean, item, age_s)) {
        clean->young++;
        return false;
    }
    tool_clean_show(clean, item, age_s);
    return true;
}

static void progressed(void *arg, const struct mr_sweep_result *so_far)
{
    struct clean *clean = arg;
    mr_progress_update(&clean->progress, clean->dry_run ? so_far->seen : so_far->removed);
}

/* Sets mr_error where the sweep itself failed. Single failures are kept for the report. */
static void done(void *arg, const struct mr_sweep_result *result)
{
    struct clean *clean = arg;
    clean->ended = true;
    clean->result = *result;
    snprintf(clean->failure, sizeof clean->failure, "%s", result->failed ? result->failure : "");
    if (result->code != MR_OK)
        mr_error_set(result->code, "%s", result->text);
}

/* Removes temporary objects, which lie in one place of the bucket. 0, or -1 with mr_error. Blocks. */
static int sweep_objects(struct clean *clean, struct mr_store *store)
{
    clean->marks = mr_dead_marks_take(MARKS_MAX);
    mr_progress_begin(&clean->progress, clean->dry_run ? "objects listed" : "objects removed", 0, false);
    struct mr_sweep_options options = {
        .engine = clean->tool.net.engine,
        .store = store,
        .prefix = MR_TEMPORARY_PREFIX,
        .dry_run = clean->dry_run,
        .verdict = verdict,
        .progress = progressed,
        .done = done,
        .arg = clean,
    };
    struct mr_sweep *sweep = mr_sweep_new(&options);
    if (!sweep)
        return -1;
    while (!clean->ended) {
        if (mr_tool_step(&clean->tool) != 0) {
            mr_sweep_destroy(sweep);
            return -1;
        }
    }
    mr_progress_end(&clean->progress);
    return clean->result.code == MR_OK ? 0 : -1;
}

static bool is_whole_bucket(const struct clean *clean)
{
    return clean->uri.scheme == MR_SCHEME_GS && !clean->uri.key[0];
}

/* Where listing uploads is denied, a whole bucket still succeeds, since its objects were swept; a prefix or folder
 * fails. */
static int tool_clean_run(struct clean *clean, const char *text)
{
    if (mr_tool_init(&clean->tool) != 0)
        return -1;
    struct mr_store *store = mr_tool_open(&clean->tool, text, &clean->uri);
    if (!store || (is_whole_bucket(clean) && sweep_objects(clean, store) != 0))
        return -1;
    clean->uploads = (struct mr_clean_uploads){.tool = &clean->tool,
                                               .store = store,
                                               .uri = &clean->uri,
                                               .dry_run = clean->dry_run,
                                               .all = clean->all,
                                               .older_than_s = clean->older_than_s,
                                               .list = clean->upload_list};
    int rc = mr_clean_uploads(&clean->uploads);
    clean->uploads_listed = rc == 0 || clean->uploads.seen > 0;
    if (rc != 0)
        return -1;
    if (!clean->uploads.denied || is_whole_bucket(clean))
        return 0;
    mr_error_set(MR_E_DENIED, "%s", clean->uploads.failure);
    return -1;
}

static void report_uploads(const struct clean *clean)
{
    const struct mr_clean_uploads *u = &clean->uploads;
    if (!clean->uploads_listed)
        return;
    char *uri = mr_uri_format(clean->uri.scheme, clean->uri.bucket, clean->uri.key);
    if (u->denied) {
        fprintf(stderr, "unfinished uploads could not be listed: %s\n", u->failure);
        free(uri);
        return;
    }
    fprintf(stderr, "%" PRIu64 " unfinished uploads under %s: %" PRIu64 "%s removed", u->seen, uri ? uri : "",
            clean->dry_run ? u->condemned : u->removed, clean->dry_run ? " would be" : "");
    if (u->seen > u->condemned)
        fprintf(stderr, ", %" PRIu64 " kept: they may still be being written (--older-than, --all)",
                u->seen - u->condemned);
    if (u->failed > 0)
        fprintf(stderr, ", %" PRIu64 " failed: %s", u->failed, u->failure);
    fputc('\n', stderr);
    free(uri);
}

static void print_dead_uploads(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "%s\n", line);
}

/* Prints the sums: with --json the whole report on standard output, otherwise on standard error beside the list. 0, or
 * -1 with mr_error. */
static int tool_clean_report(const struct clean *clean)
{
    const struct mr_sweep_result *r = &clean->result;
    if (clean->objects) {
        json_t *uploads =
            !clean->uploads_listed
                ? json_null()
                : json_pack("{s:I, s:I, s:I, s:o, s:O}", "seen", (json_int_t)clean->uploads.seen, "removed",
                            (json_int_t)clean->uploads.removed, "failed", (json_int_t)clean->uploads.failed, "failure",
                            mr_json_from_text(clean->uploads.failure), "uploads", clean->upload_list);
        json_t *all =
            json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:O, s:o}", "dry_run", clean->dry_run, "seen",
                      (json_int_t)r->seen, "removed", (json_int_t)r->removed, "removed_bytes",
                      (json_int_t)r->removed_bytes, "kept", (json_int_t)clean->young, "failed", (json_int_t)r->failed,
                      "failure", mr_json_from_text(clean->failure), "objects", clean->objects, "unfinished", uploads);
        return mr_tool_print_report(all);
    }
    if (!is_whole_bucket(clean)) {
        report_uploads(clean);
        return 0;
    }
    fprintf(stderr, "%" PRIu64 " temporary objects in gs://%s: ", r->seen, clean->uri.bucket);
    if (clean->dry_run)
        fprintf(stderr, "%" PRIu64 " (%" PRIu64 " bytes) would be removed", r->condemned, r->bytes);
    else
        fprintf(stderr, "%" PRIu64 " (%" PRIu64 " bytes) removed", r->removed, r->removed_bytes);
    if (clean->young > 0)
        fprintf(stderr, ", %" PRIu64 " kept: their run lives, or they are young (--older-than, --all)", clean->young);
    if (r->failed > 0)
        fprintf(stderr, ", %" PRIu64 " failed: %s", r->failed, clean->failure);
    fputc('\n', stderr);
    report_uploads(clean);
    return 0;
}

static int clean_main(const struct mr_arguments *arguments)
{
    struct clean clean = {.dry_run = mr_arguments_have(arguments, MR_OPT_DRY_RUN),
                          .all = mr_arguments_have(arguments, MR_OPT_ALL),
                          .older_than_s = -1,
                          .objects = mr_arguments_have(arguments, MR_OPT_JSON) ? json_array() : NULL};
    if (mr_arguments_have(arguments, MR_OPT_OLDER_THAN))
        clean.older_than_s = (int64_t)mr_arguments_number(arguments, MR_OPT_OLDER_THAN, 0);
    clean.upload_list = clean.objects ? json_array() : NULL;
    int rc = tool_clean_run(&clean, arguments->operands[0]);
    mr_progress_end(&clean.progress);
    mr_dead_marks_free(clean.marks);
    if (rc == 0)
        rc = mr_process_flush();
    if (rc == 0 || clean.result.seen + clean.uploads.seen > 0) { /* also what was removed before it failed */
        int told = tool_clean_report(&clean);
        rc = rc == 0 ? told : rc;
    }
    if (rc == 0 && !clean.objects)
        mr_tool_dead_uploads(NULL, print_dead_uploads, NULL);
    json_decref(clean.objects);
    json_decref(clean.upload_list);
    mr_uri_close(&clean.uri);
    mr_tool_close(&clean.tool);
    if (rc != 0)
        return mr_tool_fail("clean");
    return clean.result.failed + clean.uploads.failed == 0 ? 0 : 1;
}

int mr_tool_clean(int argc, char **argv)
{
    (void)argc;
    return mr_tool_main(argv, clean_main);
}
