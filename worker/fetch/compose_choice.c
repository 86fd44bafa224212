#include "worker/fetch/compose_choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "worker/fetch/compose_trial.h"
#include "worker/store/flight.h"

/* Of a trial, one way, before it turns to the other one: so many objects, and so much of the worker's time, since a
 * fast store's objects are over in a moment in which anything else may happen. */
#define WINDOW_OBJECTS 256
#define WINDOW_NS      (100 * MR_MILLISECOND_NS)
#define WINDOWS        4 /* plain, composed, plain, composed */
#define REFUSALS_AUTO  4 /* in a row */
#define REFUSALS       32

enum state { ASKING, TRIAL, ON, OFF };

struct window {
    bool open; /* nothing of the other way is under way */
    int64_t cpu_ns;
    uint64_t busy_ns;
    uint64_t objects;
};

struct mr_compose_choice {
    struct mr_compose_choice_options options;
    enum state state;
    bool is_auto;
    struct mr_transfer *question;
    struct mr_trial_facts facts;
    char storage_class[32], location_type[32];
    /* the trial; index 1 is composing */
    bool composing; /* the way of the window */
    unsigned windows, under_way[2];
    struct window window;
    struct mr_trial_cost costs[2];
    unsigned refused;   /* composes in a row */
    uint64_t throttled; /* answers 429 and 503 to composes, as of the last step */
};

static int64_t cpu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * MR_SECOND_NS + now.tv_nsec;
}

/* Once a decision: one worker reports for all. */
static void compose_choice_report(struct mr_compose_choice *c, const char *decision, const char *why)
{
    char text[MR_TRIAL_TEXT + 64];
    snprintf(text, sizeof text, "%s: %s", decision, why);
    if (c->options.link->slot != 0) {
        mr_log_debug("compose of gs://%s %s", c->options.info->bucket, text);
        return;
    }
    mr_log_info("compose of gs://%s %s", c->options.info->bucket, text);
    struct mr_msg_out *msg;
    if ((msg = mr_msg_new(MR_MSG_COMPOSE))) {
        mr_msg_put_u64(msg, "dataset", c->options.dataset);
        mr_msg_put_str(msg, "text", text);
        (void)mr_msg_send(c->options.link->socket, msg); /* its failure shows at the next receive */
    }
}

static void decide(struct mr_compose_choice *c, enum state state, const char *why)
{
    c->state = state;
    compose_choice_report(c, state == ON ? "on" : state == OFF ? "off" : "to be tried", why);
}

/* ---- facts ---- */

static void facts_known(struct mr_compose_choice *c)
{
    char text[MR_TRIAL_TEXT];
    decide(c, mr_trial_allows(&c->facts, text) ? TRIAL : OFF, text);
}

static void bucket_arrived(void *arg, const struct mr_store_result *result, const struct mr_store_bucket *bucket)
{
    struct mr_compose_choice *c = arg;
    c->question = NULL;
    if (result->code == MR_OK) {
        snprintf(c->storage_class, sizeof c->storage_class, "%s", bucket->storage_class);
        snprintf(c->location_type, sizeof c->location_type, "%s", bucket->location_type);
        c->facts.has_bucket = true;
        c->facts.versioning = bucket->versioning;
        c->facts.soft_delete_s = bucket->soft_delete_s;
    } else {
        mr_log_debug("compose: %s", result->text);
    }
    facts_known(c);
}

static void permissions_arrived(void *arg, const struct mr_store_result *result, unsigned granted)
{
    struct mr_compose_choice *c = arg;
    c->facts.has_permissions = result->code == MR_OK;
    c->facts.granted = granted;
    if (result->code != MR_OK)
        mr_log_debug("compose: %s", result->text);
    c->question = mr_transfer_bucket(c->options.net->engine, c->options.store, bucket_arrived, c);
    if (!c->question)
        decide(c, OFF, mr_error_text());
}

/* Collects what decides whether composing may be tried. What the sizes alone forbid costs no request. */
static void compose_choice_ask(struct mr_compose_choice *c)
{
    c->facts = (struct mr_trial_facts){
        .emulator = !mr_trial_is_google(c->options.info->endpoint),
        .storage_class = c->storage_class,
        .location_type = c->location_type,
        .objects = c->options.info->count,
        .bytes = c->options.info->total_bytes,
    };
    struct mr_trial_facts sizes = c->facts; /* where these forbid it, the store need not be asked */
    sizes.emulator = true;
    char text[MR_TRIAL_TEXT];
    if (!mr_trial_allows(&sizes, text)) {
        decide(c, OFF, text);
        return;
    }
    c->question = mr_transfer_permissions(c->options.net->engine, c->options.store, mr_trial_permissions, 4,
                                          permissions_arrived, c);
    if (!c->question)
        decide(c, OFF, mr_error_text());
}

/* ---- the trial ---- */

/* Advances the trial: windows with and without composing take turns, each measured from the moment when no job of the
 * other kind is left. After the last one the costs decide. */
static void update_window(struct mr_compose_choice *c)
{
    struct window *window = &c->window;
    struct mr_trial_cost *cost = &c->costs[c->composing];
    uint64_t busy_ns = mr_counter_get(c->options.link->counters, MR_WC_BUSY_NS);
    if (!window->open) {
        /* Downloads alone first have as many requests in flight as pay: fewer would lose to composing for that. */
        if (mr_transfer_phase(c->options.net->engine) == MR_FLIGHT_GROW)
            return;
        if (c->under_way[!c->composing] == 0)
            *window = (struct window){.open = true, .cpu_ns = cpu_now_ns(), .busy_ns = busy_ns};
        return;
    }
    if (window->objects < WINDOW_OBJECTS || (int64_t)(busy_ns - window->busy_ns) < WINDOW_NS)
        return;
    cost->objects += window->objects;
    cost->cpu_ns += cpu_now_ns() - window->cpu_ns;
    cost->wall_ns += (int64_t)(busy_ns - window->busy_ns);
    window->open = false;
    c->composing = !c->composing;
    if (++c->windows < WINDOWS)
        return;
    char text[MR_TRIAL_TEXT];
    decide(c, mr_trial_favours(&c->costs[1], &c->costs[0], text) ? ON : OFF, text);
}

void mr_compose_choice_job_started(struct mr_compose_choice *c, bool composes)
{
    c->under_way[composes]++;
}

void mr_compose_choice_job_ended(struct mr_compose_choice *c, bool composes, unsigned objects)
{
    c->under_way[composes]--;
    if (c->state != TRIAL)
        return;
    if (c->window.open && composes == c->composing)
        c->window.objects += objects;
    update_window(c);
}

/* ---- what composes answer ---- */

void mr_compose_choice_answered(struct mr_compose_choice *c, const struct mr_store_result *result)
{
    if (result->code == MR_OK) {
        c->refused = 0;
        return;
    }
    c->refused++;
    if (c->state == OFF)
        return;
    if (result->code != MR_E_DENIED && c->refused < (c->is_auto ? REFUSALS_AUTO : REFUSALS))
        return;
    char text[MR_TRIAL_TEXT];
    snprintf(text, sizeof text, "%s", result->text);
    mr_log_warning("compose of gs://%s is switched off, and objects are downloaded one by one: %s",
                   c->options.info->bucket, text);
    decide(c, OFF, text);
}

void mr_compose_choice_step(struct mr_compose_choice *c)
{
    uint64_t throttled = mr_transfer_counters(c->options.net->engine)->compose_throttled;
    bool more = throttled > c->throttled;
    c->throttled = throttled;
    if (more && c->is_auto && (c->state == TRIAL || c->state == ON))
        decide(c, OFF, "the store answers composes with 429 (too many requests): it limits them more than reads");
    else if (c->state == TRIAL)
        update_window(c);
}

/* ---- life ---- */

bool mr_compose_choice_composes(const struct mr_compose_choice *c)
{
    return c->state == ON || (c->state == TRIAL && c->composing);
}

struct mr_temporary_bucket *mr_compose_choice_bucket(const struct mr_compose_choice *c)
{
    return c->options.bucket;
}

struct mr_compose_choice *mr_compose_choice_new(const struct mr_compose_choice_options *options)
{
    struct mr_compose_choice *c = calloc(1, sizeof *c);
    if (!c) {
        mr_error_set(MR_E_NO_MEMORY, "no memory for a data set");
        return NULL;
    }
    c->options = *options;
    c->throttled = mr_transfer_counters(options->net->engine)->compose_throttled;
    switch (options->net->config->fetch.compose) {
    case MR_COMPOSE_ALWAYS:
        decide(c, ON, "as fetch.compose says");
        break;
    case MR_COMPOSE_NEVER:
        c->state = OFF;
        break;
    default:
        c->is_auto = true;
        compose_choice_ask(c);
    }
    return c;
}

void mr_compose_choice_destroy(struct mr_compose_choice *c)
{
    if (c && c->question)
        mr_transfer_cancel(c->options.net->engine, c->question);
    free(c);
}
