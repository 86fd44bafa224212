#include "base/utf8.h"

unsigned mr_utf8_length(const unsigned char *at)
{
    unsigned lead = at[0], low = 0x80, high = 0xbf; /* of the second byte */
    if (lead < 0x80)
        return 1;
    unsigned length = lead < 0xc2 || lead > 0xf4 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0; /* nothing that fits into fewer bytes */
    else if (lead == 0xed)
        high = 0x9f; /* no surrogates */
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f; /* nothing above U+10FFFF */
    for (unsigned i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (at[i] < low || at[i] > high)
            return 0;
    return length;
}
