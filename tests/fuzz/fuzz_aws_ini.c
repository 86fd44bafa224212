/* fuzz_aws_ini.c - the files of the AWS tools, which anybody may have written. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "fuzz.h"
#include "worker/store/aws_ini.h"

/* What is given back is what the text can hold: a value of a known key, without white space around it. */
static void check_value(const char *value, size_t size)
{
    size_t length = strlen(value);
    if (length > size || (length > 0 && strchr(" \t\r\n\v\f", value[length - 1])))
        abort();
    if (length > 0 && value[0] != '\n' && strchr(" \t\r\v\f", value[0]))
        abort();
    const char *found = mr_aws_ini_nested(value, "a", &length);
    if (found && (value[0] != '\n' || found < value || found + length > value + strlen(value)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const keys[] = {"a", "key", "s3", "region", "aws_access_key_id", ""};
    static const char *const names[] = {"default", "a", "a b", "", "x"};
    struct mr_aws_ini *ini = mr_aws_ini_parse((const char *)data, size);
    if (!ini) {
        if (mr_error_code() != MR_E_DENIED || strncmp(mr_error_text(), "line ", 5) != 0)
            abort();
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int sections[] = {mr_aws_ini_section(ini, names[i]), mr_aws_ini_titled(ini, "profile", names[i]),
                          mr_aws_ini_titled(ini, "sso-session", names[i])};
        for (size_t j = 0; j < 3; j++) {
            if (sections[j] >= 0 && (mr_aws_ini_line(ini, sections[j]) == 0 || size == 0))
                abort();
            for (size_t k = 0; sections[j] >= 0 && k < sizeof keys / sizeof *keys; k++) {
                unsigned line = 0;
                const char *value = mr_aws_ini_get(ini, sections[j], keys[k], &line);
                if (value && line == 0)
                    abort();
                if (value)
                    check_value(value, size);
            }
        }
    }
    mr_aws_ini_destroy(ini);
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "[default]\naws_access_key_id = AKIA\nregion: r\n",
        "# c\n; d\n[profile a]\nkey = 1\n\n  more\n  # no\n  and more\n[profile 'a b']\na=b=c\n",
        "\xef\xbb\xbf[DEFAULT]\na = 1\r\n[a]\r\nkey=\r[x] y\rA = \r\n",
        "[profile \"a b\"]\ns3 =\n  a = 1\n  region = r\n\n  a=2\nkey = x\n[sso-session x]\na = 1\n",
        "[a]\n[a b]\n[profile a\\ b]\n  key = 1\n  a = 2\n",
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
