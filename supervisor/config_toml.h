/* config_toml.h - the configuration's text: TOML 1.0, read by toml++ in config_toml.cpp. */
#ifndef MR_SUPERVISOR_CONFIG_TOML_H
#define MR_SUPERVISOR_CONFIG_TOML_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "shm/control/config.h"

/* Fills *config (not initialised before) from text; name stands in messages ("train.toml: line 12: ..."). 0, or -1
 * (CONFIG) with the line and, for an unknown key, the nearest one. */
int mr_config_parse(struct mr_config *config, const char *text, size_t length, const char *name);
/* The same from a file; path NULL: the defaults. */
int mr_config_load(struct mr_config *config, const char *path);

#ifdef __cplusplus
}
#endif
#endif
