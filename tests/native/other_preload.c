/* A preloaded library that hooks a few calls too, and hands them on. */
#include <dlfcn.h>
#include <spawn.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void say(const char *name) {
    static const char begin[] = "other preload: ";
    if (write(2, begin, strlen(begin)) < 0 || write(2, name, strlen(name)) < 0 || write(2, "\n", 1) < 0) _exit(98);
}

#define HANDS_ON(type, name, parameters, ...)                          \
    type name parameters {                                             \
        static __typeof__(name) *real;                                 \
        if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
        say(#name);                                                    \
        return real(__VA_ARGS__);                                      \
    }
ssize_t getrandom(void *buffer, size_t size, unsigned flags);
HANDS_ON(ssize_t, getrandom, (void *buffer, size_t size, unsigned flags), buffer, size, flags)
HANDS_ON(int, posix_spawn,
         (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
          char *const arguments[], char *const environment[]),
         pid, path, actions, attributes, arguments, environment)
