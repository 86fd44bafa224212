/*
 * tar_dump.c - what shm/index/tar.c and sample.c find in an archive, for compare_tar.py: one file name a line of
 * standard input, and for each
 *
 *     member BEGIN DATA SIZE REGULAR NAME    names and keys in hex
 *     sample BEGIN END BAD KEY
 *     end AT UNENDED                         or: error CODE TEXT
 *
 * and an empty line. Each archive is read twice: all of it at once, and in windows of as few bytes as are asked for.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shm/index/sample.h"

struct text {
    char *at;
    size_t length;
};

static void put_hex(FILE *out, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        fprintf(out, "%02x", (unsigned char)bytes[i]);
    fputc('\n', out);
}

static void put_sample(FILE *out, struct mr_sample_group *group)
{
    const struct mr_sample_range *sample = &group->sample;
    if (!group->open)
        return;
    fprintf(out, "sample %llu %llu %d ", (unsigned long long)sample->begin, (unsigned long long)sample->end,
            sample->bad);
    put_hex(out, sample->key, sample->key_length);
    group->open = false;
}

/* least: the bytes of a window are no more than are needed. */
static struct text dump(const unsigned char *bytes, size_t size, bool least)
{
    static struct mr_sample_group group;
    struct text text = {0};
    FILE *out = open_memstream(&text.at, &text.length);
    struct mr_tar tar;
    struct mr_tar_member member;
    enum mr_tar_event event;
    memset(&group, 0, sizeof group);
    mr_tar_init(&tar, size);
    do {
        size_t at = tar.at < size ? tar.at : size, room = size - at;
        size_t length = least && tar.need < room ? tar.need : room;
        unsigned char *copy = malloc(length + 1); /* so that a sanitizer sees every byte too far */
        memcpy(copy, bytes + at, length);
        event = mr_tar_next(&tar, copy, length, &member);
        free(copy);
        if (event == MR_TAR_MEMBER) {
            fprintf(out, "member %llu %llu %llu %d ", (unsigned long long)member.begin, (unsigned long long)member.data,
                    (unsigned long long)member.size, member.regular);
            put_hex(out, member.name, member.name_length);
            if (mr_sample_group_ends(&group, &member))
                put_sample(out, &group);
            mr_sample_group_add(&group, &member);
        }
    } while (event == MR_TAR_MEMBER || (least && event == MR_TAR_MORE));
    put_sample(out, &group);
    if (event == MR_TAR_END)
        fprintf(out, "end %llu %d\n", (unsigned long long)tar.at, tar.unended);
    else if (event == MR_TAR_ERROR)
        fprintf(out, "error %s %s\n", mr_code_name(mr_error_code()), mr_error_text());
    else
        fprintf(out, "error more\n");
    fclose(out);
    return text;
}

static int dump_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in || fseek(in, 0, SEEK_END) != 0) {
        perror(path);
        return -1;
    }
    size_t size = (size_t)ftell(in);
    unsigned char *bytes = malloc(size + 1);
    rewind(in);
    size_t got = fread(bytes, 1, size, in);
    fclose(in);
    struct text whole = dump(bytes, got, false), windows = dump(bytes, got, true);
    bool same = strcmp(whole.at, windows.at) == 0;
    fputs(same ? whole.at : "error the windows of bytes make a difference\n", stdout);
    fputc('\n', stdout);
    fflush(stdout);
    free(whole.at);
    free(windows.at);
    free(bytes);
    return 0;
}

int main(void)
{
    char line[4096];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (dump_file(line) != 0)
            return 1;
    }
    return 0;
}
