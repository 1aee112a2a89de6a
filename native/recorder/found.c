/* found.c - keeps what a recording is about to change, as its replays must start from the files that it found.
 *
 * A file is copied before it is opened for writing, replaced, moved or removed, if nobody changed it since the run
 * began: its ctime says so, and nothing needs to be remembered. All processes share the size of all copies. Each file
 * makes a line in REPROKIT_RUN/found.paths, copied or not.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/found.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/reach.h"
#include "recorder/system.h"

#define NOTED    256        /* hashes of files, so that one that is opened repeatedly is looked at once */
#define MARGIN   (64 << 20) /* bytes left free on the disk */
#define TRIES    100        /* of a copy that signals interrupt */
#define NO_COPY  "-"
#define KEPT     64 /* bytes of a copy's name */
#define FILE_OF  "/found/"
#define PATH     (RK_RUN_PATH + KEPT)
#define INTEGERS 5 /* in a line */

_Static_assert(2 * PATH <= PATH_MAX, "two paths fit into one");
_Static_assert(INTEGERS *RK_MOMENT + KEPT <= 8 * RK_MOMENT + PATH_MAX, "a line fits");

static bool is_of_start(const struct stat *status) {
    return (int64_t)status->st_ctim.tv_sec * 1000000000 + status->st_ctim.tv_nsec < rk_plan.started;
}

static bool is_first_look(const struct stat *status) {
    static uint64_t noted[NOTED];
    const uint64_t key[] = {status->st_dev, status->st_ino, (uint64_t)status->st_ctim.tv_nsec};
    uint64_t hash = rk_check(key, sizeof(key), 2) | 1;
    return __atomic_exchange_n(&noted[hash / 2 % NOTED], hash, __ATOMIC_RELAXED) != hash;
}

/* Returns whether a path lies where programs keep their own things; the first are names of directories, as in
 * NOISE of reprokit/run_files/names.py. */
static bool is_noise(const char *path) {
    static const char *const noise[] = {
        "/.cache/",    "/.git/",    "/.ipynb_checkpoints/", "/.ipython/",      "/.jupyter/",
        "/.keras/",    "/.nv/",     "/.matplotlib/",        "/.mypy_cache/",   "/.pytest_cache/",
        "/.reprokit/", "/.triton/", "/__pycache__/",        "/site-packages/", "/dist-packages/",
    };
    for (size_t i = 0; i < RK_LENGTH(noise); i++)
        if (strstr(path, noise[i])) return true;
    return false;
}

/* ---- one copy ------------------------------------------------------------------------------------------- */

/* Paths are in the scratch memory, as stacks can be small: what was a parent's path is no longer needed. */
static char *make_path(struct rk_scratch *scratch, size_t number, const char *name, const char *suffix) {
    char *path = scratch->parent + number * PATH;
    size_t n = rk_append(path, PATH, 0, rk_run);
    n = rk_append(path, PATH, n, FILE_OF);
    n = rk_append(path, PATH, n, name);
    rk_append(path, PATH, n, suffix);
    return path;
}

/* Takes bytes from what all processes may copy; a negative number gives them back. */
static bool take_room(struct rk_scratch *scratch, int64_t size) {
    struct stat status;
    int fd = rk_open(make_path(scratch, 0, "room", ""), O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0) return false;
    bool is_whole = rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) == 0 && status.st_size == sizeof(int64_t);
    int64_t *room = is_whole ? rk_map(sizeof(*room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
    rk_close(fd);
    if (!room) return false;
    bool has_room = __atomic_sub_fetch(room, size, __ATOMIC_RELAXED) >= 0;
    if (!has_room) __atomic_add_fetch(room, size, __ATOMIC_RELAXED);
    rk_unmap(room, sizeof(*room));
    return has_room;
}

static bool has_disk(int fd, uint64_t size) {
    struct statfs disk;
    return rk_within_limit(size) && rk_call(SYS_fstatfs, fd, (long)&disk, 0, 0, 0, 0) == 0 &&
           disk.f_bavail * (uint64_t)disk.f_bsize >= size + MARGIN;
}

/* Copies in the kernel, which shares blocks if the file system can. */
static bool copy_bytes(int from, int to, uint64_t size) {
    int tries = TRIES;
    while (size > 0) {
        long n = rk_call(SYS_copy_file_range, from, 0, to, 0, (long)size, 0);
        if (n < 0 && n != -EINTR) n = rk_call(SYS_sendfile, to, from, 0, (long)size, 0, 0);
        if (n == -EINTR && tries-- > 0) continue;
        if (n <= 0) return false;
        size -= (uint64_t)n;
    }
    return true;
}

/* Whether the file that was opened is the one that was looked at, unchanged. */
static bool is_same(int fd, const struct stat *before) {
    struct stat now;
    return rk_call(SYS_fstat, fd, (long)&now, 0, 0, 0, 0) == 0 && now.st_ino == before->st_ino &&
           now.st_dev == before->st_dev && now.st_size == before->st_size && is_of_start(&now);
}

static bool fill_copy(int from, const char *path, const struct stat *status) {
    const struct timespec times[] = {status->st_mtim, status->st_mtim};
    int to = rk_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (to < 0) return false;
    bool is_whole = is_same(from, status) && has_disk(to, (uint64_t)status->st_size) &&
                    copy_bytes(from, to, (uint64_t)status->st_size) && is_same(from, status);
    rk_call(SYS_utimensat, to, 0, (long)times, 0, 0, 0);
    rk_close(to);
    return is_whole;
}

/* Copies a file under a temporary name first: another process may copy it too, and change it once it has. */
static bool make_copy(struct rk_scratch *scratch, int from, const char *name, const struct stat *status) {
    char suffix[32] = ".";
    rk_append(suffix, sizeof(suffix), rk_append_number(suffix, sizeof(suffix), 1, (uint64_t)rk_getpid()), ".new");
    const char *path = make_path(scratch, 0, name, ""), *part = make_path(scratch, 1, name, suffix);
    if (rk_call(SYS_faccessat, AT_FDCWD, (long)path, 0, 0, 0, 0) == 0) return true;
    bool is_copied = fill_copy(from, part, status);
    long error =
        is_copied ? rk_call(SYS_renameat2, AT_FDCWD, (long)part, AT_FDCWD, (long)path, RK_NO_REPLACE, RK_MARK) : -EIO;
    if (error) rk_call(SYS_unlinkat, AT_FDCWD, (long)part, 0, 0, 0, 0);
    return !error || error == -EEXIST;
}

/* Writes the name of the copy, or "-". */
static void keep_bytes(struct rk_scratch *scratch, int directory, const char *path, const struct stat *status,
                       int flags, char name[KEPT]) {
    size_t n = rk_append_number(name, KEPT, 0, status->st_dev);
    n = rk_append(name, KEPT, n, "-");
    rk_append_number(name, KEPT, n, status->st_ino);
    flags |= O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int from = (int)rk_call(SYS_openat, directory, (long)path, flags, 0, 0, RK_MARK);
    bool has_room = from >= 0 && take_room(scratch, status->st_size);
    bool is_kept = has_room && make_copy(scratch, from, name, status);
    if (has_room && !is_kept) take_room(scratch, -status->st_size);
    if (from >= 0) rk_close(from);
    if (!is_kept) rk_append(name, KEPT, 0, NO_COPY);
}

/* ---- one file ------------------------------------------------------------------------------------------- */

static bool find_name(int directory, const char *path, enum rk_change change, struct rk_scratch *scratch) {
    if (change != RK_OPENED) return rk_entry_name(directory, path, scratch->path, scratch->parent);
    int fd = (int)rk_call(SYS_openat, directory, (long)path, O_PATH | O_CLOEXEC, 0, 0, 0);
    if (fd < 0) return false;
    size_t n = rk_name_of(fd, scratch->path, sizeof(scratch->path));
    rk_close(fd);
    return n > 0 && n < sizeof(scratch->path);
}

/* Returns what the file is, by a letter; 0 if it is of no interest. */
static char kind_of(const struct stat *status, enum rk_change change) {
    if (S_ISREG(status->st_mode)) return 'f';
    if (S_ISLNK(status->st_mode)) return 'l';
    if (!S_ISDIR(status->st_mode)) return 0;
    return change == RK_MOVED ? 'm' : change == RK_REMOVED ? 'd' : 0;
}

/* Writes "KIND COPY SIZE MODE MTIME PATH", of a symbolic link with "TARGET\>" before the path. */
static size_t write_line(struct rk_scratch *scratch, char kind, const char *kept, const struct stat *status) {
    const uint64_t numbers[] = {(uint64_t)status->st_size, status->st_mode & 07777,
                                (uint64_t)status->st_mtim.tv_sec * 1000000000 + (uint64_t)status->st_mtim.tv_nsec};
    char *line = scratch->line;
    const size_t size = sizeof(scratch->line);
    line[0] = kind;
    size_t n = rk_append(line, size, 1, " ");
    n = rk_append(line, size, n, kept);
    for (size_t i = 0; i < RK_LENGTH(numbers); i++)
        n = rk_append_number(line, size, rk_append(line, size, n, " "), numbers[i]);
    n = rk_append(line, size, n, " ");
    if (kind == 'l') n = rk_append(line, size, n + rk_escape(line + n, scratch->from), "\\>");
    n += rk_escape(line + n, scratch->path);
    line[n++] = '\n';
    return n;
}

/* Not inlined: the usual case must not pay for its stack. */
__attribute__((noinline)) static void keep(int directory, const char *path, const struct stat *status,
                                           enum rk_change change, struct rk_scratch *scratch) {
    char kept[KEPT] = NO_COPY, kind = kind_of(status, change);
    if (!find_name(directory, path, change, scratch) || !rk_is_program_file(scratch->path) || is_noise(scratch->path))
        return;
    if (kind == 'f') keep_bytes(scratch, directory, path, status, change == RK_OPENED ? 0 : O_NOFOLLOW, kept);
    if (kind == 'l') {
        long n = rk_call(SYS_readlinkat, directory, (long)path, (long)scratch->from, PATH_MAX - 1, 0, 0);
        scratch->from[n < 0 ? 0 : n] = 0;
    }
    rk_append_line("/found.paths", scratch->line, write_line(scratch, kind, kept, status));
}

void rk_before_change(int directory, const char *path, enum rk_change change) {
    struct stat status;
    int flags = change == RK_OPENED ? 0 : AT_SYMLINK_NOFOLLOW;
    if (!rk_records() || !rk_plan.started) return;
    if (rk_call(SYS_newfstatat, directory, (long)path, (long)&status, flags, 0, 0) != 0) return;
    if (RK_LIKELY(!is_of_start(&status)) || !kind_of(&status, change) || !is_first_look(&status)) return;
    struct rk_scratch *scratch = rk_take_scratch();
    if (!scratch) return;
    keep(directory, path, &status, change, scratch);
    rk_give_scratch(scratch);
}
