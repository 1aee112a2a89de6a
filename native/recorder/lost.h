/* lost.h - reports a program that cannot write to the run directory. */
#ifndef REPROKIT_RECORDER_LOST_H
#define REPROKIT_RECORDER_LOST_H

#include "urandom_hook.h"

void rk_tell_lost(enum rk_lost reason, const char *identity); /* to the launcher */

#endif
