#include "devstore/pace.h"

#include "base/clock.h"

#define SLACK_NS (10 * MR_MILLISECOND_NS) /* how much a sender that was woken late may catch up */

void ds_pace_init(struct ds_pace *pace, double rate)
{
    pace->rate = rate;
    pace->next_ns = 0;
    pthread_mutex_init(&pace->lock, NULL);
}

void ds_pace_close(struct ds_pace *pace)
{
    pthread_mutex_destroy(&pace->lock);
}

int64_t ds_pace_ready(struct ds_pace *pace)
{
    int64_t ready_ns = 0;
    if (pace->rate > 0) {
        pthread_mutex_lock(&pace->lock);
        ready_ns = pace->next_ns;
        pthread_mutex_unlock(&pace->lock);
    }
    return ready_ns;
}

uint64_t ds_pace_piece(const struct ds_pace *pace)
{
    double piece = pace->rate / 100;
    if (pace->rate <= 0)
        return UINT64_MAX;
    return piece > 1 ? (uint64_t)piece : 1;
}

void ds_pace_charge(struct ds_pace *pace, int64_t now_ns, uint64_t bytes)
{
    if (pace->rate <= 0)
        return;
    pthread_mutex_lock(&pace->lock);
    if (pace->next_ns == 0)
        pace->next_ns = now_ns;
    else if (pace->next_ns < now_ns - SLACK_NS)
        pace->next_ns = now_ns - SLACK_NS;
    pace->next_ns += (int64_t)((double)bytes / pace->rate * (double)MR_SECOND_NS);
    pthread_mutex_unlock(&pace->lock);
}
