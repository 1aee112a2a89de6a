/* system.h - system calls that neither touch errno nor pass through a hook. */
#ifndef REPROKIT_RECORDER_SYSTEM_H
#define REPROKIT_RECORDER_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Like getrandom(2) and read(2), but by the shim's own instructions: strace and the supervisor's filter
 * distinguish them from calls that bypass the shim. */
ssize_t rk_random(void *buffer, size_t size, unsigned flags);
ssize_t rk_read(int fd, void *buffer, size_t size);
int rk_open(const char *path, int flags, int mode);
void rk_close(int fd);
void *rk_map(size_t size, int protection, int flags, int fd, uint64_t offset); /* NULL on failure */
#define RK_FIRST_MAPPING UINT64_C(0x2d0000000000)                     /* the shim's first mapping: struct rk_process */
extern uint64_t rk_map_next;                                          /* preferred address of the next mapping */
void *rk_map_at(void *address, size_t size, int fd, uint64_t offset); /* read-only, replacing existing mappings */
void rk_unmap(void *address, size_t size);
/* Removes whole pages of a mapped file from this process's memory; they stay in the page cache. */
void rk_leave(const void *start, const void *end);
int rk_getpid(void);
bool rk_within_limit(uint64_t end);                     /* whether a file may grow to `end`: RLIMIT_FSIZE */
int rk_reserve(int fd, uint64_t offset, uint64_t size); /* allocates blocks on the disk; 0, or errno */
size_t rk_append(char *text, size_t size, size_t length, const char *more);
size_t rk_append_number(char *text, size_t size, size_t length, uint64_t number);
size_t rk_append_hex(char *text, size_t size, size_t length, uint64_t number);
void rk_shorten(char *identity); /* replaces the front of a long one by a hash */
void rk_say(const char *text);   /* one line on stderr */

typedef struct {
    uint64_t bits;
} rk_signals;
rk_signals rk_block_signals(void);
void rk_restore_signals(rk_signals before);
bool rk_lock(uint32_t *lock); /* true if its holder died: the caller must repair what it guards */
void rk_unlock(uint32_t *lock);

#endif
