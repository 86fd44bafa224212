#include "base/silence.h"

int64_t mr_silence_look(struct mr_silence *silence, uint64_t sign, int64_t now_ns, int64_t limit_ns)
{
    int64_t since_ns = now_ns - silence->looked_ns;
    if (silence->looked_ns == 0 || silence->sign != sign)
        silence->silent_ns = 0;
    else if (since_ns > 0)
        silence->silent_ns += since_ns < limit_ns / 4 ? since_ns : limit_ns / 4;
    silence->sign = sign;
    silence->looked_ns = now_ns;
    return silence->silent_ns;
}
