/*
 * plan_dump.c - prints what shm/index/plan.h answers to the questions on standard input, one line each, for
 * compare_plan.py.
 *     perm SIZE SEED EPOCH DIGEST SHUFFLE POSITION...     -> objects
 *     blocks SIZE SEED EPOCH DIGEST BLOCK MIX POSITION... -> objects
 *     plan SIZE WORLD BATCH CURSOR TAIL WORKERS           -> left out; per step "CURSOR FIRST:COUNT ..."; ";" between
 *     worker SIZE BATCH WORKER WORKERS                    -> steps
 *     single SIZE WORLD RANK WORKER WORKERS               -> positions
 *     replace SIZE SEED EPOCH POSITION                    -> positions
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "shm/index/index.h"
#include "shm/index/plan_impl.h"

#define MAX_WORLD 16 /* of the questions asked here */

static uint64_t number(void)
{
    const char *word = strtok(NULL, " \n");
    return word ? strtoull(word, NULL, 10) : 0;
}

static void must(int rc)
{
    if (rc != 0) {
        fprintf(stderr, "plan_dump: %s\n", mr_error_text());
        exit(EXIT_FAILURE);
    }
}

static void perm(void)
{
    uint8_t digest[MR_PLAN_DIGEST_BYTES];
    uint64_t size = number(), seed = number(), epoch = number();
    must(mr_index_digest_parse(strtok(NULL, " \n"), digest));
    bool shuffle = number() != 0;
    struct mr_perm p;
    mr_perm_init(&p, size, seed, epoch, digest, shuffle);
    const char *word;
    while ((word = strtok(NULL, " \n")))
        printf("%" PRIu64 " ", mr_perm_at(&p, strtoull(word, NULL, 10)));
}

static void blocks(void)
{
    struct mr_plan_params p = {.size = number(), .world = 1, .batch = 1, .shuffle = true};
    p.seed = number();
    p.epoch = number();
    must(mr_index_digest_parse(strtok(NULL, " \n"), p.digest));
    p.block = number();
    p.mix = (uint32_t)number();
    struct mr_plan plan;
    must(mr_plan_init(&plan, &p));
    const char *word;
    while ((word = strtok(NULL, " \n")))
        printf("%" PRIu64 " ", mr_plan_object(&plan, strtoull(word, NULL, 10)));
}

static void plan(void)
{
    struct mr_plan_params p = {.size = number(), .shuffle = true};
    p.world = (uint32_t)number();
    p.batch = (uint32_t)number();
    p.cursor = number();
    must(mr_plan_tail_parse(strtok(NULL, " \n"), &p.tail));
    must(p.world <= MAX_WORLD ? 0 : -1);
    struct mr_plan plans[MAX_WORLD];
    for (p.rank = 0; p.rank < p.world; p.rank++)
        must(mr_plan_init(&plans[p.rank], &p));
    printf("%" PRIu64, mr_plan_left_out(&plans[0]));
    for (uint64_t step = 0; step < mr_plan_steps(&plans[0]); step++) {
        printf(";%" PRIu64, mr_plan_cursor_after(&plans[0], step));
        for (uint32_t rank = 0; rank < p.world; rank++) {
            uint64_t first;
            uint32_t count;
            mr_plan_share(&plans[rank], step, &first, &count);
            printf(" %" PRIu64 ":%" PRIu32, first, count);
        }
    }
}

static void worker(void)
{
    struct mr_plan_params p = {.size = number(), .world = 1};
    p.batch = (uint32_t)number();
    uint32_t w = (uint32_t)number(), workers = (uint32_t)number();
    struct mr_plan plan;
    must(mr_plan_init(&plan, &p));
    for (uint64_t k = 0; k < mr_plan_worker_steps(&plan, w, workers); k++)
        printf("%" PRIu64 " ", mr_plan_worker_step(k, w, workers));
}

static void single(void)
{
    struct mr_plan_params p = {.size = number(), .batch = 1};
    p.world = (uint32_t)number();
    p.rank = (uint32_t)number();
    uint32_t w = (uint32_t)number(), workers = (uint32_t)number();
    struct mr_plan plan;
    must(mr_plan_init(&plan, &p));
    for (uint64_t k = 0; k < mr_plan_single_count(&plan, w, workers); k++)
        printf("%" PRIu64 " ", mr_plan_single_position(&plan, w, workers, k));
}

static void replace(void)
{
    struct mr_plan_params p = {.size = number(), .world = 1, .batch = 1};
    p.seed = number();
    p.epoch = number();
    uint64_t position = number(), r;
    struct mr_plan plan;
    must(mr_plan_init(&plan, &p));
    for (uint32_t attempt = 0; mr_plan_replacement(&plan, position, attempt, &r) == 0; attempt++)
        printf("%" PRIu64 " ", r);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } verbs[] = {{"perm", perm},     {"blocks", blocks}, {"plan", plan},
                 {"worker", worker}, {"single", single}, {"replace", replace}};
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        const char *verb = strtok(line, " \n");
        for (size_t i = 0; verb && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
            if (strcmp(verb, verbs[i].name) == 0)
                verbs[i].run();
        }
        putchar('\n');
    }
    free(line);
    return EXIT_SUCCESS;
}
