/*
 * main.c - plays every scenario at each window and prints a table; then the same with each mutant, which must be
 * caught.
 *
 *   test_crash                                       everything, then the mutants, whose programs lie beside it
 *   test_crash [--all] [--only TEXT] [--window W]    some of it, without mutants
 *   crash_mutant_NAME --mutant NAME                  one mutant: exit status 1 and a line when it is caught, else 0
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

struct arguments {
    const char *only;
    unsigned window; /* 0: each */
    int mutant;
    bool all;
};

#define MUTANT(name) #name, MR_MUTANT_##name

/* The mutants, and the scenario that is about the rule that each breaks. Relaxed orders are ThreadSanitizer's:
 * tests/ring. */
static const struct mutant {
    const char *name; /* without MR_MUTANT_ */
    int number;
    bool in_harness; /* it leaves something out of the harness' supervisor */
    const char *scenario;
} mutants[] = {
    {MUTANT(NO_SECOND_LOOK), false, "producer_publish: an extent"},
    {MUTANT(NO_GIVE_BACK), false, "producer_give_back: the lane is open"},
    {MUTANT(NO_RESERVE), false, "producer_next_job: reserve"},
    {MUTANT(NO_TAKE_BACK), false, "producer_next_job: taking back"},
    {MUTANT(TAKE_BACK_WANTED), false, "producer_next_job: reserve"},
    {MUTANT(NO_SKIP), false, "consumer_feed: post, a HELD slot"},
    {MUTANT(EARLY_DESCRIPTOR), false, "consumer_next: copied out of a reserve"},
    {MUTANT(EARLY_REQUEST), false, "producer_next_job: one ticket"},
    {MUTANT(FAILED_WITH_EXTENT), false, "producer_fail"},
    {MUTANT(NO_ASLEEP_RESCAN), false, "producer_sleep: nothing is posted"},
    {MUTANT(NO_RECOVERY_WAKE), true, "producer_publish: reserve"},
    {MUTANT(EARLY_RECLAIM), true, "producer_publish: the supervisor is told too early"},
    {MUTANT(LATE_WANT), false, "consumer_next: waits"},
    {MUTANT(NO_RECOVERY_SWEEP), false, "producer_publish: the lane is closed"},
    {MUTANT(REUSE_WITHOUT_LOOK), false, "producer_next_job: shrunk to the room"},
    {MUTANT(SMALL_AFTER_RESTART), false, "producer_new, add_lane: restart of an arena that has grown"},
};
#define MUTANTS (sizeof mutants / sizeof mutants[0])
_Static_assert(MUTANTS + 14 == MR_MUTANT_COUNT - 1,
               "each mutant is a row here, or one of the fourteen of ../CMakeLists.txt");

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
static unsigned play_all(const struct arguments *arguments)
{
    struct result *result = shared_result(), sum = {0};
    int mutant = arguments->mutant;

    if (!mutant)
        printf("%-52s %3s %7s %7s %7s %6s %7s %8s\n", "stepped", "W", "instr.", "states", "drains", "kills", "peers",
               "failures");
    for (unsigned w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        for (unsigned i = 0; i < scenario_count; i++) {
            const struct scenario *scenario = &scenarios[i];
            if ((scenario->window && scenario->window != windows[w]) ||
                (arguments->window && arguments->window != windows[w]) ||
                (arguments->only && !strstr(scenario->name, arguments->only)))
                continue;
            memset(result, 0, sizeof *result);
            stage_run(scenario, windows[w], mutant, arguments->all, result);
            add(&sum, result);
            char text[8];
            snprintf(text, sizeof text, "%u", windows[w]);
            if (!mutant)
                print_row(scenario->name, text, result);
            if (result->failed)
                printf("%s%s, W %u\n", mutant ? "" : "  FAILED: ", result->text, windows[w]);
            if (result->failed && mutant)
                return 1;
        }
    }
    if (!mutant)
        print_row("all", "", &sum);
    if (!sum.instructions)
        fail("no scenario has that name, or that window");
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
        snprintf(program, sizeof program, "%.*s/crash_mutant_%s", (int)(slash - self), self, mutant->name);
    char command[1400];
    snprintf(command, sizeof command, "'%s' --mutant %s --only '%s'", program, mutant->name, mutant->scenario);
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
    /* A scenario that cannot even be set up has shown nothing, unless the code says itself that its words are wrong. */
    bool shown = !strstr(text, "setup: ") || strstr(text, "the code under test logs: ");
    return WIFEXITED(status) && WEXITSTATUS(status) == 1 && text[0] && shown;
}

static unsigned play_mutants(const char *self)
{
    unsigned missed = 0;

    printf("\n%-22s caught by\n", "mutant");
    for (unsigned i = 0; i < MUTANTS; i++) {
        char text[2000] = "";
        bool caught = is_caught(self, &mutants[i], text, sizeof text);
        printf("%-22s %s\n", mutants[i].name, caught ? text : "NOT CAUGHT");
        fflush(stdout);
        missed += !caught;
    }
    printf("%u of %zu mutants caught\n", (unsigned)MUTANTS - missed, MUTANTS);
    return missed;
}

/* 0: there is none of this name. */
static int mutant_number(const char *name)
{
    for (unsigned i = 0; i < MUTANTS; i++)
        if (strcmp(mutants[i].name, name) == 0)
            return mutants[i].number;
    return 0;
}

static bool read_arguments(int argc, char **argv, struct arguments *arguments)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--all") == 0) {
            arguments->all = true;
            continue;
        }
        if (value && strcmp(argv[i], "--only") == 0)
            arguments->only = value;
        else if (value && strcmp(argv[i], "--window") == 0)
            arguments->window = (unsigned)strtoul(value, NULL, 10);
        else if (!value || strcmp(argv[i], "--mutant") != 0 || !(arguments->mutant = mutant_number(value)))
            return false;
        i++;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {0};
    char self[1000];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

    if (!read_arguments(argc, argv, &arguments))
        return fprintf(stderr, "usage: %s [--all] [--only TEXT] [--window W] [--mutant NAME]\n", argv[0]), 2;
    self[length > 0 ? length : 0] = '\0';
    coverage_open();
    unsigned bad = play_all(&arguments);
    if (!arguments.mutant)
        coverage_print();
    if (!arguments.mutant && !arguments.only && !arguments.window)
        bad += play_mutants(self);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    if (!arguments.mutant)
        printf("%ld s of processor time\n", (long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec));
    return bad ? 1 : 0;
}
