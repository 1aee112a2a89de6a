/* modules.c - lists the modules that a process has loaded at its end: one line each in REPROKIT_RUN/modules.paths.
 * The launcher searches them for instructions that give entropy without a call (RDRAND, RDSEED).
 *
 * They are also listed before a fork, so that a forked child lists them only if they differ. A process that a signal
 * kills does not list what it loaded later. The dynamic loader's list has a lock, which a fork in a multithreaded
 * process may leave held: a forked child, which has one thread, walks the list without it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/pool.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/state.h"
#include "shim/notes/console.h"
#include "shim/notes/modules.h"
#include "shim/notes/pipes.h"
#include "shim/notes/uncovered.h"

#define INPUT  (4 * PATH_MAX + 4096) /* size of a line of maps, whose path may be escaped */
#define OUTPUT (64u << 10)

struct listing {
    size_t unparsed, length;
    bool unnamed; /* a module's name is no path that the launcher could open */
    bool failed;  /* not everything was written */
    char input[INPUT], output[OUTPUT];
};

static int loader_pid; /* process id of the started program, not of a fork: only it may take the loader's lock */
static uint64_t
    listed_set; /* loaded_set() when this process, or the one that it was forked from, listed its modules last */

static void flush(struct listing *listing) {
    if (listing->length && !rk_append_to_modules(listing->output, listing->length)) listing->failed = true;
    listing->length = 0;
}

static void add_path(struct listing *listing, const char *path, size_t length) {
    if (listing->length + length + 1 > OUTPUT) flush(listing);
    if (length + 1 > OUTPUT) return;
    memcpy(listing->output + listing->length, path, length);
    listing->output[listing->length + length] = '\n';
    listing->length += length + 1;
}

/* ---- by the dynamic loader ------------------------------------------------------------------------------- */

static void add_program(struct listing *listing) {
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)listing->input, PATH_MAX, 0, 0);
    if (length > 0 && length < PATH_MAX && !memchr(listing->input, '\n', (size_t)length))
        add_path(listing, listing->input, (size_t)length);
    else
        listing->unnamed = true;
}

/* Adds a module by the loader's name, which is empty for the program and has no slash for the vDSO. */
static void add_name(struct listing *listing, const char *name) {
    if (*name == '/' && !strpbrk(name, "\n\\"))
        add_path(listing, name, strlen(name));
    else if (!*name)
        add_program(listing);
    else if (strchr(name, '/') || strchr(name, '\n'))
        listing->unnamed = true;
}

static int visit(struct dl_phdr_info *info, size_t size, void *listing) {
    (void)size;
    add_name(listing, info->dlpi_name);
    return 0;
}

static void list_by_loader(struct listing *listing) {
    if (rk_getpid() == loader_pid) {
        dl_iterate_phdr(visit, listing);
        return;
    }
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) add_name(listing, map->l_name);
}

/* ---- whether modules were listed -----------------------------------------------------------------------------------
 */

/* A term of an order-independent sum. A module that replaces another one has a new name pointer. */
static uint64_t mix(uint64_t address, const char *name) {
    uint64_t hash = (address ^ (uintptr_t)name * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return hash ^ hash >> 32;
}

static int add_to_sum(struct dl_phdr_info *info, size_t size, void *sum) {
    (void)size;
    *(uint64_t *)sum += mix(info->dlpi_addr, info->dlpi_name);
    return 0;
}

/* Returns a number that identifies the set of loaded modules. */
static uint64_t loaded_set(void) {
    uint64_t sum = 1 + (uint64_t)__atomic_load_n(&rk_unloads, __ATOMIC_ACQUIRE);
    if (rk_getpid() == loader_pid) {
        dl_iterate_phdr(add_to_sum, &sum);
        return sum;
    }
    for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) sum += mix(map->l_addr, map->l_name);
    return sum;
}

/* ---- by the kernel, thirty times slower -------------------------------------------------------------------- */

/* Adds "START-END r-xp OFFSET DEVICE INODE   /path": an executable mapping of a file. */
static void add_line(struct listing *listing, const char *line, size_t length) {
    const char *mode = memchr(line, ' ', length), *path = memchr(line, '/', length);
    if (!mode || !path || mode[3] != 'x' || strncmp(path, "/dev/", 5) == 0) return;
    add_path(listing, path, (size_t)(line + length - path));
}

static void add_lines(struct listing *listing) {
    char *line = listing->input, *end = line + listing->unparsed, *feed;
    for (; (feed = memchr(line, '\n', (size_t)(end - line))); line = feed + 1)
        add_line(listing, line, (size_t)(feed - line));
    listing->unparsed = (size_t)(end - line);
    if (listing->unparsed == INPUT) listing->unparsed = 0; /* no line of maps is that long */
    memmove(listing->input, line, listing->unparsed);
}

static void list_by_kernel(struct listing *listing) {
    int maps = rk_open("/proc/self/maps", O_RDONLY, 0);
    long n;
    while (maps >= 0 && (n = rk_call(SYS_read, maps, (long)(listing->input + listing->unparsed),
                                     (long)(INPUT - listing->unparsed), 0, 0, 0)) > 0) {
        listing->unparsed += (size_t)n;
        add_lines(listing);
    }
    if (maps >= 0) rk_close(maps);
}

static void list_modules(void) {
    uint64_t now = loaded_set();
    if (__atomic_load_n(&listed_set, __ATOMIC_RELAXED) == now) return;
    /* Not on the stack: a process may end on a thread or signal stack of 8 to 16 KiB. */
    struct listing *listing = rk_map(sizeof(*listing), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!listing) return;
    list_by_loader(listing);
    if (listing->unnamed) list_by_kernel(listing);
    flush(listing);
    if (!listing->failed) __atomic_store_n(&listed_set, now, __ATOMIC_RELAXED);
    rk_unmap(listing, sizeof(*listing));
}

/* Lists modules, so that the child need not list them again. A forked process with threads leaves that to its child, as
 * its threads may unload a module during the walk. */
void rk_modules_before_fork(void) {
    const struct rk_thread *thread = rk_thread_check();
    int error = errno;
    rk_console_before_fork();
    if (rk_is_forked && (thread->threads || strcmp(thread->identity, "m") != 0)) return;
    list_modules();
    errno = error;
}

/* Runs once in a process, and not in a vfork child, which shares its parent's memory. */
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

void rk_modules_start(void) { loader_pid = rk_getpid(); }

__attribute__((destructor)) static void destructor(void) { at_end(); }

/* Counts unloads, after which cached call sites may be wrong. */
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
