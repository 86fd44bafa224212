/*
 * reload.c - see reload.h. A file with an error changes nothing. Of a good one every live key is applied; keys that
 * need a new start keep their old value, and are named in the answer.
 */
#include "supervisor/reload.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "supervisor/config_toml.h"
#include "supervisor/run_impl.h"

uint64_t mr_reload_log_level(const struct mr_config *config, int verbosity)
{
    int level = (int)config->log.level + verbosity;
    return (uint64_t)(level < MR_LOG_ERROR ? MR_LOG_ERROR : level > MR_LOG_DEBUG ? MR_LOG_DEBUG : level);
}

/* One live key to the running configuration; 1 when it has changed, 0, or -1. */
static int apply_key(const struct mr_config_key *key, struct mr_config *to, const struct mr_config *from)
{
    uint64_t *now = (uint64_t *)(void *)((char *)to + key->offset);
    const uint64_t *then = (const uint64_t *)(const void *)((const char *)from + key->offset);
    if (key->type >= MR_KEY_STRING || *now == *then)
        return 0;
    if (key->live)
        *now = *then;
    return 1;
}

static void note(char *text, size_t size, const struct mr_config_key *key)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s.%s", used > 0 ? ", " : "", key->section, key->name);
}

int mr_reload(struct mr_supervisor *s, char *text, size_t size)
{
    unsigned count;
    const struct mr_config_key *keys = mr_config_keys(&count);
    char applied[900] = "", later[900] = "";
    if (!s->config_path) {
        mr_error_set(MR_E_USAGE,
                     "this supervisor was started without a configuration file (-c): there is nothing to reread");
        return -1;
    }
    struct mr_config config;
    if (mr_config_load(&config, s->config_path) != 0)
        return -1;
    config.log.level = mr_reload_log_level(&config, s->verbosity);
    for (unsigned i = 0; i < count; i++) {
        if (mr_config_key_is_named(&keys[i]) || apply_key(&keys[i], &s->config, &config) == 0)
            continue;
        note(keys[i].live ? applied : later, keys[i].live ? sizeof applied : sizeof later, &keys[i]);
    }
    mr_config_close(&config);
    snprintf(text, size, "%s%s%s%s", applied[0] != '\0' ? "applied: " : "nothing to apply", applied,
             later[0] != '\0' ? "; needs a new start: " : "", later);
    mr_log_info("configuration reread: %s", text);
    if (applied[0] == '\0')
        return 0;
    int fd = mr_config_to_fd(&s->config);
    if (fd < 0)
        return -1;
    close(s->config_fd);
    s->config_fd = fd;
    mr_log_set_level((enum mr_log_level)s->config.log.level);
    mr_fetch_workers_renew(s);
    mr_write_workers_renew(s);
    mr_listing_renew(s);
    return 0;
}
