/*
 * main.c - plays every scenario at each window and prints a table; then the same with each mutant, which must be
 * caught.
 *
 *   test_crash [--all] [--only TEXT]                 the code as it is; with mutants' programs beside it, those too
 *   crash_mutant_N --mutant N                        one mutant: exit status 1 and a line when it is caught, else 0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/ring/mutant.h"
#include "tests/crash/whole/coverage.h"
#include "tests/crash/whole/stage.h"

static const uint32_t windows[] = {4, 64};

/* The mutants, and the scenario that is about the rule that each breaks. Relaxed orders are ThreadSanitizer's:
 * tests/ring. */
static const struct mutant {
    int number;
    bool in_harness; /* it leaves something out of the harness' supervisor */
    const char *name, *scenario;
} mutants[] = {
    {MR_MUTANT_NO_SECOND_LOOK, false, "no second look at closed", "producer_publish: an extent"},
    {MR_MUTANT_NO_GIVE_BACK, false, "no give-back", "producer_give_back: the lane is open"},
    {MR_MUTANT_NO_RESERVE, false, "no head-of-line reserve", "producer_next_job: reserve"},
    {MR_MUTANT_NO_TAKE_BACK, false, "no taking back", "producer_next_job: taking back"},
    {MR_MUTANT_TAKE_BACK_WANTED, false, "taking back a wanted ticket", "producer_next_job: reserve"},
    {MR_MUTANT_NO_SKIP, false, "no skip", "consumer_feed: post, a HELD slot"},
    {MR_MUTANT_EARLY_DESCRIPTOR, false, "descriptor read before HELD", "consumer_next: copied out of a reserve"},
    {MR_MUTANT_EARLY_REQUEST, false, "request read before the claim", "producer_next_job: one ticket"},
    {MR_MUTANT_FAILED_WITH_EXTENT, false, "FAILED with an extent", "producer_fail"},
    {MR_MUTANT_NO_ASLEEP_RESCAN, false, "no asleep re-scan", "producer_sleep: nothing is posted"},
    {MR_MUTANT_NO_RECOVERY_WAKE, true, "no supervisor wake", "producer_publish: reserve"},
    {MR_MUTANT_EARLY_RECLAIM, true, "reclaim before the pidfd", "producer_publish: the supervisor is told too early"},
    {MR_MUTANT_LATE_WANT, false, "want stored after the last look", "consumer_next: waits"},
    {MR_MUTANT_NO_RECOVERY_SWEEP, false, "recovery does not sweep closed lanes",
     "producer_publish: the lane is closed"},
    {MR_MUTANT_REUSE_WITHOUT_LOOK, false, "extent reused without a look", "producer_next_job: shrunk to the room"},
};
#define MUTANTS (sizeof mutants / sizeof mutants[0])

static struct result *shared_result(void)
{
    void *at = mmap(NULL, sizeof(struct result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        fail("no memory");
    return at;
}

static void print_row(const char *name, const char *window, const struct result *r)
{
    printf("%-52s %3s %7u %7u %7u %6u %7u %8u\n", name, window, r->instructions, r->states, r->drains, r->kills,
           r->peer_runs, r->failed);
    fflush(stdout);
}

static void add(struct result *sum, const struct result *r)
{
    sum->instructions += r->instructions;
    sum->states += r->states;
    sum->drains += r->drains;
    sum->kills += r->kills;
    sum->peer_runs += r->peer_runs;
    sum->failed += r->failed;
}

/* The first failure ends a mutant's run. */
static unsigned play_all(int mutant, bool all, const char *only)
{
    struct result *result = shared_result(), sum = {0};

    if (!mutant)
        printf("%-52s %3s %7s %7s %7s %6s %7s %8s\n", "stepped", "W", "instr.", "states", "drains", "kills", "peers",
               "failures");
    for (unsigned w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        for (unsigned i = 0; i < scenario_count; i++) {
            const struct scenario *scenario = &scenarios[i];
            if ((scenario->window && scenario->window != windows[w]) || (only && !strstr(scenario->name, only)))
                continue;
            memset(result, 0, sizeof *result);
            stage_run(scenario, windows[w], mutant, all, result);
            add(&sum, result);
            char window[8];
            snprintf(window, sizeof window, "%u", windows[w]);
            if (!mutant)
                print_row(scenario->name, window, result);
            if (result->failed)
                printf("%s%s, W %u\n", mutant ? "" : "  FAILED: ", result->text, windows[w]);
            if (result->failed && mutant)
                return 1;
        }
    }
    if (!mutant)
        print_row("all", "", &sum);
    return sum.failed;
}

/* Runs the mutant's program: true when it was caught, with what it printed. */
static bool is_caught(const char *self, const struct mutant *mutant, char *text, size_t size)
{
    const char *slash = strrchr(self, '/');
    char program[1100];

    if (mutant->in_harness)
        snprintf(program, sizeof program, "%s", self);
    else
        snprintf(program, sizeof program, "%.*s/crash_mutant_%d", (int)(slash - self), self, mutant->number);
    char command[1400];
    snprintf(command, sizeof command, "'%s' --mutant %d --only '%s'", program, mutant->number, mutant->scenario);
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return false;
    size_t length = fread(text, 1, size - 1, pipe);
    text[length] = '\0';
    text[strcspn(text, "\n")] = '\0';
    char *words = strstr(text, "; lane 0");
    if (words)
        *words = '\0'; /* the state of all words, when it is run by itself */
    int status = pclose(pipe);
    /* A scenario that cannot even be set up has shown nothing. */
    return WIFEXITED(status) && WEXITSTATUS(status) == 1 && text[0] && !strstr(text, "setup: ");
}

static unsigned play_mutants(const char *self)
{
    unsigned missed = 0;

    printf("\n%-3s %-37s caught by\n", "no.", "mutant");
    for (unsigned i = 0; i < MUTANTS; i++) {
        char text[2000] = "";
        bool caught = is_caught(self, &mutants[i], text, sizeof text);
        printf("%-3d %-37s %s\n", mutants[i].number, mutants[i].name, caught ? text : "NOT CAUGHT");
        fflush(stdout);
        missed += !caught;
    }
    printf("%u of %zu mutants caught\n", (unsigned)MUTANTS - missed, MUTANTS);
    return missed;
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    bool all = false;
    int mutant = 0;
    char self[1000];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0)
            all = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--mutant") == 0 && i + 1 < argc)
            mutant = atoi(argv[++i]);
        else
            return fprintf(stderr, "usage: %s [--all] [--only TEXT] [--mutant N]\n", argv[0]), 2;
    }
    self[length > 0 ? length : 0] = '\0';
    coverage_open();
    unsigned bad = play_all(mutant, all, only);
    if (!mutant)
        coverage_print();
    if (!mutant && !only)
        bad += play_mutants(self);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    if (!mutant)
        printf("%ld s of processor time\n", (long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec));
    return bad ? 1 : 0;
}
