/* hooks.c - finds the real functions behind the hooks. */
#include "hooks.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <string.h>

#define X(name) __typeof__(name) *rk_real_##name;
RK_HOOKS(X)
#undef X

static bool is_of_libc(const void *function) {
    uint64_t offset;
    return strcmp(rk_module(function, &offset), rk_module((const void *)gnu_get_libc_version, &offset)) == 0;
}

#if defined(__x86_64__)
/* The version of a name where the same library has older ones; another preloaded library has none. */
RK_BEFORE_TSAN static void *versioned(void *function, const char *name, const char *version) {
    uint64_t offset;
    void *newer = dlvsym(RTLD_NEXT, name, version);
    return newer && strcmp(rk_module(newer, &offset), rk_module(function, &offset)) == 0 ? newer : function;
}
#endif

/* Some are absent from older libcs; their hooks are then never called, or do without. */
RK_BEFORE_TSAN void rk_resolve(void) {
#define X(name) \
    if (!rk_real_##name) rk_real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);
    RK_HOOKS(X)
#undef X
#if defined(__x86_64__)
/* Before glibc 2.36, RTLD_NEXT finds the oldest version of a name; these have changed since. */
#define X(name, version) rk_real_##name = (__typeof__(name) *)versioned((void *)rk_real_##name, #name, version);
    X(posix_spawn, "GLIBC_2.15")
    X(posix_spawnp, "GLIBC_2.15")
    X(pthread_cond_timedwait, "GLIBC_2.3.2")
    X(sched_setaffinity, "GLIBC_2.3.4")
    X(sched_getaffinity, "GLIBC_2.3.4")
    X(timer_create, "GLIBC_2.3.3")
#undef X
#endif
    rk_hands_on = rk_real_getrandom && !is_of_libc((const void *)rk_real_getrandom);
}

/* Libraries that are often loaded for one extension module only, out of RTLD_NEXT's sight. */
static void *find(const char *library, const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function) return function;
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : NULL;
}

void *rk_librt(const char *name) { return find("librt.so.1", name); }
void *rk_libuuid(const char *name) { return find("libuuid.so.1", name); }
