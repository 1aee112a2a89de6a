/* hooks.c - finds the real functions behind the hooks. */
#include "hooks.h"

#include <dlfcn.h>

#define X(name) __typeof__(name) *rk_real_##name;
RK_HOOKS(X)
#undef X

/* Some are absent from older libcs; their hooks are then never called, or do without. */
void rk_resolve(void) {
#define X(name) \
    if (!rk_real_##name) rk_real_##name = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);
    RK_HOOKS(X)
#undef X
}

/* libstdc++ is often loaded for one extension module only, out of RTLD_NEXT's sight. */
void *rk_libstdcxx(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function) return function;
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}
