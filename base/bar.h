/* bar.h - the pieces of a line on a terminal that shows how far something is. */
#ifndef MR_BASE_BAR_H
#define MR_BASE_BAR_H

#include <stddef.h>

/* Columns of standard error's terminal; 80 where it is none. */
unsigned mr_bar_columns(void);
/* "[=====     ]  50%": share is 0 to 1. */
void mr_bar_put(char *out, size_t size, double share);
/* "1:05 left": for what takes that many seconds more; "" below one second and above 100 hours. */
void mr_bar_left(char *out, size_t size, double seconds);

#endif
