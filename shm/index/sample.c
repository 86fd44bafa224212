#include "shm/index/sample.h"

#include <string.h>
#include <strings.h>

/* The index after the last slash below `end`; 0. */
static size_t component(const char *name, size_t end)
{
    const char *slash = end > 0 ? memrchr(name, '/', end) : NULL;
    return slash ? (size_t)(slash - name) + 1 : 0;
}

bool mr_sample_split(const char *name, size_t length, size_t *key_length)
{
    size_t last = component(name, length);
    const char *dot = memchr(name + last, '.', length - last);
    if (!dot)
        return false;
    *key_length = (size_t)(dot - name);
    if (*key_length > last)
        return true;
    /* Nothing before the dot in its component: the folder counts as the key, if its own name has no dot. */
    if (last == 0)
        return false;
    size_t folder = component(name, last - 1);
    return !memchr(name + folder, '.', last - folder);
}

/* Like "__meta__" or "__meta__/x". */
static bool is_meta(const char *name, size_t length)
{
    const char *slash = memchr(name, '/', length);
    size_t first = slash ? (size_t)(slash - name) : length;
    return first >= 4 && memcmp(name, "__", 2) == 0 && memcmp(name + first - 2, "__", 2) == 0;
}

bool mr_sample_takes(const struct mr_tar_member *member, size_t *key_length)
{
    return member->regular && !is_meta(member->name, member->name_length) &&
           mr_sample_split(member->name, member->name_length, key_length);
}

static bool same_key(const struct mr_sample_range *sample, const char *name, size_t key_length)
{
    return sample->key_length == key_length && memcmp(sample->key, name, key_length) == 0;
}

bool mr_sample_group_ends(const struct mr_sample_group *group, const struct mr_tar_member *member)
{
    size_t key_length;
    return group->open && mr_sample_takes(member, &key_length) && !same_key(&group->sample, member->name, key_length);
}

bool mr_sample_group_add(struct mr_sample_group *group, const struct mr_tar_member *member)
{
    static const char bad[] = "__bad__";
    struct mr_sample_range *sample = &group->sample;
    size_t key_length;
    if (!mr_sample_takes(member, &key_length)) {
        group->skipped++;
        return false;
    }
    if (!group->open || !same_key(sample, member->name, key_length)) {
        group->open = true;
        sample->begin = member->begin;
        sample->bad = false;
        memcpy(sample->key, member->name, key_length);
        sample->key[key_length] = '\0';
        sample->key_length = key_length;
    }
    sample->end = member->data + member->size;
    sample->bad |= member->size > 0 && strcasecmp(member->name + key_length + 1, bad) == 0;
    return true;
}
