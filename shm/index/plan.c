#include "shm/index/plan_impl.h"

#include <string.h>

#include "base/error.h"

#define KEY_REPLACE UINT64_C(0x7265706c61636521) /* "replace!": keys of replacements */

static int plan_refuse(const char *what, uint64_t value, uint64_t limit)
{
    mr_error_set(MR_E_USAGE, "plan: %s is %llu, out of range (limit %llu)", what, (unsigned long long)value,
                 (unsigned long long)limit);
    return -1;
}

int mr_plan_init(struct mr_plan *plan, const struct mr_plan_params *params)
{
    if (params->size > MR_PLAN_MAX_SIZE)
        return plan_refuse("size", params->size, MR_PLAN_MAX_SIZE);
    if (params->world == 0 || params->world > MR_PLAN_MAX_WORLD)
        return plan_refuse("world", params->world, MR_PLAN_MAX_WORLD);
    if (params->rank >= params->world)
        return plan_refuse("rank", params->rank, params->world - 1);
    if (params->batch == 0 || params->batch > MR_PLAN_MAX_BATCH)
        return plan_refuse("batch", params->batch, MR_PLAN_MAX_BATCH);
    if (params->cursor > params->size)
        return plan_refuse("cursor", params->cursor, params->size);
    if ((unsigned)params->tail >= MR_TAIL_KINDS)
        return plan_refuse("tail", params->tail, MR_TAIL_KINDS - 1);
    if (params->block > MR_PLAN_MAX_SIZE)
        return plan_refuse("block", params->block, MR_PLAN_MAX_SIZE);
    if (params->block > 0 && (params->mix == 0 || params->mix > MR_PLAN_MAX_MIX))
        return plan_refuse("mix", params->mix, MR_PLAN_MAX_MIX);
    memset(plan, 0, sizeof(*plan));
    plan->p = *params;
    if (!params->shuffle)
        plan->p.block = 0;
    if (plan->p.block > 0)
        mr_blocks_init(&plan->blocks, params);
    else
        mr_perm_init(&plan->perm, params->size, params->seed, params->epoch, params->digest, params->shuffle);
    uint64_t step = (uint64_t)params->world * params->batch; /* at most 2^46 */
    plan->full = (params->size - params->cursor) / step;
    plan->left = (params->size - params->cursor) % step;
    plan->tail_step = plan->left > 0 &&
                      (params->tail == MR_TAIL_PAD || (params->tail == MR_TAIL_SHORT && plan->left >= params->world));
    return 0;
}

uint64_t mr_plan_steps(const struct mr_plan *plan)
{
    return plan->full + plan->tail_step;
}

void mr_plan_share(const struct mr_plan *plan, uint64_t step, uint64_t *first, uint32_t *count)
{
    const struct mr_plan_params *p = &plan->p;
    uint64_t per_step = (uint64_t)p->world * p->batch;
    *first = p->size;
    *count = 0;
    if (step >= mr_plan_steps(plan))
        return;
    uint64_t at = p->cursor + step * per_step;
    if (step < plan->full || p->tail == MR_TAIL_PAD) {
        *first = at + (uint64_t)p->rank * p->batch;
        *count = p->batch;
        return;
    }
    uint64_t share = plan->left / p->world, longer = plan->left % p->world; /* the first `longer` ranks get one more */
    *first = at + p->rank * share + (p->rank < longer ? p->rank : longer);
    *count = (uint32_t)(share + (p->rank < longer));
}

uint64_t mr_plan_object(const struct mr_plan *plan, uint64_t position)
{
    return plan->p.block > 0 ? mr_blocks_at(&plan->blocks, position) : mr_perm_at(&plan->perm, position);
}

uint64_t mr_plan_cursor_after(const struct mr_plan *plan, uint64_t step)
{
    const struct mr_plan_params *p = &plan->p;
    if (step < plan->full)
        return p->cursor + (step + 1) * p->world * p->batch;
    return plan->tail_step ? p->size : p->size - plan->left;
}

uint64_t mr_plan_left_out(const struct mr_plan *plan)
{
    return plan->tail_step ? 0 : plan->left;
}

uint64_t mr_plan_worker_steps(const struct mr_plan *plan, uint32_t worker, uint32_t workers)
{
    uint64_t steps = mr_plan_steps(plan);
    return worker < steps && workers ? (steps - worker - 1) / workers + 1 : 0;
}

uint64_t mr_plan_worker_step(uint64_t k, uint32_t worker, uint32_t workers)
{
    return worker + k * workers;
}

uint64_t mr_plan_single_count(const struct mr_plan *plan, uint32_t worker, uint32_t workers)
{
    uint64_t mine = (plan->p.size - plan->p.cursor) / plan->p.world;
    return worker < mine && workers ? (mine - worker - 1) / workers + 1 : 0;
}

uint64_t mr_plan_single_position(const struct mr_plan *plan, uint32_t worker, uint32_t workers, uint64_t k)
{
    return plan->p.cursor + (worker + k * workers) * plan->p.world + plan->p.rank;
}

int mr_plan_replacement(const struct mr_plan *plan, uint64_t position, uint32_t attempt, uint64_t *replacement)
{
    const struct mr_plan_params *p = &plan->p;
    if (p->size < 2 || attempt >= MR_PLAN_REPLACEMENTS || attempt >= p->size - 1)
        return -1;
    /* A small permutation of the other size - 1 positions: distinct for distinct attempts. */
    position %= p->size;
    struct mr_perm others;
    uint64_t key = mr_perm_key_add(mr_perm_key_add(KEY_REPLACE, p->seed), p->epoch);
    mr_perm_set(&others, p->size - 1, mr_perm_key_add(key, position));
    uint64_t other = mr_perm_at(&others, attempt);
    *replacement = other < position ? other : other + 1;
    return 0;
}

static const char *const tail_names[] = {[MR_TAIL_SHORT] = "short", [MR_TAIL_DROP] = "drop", [MR_TAIL_PAD] = "pad"};
_Static_assert(sizeof(tail_names) / sizeof(tail_names[0]) == MR_TAIL_KINDS, "a name for each tail");

int mr_plan_tail_parse(const char *text, enum mr_plan_tail *tail)
{
    for (unsigned i = 0; i < MR_TAIL_KINDS; i++) {
        if (strcmp(text, tail_names[i]) == 0) {
            *tail = (enum mr_plan_tail)i;
            return 0;
        }
    }
    mr_error_set(MR_E_USAGE, "tail: \"%s\" is not short, drop or pad", text);
    return -1;
}
