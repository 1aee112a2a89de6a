/* written.c - the names of the files that the run writes and reads: one line each in REPROKIT_RUN/written.paths
 * and read.paths, for the launcher, which takes their digests after the run. A rename or link is a line with both
 * names. So it does not matter when a file was written, nor by which process: what is at the new name at the end, or
 * below it, comes from the run. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "hooks.h"

#define REMEMBERED 4096  /* hashes of written paths, so that a file opened repeatedly makes one line */
#define NAMES      16384 /* hashes of read names, for the same purpose; a power of two */
#define WAYS       4     /* entries of a set in the table of read names */
#define MOST_READ  12288 /* lines of read.paths per process; launch/data.py has it too */

#define SHORT  256 /* longest name that is recorded without a mapping */
#define MOMENT 32  /* bytes of a time stamp with its prefix */

/* Buffers for one line. Too large for the stack: opens happen on thread and signal stacks of 8 to 16 KiB. */
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

static bool is_in_run(const char *path) {
    const char *run = rk_run + strspn(rk_run, "/") - 1; /* without the padding */
    size_t n = strlen(run);
    return strncmp(path, run, n) == 0 && path[n] == '/';
}

static bool is_in_memory(const char *path) { return strncmp(path, "/dev/shm/", 9) == 0; }

/* Returns whether libc opens shared memory or a semaphore, which only glibc before 2.34 does through hooks. Python
 * opens temporary files in the same way. Other files in /dev/shm are like those elsewhere. */
bool rk_is_shared_memory(const char *path, int flags) { return flags & O_NOFOLLOW && is_in_memory(path); }

static bool is_program_file(const char *path) {
    static const char *const system_directories[] = {"/dev/", "/proc/", "/sys/", "/memfd:"};
    if (*path != '/') return false; /* a pipe or a socket */
    for (size_t i = 0; i < RK_LENGTH(system_directories); i++)
        if (strncmp(path, system_directories[i], strlen(system_directories[i])) == 0 && !is_in_memory(path))
            return false;
    return !is_in_run(path);
}

/* Escapes a backslash as "\\\\" and a line feed as "\\n", so that each path is one line. */
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

/* Appends "\\@", the monotonic time in nanoseconds and a line feed. The times order lines of all processes and lists.
 */
static size_t append_moment(char *line, size_t n) {
    struct timespec time = {0};
    rk_call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0, 0, 0);
    line[n++] = '\\';
    line[n++] = '@';
    n = rk_append_number(line, n + MOMENT - 3, n, (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec);
    line[n++] = '\n';
    return n;
}

/* Writes the absolute path of a descriptor and returns its length: 0 if it has none or was deleted, at least `size` if
 * it does not fit. */
size_t rk_name_of(int fd, char *path, size_t size) {
    static const char deleted_suffix[] = " (deleted)"; /* also of files opened with O_TMPFILE */
    char link[64];
    size_t n = rk_append(link, sizeof(link), 0, "/proc/self/fd/");
    rk_append_number(link, sizeof(link), n, (uint64_t)fd);
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, (long)size, 0, 0);
    if (length <= 0) return 0;
    if ((size_t)length >= size) return size;
    path[length] = 0;
    struct stat status;
    size_t end = (size_t)length - (length < (long)sizeof(deleted_suffix) ? 0 : sizeof(deleted_suffix) - 1);
    bool has_name = strcmp(path + end, deleted_suffix) != 0 || rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 ||
                    status.st_nlink;
    return has_name ? (size_t)length : 0;
}

#define WRITTEN "/written.paths"

/* Records a descriptor's name; false if the buffer is too small. */
static bool record_name(int fd, bool is_read, char *path, size_t size, char *line) {
    size_t length = rk_name_of(fd, path, size);
    if (length == 0 || length >= size || !is_program_file(path)) return length < size;
    if (!is_read && !is_new(path, length)) return true; /* names of files that are read were checked before */
    size_t n = append_moment(line, rk_escape(line, path));
    if (!is_read || !rk_note(line, n)) rk_append_line(is_read ? "/read.paths" : WRITTEN, line, n);
    return true;
}

static void record_descriptor(int fd, bool is_read) {
    char path[SHORT], line[2 * SHORT + MOMENT];
    if (RK_LIKELY(record_name(fd, is_read, path, sizeof(path), line))) return;
    struct scratch *scratch = take_scratch();
    if (!scratch) return;
    record_name(fd, is_read, scratch->path, sizeof(scratch->path), scratch->line);
    rk_unmap(scratch, sizeof(*scratch));
}

void rk_written(int fd) { record_descriptor(fd, false); }

static bool ends_with(const char *path, size_t length, const char *ending) {
    size_t n = strlen(ending);
    return length >= n && memcmp(path + length - n, ending, n) == 0;
}

/* Returns whether a path contains, say, "/lib/python3.12/"; other directories named python may hold scripts. */
static bool is_in_standard_library(const char *path) {
    static const char library[] = "/lib/python";
    const char *match = strstr(path, library);
    if (!match) return false;
    const char *version = match + sizeof(library) - 1, *minor = version + strspn(version, "0123456789");
    return minor > version && *minor == '.' && minor[1 + strspn(minor + 1, "0123456789")] == '/';
}

/* The agent is next to the shim: PACKAGE/agent/ and PACKAGE/_shim/NAME. Set at the start, as the lookup takes a lock.
 */
static const char *shim_path = "";
static size_t package_length; /* bytes of shim_path up to PACKAGE */

void rk_written_start(void) {
    uint64_t offset;
    shim_path = rk_module((const void *)&shim_path, &offset);
    package_length = strlen(shim_path);
    for (int slashes = 2; package_length > 0 && slashes > 0;) slashes -= shim_path[--package_length] == '/';
}

static bool is_agent_file(const char *path) {
    return package_length && strncmp(path, shim_path, package_length) == 0 &&
           strncmp(path + package_length, "/agent/", 7) == 0;
}

/* Returns whether a file may be data of the training. Excluded are installed modules, which programs read by the
 * thousand, libraries, which the loader reports, and files of the agent, whose paths begin with rk_run. Container
 * images have applications in /usr/src and the rest of /usr/local. */
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
    if (strstr(path, "/site-packages/") || strstr(path, "/dist-packages/") || is_in_standard_library(path))
        return false;
    return !is_agent_file(path);
}

/* Returns whether this name was not seen recently. Every open waits for this, for some nanoseconds. A program's first
 * names fault a new page each, so only names that may be data get here. */
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
    /* The highest bits select the set: the last bytes of a name affect only these. */
    uint64_t *places = &seen[hash / (UINT64_MAX / (NAMES / WAYS) + 1) * WAYS];
    unsigned victim = hash >> 40 & (WAYS - 1);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t entry = __atomic_load_n(&places[i], __ATOMIC_RELAXED);
        if (entry == hash) return false;
        if (!entry) victim = i;
    }
    __atomic_store_n(&places[victim], hash, __ATOMIC_RELAXED);
    return true;
}

static bool is_regular(int fd, struct stat *status) {
    return rk_call(SYS_fstat, fd, (long)status, 0, 0, 0, 0) == 0 && S_ISREG(status->st_mode);
}

void rk_opened_to_read(int fd, const char *path) {
    static uint32_t recorded;
    size_t length = strlen(path);
    struct stat status;
    if (!may_be_data(path, length) || RK_LIKELY(!is_new_name(path, length)) || !is_regular(fd, &status)) return;
    if (__atomic_load_n(&recorded, __ATOMIC_RELAXED) >= MOST_READ) return;
    __atomic_fetch_add(&recorded, 1, __ATOMIC_RELAXED);
    record_descriptor(fd, true);
}

/* An open for reading and writing: an empty file, perhaps just created, has no content to read. */
void rk_opened_to_change(int fd, const char *path) {
    struct stat status;
    if (is_regular(fd, &status) && status.st_size > 0) rk_opened_to_read(fd, path);
}

/* ---- new names of files ------------------------------------------------------------------------------ */

/* Writes the absolute path of a directory entry, without following it if it is a symbolic link. */
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

/* Records a line "FROM\\>TO", or "\\>TO" if there was no name before. */
static void record_new_name(int from_directory, const char *from, int to_directory, const char *to) {
    struct scratch *scratch = take_scratch();
    if (!scratch) return;
    char *line = scratch->line;
    if (entry_name(to_directory, to, scratch->path, scratch->parent) && is_program_file(scratch->path)) {
        bool has_from = from && entry_name(from_directory, from, scratch->from, scratch->parent);
        size_t n = has_from ? rk_escape(line, scratch->from) : 0;
        line[n++] = '\\';
        line[n++] = '>';
        n += rk_escape(line + n, scratch->path);
        if (is_new(line, n)) rk_append_line(WRITTEN, line, append_moment(line, n));
    }
    rk_unmap(scratch, sizeof(*scratch));
}

static int after_naming(int result, int from_directory, const char *from, int to_directory, const char *to) {
    if (result == 0 && rk_active()) record_new_name(from_directory, from, to_directory, to);
    return result;
}

RK_EXPORT int rename(const char *from, const char *to) {
    return after_naming(RK_REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}

RK_EXPORT int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return after_naming(RK_REAL(renameat)(from_directory, from, to_directory, to), from_directory, from, to_directory,
                        to);
}

RK_EXPORT int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    int result = RK_REAL(renameat2)(from_directory, from, to_directory, to, flags);
    if (flags & RENAME_EXCHANGE) after_naming(result, to_directory, to, from_directory, from);
    return after_naming(result, from_directory, from, to_directory, to);
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

/* ---- files that are truncated by their name ------------------------------------------------------------------ */

static int after_truncate(int result, const char *path) {
    if (result != 0 || !rk_active()) return result;
    int fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return result;
    rk_written(fd);
    rk_close(fd);
    return result;
}

RK_EXPORT int truncate(const char *path, off_t size) { return after_truncate(RK_REAL(truncate)(path, size), path); }
RK_EXPORT int truncate64(const char *path, off64_t size) {
    return after_truncate(RK_REAL(truncate64)(path, size), path);
}
