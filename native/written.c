/* written.c - the names of the files that the run writes and reads: one line each in REPROKIT_RUN/written.paths
 * and read.paths, for the launcher, which takes their digests when the run has ended. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "hooks.h"

#define PATHS      (3 * PATH_MAX + 1) /* a path, and the line it makes */
#define REMEMBERED 4096               /* paths by their hash, so that a file opened again and again makes one line */
#define NAMES      16384              /* the same of names by which files are read; a power of two */
#define WAYS       4                  /* places that one of them may have */
#define MOST_READ  12288              /* lines of read.paths by one process; known to launch/data.py */

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

static void note(const char *list, const char *path, size_t length, char *line) {
    if (!is_a_file_of_the_program(path, length)) return;
    char file[RK_RUN_PATH + 32];
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, list);
    n = escape(line, path, length);
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && rk_within_limit((uint64_t)end + n)) rk_call(SYS_write, fd, (long)line, (long)n, 0, 0, 0);
    rk_close(fd);
}

/* once: whether the same file was noted before is looked at here. */
static void note_descriptor(int fd, const char *list, bool once) {
    char link[64];
    /* Not on the stack: opens happen on threads and signal stacks of 8 to 16 KiB. */
    char *path = rk_map(PATHS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!path) return;
    size_t n = rk_append(link, sizeof(link), 0, "/proc/self/fd/");
    rk_append_number(link, sizeof(link), n, (uint64_t)fd);
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, PATH_MAX, 0, 0);
    if (length > 0 && length < PATH_MAX && (!once || is_new(path, (size_t)length)))
        note(list, path, (size_t)length, path + PATH_MAX);
    rk_unmap(path, PATHS);
}

void rk_written(int fd) { note_descriptor(fd, "/written.paths", true); }

/* Not what programs read of themselves, modules by the thousand, nor what the agent reads: it has rk_run as it is. */
static bool may_be_data(const char *path, size_t length) {
    static const char *const places[] = {"/proc/", "/sys/", "/dev/", "/usr/", "/etc/", "/lib/", "/lib64/"};
    static const char *const endings[] = {".py", ".pyc", ".so"};
    if (strncmp(path, rk_run, strlen(rk_run)) == 0) return false;
    for (size_t i = 0; i < RK_LENGTH(places); i++)
        if (strncmp(path, places[i], strlen(places[i])) == 0) return false;
    for (size_t i = 0; i < RK_LENGTH(endings); i++) {
        size_t n = strlen(endings[i]);
        if (length >= n && memcmp(path + length - n, endings[i], n) == 0) return false;
    }
    return true;
}

/* Whether this name was not met lately. Every open of the program waits for it: a few nanoseconds. */
static bool is_new_name(const char *path, size_t length) {
    static uint64_t seen[NAMES];
    uint64_t hash = length, word;
    for (; length >= sizeof(word); length -= sizeof(word), path += sizeof(word)) {
        memcpy(&word, path, sizeof(word));
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, path, length);
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15) | 1;
    uint64_t *places = &seen[(hash >> 32 & (NAMES / WAYS - 1)) * WAYS];
    unsigned free = hash >> 62;
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t other = __atomic_load_n(&places[i], __ATOMIC_RELAXED);
        if (other == hash) return false;
        if (!other) free = i;
    }
    __atomic_store_n(&places[free], hash, __ATOMIC_RELAXED);
    return true;
}

void rk_opened_to_read(int fd, const char *path) {
    static uint32_t noted;
    size_t length = strlen(path);
    if (RK_LIKELY(!is_new_name(path, length)) || !may_be_data(path, length)) return;
    if (__atomic_load_n(&noted, __ATOMIC_RELAXED) >= MOST_READ) return;
    __atomic_fetch_add(&noted, 1, __ATOMIC_RELAXED);
    note_descriptor(fd, "/read.paths", false);
}

/* A path that a rename made: opened once, for its absolute name without symbolic links. */
static void written_path(int directory, const char *path) {
    int fd = (int)rk_call(SYS_openat, directory, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return;
    note_descriptor(fd, "/written.paths", true);
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
