/* hooks.c - finds the real functions behind the hooks. */
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <string.h>

#include "recorder/fill.h"
#include "recorder/host.h"
#include "shim/hooks.h"

#define X(name) __typeof__(name) *rk_real_##name;
RK_HOOKS(X)
#undef X

static bool is_in_module_of(const void *function, const void *other) {
    uint64_t offset;
    return other && strcmp(rk_module(function, &offset), rk_module(other, &offset)) == 0;
}

/* Returns whether another preloaded library answers instead of libc. The runtimes of sanitizers do not: they call libc,
 * whose request would reach the supervisor too. */
static bool is_of_another(const void *function) {
    return !is_in_module_of(function, (const void *)gnu_get_libc_version) &&
           !is_in_module_of(function, dlsym(RTLD_NEXT, "__sanitizer_set_report_path"));
}

#if defined(__x86_64__)
/* Returns this version of a function if the same library has it; another preloaded library has no versions. */
RK_BEFORE_TSAN static void *newest_version(void *function, const char *name, const char *version) {
    uint64_t offset;
    void *newer = dlvsym(RTLD_NEXT, name, version);
    return newer && strcmp(rk_module(newer, &offset), rk_module(function, &offset)) == 0 ? newer : function;
}
#endif

/* Resolves all hooks. Older libcs lack some functions: their hooks are then never called, or handle NULL. */
RK_BEFORE_TSAN void rk_resolve(void) {
#define X(name) \
    if (!rk_real_##name) rk_real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);
    RK_HOOKS(X)
#undef X
#if defined(__x86_64__)
/* Before glibc 2.36, RTLD_NEXT finds the oldest version of a name; these have changed since. */
#define X(name, version) rk_real_##name = (__typeof__(name) *)newest_version((void *)rk_real_##name, #name, version);
    X(posix_spawn, "GLIBC_2.15")
    X(posix_spawnp, "GLIBC_2.15")
    X(pthread_cond_timedwait, "GLIBC_2.3.2")
    X(sched_setaffinity, "GLIBC_2.3.4")
    X(sched_getaffinity, "GLIBC_2.3.4")
    X(timer_create, "GLIBC_2.3.3")
#undef X
#endif
    rk_hands_on = rk_real_getrandom && is_of_another((const void *)rk_real_getrandom);
}

/* Finds a function in a library that may be loaded for one extension module only, where RTLD_NEXT does not search. */
static void *find_in_library(const char *library, const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function) return function;
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : NULL;
}

void *rk_librt(const char *name) { return find_in_library("librt.so.1", name); }
void *rk_libuuid(const char *name) { return find_in_library("libuuid.so.1", name); }
