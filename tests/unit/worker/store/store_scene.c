/* store_scene.c */
#include "store_scene.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct mr_http *http;
struct mr_store *store;
struct mr_transfer_engine *engine;
struct fault_bucket bucket;
struct fault_server *server;
char endpoint[128], root[64];
struct answer last;
static pid_t devstore_pid;

/* ---- answers ---- */

void keep(const struct mr_store_result *result)
{
    last.done++;
    last.code = result->code;
    last.maybe_done = result->maybe_done;
    snprintf(last.text, sizeof last.text, "%s", result->text);
}

void on_item(void *arg, const struct mr_store_result *result, const struct mr_store_item *item)
{
    (void)arg;
    keep(result);
    ck_assert_int_eq(item != NULL, result->code == MR_OK);
    if (!item)
        return;
    last.size = item->size;
    last.generation = item->generation;
    last.crc32c = item->crc32c;
}

void on_delete(void *arg, const struct mr_store_result *result)
{
    (void)arg;
    keep(result);
}

void on_batch(void *arg, const struct mr_store_result *result, const struct mr_store_result *each)
{
    unsigned count = *(unsigned *)arg;
    keep(result);
    for (unsigned i = 0; i < count; i++) {
        last.each[i] = each[i].code;
        ck_assert_int_eq(each[i].text[0] != 0, each[i].code != MR_OK);
    }
    snprintf(last.first_text, sizeof last.first_text, "%s", each[0].text);
    snprintf(last.last_text, sizeof last.last_text, "%s", each[count - 1].text);
}

void on_bucket(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *seen)
{
    (void)arg;
    keep(result);
    ck_assert_int_eq(seen != NULL, result->code == MR_OK);
    if (!seen)
        return;
    last.bucket = *seen;
    snprintf(last.storage_class, sizeof last.storage_class, "%s/%s/%s", seen->storage_class, seen->location,
             seen->location_type);
}

void on_permissions(void *arg, const struct mr_store_result *result, unsigned granted)
{
    (void)arg;
    keep(result);
    last.granted = granted;
}

void on_word(void *arg, const struct mr_store_result *result, const char *word)
{
    (void)arg;
    keep(result);
    ck_assert_int_eq(word != NULL, result->code == MR_OK);
    snprintf(last.word, sizeof last.word, "%s", word ? word : "");
}

struct answer *wait_for(struct mr_transfer *transfer)
{
    memset(&last, 0, sizeof last);
    ck_assert_msg(transfer != NULL, "%s", mr_error_text());
    while (!last.done)
        ck_assert_int_ge(mr_http_step(http, 1000, -1), 0);
    ck_assert_int_eq(last.done, 1);
    ck_assert_uint_eq(mr_transfer_in_flight(engine), 0);
    return &last;
}

void check_code(enum mr_code code, const char *text)
{
    ck_assert_msg(last.code == code, "%s, not %s: %s", mr_code_name(last.code), mr_code_name(code), last.text);
    ck_assert_msg(strstr(last.text, text) != NULL, "\"%s\" is not in: %s", text, last.text);
}

/* ---- a store ---- */

void scene_open(struct mr_store_options options, unsigned deadline_ms)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    if (!http)
        http = mr_http_new(&(struct mr_http_options){.proxy = ""});
    ck_assert_ptr_nonnull(http);
    if (!options.auth)
        options.auth = "anonymous";
    options.http = http;
    store = mr_store_open(&options);
    engine = mr_transfer_new(
        &(struct mr_transfer_options){.retry_base_ms = 2, .retry_cap_ms = 10, .deadline_ms = deadline_ms}, http);
    ck_assert(store && engine);
}

void scene_close(void)
{
    mr_transfer_destroy(engine);
    mr_store_close(store);
    mr_http_destroy(http);
    engine = NULL;
    store = NULL;
    http = NULL;
}

void scene_bucket_setup(void)
{
    fault_bucket_init(&bucket);
    server = fault_server_start(fault_bucket_handle, &bucket);
    open_store(fault_server_host(server), 100000);
}

void scene_bucket_teardown(void)
{
    scene_close();
    fault_server_stop(server);
    fault_bucket_close(&bucket);
}

void open_store(const char *host, unsigned deadline_ms)
{
    open_stalling(host, deadline_ms, 10000);
}

void open_stalling(const char *host, unsigned deadline_ms, unsigned stall_ms)
{
    scene_open((struct mr_store_options){.scheme = MR_SCHEME_GS,
                                         .bucket = "bucket",
                                         .endpoint = host,
                                         .user_project = "payer",
                                         .stall_timeout_ms = stall_ms},
               deadline_ms);
}

void play(const struct bucket_step *script, size_t steps)
{
    bucket.script = script;
    bucket.steps = (unsigned)steps;
}

/* ---- the devstore program ---- */

void scene_devstore_start(const char *program, const char *const *options)
{
    const char *argv[40] = {program, "--exit-with-parent"};
    int n = 2;
    for (; *options; options++)
        argv[n++] = *options;
    ck_assert_int_lt(n, COUNT(argv));
    int out[2];
    ck_assert_int_eq(pipe(out), 0);
    devstore_pid = fork();
    if (devstore_pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        close(out[1]);
        execv(program, (char *const *)argv);
        _exit(127);
    }
    close(out[1]);
    FILE *file = fdopen(out[0], "r");
    ck_assert_int_eq(fscanf(file, "listening on %127s", endpoint), 1);
    fclose(file);
}

void scene_devstore_stop(void)
{
    if (!devstore_pid)
        return;
    kill(devstore_pid, SIGTERM);
    waitpid(devstore_pid, NULL, 0);
    devstore_pid = 0;
}

/* ---- a folder ---- */

void scene_root_make(void)
{
    strcpy(root, "/tmp/mr-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
}

void scene_root_remove(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
}

unsigned scene_root_files(void)
{
    DIR *dir = opendir(root);
    ck_assert_ptr_nonnull(dir);
    struct dirent *entry;
    unsigned count = 0;
    while ((entry = readdir(dir)))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}
