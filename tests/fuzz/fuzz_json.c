/* fuzz_json.c - json.h against jansson: both take or refuse a text, and find the same strings in it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "worker/store/json.h"

/* Walks the text and sums up its strings, as hash_tree does for jansson's tree. Keys may be there twice in the text. */
static int walk(struct mr_json *json, unsigned *strings)
{
    const char *string;
    size_t length;
    int rc;
    bool is_object;
    switch (mr_json_peek(json)) {
    case MR_JSON_STRING:
        if (mr_json_string(json, &string, &length) != 0)
            return -1;
        if (strlen(string) != length)
            abort();
        for (size_t i = 0; i < length; i++)
            *strings += (unsigned char)string[i];
        return 0;
    case MR_JSON_OBJECT:
    case MR_JSON_ARRAY:
        is_object = mr_json_peek(json) == MR_JSON_OBJECT;
        mr_json_enter(json);
        while ((rc = is_object ? mr_json_key(json, &string) : mr_json_element(json)) > 0) {
            if (walk(json, strings) != 0)
                return -1;
        }
        return rc;
    default:
        return mr_json_skip(json);
    }
}

static unsigned sum_tree(const json_t *tree)
{
    unsigned sum = 0;
    const char *key;
    json_t *value;
    if (json_is_string(tree)) {
        for (size_t i = 0; i < json_string_length(tree); i++)
            sum += (unsigned char)json_string_value(tree)[i];
    } else if (json_is_array(tree)) {
        for (size_t i = 0; i < json_array_size(tree); i++)
            sum += sum_tree(json_array_get(tree, i));
    } else if (json_is_object(tree)) {
        json_object_foreach((json_t *)tree, key, value) sum += sum_tree(value);
    }
    return sum;
}

/* What jansson refuses and the grammar does not: a number that fits no C type. */
static bool out_of_range(const json_error_t *error)
{
    return strstr(error->text, "too big") || strstr(error->text, "overflow") || strstr(error->text, "too small");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    struct mr_json json;
    mr_json_init(&json, text, size);
    unsigned strings = 0;
    bool accepted = walk(&json, &strings) == 0 && mr_json_finish(&json) == 0;
    if (accepted == (json.error != NULL) || json.at < text || json.at > text + size)
        abort();
    memcpy(text, data, size);
    mr_json_init(&json, text, size);
    if ((mr_json_skip(&json) == 0 && mr_json_finish(&json) == 0) != accepted)
        abort();
    free(text);
    if (memchr(data, 0, size)) { /* jansson takes a NUL byte for the end of the text */
        if (accepted)
            abort();
        return 0;
    }
    json_error_t error;
    json_t *tree = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (tree ? !accepted && json.depth <= MR_JSON_DEPTH
             : accepted && !out_of_range(&error) && !strstr(error.text, "duplicate"))
        abort();
    if (tree && accepted && sum_tree(tree) != strings)
        abort();
    json_decref(tree);
    return 0;
}

size_t mr_fuzz_seed(unsigned n, uint8_t **data)
{
    static const char *const seeds[] = {
        "{\"a\":[1,-2.5e+3,0,true,false,null,\"x\"],\"\":{},\"b\":[[],[{}]]}",
        "[\"\\u00e9\\ud83d\\ude00\\n\\\"\\\\\\/\\b\\f\\r\\t\",\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"]",
        " \t\r\n{ \"name\" : \"d/a\" , \"size\" : \"12\" , \"n\" : 0.1E-2 } ",
        "\"only\"",
        "-0",
        "[[[[[[[[[[1]]]]]]]]]]",
        ("{\"kind\":\"storage#objects\",\"items\":[{\"name\":\"a\\u0041\",\"size\":\"1\"},{\"name\":\"b\",\"size\":"
         "\"2\"}]}"),
    };
    return mr_fuzz_text_seed(seeds, sizeof seeds / sizeof *seeds, n, data);
}
