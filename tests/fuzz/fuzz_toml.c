/* fuzz_toml.c - configuration text: an error with a text, or a configuration that every check accepts. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "fuzz.h"
#include "supervisor/config_toml.h"

/* The same text out of a file. */
static bool load(const uint8_t *data, size_t size)
{
    struct mr_config config;
    char path[40];
    int fd = memfd_create("fuzz.toml", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool loaded = mr_config_load(&config, path) == 0;
    if (loaded)
        mr_config_close(&config);
    close(fd);
    return loaded;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mr_config config;
    bool loaded = size % 8 == 0 && load(data, size);
    if (mr_config_parse(&config, (const char *)data, size, "fuzz.toml") == 0) {
        if (mr_config_check(&config) != 0 || config.fetch.workers == 0 || config.lanes.max == 0)
            abort();
        mr_config_close(&config);
    } else if (loaded) {
        abort();
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
        "[memory]\narena_bytes = true\n",
        "[list]\nexclude_classes = [1, 2]\n",
        "[list]\nexclude_classes = \"A\"\n[http]\nproxy = 1.5\n",
        "[gcs]\nendpoint = \"a\\u0000b\"\n",
        "[retry]\nbase_ms = -1\n",
        "[retry]\nbase_ms = \"1\"\n",
        "[http]\nheaders = { a = 1 }\n",
        "[http]\nheaders = { a = \"b\\nc\" }\n",
        "dataset = 1\n",
        "[dataset]\nuri = \"gs://a/\"\n",
        "[dataset.a]\nuri = \"gs://a/\"\nuris = [\"gs://b/\"]\n",
        "[dataset.a]\nuri = \"nothing\"\n",
        "[dataset.a]\nindex = \"gs://a/i\"\n",
        "[dataset.a]\nuris = [\"gs://b/\", 1]\n",
        "retry = 1\n[log]\nnone = 1\n",
        "[supervisor]\nsilence_ms = 20000\n[metrics]\ninterval_s = 1.0\n",
    };
    if (n >= sizeof seeds / sizeof seeds[0])
        return 0;
    *data = (uint8_t *)strdup(seeds[n]);
    return *data ? strlen(seeds[n]) : 0;
}
