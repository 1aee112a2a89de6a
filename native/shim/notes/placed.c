/* placed.c - files that get a name, lose one, or are truncated by theirs: recorded by the functions of names.c and
 * found.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/found.h"
#include "recorder/host.h"
#include "recorder/names.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/notes/placed.h"
#include "shim/notes/written.h"
#include "shim/sources/devices.h"

/* ---- new names ------------------------------------------------------------------------------------------ */

/* Whether renames are system calls with RK_MARK: libc's own calls would be reported to the supervisor. */
static bool renames_directly;

void rk_placed_start(void) { renames_directly = rk_is_of_libc((void *)rk_real_rename); }

static int rename_directly(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    long error = rk_call(SYS_renameat2, from_directory, (long)from, to_directory, (long)to, flags, RK_MARK);
    if (!error) return 0;
    errno = (int)-error;
    return -1;
}

/* A replaced file is kept before, and so is one that loses its name. */
static void before_naming(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    if (!rk_active()) return;
    rk_before_change(from_directory, from, RK_MOVED);
    rk_before_change(to_directory, to, flags & RENAME_EXCHANGE ? RK_MOVED : RK_REPLACED);
}

static int after_naming(int result, int from_directory, const char *from, int to_directory, const char *to) {
    if (result == 0 && rk_active()) rk_record_new_name(from_directory, from, to_directory, to);
    return result;
}

#define RENAME(name, from_directory, to_directory, flags, ...)                                                \
    before_naming(from_directory, from, to_directory, to, flags);                                             \
    int result = RK_LIKELY(renames_directly) ? rename_directly(from_directory, from, to_directory, to, flags) \
                                             : RK_REAL(name)(__VA_ARGS__);                                    \
    if ((flags) & RENAME_EXCHANGE) after_naming(result, to_directory, to, from_directory, from);              \
    return after_naming(result, from_directory, from, to_directory, to)

RK_EXPORT int rename(const char *from, const char *to) { RENAME(rename, AT_FDCWD, AT_FDCWD, 0u, from, to); }

RK_EXPORT int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    RENAME(renameat, from_directory, to_directory, 0u, from_directory, from, to_directory, to);
}

RK_EXPORT int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    RENAME(renameat2, from_directory, to_directory, flags, from_directory, from, to_directory, to, flags);
}

RK_EXPORT int link(const char *from, const char *to) {
    return after_naming(RK_REAL(link)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

RK_EXPORT int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    int result = RK_REAL(linkat)(from_directory, from, to_directory, to, flags);
    return after_naming(result, from_directory, from, to_directory, to);
}

RK_EXPORT int symlink(const char *target, const char *path) {
    return after_naming(RK_REAL(symlink)(target, path), AT_FDCWD, NULL, AT_FDCWD, path);
}

RK_EXPORT int symlinkat(const char *target, int directory, const char *path) {
    return after_naming(RK_REAL(symlinkat)(target, directory, path), AT_FDCWD, NULL, directory, path);
}

/* Calls the hook for a system call number, for syscall(). */
long rk_syscall_placed(long number, long a, long b, long c, long d, long e) {
    switch (number) {
#ifdef SYS_rename
    case SYS_rename:
        return rename((const char *)a, (const char *)b);
    case SYS_link:
        return link((const char *)a, (const char *)b);
    case SYS_symlink:
        return symlink((const char *)a, (const char *)b);
    case SYS_unlink:
        return unlink((const char *)a);
#endif
#ifdef SYS_renameat
    case SYS_renameat:
        return renameat((int)a, (const char *)b, (int)c, (const char *)d);
#endif
    case SYS_renameat2:
        return renameat2((int)a, (const char *)b, (int)c, (const char *)d, (unsigned)e);
    case SYS_linkat:
        return linkat((int)a, (const char *)b, (int)c, (const char *)d, (int)e);
    case SYS_unlinkat:
        return unlinkat((int)a, (const char *)b, (int)c);
    default:
        return symlinkat((const char *)a, (int)b, (const char *)c);
    }
}

/* ---- names that are removed --------------------------------------------------------------------------- */

static void before_removal(int directory, const char *path) {
    if (rk_active()) rk_before_change(directory, path, RK_REMOVED);
}

#define REMOVE(name)                       \
    RK_EXPORT int name(const char *path) { \
        before_removal(AT_FDCWD, path);    \
        return RK_REAL(name)(path);        \
    }
REMOVE(unlink)
REMOVE(rmdir)
REMOVE(remove)

RK_EXPORT int unlinkat(int directory, const char *path, int flags) {
    before_removal(directory, path);
    return RK_REAL(unlinkat)(directory, path, flags);
}

/* ---- files that are truncated by their name ------------------------------------------------------------ */

static int after_truncate(int result, const char *path) {
    if (result != 0 || !rk_active()) return result;
    int fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return result;
    rk_written(fd);
    rk_close(fd);
    return result;
}

#define TRUNCATE(name, type)                                          \
    RK_EXPORT int name(const char *path, type size) {                 \
        if (rk_active()) rk_before_change(AT_FDCWD, path, RK_OPENED); \
        return after_truncate(RK_REAL(name)(path, size), path);       \
    }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)
