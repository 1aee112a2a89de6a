/* written.c - the names of the files that the run writes and reads: one line each in REPROKIT_RUN/written.paths
 * and read.paths, for the launcher, which takes their digests when the run has ended. What was renamed or linked
 * makes a line with both names. So it does not matter when a file was written, nor by whom: whatever is at the new name
 * at the end, or below it, was put there by the run. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "hooks.h"

#define REMEMBERED 4096  /* paths by their hash, so that a file opened again and again makes one line */
#define NAMES      16384 /* the same of names by which files are read; a power of two */
#define WAYS       4     /* places that one of them may have */
#define MOST_READ  12288 /* lines of read.paths by one process; known to launch/data.py */

#define SHORT  256 /* of names that are noted without a mapping */
#define MOMENT 32  /* bytes of a moment, with what stands before it */

/* For one line. Not on the stack: opens happen on threads and signal stacks of 8 to 16 KiB. */
struct scratch {
    char path[PATH_MAX], from[PATH_MAX], parent[PATH_MAX];
    char line[4 * PATH_MAX + MOMENT];
};

static struct scratch *take_scratch(void) {
    return rk_map(sizeof(struct scratch), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static bool is_new(const char *path, size_t length) {
    static uint64_t seen[REMEMBERED];
    uint64_t hash = rk_check(path, length, 1) | 1;
    return __atomic_exchange_n(&seen[hash / 2 % REMEMBERED], hash, __ATOMIC_RELAXED) != hash;
}

static bool is_in_the_run(const char *path) {
    const char *run = rk_run + strspn(rk_run, "/") - 1; /* without the padding */
    size_t n = strlen(run);
    return strncmp(path, run, n) == 0 && path[n] == '/';
}

static bool is_in_memory(const char *path) { return strncmp(path, "/dev/shm/", 9) == 0; }

/* Of what lies in memory, libc opens shared memory and semaphores by their names past every hook, or, before 2.34, as
 * Python opens temporary files: whatever else is opened there is a file as elsewhere. */
bool rk_is_shared_memory(const char *path, int flags) { return flags & O_NOFOLLOW && is_in_memory(path); }

static bool is_a_file_of_the_program(const char *path) {
    static const char *const others[] = {"/dev/", "/proc/", "/sys/", "/memfd:"};
    if (*path != '/') return false; /* a pipe or a socket */
    for (size_t i = 0; i < RK_LENGTH(others); i++)
        if (strncmp(path, others[i], strlen(others[i])) == 0 && !is_in_memory(path)) return false;
    return !is_in_the_run(path);
}

/* A backslash or a line feed in a name is written as "\\\\" or "\\n": one line a path. */
size_t rk_escape(char *line, const char *path) {
    size_t n = 0;
    for (; *path; path++) {
        if (*path == '\\' || *path == '\n') line[n++] = '\\';
        line[n++] = *path == '\n' ? 'n' : *path;
    }
    return n;
}

void rk_append_line(const char *list, const char *line, size_t length) {
    char file[RK_RUN_PATH + 32];
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, list);
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && rk_within_limit((uint64_t)end + length)) rk_call(SYS_write, fd, (long)line, (long)length, 0, 0, 0);
    rk_close(fd);
}

/* "\\@", when that is, and the line's end: what was noted later was done later, in whichever process and list. */
static size_t append_moment(char *line, size_t n) {
    struct timespec time = {0};
    rk_call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0, 0, 0);
    line[n++] = '\\';
    line[n++] = '@';
    n = rk_append_number(line, n + MOMENT - 3, n, (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec);
    line[n++] = '\n';
    return n;
}

/* The absolute name of what a descriptor means, and its length: 0 where it has none, or none any more, `size` and
 * more where there is no room for it. */
size_t rk_name_of(int fd, char *path, size_t size) {
    static const char gone[] = " (deleted)"; /* made by O_TMPFILE, say */
    char link[64];
    size_t n = rk_append(link, sizeof(link), 0, "/proc/self/fd/");
    rk_append_number(link, sizeof(link), n, (uint64_t)fd);
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, (long)size, 0, 0);
    if (length <= 0) return 0;
    if ((size_t)length >= size) return size;
    path[length] = 0;
    struct stat status;
    size_t end = (size_t)length - (length < (long)sizeof(gone) ? 0 : sizeof(gone) - 1);
    bool is_there =
        strcmp(path + end, gone) != 0 || rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 || status.st_nlink;
    return is_there ? (size_t)length : 0;
}

#define WRITTEN "/written.paths"

/* False where there is no room for its name. */
static bool note_name(int fd, bool is_read, char *path, size_t size, char *line) {
    size_t length = rk_name_of(fd, path, size);
    if (length == 0 || length >= size || !is_a_file_of_the_program(path)) return length < size;
    if (!is_read && !is_new(path, length)) return true; /* names that were read are looked at before */
    size_t n = append_moment(line, rk_escape(line, path));
    if (!is_read || !rk_note(line, n)) rk_append_line(is_read ? "/read.paths" : WRITTEN, line, n);
    return true;
}

static void note_descriptor(int fd, bool is_read) {
    char path[SHORT], line[2 * SHORT + MOMENT];
    if (RK_LIKELY(note_name(fd, is_read, path, sizeof(path), line))) return;
    struct scratch *scratch = take_scratch();
    if (!scratch) return;
    note_name(fd, is_read, scratch->path, sizeof(scratch->path), scratch->line);
    rk_unmap(scratch, sizeof(*scratch));
}

void rk_written(int fd) { note_descriptor(fd, false); }

static bool ends_with(const char *path, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length >= n && memcmp(path + length - n, ending, n) == 0;
}

/* "/lib/python3.12/": other directories of the name python may hold scripts. */
static bool is_in_the_library(const char *path) {
    static const char library[] = "/lib/python";
    const char *found = strstr(path, library);
    if (!found) return false;
    const char *version = found + sizeof(library) - 1, *minor = version + strspn(version, "0123456789");
    return minor > version && *minor == '.' && minor[1 + strspn(minor + 1, "0123456789")] == '/';
}

/* The agent lies beside the shim: PACKAGE/agent/ and PACKAGE/_shim/NAME. Looked up at the start, as it takes a lock. */
static const char *shim = "";
static size_t package; /* how much of the name it is */

void rk_written_start(void) {
    uint64_t offset;
    shim = rk_module((const void *)&shim, &offset);
    package = strlen(shim);
    for (int slashes = 2; package > 0 && slashes > 0;) slashes -= shim[--package] == '/';
}

static bool is_of_the_agent(const char *path) {
    return package && strncmp(path, shim, package) == 0 && strncmp(path + package, "/agent/", 7) == 0;
}

/* Not modules that are installed, which programs read by the thousand, nor libraries, which the loader names, nor what
 * the agent reads: it has rk_run as it is. In /usr/src and the rest of /usr/local images have their applications. */
static bool may_be_data(const char *path, size_t length) {
    static const char *const places[] = {"/proc/",          "/sys/",           "/dev/",           "/etc/",
                                         "/lib/",           "/lib64/",         "/usr/bin/",       "/usr/include/",
                                         "/usr/lib/",       "/usr/lib64/",     "/usr/libexec/",   "/usr/share/",
                                         "/usr/local/bin/", "/usr/local/cuda", "/usr/local/lib/", "/usr/local/share/"};
    if (strncmp(path, rk_run, strlen(rk_run)) == 0 || ends_with(path, length, ".so")) return false;
    for (size_t i = 0; i < RK_LENGTH(places); i++)
        if (length > 1 && path[1] == places[i][1] && strncmp(path, places[i], strlen(places[i])) == 0)
            return is_in_memory(path);
    if (!ends_with(path, length, ".py") && !ends_with(path, length, ".pyc")) return true;
    if (strstr(path, "/site-packages/") || strstr(path, "/dist-packages/") || is_in_the_library(path)) return false;
    return !is_of_the_agent(path);
}

/* Whether this name was not met lately. Every open of the program waits for it: a few nanoseconds. A program's first
 * names touch another page each, so what is no data is not looked for. */
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
    /* By its highest bits: a name's last bytes reach no others. */
    uint64_t *places = &seen[hash / (UINT64_MAX / (NAMES / WAYS) + 1) * WAYS];
    unsigned free = hash >> 40 & (WAYS - 1);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t other = __atomic_load_n(&places[i], __ATOMIC_RELAXED);
        if (other == hash) return false;
        if (!other) free = i;
    }
    __atomic_store_n(&places[free], hash, __ATOMIC_RELAXED);
    return true;
}

static bool is_regular(int fd, struct stat *status) {
    return rk_call(SYS_fstat, fd, (long)status, 0, 0, 0, 0) == 0 && S_ISREG(status->st_mode);
}

void rk_opened_to_read(int fd, const char *path) {
    static uint32_t noted;
    size_t length = strlen(path);
    struct stat status;
    if (!may_be_data(path, length) || RK_LIKELY(!is_new_name(path, length)) || !is_regular(fd, &status)) return;
    if (__atomic_load_n(&noted, __ATOMIC_RELAXED) >= MOST_READ) return;
    __atomic_fetch_add(&noted, 1, __ATOMIC_RELAXED);
    note_descriptor(fd, true);
}

/* An open for both: what an empty file holds, such as one that was just made, is nothing that is read. */
void rk_opened_to_change(int fd, const char *path) {
    struct stat status;
    if (is_regular(fd, &status) && status.st_size > 0) rk_opened_to_read(fd, path);
}

/* ---- names that are given ------------------------------------------------------------------------------ */

/* The absolute name of an entry of a directory, which is not followed where it is a symbolic link. */
static bool entry_name(int directory, const char *name, char path[PATH_MAX], char parent[PATH_MAX]) {
    size_t length = strlen(name);
    while (length > 1 && name[length - 1] == '/') length--;
    if (length == 0 || length >= PATH_MAX) return false;
    size_t start = length;
    while (start > 0 && name[start - 1] != '/') start--;
    rk_append(parent, PATH_MAX, 0, start ? name : ".");
    if (start) parent[start] = 0;
    int fd = (int)rk_call(SYS_openat, directory, (long)parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return false;
    size_t n = rk_name_of(fd, path, PATH_MAX);
    rk_close(fd);
    if (n == 0 || n + 1 + length - start >= PATH_MAX) return false;
    if (n > 1) path[n++] = '/'; /* else it is the root */
    memcpy(path + n, name + start, length - start);
    path[n + length - start] = 0;
    return true;
}

/* A line "FROM\\>TO", or "\\>TO" for what was nowhere before. */
static void note_placed(int from_directory, const char *from, int to_directory, const char *to) {
    struct scratch *scratch = take_scratch();
    if (!scratch) return;
    char *line = scratch->line;
    if (entry_name(to_directory, to, scratch->path, scratch->parent) && is_a_file_of_the_program(scratch->path)) {
        bool has_from = from && entry_name(from_directory, from, scratch->from, scratch->parent);
        size_t n = has_from ? rk_escape(line, scratch->from) : 0;
        line[n++] = '\\';
        line[n++] = '>';
        n += rk_escape(line + n, scratch->path);
        if (is_new(line, n)) rk_append_line(WRITTEN, line, append_moment(line, n));
    }
    rk_unmap(scratch, sizeof(*scratch));
}

static int placed(int result, int from_directory, const char *from, int to_directory, const char *to) {
    if (result == 0 && rk_active()) note_placed(from_directory, from, to_directory, to);
    return result;
}

RK_EXPORT int rename(const char *from, const char *to) {
    return placed(RK_REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

RK_EXPORT int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return placed(RK_REAL(renameat)(from_directory, from, to_directory, to), from_directory, from, to_directory, to);
}

RK_EXPORT int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    int result = RK_REAL(renameat2)(from_directory, from, to_directory, to, flags);
    if (flags & RENAME_EXCHANGE) placed(result, to_directory, to, from_directory, from);
    return placed(result, from_directory, from, to_directory, to);
}

RK_EXPORT int link(const char *from, const char *to) {
    return placed(RK_REAL(link)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

RK_EXPORT int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    int result = RK_REAL(linkat)(from_directory, from, to_directory, to, flags);
    return placed(result, from_directory, from, to_directory, to);
}

RK_EXPORT int symlink(const char *target, const char *path) {
    return placed(RK_REAL(symlink)(target, path), AT_FDCWD, NULL, AT_FDCWD, path);
}

RK_EXPORT int symlinkat(const char *target, int directory, const char *path) {
    return placed(RK_REAL(symlinkat)(target, directory, path), AT_FDCWD, NULL, directory, path);
}

/* By their numbers, as syscall() is asked for them. */
long rk_syscall_placed(long number, long a, long b, long c, long d, long e) {
    switch (number) {
#ifdef SYS_rename
    case SYS_rename:
        return rename((const char *)a, (const char *)b);
    case SYS_link:
        return link((const char *)a, (const char *)b);
    case SYS_symlink:
        return symlink((const char *)a, (const char *)b);
#endif
#ifdef SYS_renameat
    case SYS_renameat:
        return renameat((int)a, (const char *)b, (int)c, (const char *)d);
#endif
    case SYS_renameat2:
        return renameat2((int)a, (const char *)b, (int)c, (const char *)d, (unsigned)e);
    case SYS_linkat:
        return linkat((int)a, (const char *)b, (int)c, (const char *)d, (int)e);
    default:
        return symlinkat((const char *)a, (int)b, (const char *)c);
    }
}

/* ---- files that are cut off by their name ------------------------------------------------------------------ */

static int written_path(int result, const char *path) {
    if (result != 0 || !rk_active()) return result;
    int fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return result;
    rk_written(fd);
    rk_close(fd);
    return result;
}

RK_EXPORT int truncate(const char *path, off_t size) { return written_path(RK_REAL(truncate)(path, size), path); }
RK_EXPORT int truncate64(const char *path, off64_t size) { return written_path(RK_REAL(truncate64)(path, size), path); }
