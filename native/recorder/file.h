/* file.h - names of entropy files, and how this process gives up its own. */
#ifndef REPROKIT_RECORDER_FILE_H
#define REPROKIT_RECORDER_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "urandom_hook.h"

uint64_t rk_identity_hash(void);
void rk_entropy_path(char *path, size_t size, const char *directory, uint64_t hash, uint32_t number,
                     const char *ending);
void rk_entropy_directory(char path[RK_RUN_PATH + 16]);                               /* of this run */
void rk_file_path(char *path, size_t size, uint32_t incarnation, const char *ending); /* of a file of this process */
void rk_keep(const void *start, uint64_t size);
void rk_give_up(enum rk_reason reason, int error);

#endif
