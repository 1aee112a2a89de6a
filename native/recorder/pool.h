/* pool.h - slots of forked processes, instead of separate files. */
#ifndef REPROKIT_RECORDER_POOL_H
#define REPROKIT_RECORDER_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define RK_REST "-rest.entropy"
extern bool rk_is_forked; /* this process was forked and has executed no program since */
int rk_pool_find(const char *directory, uint64_t hash, uint32_t number, uint64_t *offset);
uint8_t *rk_pool_take(const char *directory, uint64_t hash, uint32_t *number);

#endif
