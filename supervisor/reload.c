/*
 * reload.c - see reload.h. A file with an error changes nothing. Of a good one every live key is applied; keys that
 * need a new start keep their old value, and are named in the answer.
 */
#include "supervisor/reload.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "supervisor/config_toml.h"
#include "supervisor/run_impl.h"

#define NAMES_MAX 900

uint64_t mr_reload_log_level(const struct mr_config *config, int verbosity)
{
    int level = (int)config->log.level + verbosity;
    return (uint64_t)(level < MR_LOG_ERROR ? MR_LOG_ERROR : level > MR_LOG_DEBUG ? MR_LOG_DEBUG : level);
}

/* What the answer names: keys, and sections with a name of which one is new or gone. */
struct changes {
    char applied[NAMES_MAX], later[NAMES_MAX];
};

static void note(char text[NAMES_MAX], const char *section, const char *name, const char *key)
{
    size_t used = strlen(text);
    snprintf(text + used, NAMES_MAX - used, "%s%s%s%s%s%s", used > 0 ? ", " : "", section, name ? "." : "",
             name ? name : "", key ? "." : "", key ? key : "");
}

/* A live key to the running configuration: what was there goes with the other one. */
static void apply(const struct mr_config_key *key, struct mr_config *to, struct mr_config *from)
{
    if (key->type == MR_KEY_STRING) {
        char **now = (char **)(void *)((char *)to + key->offset),
             **then = (char **)(void *)((char *)from + key->offset);
        char *before = *now;
        *now = *then;
        *then = before;
    } else {
        *(uint64_t *)(void *)((char *)to + key->offset) =
            *(const uint64_t *)(const void *)((const char *)from + key->offset);
    }
}

/* One [SECTION.NAME] as it was and as it is; NULL: it was not, or is not. */
static void compare_named(struct changes *changes, const char *section, const char *name, const void *before,
                          const void *after)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    if (!before || !after) {
        note(changes->later, section, name, NULL);
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        bool other_spelling = i > 0 && keys[i].offset == keys[i - 1].offset; /* uris after uri */
        if (strcmp(keys[i].section, section) == 0 && !other_spelling && !mr_config_is_same(&keys[i], before, after))
            note(changes->later, section, name, keys[i].name);
    }
}

static void compare_all_named(struct changes *changes, const struct mr_config *before, const struct mr_config *after)
{
    for (size_t i = 0; i < after->dataset_count; i++) {
        const struct mr_config_dataset *one = &after->datasets[i];
        compare_named(changes, "dataset", one->name, mr_config_find_dataset(before, one->name), one);
    }
    for (size_t i = 0; i < before->dataset_count; i++)
        if (!mr_config_find_dataset(after, before->datasets[i].name))
            note(changes->later, "dataset", before->datasets[i].name, NULL);
    for (size_t i = 0; i < after->endpoint_count; i++) {
        const struct mr_config_endpoint *one = &after->endpoints[i];
        compare_named(changes, "endpoint", one->name, mr_config_find_endpoint(before, one->name), one);
    }
    for (size_t i = 0; i < before->endpoint_count; i++)
        if (!mr_config_find_endpoint(after, before->endpoints[i].name))
            note(changes->later, "endpoint", before->endpoints[i].name, NULL);
}

int mr_reload(struct mr_supervisor *s, char *text, size_t size)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    struct changes changes = {.applied = ""};
    if (!s->config_path) {
        mr_error_set(MR_E_USAGE,
                     "this supervisor was started without a configuration file (-c): there is nothing to reread");
        return -1;
    }
    struct stat status;
    if (stat(s->config_path, &status) == 0 && !S_ISREG(status.st_mode)) {
        mr_error_set(MR_E_USAGE, "the configuration was read from %s, which is no file and cannot be read again",
                     s->config_path);
        return -1;
    }
    struct mr_config config;
    if (mr_config_load(&config, s->config_path) != 0)
        return -1;
    config.log.level = mr_reload_log_level(&config, s->verbosity);
    for (unsigned i = 0; i < count; i++) {
        if (mr_config_key_is_named(&keys[i]) || mr_config_is_same(&keys[i], &s->config, &config))
            continue;
        note(keys[i].live ? changes.applied : changes.later, keys[i].section, NULL, keys[i].name);
        if (keys[i].live)
            apply(&keys[i], &s->config, &config);
    }
    compare_all_named(&changes, &s->config, &config);
    mr_config_close(&config);
    snprintf(text, size, "%s%s%s%s", changes.applied[0] != '\0' ? "applied: " : "nothing to apply", changes.applied,
             changes.later[0] != '\0' ? "; needs a new start: " : "", changes.later);
    mr_log_info("configuration reread: %s", text);
    s->renewal_due |= changes.applied[0] != '\0';
    if (!s->renewal_due)
        return 0;
    int fd = mr_config_to_fd(&s->config);
    if (fd < 0)
        return -1; /* the next reload does what this one could not */
    s->renewal_due = false;
    close(s->config_fd);
    s->config_fd = fd;
    mr_log_set_level((enum mr_log_level)s->config.log.level);
    mr_fetch_workers_renew(s);
    mr_write_workers_renew(s);
    mr_listing_renew(s);
    return 0;
}
