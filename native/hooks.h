/* hooks.h - the calls that the shim takes the place of: one list declares and resolves them. */
#ifndef REPROKIT_HOOKS_H
#define REPROKIT_HOOKS_H

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <threads.h>
#include <unistd.h>

#include "internal.h"

/* Not in every libc's headers. */
uint32_t arc4random(void);
void arc4random_buf(void *buffer, size_t size);
uint32_t arc4random_uniform(uint32_t bound);
ssize_t __read(int fd, void *buffer, size_t size);
ssize_t __read_chk(int fd, void *buffer, size_t size, size_t room);
ssize_t __pread64(int fd, void *buffer, size_t size, off64_t offset);
ssize_t __pread_chk(int fd, void *buffer, size_t size, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *buffer, size_t size, off64_t offset, size_t room);
int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int directory, const char *path, int flags);
int __openat64_2(int directory, const char *path, int flags);
int _Fork(void);

/* By what they are about: entropy by name (urandom_hook.c); descriptors and streams (devices.c); names
 * of files written (written.c); threads and processes (children.c). */
/* clang-format off */
#define RK_HOOKS(X) \
    X(getrandom) X(getentropy) X(arc4random) X(arc4random_buf) X(arc4random_uniform) X(syscall) \
    \
    X(read) X(__read) X(__read_chk) X(readv) X(pread) X(pread64) X(__pread64) X(__pread_chk) \
    X(__pread64_chk) X(preadv) X(preadv64) X(preadv2) X(preadv64v2) \
    X(open) X(open64) X(__open) X(__open64) X(__open_2) X(__open64_2) X(openat) X(openat64) \
    X(__openat_2) X(__openat64_2) X(creat) X(creat64) X(fopen) X(fopen64) X(fdopen) X(freopen) \
    X(freopen64) X(dup) X(dup2) X(dup3) X(fcntl) X(fcntl64) \
    \
    X(rename) X(renameat) X(renameat2) \
    \
    X(_Fork) X(execve) X(execvpe) X(fexecve) X(execveat) X(posix_spawn) X(posix_spawnp) X(system) \
    X(popen) X(pclose) X(fclose) X(pthread_create) X(thrd_create)
/* clang-format on */

#define X(name) extern __typeof__(name) *rk_real_##name;
RK_HOOKS(X)
#undef X

/* The real function. Hooks may run before the constructor, which resolves them all. */
#define RK_REAL(name) (RK_LIKELY(rk_real_##name != NULL) ? rk_real_##name : (rk_resolve(), rk_real_##name))

#endif
