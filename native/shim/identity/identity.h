/* identity.h - names this process. */
#ifndef REPROKIT_IDENTITY_H
#define REPROKIT_IDENTITY_H

#include <stdbool.h>

extern char rk_ranks[512]; /* " VARIABLE=NUMBER " of each rank that this process has, but not the launcher */

bool rk_identity_start(const char *identity);

#endif
