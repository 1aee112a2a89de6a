/* written.c - the names of the files that the run writes: one line each in REPROKIT_RUN/written.paths,
 * for the launcher, which takes their digests when the run has ended. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "hooks.h"

#define PATHS      (3 * PATH_MAX + 1) /* a path, and the line it makes */
#define REMEMBERED 4096               /* paths by their hash, so that a file opened again and again makes one line */

static bool is_new(const char *path, size_t length) {
    static uint64_t seen[REMEMBERED];
    uint64_t hash = rk_check(path, length, 1) | 1;
    return __atomic_exchange_n(&seen[hash / 2 % REMEMBERED], hash, __ATOMIC_RELAXED) != hash;
}

static bool is_in_the_run(const char *path, size_t length) {
    const char *run = rk_run + strspn(rk_run, "/") - 1; /* without the padding */
    size_t n = strlen(run);
    return length > n && strncmp(path, run, n) == 0 && path[n] == '/';
}

static bool is_a_file_of_the_program(const char *path, size_t length) {
    static const char *const others[] = {"/dev/", "/proc/", "/sys/", "/memfd:"};
    if (length == 0 || *path != '/') return false; /* a pipe or a socket */
    for (size_t i = 0; i < RK_LENGTH(others); i++)
        if (strncmp(path, others[i], strlen(others[i])) == 0) return false;
    return !is_in_the_run(path, length);
}

/* A backslash or a line feed in a name is written as "\\" or "\n": one line a path. */
static size_t escape(char *line, const char *path, size_t length) {
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (path[i] == '\\' || path[i] == '\n') line[n++] = '\\';
        line[n++] = path[i] == '\n' ? 'n' : path[i];
    }
    line[n++] = '\n';
    return n;
}

static void note(const char *path, size_t length, char *line) {
    if (!is_a_file_of_the_program(path, length) || !is_new(path, length)) return;
    char file[RK_RUN_PATH + 32];
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, "/written.paths");
    n = escape(line, path, length);
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && rk_within_limit((uint64_t)end + n)) rk_call(SYS_write, fd, (long)line, (long)n, 0, 0, 0);
    rk_close(fd);
}

static void note_descriptor(int fd) {
    char link[64];
    /* Not on the stack: opens happen on threads and signal stacks of 8 to 16 KiB. */
    char *path = rk_map(PATHS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!path) return;
    size_t n = rk_append(link, sizeof(link), 0, "/proc/self/fd/");
    rk_append_number(link, sizeof(link), n, (uint64_t)fd);
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_MAX, 0, 0);
    if (length > 0 && length < PATH_MAX) note(path, (size_t)length, path + PATH_MAX);
    rk_unmap(path, PATHS);
}

void rk_written(int fd) { note_descriptor(fd); }

/* A path that a rename made: opened once, for its absolute name without symbolic links. */
static void written_path(int directory, const char *path) {
    int fd = (int)rk_call(SYS_openat, directory, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return;
    note_descriptor(fd);
    rk_close(fd);
}

static int renamed(int result, int directory, const char *path) {
    if (result == 0 && rk_active()) written_path(directory, path);
    return result;
}

RK_EXPORT int rename(const char *from, const char *to) { return renamed(RK_REAL(rename)(from, to), AT_FDCWD, to); }

RK_EXPORT int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return renamed(RK_REAL(renameat)(from_directory, from, to_directory, to), to_directory, to);
}

RK_EXPORT int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    return renamed(RK_REAL(renameat2)(from_directory, from, to_directory, to, flags), to_directory, to);
}
