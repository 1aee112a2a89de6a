/* site.h - call sites, and which modules' requests are withheld or told the real time. */
#ifndef REPROKIT_RECORDER_SITE_H
#define REPROKIT_RECORDER_SITE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "urandom_hook.h"

extern const char *rk_executable;            /* a link to the recorded program */
const char *rk_program(char path[PATH_MAX]); /* the target of that link */
void rk_program_before_fork(void);
uint64_t rk_site_key(const char *module, size_t length, uint64_t offset);
bool rk_is_crypto(const char *module);
bool rk_keeps_real_time(const char *module);
bool rk_python_keeps_real_time(const char *path, int depth);
/* Returns whether a module's requests get fresh bytes in every run. *runtime: the language runtime, if its generator
 * serves both keys and other draws. */
bool rk_withholds(const char *module, enum rk_runtime *runtime);
extern uint32_t rk_unloads; /* number of dlclose calls: an address may belong to another module afterwards */

#endif
