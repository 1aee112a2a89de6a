/* written.c - the names of the files that the run opens to write and to read: one line each in
 * REPROKIT_RUN/written.paths and read.paths, for the launcher, which takes their digests after the run.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "shim/notes/notes.h"
#include "shim/notes/written.h"

#define NAMES     16384 /* hashes of read names, so that a file opened repeatedly makes one line; a power of two */
#define WAYS      4     /* entries of a set in the table of read names */
#define MOST_READ 12288 /* lines of read.paths per process; run/data.py has it too */
#define SHORT     256   /* longest name that is recorded without a mapping */

/* Returns whether libc opens shared memory or a semaphore, which only glibc before 2.34 does through hooks. Python
 * opens temporary files in the same way. Other files in /dev/shm are like those elsewhere. */
bool rk_is_shared_memory(const char *path, int flags) { return flags & O_NOFOLLOW && rk_is_in_memory(path); }

/* Records a descriptor's name; false if the buffer is too small. */
static bool record_name(int fd, bool is_read, char *path, size_t size, char *line) {
    size_t length = rk_name_of(fd, path, size);
    if (length == 0 || length >= size || !rk_is_program_file(path)) return length < size;
    if (!is_read && !rk_is_new(path, length)) return true; /* names of files that are read were checked before */
    size_t n = rk_append_moment(line, rk_escape(line, path));
    if (!is_read || !rk_note(line, n)) rk_append_line(is_read ? "/read.paths" : RK_WRITTEN, line, n);
    return true;
}

static void record_descriptor(int fd, bool is_read) {
    char path[SHORT], line[2 * SHORT + RK_MOMENT];
    if (RK_LIKELY(record_name(fd, is_read, path, sizeof(path), line))) return;
    struct rk_scratch *scratch = rk_take_scratch();
    if (!scratch) return;
    record_name(fd, is_read, scratch->path, sizeof(scratch->path), scratch->line);
    rk_give_scratch(scratch);
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
            return rk_is_in_memory(path);
    if (is_agent_file(path)) return false;
    if (!ends_with(path, length, ".py") && !ends_with(path, length, ".pyc")) return true;
    return !strstr(path, "/site-packages/") && !strstr(path, "/dist-packages/") && !is_in_standard_library(path);
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
