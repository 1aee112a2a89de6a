/* names.c - names of files, as lines of the run's lists: one line each in REPROKIT_RUN/written.paths, say. A rename or
 * link is a line with both names. So it does not matter when a file was written, nor by which process: what is at the
 * new name at the end, or below it, comes from the run.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/system.h"

#define REMEMBERED 4096 /* hashes of written paths, so that a file opened repeatedly makes one line */

struct rk_scratch *rk_take_scratch(void) {
    return rk_map(sizeof(struct rk_scratch), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

void rk_give_scratch(struct rk_scratch *scratch) { rk_unmap(scratch, sizeof(*scratch)); }

bool rk_is_new(const char *line, size_t length) {
    static uint64_t seen[REMEMBERED];
    uint64_t hash = rk_check(line, length, 1) | 1;
    return __atomic_exchange_n(&seen[hash / 2 % REMEMBERED], hash, __ATOMIC_RELAXED) != hash;
}

static bool is_in_run(const char *path) {
    const char *run = rk_run + strspn(rk_run, "/") - 1; /* without the padding */
    size_t n = strlen(run);
    return strncmp(path, run, n) == 0 && path[n] == '/';
}

bool rk_is_in_memory(const char *path) { return strncmp(path, "/dev/shm/", 9) == 0; }

bool rk_is_program_file(const char *path) {
    static const char *const system_directories[] = {"/dev/", "/proc/", "/sys/", "/memfd:"};
    if (*path != '/') return false; /* a pipe or a socket */
    for (size_t i = 0; i < RK_LENGTH(system_directories); i++)
        if (strncmp(path, system_directories[i], strlen(system_directories[i])) == 0 && !rk_is_in_memory(path))
            return false;
    return !is_in_run(path);
}

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

size_t rk_append_moment(char *line, size_t n) {
    struct timespec time = {0};
    rk_call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0, 0, 0);
    line[n++] = '\\';
    line[n++] = '@';
    n = rk_append_number(line, n + RK_MOMENT - 3, n, (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec);
    line[n++] = '\n';
    return n;
}

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

bool rk_entry_name(int directory, const char *name, char path[PATH_MAX], char parent[PATH_MAX]) {
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

void rk_record_new_name(int from_directory, const char *from, int to_directory, const char *to) {
    struct rk_scratch *scratch = rk_take_scratch();
    if (!scratch) return;
    char *line = scratch->line;
    if (rk_entry_name(to_directory, to, scratch->path, scratch->parent) && rk_is_program_file(scratch->path)) {
        bool has_from = from && rk_entry_name(from_directory, from, scratch->from, scratch->parent);
        size_t n = has_from ? rk_escape(line, scratch->from) : 0;
        line[n++] = '\\';
        line[n++] = '>';
        n += rk_escape(line + n, scratch->path);
        if (rk_is_new(line, n)) rk_append_line(RK_WRITTEN, line, rk_append_moment(line, n));
    }
    rk_give_scratch(scratch);
}
