#include "shm/ring/ahead.h"

void mr_ahead_init(struct mr_ahead *ahead, uint32_t first, uint32_t most)
{
    *ahead = (struct mr_ahead){.now = first, .first = first, .most = most, .settling = first};
}

bool mr_ahead_taken(struct mr_ahead *ahead, bool half_ready)
{
    if (ahead->settling > 0)
        ahead->settling--;
    ahead->ample = half_ready ? ahead->ample + 1 : 0;
    if (ahead->now == ahead->first || ahead->ample < ahead->now)
        return false;
    uint32_t less = ahead->now - ahead->now / 4;
    ahead->now = less > ahead->first ? less : ahead->first;
    ahead->ample = 0;
    return true;
}

bool mr_ahead_waits(struct mr_ahead *ahead, uint32_t asked)
{
    if (ahead->settling > 0 || ahead->now == ahead->most)
        return false;
    ahead->now = ahead->now > ahead->most / 2 ? ahead->most : ahead->now * 2;
    ahead->settling = asked;
    ahead->ample = 0;
    return true;
}
