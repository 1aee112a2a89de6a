/* answers.c - answers a program that calls the kernel directly: by getrandom, or by opening a file. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "recorder/calls.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define PIECE        (1u << 20)
#define KNOWN_FLAGS  7u /* GRND_NONBLOCK, GRND_RANDOM, GRND_INSECURE */
#define BOTH_SOURCES 6u /* GRND_RANDOM and GRND_INSECURE: refused by the kernel */
#define TEXT         37 /* 36 characters and a line feed */

static const struct answer go_on = {.go_on = true}, sent = {.sent = true};

/* ---- getrandom ---------------------------------------------------------------------------------------- */

/* Returns whether glibc itself makes the request, below the shim: for the heap's hardening, or temporary names. */
static bool is_of_libc(struct program *program, const struct request *request) {
    return program->shimmed && request->arguments[1] == 8 && (unsigned)request->arguments[2] == GRND_NONBLOCK &&
           rk_is_in_libc(program, request->caller) && rk_has_shim(program);
}

/* Returns whether the program's memory is writable. Checked once per program, before bytes are recorded for it. */
static bool may_write(struct program *program, const struct request *request) {
    bool not_allowed = false;
    if (program->is_writable) return true;
    program->is_writable = rk_is_memory(request->thread, request->arguments[0], &not_allowed);
    if (not_allowed && rk_is_waiting(request)) program->fresh++;
    return program->is_writable;
}

static struct answer partial_or_error(uint64_t done, int error) {
    return done ? (struct answer){.value = (int64_t)done} : (struct answer){.error = error};
}

/* Handles a program whose memory has become inaccessible: the kernel answers the whole request. */
static struct answer memory_denied(struct thread *thread, const struct request *request) {
    thread->process->program->is_writable = false;
    if (rk_is_waiting(request)) thread->process->program->fresh++;
    return go_on;
}

/* Behaves like the kernel: bytes before an unmapped page are written, and count. */
struct answer rk_answer_getrandom(struct thread *thread, const struct request *request) {
    static uint8_t bytes[PIECE];
    uint64_t to = request->arguments[0], size = request->arguments[1], done = 0;
    unsigned flags = (unsigned)request->arguments[2];
    if (is_of_libc(thread->process->program, request)) return go_on;
    if (!to || !size || flags & ~KNOWN_FLAGS || (flags & BOTH_SOURCES) == BOTH_SOURCES) return go_on;
    if (!may_write(thread->process->program, request)) return go_on;
    if (size > INT_MAX) size = INT_MAX;
    while (done < size) {
        size_t part = size - done < PIECE ? size - done : PIECE;
        if (!rk_is_pending(request)) return sent; /* the program was killed, or a signal came */
        ssize_t given = rk_fill_for(thread->process->program, &thread->state, RK_SOURCE_KERNEL, request->caller, bytes,
                                    part, flags);
        if (given <= 0) return partial_or_error(done, -errno);
        if (!rk_is_pending(request)) return sent;
        ssize_t written = thread->process->executing
                              ? rk_write_waiting(request, to + done, bytes, (size_t)given)
                              : rk_write_memory(request->thread, to + done, bytes, (size_t)given);
        if (written < 0) return written == -EFAULT ? partial_or_error(done, -EFAULT) : memory_denied(thread, request);
        done += (uint64_t)written;
        if ((size_t)written < part) break;
    }
    return (struct answer){.value = (int64_t)done};
}

/* ---- files ------------------------------------------------------------------------------------------------ */

enum kind { ORDINARY, DEVICE, UUID, LOADER, SHIM, HIDDEN };

struct opening {
    int directory;
    uint64_t path;
    uint64_t flags;
};

static bool read_opening(const struct request *request, struct opening *opening) {
    const uint64_t *arguments = request->arguments;
    struct open_how how;
    switch (request->number) {
#ifdef SYS_open
    case SYS_open:
        *opening = (struct opening){AT_FDCWD, arguments[0], (uint32_t)arguments[1]};
        return true;
#endif
    case SYS_openat:
        *opening = (struct opening){(int)arguments[0], arguments[1], (uint32_t)arguments[2]};
        return true;
    default:
        if (arguments[3] < sizeof(how) || !rk_read_memory(request->thread, arguments[2], &how, sizeof(how)))
            return false;
        *opening = (struct opening){(int)arguments[0], arguments[1], how.flags};
        return how.resolve == 0;
    }
}

static bool is_random_name(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    switch (*name) {
    case 'u':
        return strcmp(name, "urandom") == 0 || strcmp(name, "uuid") == 0;
    case 'r':
        return strcmp(name, "random") == 0;
    case 'b':
        return strcmp(name, "boot_id") == 0;
    default:
        return false;
    }
}

/* Normalizes an absolute path: removes "//", "/." and "/..", without following symbolic links. */
static void normalize(char *path) {
    char *to = path;
    for (const char *at = path; *at;) {
        while (*at == '/') at++;
        size_t n = strcspn(at, "/");
        if (n == 2 && at[0] == '.' && at[1] == '.') {
            while (to > path && *--to != '/') continue;
        } else if (n > 0 && !(n == 1 && *at == '.')) {
            *to++ = '/';
            memmove(to, at, n);
            to += n;
        }
        at += n;
    }
    *to = 0;
}

static bool make_absolute(int thread, int directory, char *path, size_t size) {
    if (*path == '/') return true;
    char name[32], link[64], whole[PATH_MAX];
    size_t n = rk_append(name, sizeof(name), 0, directory == AT_FDCWD ? "cwd" : "fd/");
    if (directory != AT_FDCWD) rk_append_number(name, sizeof(name), n, (uint64_t)directory);
    long length =
        rk_call(SYS_readlinkat, AT_FDCWD, (long)rk_proc_path(link, thread, name), (long)whole, sizeof(whole) - 1, 0, 0);
    if (length <= 0) return false;
    whole[length] = 0;
    n = rk_append(whole, sizeof(whole), (size_t)length, "/");
    n = rk_append(whole, sizeof(whole), n, path);
    if (n + 1 >= size) return false;
    memcpy(path, whole, n + 1);
    return true;
}

/* Checks the file in the program's root, which may be a different one. */
static bool exists_in_root(int thread, const char *path, enum kind kind) {
    char place[128], root[64];
    size_t n = rk_append(place, sizeof(place), 0, rk_proc_path(root, thread, "root"));
    rk_append(place, sizeof(place), n, path);
    struct stat status;
    if (rk_call(SYS_newfstatat, AT_FDCWD, (long)place, (long)&status, 0, 0, 0) != 0) return false;
    if (kind == UUID) return S_ISREG(status.st_mode) && major(status.st_dev) == 0;
    return S_ISCHR(status.st_mode) && (status.st_rdev == makedev(1, 8) || status.st_rdev == makedev(1, 9));
}

static bool is_path_unreadable(int thread, const struct opening *opening) {
    bool not_allowed = false;
    rk_is_memory(thread, opening->path, &not_allowed);
    return not_allowed;
}

static enum kind kind_of(int thread, const struct opening *opening) {
    static char path[PATH_MAX];
    if (opening->flags & (O_PATH | O_DIRECTORY) || (opening->flags & O_ACCMODE) != O_RDONLY) return ORDINARY;
    if (!rk_read_text(thread, opening->path, path, sizeof(path)))
        return is_path_unreadable(thread, opening) ? HIDDEN : ORDINARY;
    if (strcmp(path, rk_plan.shim) == 0) return LOADER;
    if (strcmp(path, rk_shim_path()) == 0) return SHIM;
    if (!is_random_name(path)) return ORDINARY;
    if (!make_absolute(thread, opening->directory, path, sizeof(path))) return ORDINARY;
    normalize(path);
    enum kind kind = ORDINARY;
    if (strcmp(path, "/dev/urandom") == 0 || strcmp(path, "/dev/random") == 0) kind = DEVICE;
    if (strcmp(path, "/proc/sys/kernel/random/uuid") == 0 || strcmp(path, "/proc/sys/kernel/random/boot_id") == 0)
        kind = UUID;
    return kind != ORDINARY && exists_in_root(thread, path, kind) ? kind : ORDINARY;
}

struct answer rk_hand_over(const struct request *request, int fd, bool close_on_exec) {
    struct seccomp_notif_addfd added = {
        .id = request->id,
        .flags = SECCOMP_ADDFD_FLAG_SEND,
        .srcfd = (uint32_t)fd,
        .newfd_flags = close_on_exec ? O_CLOEXEC : 0,
    };
    int given = ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_ADDFD, &added);
    if (given >= 0) return sent;
    if (errno == EINVAL) { /* Linux 5.9 to 5.13: not answered at once */
        added.flags = 0;
        given = ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_ADDFD, &added);
    }
    return given < 0 ? (struct answer){.error = -errno} : (struct answer){.value = given};
}

/* Formats 16 bytes as a UUID of version 4, like the shim (text.c). */
static void format(uint8_t bytes[16], char text[TEXT]) {
    bytes[6] = (uint8_t)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (uint8_t)((bytes[8] & 0x3f) | 0x80);
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
        *text++ = "0123456789abcdef"[bytes[i] >> 4];
        *text++ = "0123456789abcdef"[bytes[i] & 15];
    }
    *text = '\n';
}

/* Returns a read-only descriptor of a file in memory. */
int rk_open_memory(const char *name, const void *bytes, size_t size) {
    char path[64];
    int file = (int)rk_call(SYS_memfd_create, (long)name, MFD_CLOEXEC, 0, 0, 0, 0);
    if (file < 0) return file;
    rk_call(SYS_write, file, (long)bytes, (long)size, 0, 0, 0);
    size_t n = rk_append(path, sizeof(path), 0, "/proc/self/fd/");
    rk_append_number(path, sizeof(path), n, (uint64_t)file);
    int fd = rk_open(path, O_RDONLY, 0);
    rk_close(file);
    return fd;
}

static int open_text(struct thread *thread, uint64_t caller) {
    uint8_t bytes[16];
    char text[TEXT];
    if (rk_fill_for(thread->process->program, &thread->state, RK_SOURCE_TEXT, caller, bytes, sizeof(bytes), 0) !=
        sizeof(bytes))
        return -EIO;
    format(bytes, text);
    return rk_open_memory("uuid", text, TEXT);
}

/* Returns whether the shim sees this open: it hooks libc's functions by name, and syscall() only in part. */
static bool is_seen_by_shim(struct program *program, const struct request *request) {
    return program->shimmed && rk_is_in_libc(program, request->caller) && !rk_is_in_syscall(program, request->caller) &&
           rk_has_shim(program);
}

/* A negative result: the kernel opens the file. */
static int open_random(enum kind kind, struct thread *thread, uint64_t caller) {
    int fd = kind == DEVICE ? rk_open_feed(thread, caller) : open_text(thread, caller);
    if (fd < 0) rk_note_fresh(); /* no descriptor is free, say */
    return fd;
}

static struct answer hand_over(int fd, const struct request *request, const struct opening *opening) {
    if (fd < 0) return go_on;
    struct answer answer = rk_hand_over(request, fd, opening->flags & O_CLOEXEC);
    rk_close(fd);
    return answer;
}

/* Answers a loader that opens the shim. One that must not have it goes on, as the shim is an auxiliary filtee. */
static struct answer answer_loader(struct program *program, const struct request *request,
                                   const struct opening *opening) {
    int fd = program->shimmed ? rk_open_shim(program, program->process.pid) : -1;
    if (fd != -ENOENT) return hand_over(fd, request, opening);
    rk_has_no_shim(program);
    return (struct answer){.error = -ENOENT};
}

struct answer rk_answer_open(struct thread *thread, const struct request *request) {
    struct program *program = thread->process->program;
    struct opening opening;
    if (!read_opening(request, &opening)) return go_on;
    enum kind kind = kind_of(request->thread, &opening);
    if (kind == HIDDEN && !program->shimmed) program->unseen = true;
    if (kind == ORDINARY || kind == HIDDEN || !rk_is_pending(request)) return go_on;
    if (kind == LOADER) return hand_over(rk_open_for(thread->process->id, rk_plan.shim), request, &opening);
    if (kind == SHIM) return answer_loader(program, request, &opening);
    if (is_seen_by_shim(program, request)) return go_on;
    return hand_over(open_random(kind, thread, request->caller), request, &opening);
}

/* ---- exec --------------------------------------------------------------------------------------------------- */

void rk_look_at_exec(const struct request *request) {
    char path[512], whole[600], root[64];
    bool at = request->number == SYS_execveat;
    int directory = at ? (int)request->arguments[0] : AT_FDCWD;
    if (!rk_read_text(request->thread, request->arguments[at], path, sizeof(path)) || !*path) return;
    if (!make_absolute(request->thread, directory, path, sizeof(path))) return;
    size_t n = rk_append(whole, sizeof(whole), 0, rk_proc_path(root, request->thread, "root"));
    rk_append(whole, sizeof(whole), n, path);
    struct stat status;
    if (rk_call(SYS_newfstatat, AT_FDCWD, (long)whole, (long)&status, 0, 0, 0) != 0 || !S_ISREG(status.st_mode)) return;
    bool gains = (status.st_mode & S_ISUID && status.st_uid != (uid_t)rk_call(SYS_geteuid, 0, 0, 0, 0, 0, 0)) ||
                 (status.st_mode & S_ISGID && status.st_mode & S_IXGRP) ||
                 rk_call(SYS_getxattr, (long)whole, (long)"security.capability", 0, 0, 0, 0) > 0;
    if (!gains) return;
    char words[700];
    n = rk_append(words, sizeof(words), 0, path);
    rk_append(words, sizeof(words), n, " gains no rights in this run (no_new_privs); use --no-supervisor");
    rk_notice(words);
}
