#include "worker/list/sidecar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define VERSION     "v1.2 "
#define NAMES_SHOWN 100 /* bytes */

/* ---- lines ---- */

static int bad_line(uint64_t line, const char *why)
{
    mr_error_set(MR_E_CORRUPT, "line %" PRIu64 ": %s", line, why);
    return -1;
}

static bool number(const char *text, uint64_t *value)
{
    *value = 0;
    for (const char *at = text; *at; at++) {
        if (*at < '0' || *at > '9' || *value > (UINT64_MAX >> 1) / 10)
            return false;
        *value = *value * 10 + (uint64_t)(*at - '0');
    }
    return *text != '\0';
}

static int sidecar_add(struct mr_sidecar *s, uint64_t line, const char *name, const char *offset, const char *size,
                       uint64_t shard_size)
{
    struct mr_sidecar_member m = {.name = name, .name_length = strlen(name)};
    if (!number(offset, &m.data) || !number(size, &m.size))
        return bad_line(line, "an offset or a size that is not a number (names with spaces cannot be read)");
    if (m.name_length == 0 || m.name_length > MR_TAR_NAME_MAX)
        return bad_line(line, "a name of no length, or of too much");
    const struct mr_sidecar_member *last = s->count > 0 ? &s->members[s->count - 1] : NULL;
    if (m.data % MR_TAR_BLOCK != 0 || m.data < MR_TAR_BLOCK ||
        (last && m.data - MR_TAR_BLOCK < last->data + last->size))
        return bad_line(line, "an offset where no member of a tar archive can begin");
    if (m.data > shard_size || m.size > shard_size - m.data)
        return bad_line(line, "a member that lies behind the end of the shard");
    if (!s->members || s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 1024;
        struct mr_sidecar_member *members = realloc(s->members, room * sizeof *members);
        if (!members) {
            mr_error_set(MR_E_NO_MEMORY, "no memory for the members of a shard");
            return -1;
        }
        s->members = members;
        s->room = room;
    }
    s->members[s->count++] = m;
    return 0;
}

/* The next word of *at, NUL-terminated; NULL: there is none. */
static char *word(char **at)
{
    char *begin = *at + strspn(*at, " ");
    if (*begin == '\0')
        return NULL;
    *at = begin + strcspn(begin, " ");
    if (**at != '\0')
        *(*at)++ = '\0';
    return begin;
}

/* SUFFIX OFFSET SIZE NAME, and so on. */
static int take_sample(struct mr_sidecar *s, uint64_t line, char *text, uint64_t shard_size)
{
    while (word(&text)) {
        const char *offset = word(&text), *size = word(&text), *name = word(&text);
        if (!name)
            return bad_line(line, "a member without an offset, a size or a name");
        if (sidecar_add(s, line, name, offset, size, shard_size) != 0)
            return -1;
    }
    return 0;
}

/* NAME OFFSET SIZE: the name may have spaces. */
static int take_member(struct mr_sidecar *s, uint64_t line, char *text, uint64_t shard_size)
{
    char *size = strrchr(text, ' ');
    if (!size)
        return bad_line(line, "neither DALI's v1.2 nor a line of name, offset and size");
    *size++ = '\0';
    char *offset = strrchr(text, ' ');
    if (!offset)
        return bad_line(line, "neither DALI's v1.2 nor a line of name, offset and size");
    *offset++ = '\0';
    return sidecar_add(s, line, text, offset, size, shard_size);
}

static int take_lines(struct mr_sidecar *s, char *end, uint64_t shard_size)
{
    uint64_t line = 1, samples = 0, lines = 0;
    char *at = s->text;
    bool dali = strncmp(at, VERSION, strlen(VERSION)) == 0;
    for (char *next; at < end; at = next, line++) {
        char *feed = memchr(at, '\n', (size_t)(end - at));
        next = feed ? feed + 1 : end;
        *(feed ? feed : end) = '\0';
        if (strlen(at) != (size_t)((feed ? feed : end) - at))
            return bad_line(line, "a byte that is not text");
        if (dali && line == 1) {
            if (!number(at + strlen(VERSION), &samples))
                return bad_line(line, "a number of samples that is none");
            continue;
        }
        if (*at == '\0')
            continue;
        lines++;
        if ((dali ? take_sample : take_member)(s, line, at, shard_size) != 0)
            return -1;
    }
    if (dali && lines != samples) {
        mr_error_set(MR_E_CORRUPT, "%" PRIu64 " samples where its first line says %" PRIu64, lines, samples);
        return -1;
    }
    if (s->count == 0) {
        mr_error_set(MR_E_CORRUPT, "no members are in it");
        return -1;
    }
    return 0;
}

int mr_sidecar_init(struct mr_sidecar *sidecar, char *text, size_t length, uint64_t shard_size)
{
    *sidecar = (struct mr_sidecar){.text = text};
    text[length] = '\0';
    if (take_lines(sidecar, text + length, shard_size) == 0)
        return 0;
    mr_sidecar_close(sidecar);
    return -1;
}

void mr_sidecar_close(struct mr_sidecar *sidecar)
{
    free(sidecar->members);
    free(sidecar->text);
    memset(sidecar, 0, sizeof *sidecar);
}

/* ---- beside the shard ---- */

/* wds2idx leaves out names whose last component begins with a dot. */
static bool is_hidden(const struct mr_tar_member *member)
{
    const char *slash = strrchr(member->name, '/');
    return (slash ? slash + 1 : member->name)[0] == '.';
}

/* GNU tar, by which wds2idx finds names, writes what is not ASCII in escapes. */
static bool is_escaped(const struct mr_sidecar_member *m)
{
    return memchr(m->name, '\\', m->name_length) != NULL;
}

int mr_sidecar_compare(struct mr_sidecar *s, const struct mr_tar_member *member)
{
    const struct mr_sidecar_member *m = s->next < s->count ? &s->members[s->next] : NULL;
    if (m && m->data < member->data) {
        mr_error_set(MR_E_CORRUPT, "%.*s should lie at byte %" PRIu64 ", and does not", NAMES_SHOWN, m->name, m->data);
        return -1;
    }
    if (!m || m->data > member->data) {
        if (!member->regular || is_hidden(member))
            return 0;
        mr_error_set(MR_E_CORRUPT, "%.*s, at byte %" PRIu64 ", is not in it", NAMES_SHOWN, member->name, member->data);
        return -1;
    }
    s->next++;
    if (!member->regular)
        return 0;
    s->extended = member->data - MR_TAR_BLOCK - member->begin;
    bool same_name = m->name_length == member->name_length && memcmp(m->name, member->name, member->name_length) == 0;
    if (m->size == member->size && (same_name || is_escaped(m)))
        return 0;
    mr_error_set(MR_E_CORRUPT,
                 "at byte %" PRIu64 " there should be %.*s, of %" PRIu64 " bytes, and there is %.*s, of %" PRIu64,
                 m->data, NAMES_SHOWN, m->name, m->size, NAMES_SHOWN, member->name, member->size);
    return -1;
}

int mr_sidecar_end(const struct mr_sidecar *s)
{
    if (s->next == s->count)
        return 0;
    const struct mr_sidecar_member *m = &s->members[s->next];
    mr_error_set(MR_E_CORRUPT, "%.*s, at byte %" PRIu64 ", lies behind the shard's end", NAMES_SHOWN, m->name, m->data);
    return -1;
}

bool mr_sidecar_next(struct mr_sidecar *s, uint64_t at, struct mr_tar_member *member)
{
    const struct mr_sidecar_member *m = &s->members[s->next];
    if (s->next >= s->count - 1 || s->next == s->count / 2 || m->size == 0 || is_escaped(m) ||
        m->data != at + s->extended + MR_TAR_BLOCK)
        return false;
    s->next++;
    *member = (struct mr_tar_member){
        .begin = at, .data = m->data, .size = m->size, .regular = true, .name = m->name, .name_length = m->name_length};
    return true;
}
