/* modules.c - which modules a process had loaded at its end: one line each in REPROKIT_RUN/modules.paths, for
 * the launcher, which looks in them for instructions that give entropy past every call (RDRAND, RDSEED).
 *
 * A process that a signal kills leaves no line. The dynamic loader's list is behind a lock that a fork in a
 * multithreaded process may have left held: a forked child, which has one thread, walks it without.
 */
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
    char input[INPUT], output[OUTPUT];
};

static int original; /* process id of the program that was started, not of a fork of it */

static void append_to_file(const char *lines, size_t length) {
    char file[RK_RUN_PATH + 32];
    if (!*rk_run) return; /* a test that is linked with the shim */
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, "/modules.paths");
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && (uint64_t)end + length <= MOST && rk_within_limit((uint64_t)end + length))
        rk_call(SYS_write, fd, (long)lines, (long)length, 0, 0, 0);
    rk_close(fd);
}

static void flush(struct listing *listing) {
    if (listing->length) append_to_file(listing->output, listing->length);
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
    /* Not on the stack: a process may end on a thread or signal stack of 8 to 16 KiB. */
    struct listing *listing = rk_map(sizeof(*listing), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!listing) return;
    ask_loader(listing);
    if (listing->unnamed) ask_kernel(listing);
    flush(listing);
    rk_unmap(listing, sizeof(*listing));
}

/* Once in a process. A vfork child is its parent's copy until it executes a program. */
static void at_end(void) {
    static int done;
    if (__atomic_load_n(&rk_state, __ATOMIC_ACQUIRE) != RK_STATE_ON) return;
    if (__atomic_load_n(&rk_process->ready, __ATOMIC_ACQUIRE) && rk_is_another_process()) return;
    if (__atomic_exchange_n(&done, 1, __ATOMIC_RELAXED)) return;
    struct rk_file *file = __atomic_load_n(&rk_process->file, __ATOMIC_RELAXED);
    if (file) file->ended = 1;
    list_modules();
}

void rk_modules_start(void) { original = rk_getpid(); }

void rk_uncovered(const char *word) {
    char line[64];
    size_t length = rk_append(line, sizeof(line), 0, word);
    append_to_file(line, rk_append(line, sizeof(line), length, "\n"));
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
