/* maker.h - the process that made a temporary object, an upload or a lock file: their names say it. */
#ifndef MR_WORKER_CLEANUP_MAKER_H
#define MR_WORKER_CLEANUP_MAKER_H

#include <stdbool.h>
#include <stdint.h>

#define MR_MAKER_WRITE 4096u /* slots of write workers are counted from here */
#define MR_LATE_S      20    /* a request may take effect so long after its process's death */

struct mr_maker {
    char run[40];   /* uuid */
    unsigned slot;  /* of a fetch worker, or MR_MAKER_WRITE and more */
    uint32_t start; /* how often the slot had been started */
};

struct mr_maker mr_maker_of(const char *run, unsigned slot, uint64_t start);
bool mr_maker_equal(const struct mr_maker *a, const struct mr_maker *b);
bool mr_maker_is_write(const struct mr_maker *maker);
/* "<run>/<slot>-<start>-<number>", which follows the prefix of a temporary object: false where it is not of that form.
 * number may be NULL. */
bool mr_maker_parse(const char *text, struct mr_maker *maker, uint64_t *number);
/* "<run>.<slot>.<start>", a lock file's name. */
bool mr_maker_parse_file(const char *name, struct mr_maker *maker);

#endif
