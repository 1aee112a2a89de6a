/* hooks.h - the functions that the shim interposes: one list declares and resolves them. */
#ifndef REPROKIT_HOOKS_H
#define REPROKIT_HOOKS_H

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "recorder/compiler.h"

/* Some libcs lack these in their headers. */
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
ssize_t __write(int fd, const void *buffer, size_t size);
int _Fork(void);
int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *until);
int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t id,
                           const struct timespec *until);
int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t id, const struct timespec *until);
int pthread_rwlock_clockrdlock(pthread_rwlock_t *lock, clockid_t id, const struct timespec *until);
int pthread_rwlock_clockwrlock(pthread_rwlock_t *lock, clockid_t id, const struct timespec *until);
int pthread_clockjoin_np(pthread_t thread, void **result, clockid_t id, const struct timespec *until);
int __xstat(int version, const char *path, struct stat *status);
int __lxstat(int version, const char *path, struct stat *status);
int __fxstat(int version, int fd, struct stat *status);
int __fxstatat(int version, int directory, const char *path, struct stat *status, int flags);
int __xstat64(int version, const char *path, struct stat64 *status);
int __lxstat64(int version, const char *path, struct stat64 *status);
int __fxstat64(int version, int fd, struct stat64 *status);
int __fxstatat64(int version, int directory, const char *path, struct stat64 *status, int flags);
int tgkill(pid_t pid, pid_t thread, int number);
int pidfd_open(pid_t pid, unsigned flags);

/* Grouped by subject: entropy by name (urandom_hook.c); descriptors and streams (devices.c) and their output
 * (console.c); names of files (placed.c); time (clock.c), also of files (filetimes.c); process ids (pids.c);
 * threads and processes (children.c); ends of processes and of modules (modules.c), handlers of SIGSEGV (cpuid.c);
 * varied answers (varied.c).
 */
/* clang-format off */
#define RK_HOOKS(X) \
    X(getrandom) X(getentropy) X(arc4random) X(arc4random_buf) X(arc4random_uniform) X(syscall) \
    \
    X(read) X(__read) X(__read_chk) X(readv) X(pread) X(pread64) X(__pread64) X(__pread_chk) \
    X(__pread64_chk) X(preadv) X(preadv64) X(preadv2) X(preadv64v2) \
    X(open) X(open64) X(__open) X(__open64) X(__open_2) X(__open64_2) X(openat) X(openat64) \
    X(__openat_2) X(__openat64_2) X(creat) X(creat64) X(fopen) X(fopen64) X(fdopen) X(freopen) \
    X(freopen64) X(write) X(__write) X(writev) X(fstat) X(fstat64) X(dup) X(dup2) X(dup3) X(fcntl) X(fcntl64) \
    \
    X(rename) X(renameat) X(renameat2) X(link) X(linkat) X(symlink) X(symlinkat) X(truncate) X(truncate64) \
    X(unlink) X(unlinkat) X(rmdir) X(remove) \
    \
    X(clock_gettime) X(timespec_get) X(gettimeofday) X(time) X(sem_timedwait) X(sem_clockwait) \
    X(pthread_cond_timedwait) X(pthread_cond_clockwait) X(pthread_mutex_timedlock) \
    X(pthread_mutex_clocklock) X(pthread_rwlock_timedrdlock) X(pthread_rwlock_timedwrlock) \
    X(pthread_rwlock_clockrdlock) X(pthread_rwlock_clockwrlock) X(pthread_timedjoin_np) \
    X(pthread_clockjoin_np) X(cnd_timedwait) X(mtx_timedlock) X(clock_nanosleep) \
    X(timerfd_settime) X(timer_settime) \
    \
    X(stat) X(stat64) X(lstat) X(lstat64) X(fstatat) X(fstatat64) X(statx) X(__xstat) X(__xstat64) X(__lxstat) \
    X(__lxstat64) X(__fxstat) X(__fxstat64) X(__fxstatat) X(__fxstatat64) \
    \
    X(kill) X(killpg) X(sigqueue) X(getpgid) X(setpgid) X(getsid) X(tcsetpgrp) X(wait) X(wait3) \
    X(waitpid) X(wait4) X(waitid) \
    X(sched_setaffinity) X(sched_getaffinity) X(sched_setscheduler) X(sched_getscheduler) \
    X(sched_setparam) X(sched_getparam) X(sched_rr_get_interval) X(setpriority) X(getpriority) \
    X(prlimit) X(prlimit64) X(process_vm_readv) X(process_vm_writev) X(ptrace) X(timer_create) \
    X(clock_getcpuclockid) X(opendir) X(readlink) X(access) X(sigwaitinfo) X(sigtimedwait) \
    \
    X(_Fork) X(execve) X(execvpe) X(fexecve) X(execveat) X(posix_spawn) X(posix_spawnp) X(system) \
    X(popen) X(pclose) X(fclose) X(pthread_create) X(thrd_create) \
    \
    X(_exit) X(_Exit) X(quick_exit) X(dlclose) X(sigaction) X(signal) \
    \
    X(readdir) X(readdir64) X(closedir) X(rewinddir) X(telldir) X(seekdir) X(uname) X(gethostname)
/* clang-format on */

#define X(name) extern __typeof__(name) *rk_real_##name;
RK_HOOKS(X)
#undef X

void rk_resolve(void);
void *rk_librt(const char *name);
void *rk_libuuid(const char *name);

/* For sigaction, sysconf and what they call: ThreadSanitizer's runtime calls these before it has started. */
#define RK_BEFORE_TSAN __attribute__((no_sanitize("thread")))

/* The real function. Hooks may run before the constructor, which resolves them all. */
#define RK_REAL(name) (RK_LIKELY(rk_real_##name != NULL) ? rk_real_##name : (rk_resolve(), rk_real_##name))

#endif
