/* devices.c - /dev/urandom and /dev/random, and the kernel's random texts, however they are opened and read.
 *
 * An open returns the real descriptor, so that all other calls on it have their real results, and marks the
 * descriptor. A mark means "may be the device". The first read checks that by fstat, whatever the path was, and
 * unmarks every other file. A descriptor of the device is checked before each read, as descriptors are closed and
 * reused in ways that no hook sees (close_range, fclose, a vfork child). So an open costs nothing, and a read of an
 * ordinary file one bit test. stdio reads inside libc, where no hook sees it: for the device it gets a stream whose
 * bytes come from this file.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "recorder/calls.h"
#include "recorder/fill.h"
#include "recorder/found.h"
#include "recorder/host.h"
#include "recorder/lost.h"
#include "recorder/plan.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/pids.h"
#include "shim/identity/state.h"
#include "shim/notes/console.h"
#include "shim/notes/pipes.h"
#include "shim/notes/written.h"
#include "shim/sources/devices.h"
#include "shim/sources/filetimes.h"
#include "shim/sources/text.h"

#define LOWEST 64    /* inherited descriptors that are checked one by one */
#define MARKED 65536 /* descriptors below this can be marked; higher ones are checked at each read */

static uint64_t marks[MARKED / 64];
static int high_mark; /* a descriptor of MARKED or more was opened */

static inline bool is_marked(int fd) {
    if (RK_UNLIKELY((unsigned)fd >= MARKED)) return fd >= 0 && __atomic_load_n(&high_mark, __ATOMIC_RELAXED);
    return __atomic_load_n(&marks[fd / 64], __ATOMIC_RELAXED) >> fd % 64 & 1;
}

static inline void mark(int fd) {
    if (fd >= MARKED)
        __atomic_store_n(&high_mark, 1, __ATOMIC_RELAXED);
    else if (fd >= 0 && !is_marked(fd))
        __atomic_or_fetch(&marks[fd / 64], UINT64_C(1) << fd % 64, __ATOMIC_RELAXED);
}

enum kind { ORDINARY = 0, DEVICE, TEXT, PIPE }; /* PIPE + the index of the pipe */

/* Linux: /dev/random is character device 1:8, /dev/urandom 1:9 (admin-guide/devices.txt). */
static enum kind kind_by_status(int fd, const struct stat *status) {
    if (!S_ISCHR(status->st_mode)) return rk_is_text(fd, status) ? TEXT : ORDINARY;
    return status->st_rdev == makedev(1, 8) || status->st_rdev == makedev(1, 9) ? DEVICE : ORDINARY;
}

static enum kind kind_of_descriptor(int fd) {
    struct stat status;
    return rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) == 0 ? kind_by_status(fd, &status) : ORDINARY;
}

static int unmark_ordinary(int fd, int kind) {
    if (kind == ORDINARY && fd < MARKED)
        __atomic_and_fetch(&marks[fd / 64], ~(UINT64_C(1) << fd % 64), __ATOMIC_RELAXED);
    return kind;
}

/* Returns the kind of a marked descriptor, which may also be a pipe from outside of the run. */
static int kind_of_marked(int fd, const struct stat *status) {
    int number = S_ISFIFO(status->st_mode) ? rk_pipe_of(fd, status) : -1;
    return number < 0 ? (int)kind_by_status(fd, status) : PIPE + number;
}

static int confirm_kind(int fd) {
    struct stat status;
    if (RK_LIKELY(!is_marked(fd))) return ORDINARY;
    bool is_open = rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) == 0;
    return unmark_ordinary(fd, is_open ? kind_of_marked(fd, &status) : ORDINARY);
}

static bool is_written(int flags) {
    return (flags & O_ACCMODE) == O_WRONLY || (flags & O_ACCMODE) == O_RDWR || flags & O_TRUNC;
}

static inline void record_opened(int fd, const char *path, int flags) {
    if (RK_UNLIKELY(rk_is_shared_memory(path, flags))) return;
    if (RK_LIKELY(!is_written(flags))) {
        rk_opened_to_read(fd, path);
        return;
    }
    if ((flags & (O_ACCMODE | O_TRUNC)) == O_RDWR) rk_opened_to_change(fd, path);
    rk_written(fd);
}

/* Returns whether a path names a descriptor, which may be a pipe without a name of its own. */
static inline bool is_descriptor_path(const char *path) {
    return (strncmp(path, "/dev/", 5) == 0 && (strncmp(path + 5, "fd/", 3) == 0 || strcmp(path + 5, "stdin") == 0)) ||
           strncmp(path, "/proc/self/fd/", 14) == 0;
}

static inline int after_open(int fd, const char *path, int flags) {
    rk_descriptor_changed(fd);
    if (fd < 0 || !rk_active() || flags & (O_PATH | O_DIRECTORY)) return fd;
    if ((flags & O_ACCMODE) != O_WRONLY) mark(fd);
    if (RK_UNLIKELY(is_descriptor_path(path))) rk_pipe_opened(fd, path);
    record_opened(fd, path, flags);
    return fd;
}

/* ---- open ------------------------------------------------------------------------------------------- */

#define MODE(flags, mode)                                          \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list arguments;                                         \
        va_start(arguments, flags);                                \
        mode = va_arg(arguments, mode_t);                          \
        va_end(arguments);                                         \
    }

/* Whether opens are system calls with RK_MARK: libc's own calls would be reported to the supervisor. False if another
 * preloaded library interposes open. */
static bool opens_directly;

extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 */

static inline int open_directly(int directory, const char *path, int flags, mode_t mode) {
    /* Enables cancellation, as libc does: an open of a FIFO may wait. A single thread has nobody to cancel it. */
    int type, is_single_threaded = &__libc_single_threaded && __libc_single_threaded;
    if (!is_single_threaded) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
    long fd = rk_call(SYS_openat, directory, (long)path, flags, (long)mode, 0, RK_MARK);
    if (!is_single_threaded) pthread_setcanceltype(type, NULL);
    if (fd >= 0) return (int)fd;
    errno = (int)-fd;
    return -1;
}

bool rk_is_of_libc(void *function) {
    uint64_t offset;
    const char *module = function ? rk_module(function, &offset) : "", *slash = strrchr(module, '/');
    const char *name = slash ? slash + 1 : module;
    return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libc-2", 6) == 0 || strncmp(name, "libpthread", 10) == 0;
}

/* Opens a file of the run for the agent in a program that cannot reach the run directory. */
static int open_by_supervisor(const char *path, int flags) {
    int refused = -errno;
    if (!rk_is_out_of_reach(refused) || !rk_active() || strncmp(path, rk_run, RK_RUN_PATH) != 0) return -1;
    int fd = rk_open_by_broker(path, flags, refused);
    if (fd >= 0) return fd;
    if (fd == refused && fd != -ENOENT) rk_tell_lost(RK_LOST_FILE, rk_identity);
    errno = -fd;
    return -1;
}

/* A file that was there is kept before it is opened for writing. */
static inline void before_open(int directory, const char *path, int flags) {
    bool is_created = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
    if (RK_LIKELY(!is_written(flags)) || is_created || flags & (O_PATH | O_DIRECTORY) || !rk_active()) return;
    rk_before_change(directory, path, RK_OPENED);
}

/* Opens a file. If that fails and the path has stand-ins for process ids, retries with the real ids. */
#define OPENED(directory, call, flags)                             \
    char text[RK_REAL_PATH];                                       \
    before_open(directory, path, flags);                           \
    int fd = call;                                                 \
    if (RK_UNLIKELY(fd < 0)) fd = open_by_supervisor(path, flags); \
    if (RK_UNLIKELY(fd < 0) && rk_real_path(path, text)) {         \
        path = text;                                               \
        fd = call;                                                 \
    }                                                              \
    return after_open(fd, path, flags)

#define OPEN(name)                                                                    \
    RK_EXPORT int name(const char *path, int flags, ...) {                            \
        mode_t mode = 0;                                                              \
        MODE(flags, mode)                                                             \
        OPENED(AT_FDCWD,                                                              \
               RK_LIKELY(opens_directly) ? open_directly(AT_FDCWD, path, flags, mode) \
                                         : RK_REAL(name)(path, flags, mode),          \
               flags);                                                                \
    }
OPEN(open)
OPEN(open64)
OPEN(__open)
OPEN(__open64)

#define OPENAT(name)                                                                    \
    RK_EXPORT int name(int directory, const char *path, int flags, ...) {               \
        mode_t mode = 0;                                                                \
        MODE(flags, mode)                                                               \
        OPENED(directory,                                                               \
               RK_LIKELY(opens_directly) ? open_directly(directory, path, flags, mode)  \
                                         : RK_REAL(name)(directory, path, flags, mode), \
               flags);                                                                  \
    }
OPENAT(openat)
OPENAT(openat64)

RK_EXPORT int __open_2(const char *path, int flags) { OPENED(AT_FDCWD, RK_REAL(__open_2)(path, flags), flags); }
RK_EXPORT int __open64_2(const char *path, int flags) { OPENED(AT_FDCWD, RK_REAL(__open64_2)(path, flags), flags); }
RK_EXPORT int __openat_2(int directory, const char *path, int flags) {
    before_open(directory, path, flags);
    return after_open(RK_REAL(__openat_2)(directory, path, flags), path, flags);
}
RK_EXPORT int __openat64_2(int directory, const char *path, int flags) {
    before_open(directory, path, flags);
    return after_open(RK_REAL(__openat64_2)(directory, path, flags), path, flags);
}
RK_EXPORT int creat(const char *path, mode_t mode) {
    before_open(AT_FDCWD, path, O_WRONLY);
    return after_open(RK_REAL(creat)(path, mode), path, O_WRONLY);
}
RK_EXPORT int creat64(const char *path, mode_t mode) {
    before_open(AT_FDCWD, path, O_WRONLY);
    return after_open(RK_REAL(creat64)(path, mode), path, O_WRONLY);
}

/* ---- fstat --------------------------------------------------------------------------------------------- */

/* Uses the program's own fstat to confirm marks, which saves one: Python calls it for each file that it opens. */
#define FSTAT(name, type)                                                                                       \
    RK_EXPORT int name(int fd, struct type *status) {                                                           \
        int result = RK_REAL(name) ? rk_real_##name(fd, status) : (int)RK_REAL(syscall)(SYS_fstat, fd, status); \
        rk_show_times(result, (struct stat *)status, NULL, RK_CALLER());                                        \
        if (result == 0 && is_marked(fd)) unmark_ordinary(fd, kind_of_marked(fd, (const struct stat *)status)); \
        return result;                                                                                          \
    }
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "one layout for both");
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

/* ---- duplicates --------------------------------------------------------------------------------------- */

static int after_duplicate(int fd, int copy) {
    rk_descriptor_changed(copy);
    if (copy >= 0 && is_marked(fd)) mark(copy);
    return copy;
}

RK_EXPORT int dup(int fd) { return after_duplicate(fd, RK_REAL(dup)(fd)); }
RK_EXPORT int dup2(int fd, int copy) { return after_duplicate(fd, RK_REAL(dup2)(fd, copy)); }
RK_EXPORT int dup3(int fd, int copy, int flags) { return after_duplicate(fd, RK_REAL(dup3)(fd, copy, flags)); }

#define FCNTL(name)                                                                           \
    RK_EXPORT int name(int fd, int command, ...) {                                            \
        va_list arguments;                                                                    \
        va_start(arguments, command);                                                         \
        void *argument = va_arg(arguments, void *);                                           \
        va_end(arguments);                                                                    \
        if (command == F_SETOWN) argument = (void *)(long)rk_real_pid((pid_t)(long)argument); \
        int result = RK_REAL(name)(fd, command, argument);                                    \
        bool copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC;                       \
        return copies ? after_duplicate(fd, result) : result;                                 \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* ---- read ------------------------------------------------------------------------------------------------ */

static ssize_t get_read(struct rk_real *self, void *buffer, size_t size) {
    return rk_read((int)self->argument, buffer, size);
}

/* Reads from the device or a random text; the offset is RK_HERE if the call has none. */
static ssize_t read_device(int fd, enum kind kind, void *buffer, size_t size, int64_t offset, const void *caller) {
    struct rk_real real = {.get = get_read, .argument = fd};
    if (!buffer) return real.get(&real, buffer, size);
    if (kind == TEXT) return rk_text_read(fd, buffer, size, offset, caller);
    return rk_fill(RK_SOURCE_DEVICE, caller, buffer, size, &real);
}

static ssize_t read_device_parts(int fd, enum kind kind, const struct iovec *parts, int count, int64_t offset,
                                 const void *caller) {
    if (count < 0 || count > IOV_MAX || !parts) {
        errno = count < 0 || count > IOV_MAX ? EINVAL : EFAULT;
        return -1;
    }
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        int64_t from = offset == RK_HERE ? RK_HERE : offset + total;
        ssize_t given = read_device(fd, kind, parts[i].iov_base, parts[i].iov_len, from, caller);
        if (given < 0) return total > 0 ? total : given;
        total += given;
        if ((size_t)given < parts[i].iov_len) break;
    }
    return total;
}

/* Passes the bytes that were read from a pipe, part by part, to its digest. */
static ssize_t digest_pipe_parts(int number, const struct iovec *parts, ssize_t given) {
    if (given <= 0) return rk_pipe_given(number, NULL, given);
    for (ssize_t left = given; left > 0; left -= (ssize_t)parts++->iov_len) {
        size_t size = (size_t)left < parts->iov_len ? (size_t)left : parts->iov_len;
        if (size > 0) rk_pipe_given(number, parts->iov_base, (ssize_t)size);
    }
    return given;
}

#define READ(name, parameters, arguments, offset)                                                    \
    RK_EXPORT ssize_t name parameters {                                                              \
        int kind;                                                                                    \
        if (RK_LIKELY(!is_marked(fd)) || !(kind = confirm_kind(fd))) return RK_REAL(name) arguments; \
        if (kind >= PIPE) return rk_pipe_given(kind - PIPE, buffer, RK_REAL(name) arguments);        \
        return read_device(fd, (enum kind)kind, buffer, size, offset, RK_CALLER());                  \
    }
READ(read, (int fd, void *buffer, size_t size), (fd, buffer, size), RK_HERE)
READ(__read, (int fd, void *buffer, size_t size), (fd, buffer, size), RK_HERE)
READ(pread, (int fd, void *buffer, size_t size, off_t offset), (fd, buffer, size, offset), offset)
READ(pread64, (int fd, void *buffer, size_t size, off64_t offset), (fd, buffer, size, offset), offset)
READ(__pread64, (int fd, void *buffer, size_t size, off64_t offset), (fd, buffer, size, offset), offset)

/* The fortified calls abort the program if the buffer is too small: the real call does that. */
#define READ_CHECKED(name, parameters, arguments, offset)                                                           \
    RK_EXPORT ssize_t name parameters {                                                                             \
        int kind;                                                                                                   \
        if (RK_LIKELY(!is_marked(fd)) || size > room || !(kind = confirm_kind(fd))) return RK_REAL(name) arguments; \
        if (kind >= PIPE) return rk_pipe_given(kind - PIPE, buffer, RK_REAL(name) arguments);                       \
        return read_device(fd, (enum kind)kind, buffer, size, offset, RK_CALLER());                                 \
    }
READ_CHECKED(__read_chk, (int fd, void *buffer, size_t size, size_t room), (fd, buffer, size, room), RK_HERE)
READ_CHECKED(__pread_chk, (int fd, void *buffer, size_t size, off_t offset, size_t room),
             (fd, buffer, size, offset, room), offset)
READ_CHECKED(__pread64_chk, (int fd, void *buffer, size_t size, off64_t offset, size_t room),
             (fd, buffer, size, offset, room), offset)

#define READV(name, parameters, arguments, offset)                                                   \
    RK_EXPORT ssize_t name parameters {                                                              \
        int kind;                                                                                    \
        if (RK_LIKELY(!is_marked(fd)) || !(kind = confirm_kind(fd))) return RK_REAL(name) arguments; \
        if (kind >= PIPE) return digest_pipe_parts(kind - PIPE, parts, RK_REAL(name) arguments);     \
        return read_device_parts(fd, (enum kind)kind, parts, count, offset, RK_CALLER());            \
    }
READV(readv, (int fd, const struct iovec *parts, int count), (fd, parts, count), RK_HERE)
READV(preadv, (int fd, const struct iovec *parts, int count, off_t offset), (fd, parts, count, offset), offset)
READV(preadv64, (int fd, const struct iovec *parts, int count, off64_t offset), (fd, parts, count, offset), offset)
READV(preadv2, (int fd, const struct iovec *parts, int count, off_t offset, int flags),
      (fd, parts, count, offset, flags), offset == -1 ? RK_HERE : offset)
READV(preadv64v2, (int fd, const struct iovec *parts, int count, off64_t offset, int flags),
      (fd, parts, count, offset, flags), offset == -1 ? RK_HERE : offset)

/* Opens and reads by syscall(). The kernel or the supervisor answers an open; a request to the supervisor has no path
 * (broker.c reads all six arguments). */
long rk_syscall_device(long number, long a, long b, long c, long d, long e, long f, const void *caller) {
    if (number != SYS_read && number != SYS_pread64) {
        bool is_relative = number == SYS_openat;
        const char *path = (const char *)(is_relative ? b : a);
        int flags = (int)(is_relative ? c : b);
        if (path) before_open(is_relative ? (int)a : AT_FDCWD, path, flags);
        int fd = (int)RK_REAL(syscall)(number, a, b, c, d, e, f);
        return path ? after_open(fd, path, flags) : fd;
    }
    int fd = (int)a;
    int kind;
    if (RK_LIKELY(!is_marked(fd)) || !(kind = confirm_kind(fd))) return RK_REAL(syscall)(number, a, b, c, d, e, f);
    if (kind >= PIPE) return rk_pipe_given(kind - PIPE, (void *)b, RK_REAL(syscall)(number, a, b, c, d, e, f));
    return read_device(fd, (enum kind)kind, (void *)b, (size_t)c, number == SYS_read ? RK_HERE : d, caller);
}

/* ---- stdio -------------------------------------------------------------------------------------------------- */

struct cookie {
    int fd;
    enum kind kind;
    const void *caller; /* the code that opened the stream: its reads come from inside libc */
    off64_t position;   /* glibc asks for it and subtracts what it holds in its buffer */
};

static ssize_t cookie_read(void *cookie, char *buffer, size_t size) {
    struct cookie *stream = cookie;
    struct rk_real real = {.get = get_read, .argument = stream->fd};
    if (stream->kind == TEXT) return rk_text_read(stream->fd, buffer, size, RK_HERE, stream->caller);
    ssize_t given = rk_fill(RK_SOURCE_STREAM, stream->caller, buffer, size, &real);
    if (given > 0) stream->position += given;
    return given;
}

static ssize_t cookie_write(void *cookie, const char *buffer, size_t size) {
    ssize_t n = write(((struct cookie *)cookie)->fd, buffer, size);
    return n < 0 ? 0 : n; /* fopencookie(3): a write function must not return a negative value */
}

static int cookie_seek(void *cookie, off64_t *offset, int whence) {
    struct cookie *stream = cookie;
    if (stream->kind == TEXT) {
        *offset = lseek64(stream->fd, *offset, whence);
        return *offset < 0 ? -1 : 0;
    }
    if (whence == SEEK_SET) stream->position = *offset;
    if (whence == SEEK_CUR) stream->position += *offset;
    *offset = stream->position;
    return 0;
}

static int cookie_close(void *cookie) {
    int result = close(((struct cookie *)cookie)->fd);
    free(cookie);
    return result;
}

/* Opens a stream with a descriptor: libstdc++'s ifstream opens by fopen and then reads the descriptor of fileno.
 * _fileno is part of glibc's ABI (bits/types/struct_FILE.h). */
static FILE *open_device_stream(int fd, enum kind kind, const char *mode, const void *caller) {
    struct cookie *cookie = malloc(sizeof(*cookie));
    if (!cookie) return NULL;
    *cookie = (struct cookie){.fd = fd, .kind = kind, .caller = caller};
    cookie_io_functions_t functions = {cookie_read, cookie_write, cookie_seek, cookie_close};
    FILE *stream = fopencookie(cookie, mode, functions);
    if (!stream) {
        free(cookie);
        return NULL;
    }
    stream->_fileno = fd;
    mark(fd);
    return stream;
}

static int flags_of(const char *mode) {
    int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
    return flags | (*mode == 'w' ? O_TRUNC : 0) | (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

static FILE *after_fopen(FILE *stream, const char *path, const char *mode, const void *caller) {
    if (!stream || !rk_active()) return stream;
    int fd = fileno(stream), flags = flags_of(mode);
    enum kind kind = kind_of_descriptor(fd);
    if (!kind) record_opened(fd, path, flags);
    if ((flags & O_ACCMODE) == O_WRONLY || !kind) return stream;
    fclose(stream); /* the next open has the same number */
    fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)path, flags, 0, 0, RK_MARK);
    if (fd < 0) {
        errno = -fd;
        return NULL;
    }
    stream = open_device_stream(fd, kind, mode, caller);
    if (!stream) rk_close(fd);
    return stream;
}

/* Returns whether a signal interrupted an open of a regular file, which can wait only for the supervisor. */
static bool was_interrupted(const FILE *stream, const char *path) {
    struct stat status;
    return RK_UNLIKELY(!stream) && errno == EINTR &&
           rk_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&status, 0, 0, 0) == 0 && S_ISREG(status.st_mode);
}

#define FOPEN(name)                                                                                      \
    RK_EXPORT FILE *name(const char *path, const char *mode) {                                           \
        FILE *stream;                                                                                    \
        char text[RK_REAL_PATH];                                                                         \
        before_open(AT_FDCWD, path, flags_of(mode));                                                     \
        do stream = RK_REAL(name)(path, mode);                                                           \
        while (was_interrupted(stream, path));                                                           \
        if (RK_UNLIKELY(!stream) && rk_real_path(path, text)) stream = RK_REAL(name)(path = text, mode); \
        return after_fopen(stream, path, mode, RK_CALLER());                                             \
    }
FOPEN(fopen)
FOPEN(fopen64)

RK_EXPORT FILE *fdopen(int fd, const char *mode) {
    int kind = confirm_kind(fd);
    if (RK_UNLIKELY(kind == DEVICE || kind == TEXT) && *mode == 'r' && rk_active()) {
        FILE *stream = open_device_stream(fd, (enum kind)kind, mode, RK_CALLER());
        if (stream) return stream;
    }
    return RK_REAL(fdopen)(fd, mode);
}

/* A thread that keeps a pipe filled. freopen must return the stream it was given, which no hook sees reading, so its
 * descriptor becomes that pipe. */
struct feeder {
    int fd;
    uint32_t number;
};

static ssize_t get_kernel(struct rk_real *self, void *buffer, size_t size) {
    (void)self;
    return rk_random(buffer, size, 0);
}

static void *run_feeder(void *argument) {
    struct feeder feeder = *(struct feeder *)argument;
    free(argument);
    rk_thread.generation = rk_generation;
    size_t length = rk_append(rk_thread.identity, RK_IDENTITY, 0, "feeder.");
    rk_append_number(rk_thread.identity, RK_IDENTITY, length, feeder.number);
    struct rk_real real = {.get = get_kernel};
    char page[4096];
    ssize_t given, n = 0;
    while (n >= 0 && (given = rk_fill(RK_SOURCE_FEEDER, (void *)run_feeder, page, sizeof(page), &real)) > 0)
        for (char *at = page; given > 0 && (n = write(feeder.fd, at, (size_t)given)) > 0; given -= n) at += n;
    close(feeder.fd);
    return NULL;
}

static bool start_feeder(int fd) {
    struct feeder *feeder = malloc(sizeof(*feeder));
    if (!feeder) return false;
    *feeder = (struct feeder){.fd = fd, .number = __atomic_add_fetch(&rk_process->feeders, 1, __ATOMIC_RELAXED)};
    rk_signals before = rk_block_signals(); /* inherited by the thread, in which a SIGPIPE becomes an EPIPE */
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = RK_REAL(pthread_create)(&thread, &attributes, run_feeder, feeder) == 0;
    pthread_attr_destroy(&attributes);
    rk_restore_signals(before);
    if (!started) free(feeder);
    return started;
}

static void replace_by_feeder(int fd) {
    int ends[2], close_on_exec = RK_REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0;
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    RK_REAL(fcntl)(ends[1], F_SETPIPE_SZ, 4096);
    int out = RK_REAL(fcntl)(ends[1], F_DUPFD_CLOEXEC, 512); /* a number that the program does not expect */
    if (out < 0)
        out = ends[1];
    else
        close(ends[1]);
    if (!start_feeder(out))
        close(out);
    else
        RK_REAL(dup3)(ends[0], fd, close_on_exec);
    close(ends[0]);
}

static FILE *after_freopen(FILE *stream, const char *mode, const void *caller) {
    if (!stream || !rk_active()) return stream;
    int error = errno, fd = fileno(stream), flags = flags_of(mode);
    rk_descriptor_changed(fd);
    enum kind kind = (flags & O_ACCMODE) == O_RDONLY ? kind_of_descriptor(fd) : ORDINARY;
    if (kind == DEVICE) {
        rk_process_check();
        replace_by_feeder(fd);
    } else if (kind == TEXT) {
        rk_text_replace(fd, caller);
    } else if (flags & (O_WRONLY | O_RDWR)) {
        rk_written(fd);
    }
    errno = error;
    return stream;
}

static void before_freopen(const char *path, const char *mode) {
    if (path) before_open(AT_FDCWD, path, flags_of(mode));
}

RK_EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream) {
    before_freopen(path, mode);
    return after_freopen(RK_REAL(freopen)(path, mode, stream), mode, RK_CALLER());
}

RK_EXPORT FILE *freopen64(const char *path, const char *mode, FILE *stream) {
    before_freopen(path, mode);
    return after_freopen(RK_REAL(freopen64)(path, mode, stream), mode, RK_CALLER());
}

/* ---- inherited ------------------------------------------------------------------------------------------------ */

struct directory_entry { /* getdents64(2) */
    uint64_t inode;
    int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* Marks the lowest descriptors. Returns whether these are all: the directory's size is their number since Linux 6.2. */
static bool mark_lowest(void) {
    struct stat status;
    if (rk_call(SYS_newfstatat, AT_FDCWD, (long)"/proc/self/fd", (long)&status, 0, 0, 0) != 0) return false;
    long remaining = (long)status.st_size;
    bool is_count_known = remaining > 0;
    for (int fd = 0; remaining > 0 && fd < LOWEST; fd++) {
        if (rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0) continue;
        if (kind_by_status(fd, &status)) mark(fd);
        remaining--;
    }
    return is_count_known && remaining == 0;
}

static void mark_inherited(void) {
    if (mark_lowest()) return;
    int directory = rk_open("/proc/self/fd", O_RDONLY | O_DIRECTORY, 0);
    if (directory < 0) {
        for (int fd = 0; fd < 64; fd++)
            if (kind_of_descriptor(fd)) mark(fd);
        return;
    }
    char buffer[2048] __attribute__((aligned(8)));
    long n;
    while ((n = rk_call(SYS_getdents64, directory, (long)buffer, sizeof(buffer), 0, 0, 0)) > 0)
        for (long at = 0; at < n; at += ((struct directory_entry *)(buffer + at))->length) {
            int fd = atoi(((struct directory_entry *)(buffer + at))->name); /* "." and ".." give 0 */
            if (kind_of_descriptor(fd)) mark(fd);
        }
    rk_close(directory);
}

/* Marks descriptor 0 if it is the launcher's standard input, of which every process may have a copy. */
static void mark_standard_input(void) {
    struct stat status;
    if (rk_plan.has_pipe && rk_call(SYS_fstat, 0, (long)&status, 0, 0, 0, 0) == 0 && status.st_dev == rk_plan.pipe[0] &&
        status.st_ino == rk_plan.pipe[1])
        mark(0);
}

void rk_devices_start(void) {
    opens_directly = rk_is_of_libc((void *)rk_real_open) && rk_is_of_libc((void *)rk_real_openat);
    mark_inherited();
    if (!is_marked(0)) {
        mark_standard_input();
    } else {
        FILE *stream = open_device_stream(0, kind_of_descriptor(0), "r", (void *)rk_devices_start);
        if (stream) stdin = stream;
    }
}
