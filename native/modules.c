/* modules.c - which modules a process had loaded at its end: one line each in REPROKIT_RUN/modules.paths, for
 * the launcher, which looks in them for instructions that give entropy past every call (RDRAND, RDSEED).
 *
 * They are listed before a fork too, so that a forked child lists only what differs from what its parent had then. A
 * process that a signal kills leaves no line of what it loaded later. The dynamic loader's list is behind a lock that a
 * fork in a multithreaded process may have left held: a forked child, which has one thread, walks it without.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "hooks.h"

#define INPUT  (4 * PATH_MAX + 4096) /* a line of maps, whose path may be escaped */
#define OUTPUT (64u << 10)
#define MOST   (16u << 20) /* bytes of modules.paths */

struct listing {
    size_t held, length;
    bool unnamed; /* a module's name is no path that the launcher could open */
    bool failed;  /* not all of it was written */
    char input[INPUT], output[OUTPUT];
};

static int original;    /* process id of the program that was started, not of a fork of it */
static uint64_t listed; /* what was loaded when this process, or the one that it was forked from, listed it last */

static bool append_to_file(const char *lines, size_t length) {
    char file[RK_RUN_PATH + 32];
    if (!*rk_run) return false; /* a test that is linked with the shim */
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, "/modules.paths");
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0), written = 0;
    if (end >= 0 && (uint64_t)end + length <= MOST && rk_within_limit((uint64_t)end + length))
        written = rk_call(SYS_write, fd, (long)lines, (long)length, 0, 0, 0);
    rk_close(fd);
    return written == (long)length;
}

static void flush(struct listing *listing) {
    if (listing->length && !append_to_file(listing->output, listing->length)) listing->failed = true;
    listing->length = 0;
}

static void take(struct listing *listing, const char *path, size_t length) {
    if (listing->length + length + 1 > OUTPUT) flush(listing);
    if (length + 1 > OUTPUT) return;
    memcpy(listing->output + listing->length, path, length);
    listing->output[listing->length + length] = '\n';
    listing->length += length + 1;
}

/* ---- by the dynamic loader ------------------------------------------------------------------------------- */

static void take_program(struct listing *listing) {
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)listing->input, PATH_MAX, 0, 0);
    if (length > 0 && length < PATH_MAX && !memchr(listing->input, '\n', (size_t)length))
        take(listing, listing->input, (size_t)length);
    else
        listing->unnamed = true;
}

/* The program itself has no name, and the vDSO one without a slash. */
static void take_name(struct listing *listing, const char *name) {
    if (*name == '/' && !strpbrk(name, "\n\\"))
        take(listing, name, strlen(name));
    else if (!*name)
        take_program(listing);
    else if (strchr(name, '/') || strchr(name, '\n'))
        listing->unnamed = true;
}

static int visit(struct dl_phdr_info *info, size_t size, void *listing) {
    (void)size;
    take_name(listing, info->dlpi_name);
    return 0;
}

static void ask_loader(struct listing *listing) {
    if (rk_getpid() == original) {
        dl_iterate_phdr(visit, listing);
        return;
    }
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) take_name(listing, map->l_name);
}

/* ---- whether it was listed ----------------------------------------------------------------------------------- */

/* In any order. The loader makes a new name for a module that takes another one's place. */
static uint64_t mixed(uint64_t address, const char *name) {
    uint64_t hash = (address ^ (uintptr_t)name * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return hash ^ hash >> 32;
}

static int add(struct dl_phdr_info *info, size_t size, void *sum) {
    (void)size;
    *(uint64_t *)sum += mixed(info->dlpi_addr, info->dlpi_name);
    return 0;
}

/* A number that another set of modules does not have. */
static uint64_t loaded(void) {
    uint64_t sum = 1 + (uint64_t)__atomic_load_n(&rk_unloads, __ATOMIC_ACQUIRE);
    if (rk_getpid() == original) {
        dl_iterate_phdr(add, &sum);
        return sum;
    }
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) sum += mixed(map->l_addr, map->l_name);
    return sum;
}

/* ---- by the kernel, thirty times slower -------------------------------------------------------------------- */

/* "START-END r-xp OFFSET DEVICE INODE   /path": executable and out of a file. */
static void take_line(struct listing *listing, const char *line, size_t length) {
    const char *mode = memchr(line, ' ', length), *path = memchr(line, '/', length);
    if (!mode || !path || mode[3] != 'x' || strncmp(path, "/dev/", 5) == 0) return;
    take(listing, path, (size_t)(line + length - path));
}

static void take_lines(struct listing *listing) {
    char *line = listing->input, *end = line + listing->held, *feed;
    for (; (feed = memchr(line, '\n', (size_t)(end - line))); line = feed + 1)
        take_line(listing, line, (size_t)(feed - line));
    listing->held = (size_t)(end - line);
    if (listing->held == INPUT) listing->held = 0; /* no line of maps is that long */
    memmove(listing->input, line, listing->held);
}

static void ask_kernel(struct listing *listing) {
    int maps = rk_open("/proc/self/maps", O_RDONLY, 0);
    long n;
    while (maps >= 0 && (n = rk_call(SYS_read, maps, (long)(listing->input + listing->held),
                                     (long)(INPUT - listing->held), 0, 0, 0)) > 0) {
        listing->held += (size_t)n;
        take_lines(listing);
    }
    if (maps >= 0) rk_close(maps);
}

static void list_modules(void) {
    uint64_t now = loaded();
    if (__atomic_load_n(&listed, __ATOMIC_RELAXED) == now) return;
    /* Not on the stack: a process may end on a thread or signal stack of 8 to 16 KiB. */
    struct listing *listing = rk_map(sizeof(*listing), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!listing) return;
    ask_loader(listing);
    if (listing->unnamed) ask_kernel(listing);
    flush(listing);
    if (!listing->failed) __atomic_store_n(&listed, now, __ATOMIC_RELAXED);
    rk_unmap(listing, sizeof(*listing));
}

/* The process that is about to be made will not list them again. A forked process that has threads by now leaves it to
 * that one, as they may unload what it would walk over. */
void rk_modules_before_fork(void) {
    const struct rk_thread *thread = rk_thread_check();
    int error = errno;
    rk_console_before_fork();
    if (rk_is_forked && (thread->threads || strcmp(thread->identity, "m") != 0)) return;
    list_modules();
    errno = error;
}

/* Once in a process. A vfork child is its parent's copy until it executes a program. */
static void at_end(void) {
    static int done;
    if (__atomic_load_n(&rk_state, __ATOMIC_ACQUIRE) != RK_STATE_ON) return;
    if (__atomic_load_n(&rk_process->ready, __ATOMIC_ACQUIRE) && rk_is_another_process()) return;
    if (__atomic_exchange_n(&done, 1, __ATOMIC_RELAXED)) return;
    struct rk_file *file = __atomic_load_n(&rk_process->file, __ATOMIC_RELAXED);
    if (file) file->ended = 1;
    rk_console_end();
    rk_pipes_end();
    list_modules();
}

void rk_modules_start(void) { original = rk_getpid(); }

void rk_uncovered(const char *word) {
    char line[64];
    size_t length = rk_append(line, sizeof(line), 0, word);
    append_to_file(line, rk_append(line, sizeof(line), length, "\n"));
}

/* "clock PATH": native code that reads the time of day, and may seed itself from it. */
void rk_clock_reader(const void *caller) {
    char line[PATH_MAX + 16], program[PATH_MAX];
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    size_t length = rk_append(line, sizeof(line), 0, "clock ");
    length = rk_append(line, sizeof(line), length, *module ? module : rk_program(program));
    if (!memchr(line, '\n', length)) append_to_file(line, rk_append(line, sizeof(line), length, "\n"));
}

__attribute__((destructor)) static void destructor(void) { at_end(); }

/* What the caches of call sites know of an address may be true no more. */
RK_EXPORT int dlclose(void *handle) {
    int result = RK_REAL(dlclose)(handle);
    __atomic_add_fetch(&rk_unloads, 1, __ATOMIC_RELEASE);
    return result;
}

#define EXIT(name)                    \
    RK_EXPORT void name(int status) { \
        at_end();                     \
        RK_REAL(name)(status);        \
        __builtin_unreachable();      \
    }
EXIT(_exit)
EXIT(_Exit)
EXIT(quick_exit)
