/* fuzz_toml.c - configuration text: an error with a text, or a configuration that every check accepts. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "shm/base/error.h"
#include "supervisor/config_toml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_config config;
    if (mr_config_parse(&config, (const char *)data, size, "fuzz.toml") == 0) {
        if (mr_config_check(&config) != 0 || config.fetch.workers == 0 || config.lanes.max == 0)
            abort();
        mr_config_close(&config);
    } else if (mr_error_text()[0] == '\0' || mr_error_code() != MR_E_CONFIG) {
        abort();
    }
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "[dataset.train]\nuri = \"gs://bucket/train/\"\ntail = \"drop\"\n[memory]\narena_bytes = \"512MiB\"\n",
        "[http]\nheaders = { a = \"b\" }\nproxy = 'x'\n[list]\nexclude_classes = [\"A\", \"B\"]\n",
        "[retry]\nbase_ms = 1\ncap_ms = 0x10\n[log]\nlevel = \"\"\"info\"\"\"\n",
    };
    if (n >= sizeof seeds / sizeof seeds[0])
        return 0;
    *data = (uint8_t *)strdup(seeds[n]);
    return *data ? strlen(seeds[n]) : 0;
}
