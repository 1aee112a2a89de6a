/* notes.c - stores lines of read.paths for a process that reads many files, without a system call for each. They are in
 * mapped files of the process, REPROKIT_RUN/reads/PID-N, which survive a SIGKILL.
 *
 * Nothing waits here, as signal handlers call it too: without room the caller appends to read.paths instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/notes/notes.h"

#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#endif

#define FEW   8   /* lines that are appended to read.paths itself: most processes have no more */
#define TRIES 100 /* attempts to find an unused name, as process ids are reused */

struct rk_notes {
    uint64_t used; /* bytes, including this field */
    char lines[RK_NOTES - sizeof(uint64_t)];
};
_Static_assert(sizeof(struct rk_notes) == RK_NOTES, "the layout of a file of lines");

/* Creates REPROKIT_RUN/reads/PID-N with the first unused N, and leaves its path in `path`. */
static int create_file(char path[RK_RUN_PATH + 64]) {
    size_t n = rk_append(path, RK_RUN_PATH + 64, 0, rk_run);
    n = rk_append(path, RK_RUN_PATH + 64, n, "/reads");
    rk_call(SYS_mkdirat, AT_FDCWD, (long)path, 0700, 0, 0, 0);
    n = rk_append(path, RK_RUN_PATH + 64, n, "/");
    n = rk_append_number(path, RK_RUN_PATH + 64, n, (uint64_t)rk_getpid());
    n = rk_append(path, RK_RUN_PATH + 64, n, "-");
    int fd = -EEXIST;
    for (uint64_t number = 0; fd == -EEXIST && number < TRIES; number++) {
        rk_append_number(path, RK_RUN_PATH + 64, n, number);
        fd = rk_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    }
    return fd;
}

/* Maps the file, but not in forked children: they may get other rights. */
static struct rk_notes *map_file(int fd) {
    struct rk_notes *notes = rk_map(RK_NOTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!notes) return NULL;
    rk_call(SYS_madvise, (long)notes, RK_NOTES, MADV_DONTFORK, 0, 0, 0);
    notes->used = offsetof(struct rk_notes, lines);
    return notes;
}

static struct rk_notes *make_notes(void) {
    char path[RK_RUN_PATH + 64];
    int fd = create_file(path);
    if (fd < 0) return NULL;
    struct rk_notes *notes = rk_reserve(fd, 0, RK_NOTES) == 0 ? map_file(fd) : NULL;
    rk_close(fd);
    if (!notes) rk_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0);
    return notes;
}

/* Replaces the full file by a new one; after a failure it does not retry. The old file stays mapped, as another thread
 * may be writing to it. */
static struct rk_notes *next_file(void) {
    if (__atomic_exchange_n(&rk_process->making_notes, 1, __ATOMIC_ACQUIRE)) return NULL;
    struct rk_notes *notes = make_notes();
    if (!notes) return NULL;
    __atomic_store_n(&rk_process->notes, notes, __ATOMIC_RELEASE);
    __atomic_store_n(&rk_process->making_notes, 0, __ATOMIC_RELEASE);
    return notes;
}

static char *claim_room(struct rk_notes *notes, size_t size) {
    if (!notes) return NULL;
    uint64_t used = __atomic_load_n(&notes->used, __ATOMIC_RELAXED);
    do
        if (used + size > RK_NOTES) return NULL;
    while (!__atomic_compare_exchange_n(&notes->used, &used, used + size, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return (char *)notes + used;
}

/* Writes the first byte last: a line without it is incomplete. */
static void write_line(volatile char *at, const char *line, size_t size) {
    for (size_t i = 1; i < size; i++) at[i] = line[i];
    at[0] = line[0];
}

bool rk_note(const char *line, size_t size) {
    if (__atomic_load_n(&rk_process->read_lines, __ATOMIC_RELAXED) < FEW &&
        __atomic_fetch_add(&rk_process->read_lines, 1, __ATOMIC_RELAXED) < FEW)
        return false;
    char *room = claim_room(__atomic_load_n(&rk_process->notes, __ATOMIC_ACQUIRE), size);
    if (!room) room = claim_room(next_file(), size);
    if (!room) return false;
    write_line(room, line, size);
    return true;
}
