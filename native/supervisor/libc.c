/* libc.c - whether the shim fits the C library of a program: glibc, and no older than the one that it was built with.
 *
 * glibc's loader ends a program for a library that needs a newer glibc. Most programs have the launcher's loader;
 * others bring a glibc of their own (Nix, Guix, another root), which the loader has mapped before it opens the shim.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define MAPS       (64u << 10) /* bytes that are read: a program that starts has few mappings */
#define PIECE      (64u << 10)
#define MOST       (64u << 20) /* bytes that are searched of a library */
#define KNOWN      16          /* libraries whose answer is kept */
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(x) #x

/* The name of a version in a library's table of strings, between two zero bytes. */
static const char needed[] = "\0GLIBC_2." TEXT(__GLIBC_MINOR__);

static bool has_own_loader(const struct program *program, int pid) {
    Dl_info info;
    const void *base = (const void *)getauxval(AT_BASE); /* NOLINT: an address by its definition */
    return *program->loader && base && dladdr(base, &info) && info.dli_fname &&
           rk_is_same_file(info.dli_fname, pid, program->loader);
}

/* Finds the path of the mapped glibc; false if there is none yet. */
static bool find_libc(int pid, char path[512]) {
    static char text[MAPS];
    if (rk_read_proc(pid, "maps", text, sizeof(text)) <= 0) return false;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        const char *start = strchr(line, '/'), *slash = strrchr(line, '/');
        if (!start || (strcmp(slash, "/libc.so.6") != 0 && strncmp(slash, "/libc-2.", 8) != 0)) continue;
        return rk_append(path, 512, 0, start) + 1 < 512;
    }
    return false;
}

/* Pieces overlap, so that the name is whole in one of them. */
static bool has_version(int fd) {
    static char piece[PIECE];
    long n;
    for (long at = 0; at < MOST; at += n - (long)sizeof(needed)) {
        n = rk_call(SYS_pread64, fd, (long)piece, sizeof(piece), at, 0, 0);
        if (n <= (long)sizeof(needed)) return false;
        if (memmem(piece, (size_t)n, needed, sizeof(needed))) return true;
    }
    return false;
}

static bool is_new_enough(int fd) {
    static struct {
        dev_t device;
        ino_t inode;
        bool is_new;
    } known[KNOWN];
    static uint32_t count;
    struct stat status;
    if (rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 || !S_ISREG(status.st_mode)) return false;
    for (uint32_t i = 0; i < count && i < KNOWN; i++)
        if (known[i].device == status.st_dev && known[i].inode == status.st_ino) return known[i].is_new;
    uint32_t place = count++ % KNOWN;
    known[place].device = status.st_dev;
    known[place].inode = status.st_ino;
    return known[place].is_new = has_version(fd);
}

static int open_libc(int pid) {
    char path[512], place[RK_PLACE];
    if (!find_libc(pid, path) || !rk_path_in_root(place, pid, path)) return -1;
    int fd = rk_open(place, O_RDONLY, 0);
    return fd < 0 ? rk_open(path, O_RDONLY, 0) : fd; /* the kernel may have given it as seen from here */
}

int rk_open_shim(const struct program *program, int pid) {
    if (has_own_loader(program, pid)) return rk_open_for(pid, rk_shim_path());
    int fd = open_libc(pid);
    if (fd < 0) return -1;
    bool fits = is_new_enough(fd);
    rk_close(fd);
    return fits ? rk_open_for(pid, rk_shim_path()) : -ENOENT;
}
