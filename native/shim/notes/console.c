/* console.c - stores what the run prints: a copy of each write to the command's standard output and error, in a mapped
 * file of each process, which survives a SIGKILL. The write itself is unchanged.
 *
 * The file that a descriptor refers to is cached until a call creates that descriptor again. The first and the last
 * part of the output are stored: after the first area two areas are written in turn. Signal handlers print too, so
 * nothing waits here except for a thread that extends the file. stdio prints inside libc, where no hook sees it: only
 * the fact is noted, at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "recorder/calls.h"
#include "recorder/file.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/state.h"
#include "shim/notes/console.h"

#define SMALL     8192 /* bytes of a new file: most processes print little */
#define LARGEST   (RK_CONSOLE_HEAD + RK_CONSOLE_FIRST + 2 * RK_CONSOLE_LAST)
#define PIECE     (1u << 20) /* bytes of a record */
#define TRIES     10000      /* attempts to find an unused name for a repeated identity */
#define PUTTING   0x800      /* _IO_CURRENTLY_PUTTING of glibc: stdio was asked to print */
#define KCMP      0          /* KCMP_FILE of linux/kcmp.h */
#define NOTHING   9
#define FORWARDED 2 /* added to a stream: the text of a rank, which its launcher prints */
#define NO_FILE   -1

_Static_assert(sizeof(struct rk_console) == 376, "the layout of a console file's head");
_Static_assert(offsetof(struct rk_console, pid) == offsetof(struct rk_file, pid), "the broker looks at either");

/* ---- which descriptors ------------------------------------------------------------------------------------ */

/* Returns whether a descriptor was inherited from the command. Only /dev/null needs the check: any program opens it. */
static bool is_inherited_from_command(int fd, int own, const struct stat *status) {
    if (!S_ISCHR(status->st_mode) || status->st_rdev != makedev(1, 3)) return true;
    long order = rk_call(SYS_kcmp, rk_plan.launcher, rk_getpid(), KCMP, own, fd, 0);
    return order <= 0; /* the same, or nobody can tell */
}

/* Returns whether this process is a rank and the descriptor leads to its launcher, which merges the ranks' text. */
static bool is_forwarded(const struct stat *status) {
    bool is_rank = strncmp(rk_identity, "rank", 4) == 0 && !strchr(rk_identity, '/');
    bool is_null = S_ISCHR(status->st_mode) && status->st_rdev == makedev(1, 3);
    return is_rank && !is_null && !S_ISREG(status->st_mode);
}

/* Returns the stream of a descriptor: 0 or 1, or NO_FILE. If both are the same file, the descriptor's number decides.
 */
static int stream_of(int fd) {
    struct stat status;
    if (rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0) return NO_FILE;
    for (int i = 0; i < 2; i++) {
        int stream = i ? 2 - fd : fd - 1;
        bool is_same = status.st_dev == rk_plan.printed[stream][0] && status.st_ino == rk_plan.printed[stream][1];
        if (rk_plan.prints >> stream & 1 && is_same && is_inherited_from_command(fd, stream + 1, &status))
            return stream;
    }
    return is_forwarded(&status) ? fd - 1 + FORWARDED : NO_FILE;
}

uint8_t rk_printing[2]; /* by descriptor: 0 if unknown, NOTHING, or 1 + its stream, FORWARDED or not */

/* Returns the cached stream. A vfork child shares its parent's memory but not its descriptors, so it writes no cache.
 */
static int cached_stream_of(int fd) {
    uint8_t cached = __atomic_load_n(&rk_printing[fd - 1], __ATOMIC_RELAXED);
    if (RK_LIKELY(cached)) return cached == NOTHING ? NO_FILE : cached - 1;
    int stream = stream_of(fd);
    if (!rk_is_another_process())
        __atomic_store_n(&rk_printing[fd - 1], stream == NO_FILE ? NOTHING : 1 + stream, __ATOMIC_RELAXED);
    return stream;
}

/* ---- the file ----------------------------------------------------------------------------------------------- */

static int open_console_file(uint32_t number, int flags) {
    char path[RK_RUN_PATH + 64], directory[RK_RUN_PATH + 16];
    size_t n = rk_append(directory, sizeof(directory), 0, rk_run);
    rk_append(directory, sizeof(directory), n, "/console");
    rk_entropy_path(path, sizeof(path), directory, rk_identity_hash(), number, ".console");
    return rk_open(path, O_RDWR | O_NOFOLLOW | flags, 0600);
}

static int open_or_create(void) {
    uint32_t number = 0;
    if (rk_process->console_opened) return open_console_file(rk_process->console_number, 0);
    int fd = open_console_file(number, O_CREAT | O_EXCL);
    while (fd == -EEXIST && ++number < TRIES) fd = open_console_file(number, O_CREAT | O_EXCL);
    rk_process->console_number = number;
    rk_process->console_opened = fd >= 0;
    return fd;
}

/* Writes the head by one system call: a file has all of it, or is empty or zeros, whatever runs out here. */
static int write_head(int fd, uint64_t missed, uint32_t unseen) {
    struct rk_console head = {.magic = "RKCONSOL",
                              .format = RK_CONSOLE_FORMAT,
                              .unseen = unseen,
                              .pid = (uint32_t)rk_getpid(),
                              .incarnation = rk_process->console_number,
                              .missed = missed};
    rk_append(head.identity, sizeof(head.identity), 0, rk_identity);
    if (!rk_within_limit(sizeof(head))) return EFBIG;
    long n = rk_call(SYS_pwrite64, fd, (long)&head, sizeof(head), 0, 0, 0);
    return n == sizeof(head) ? 0 : n < 0 ? (int)-n : ENOSPC;
}

static int map_file(int fd, struct rk_console **console) {
    int error = rk_reserve(fd, 0, SMALL);
    if (error) return error;
    *console = rk_map(LARGEST, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!*console) return ENOMEM;
    rk_keep(*console, LARGEST);
    return 0;
}

/* Returns whether only memory, room or descriptors are short: the next text that is printed tries again. */
static bool is_shortage(int error) {
    return error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOSPC || error == EDQUOT;
}

/* Creates the file; after a failure it counts the `size` bytes as missed, in the head if that can be written. */
static struct rk_console *make_console(uint64_t size) {
    struct rk_console *console = NULL;
    int fd = open_or_create(), error = fd < 0 ? -fd : write_head(fd, rk_process->console_missed + size, 0);
    if (!error) error = map_file(fd, &console);
    if (fd >= 0) rk_close(fd);
    if (error) rk_process->console_missed += size;
    if (rk_process->file) rk_process->file->unprinted = rk_process->console_opened ? 0 : rk_process->console_missed;
    if (error) {
        rk_process->console_full = !rk_process->console_opened && !is_shortage(error);
        return NULL;
    }
    console->missed = rk_process->console_missed;
    rk_process->console_reserved = SMALL;
    return console;
}

/* Reserves the file up to `end`. Call with the lock held. */
static bool extend(uint64_t end) {
    uint64_t reserved = rk_process->console_reserved, size = 2 * reserved;
    if (end <= reserved) return true;
    if (size < end) size = (end + 4095) & ~UINT64_C(4095);
    if (size > LARGEST) size = LARGEST;
    int fd = open_console_file(rk_process->console_number, 0);
    if (fd < 0) return false;
    int error = rk_reserve(fd, reserved, size - reserved);
    rk_close(fd);
    if (!error) __atomic_store_n(&rk_process->console_reserved, size, __ATOMIC_RELEASE);
    return !error;
}

static struct rk_console_area *area_of(struct rk_console *console, uint64_t number) {
    return &console->areas[number ? 1 + (number - 1) % 2 : 0];
}

static uint64_t start_of(uint64_t number) {
    return RK_CONSOLE_HEAD + (number ? RK_CONSOLE_FIRST + (number - 1) % 2 * RK_CONSOLE_LAST : 0);
}

/* Adds the ends of lines in an area's records, by stream; returns false at a record that a thread did not complete. */
static bool count_lines(const uint8_t *records, uint64_t used, uint64_t lines[2]) {
    struct rk_console_record record;
    for (uint64_t at = 0, end; at < used; at = end) {
        if (used - at < sizeof(record)) return false;
        memcpy(&record, records + at, sizeof(record));
        end = at + sizeof(record) + record.thread + record.size;
        if (!record.size || !record.thread || record.stream > 1 || end > used) return false;
        for (uint64_t i = end - record.size; i < end; i++) lines[record.stream] += records[i] == '\n';
    }
    return true;
}

static void drop_area(struct rk_console *console, struct rk_console_area *area, uint64_t number) {
    uint64_t lines[2] = {console->dropped_lines[0], console->dropped_lines[1]};
    console->dropped += area->used;
    if (lines[0] == UINT64_MAX) return;
    bool is_known = count_lines((const uint8_t *)console + start_of(number), area->used, lines);
    for (int i = 0; i < 2; i++) console->dropped_lines[i] = is_known ? lines[i] : UINT64_MAX;
}

/* Switches to the next area and drops its old content. Call with the lock held. */
static void rotate_area(struct rk_console *console, uint64_t number) {
    if (console->current != number) return;
    struct rk_console_area *next = area_of(console, number + 1);
    drop_area(console, next, number + 1);
    next->number = number + 1;
    __atomic_store_n(&next->used, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&console->current, number + 1, __ATOMIC_RELEASE);
}

/* Switches to the next area or extends the file. Call with the lock held. */
static bool prepare_area(struct rk_console *console, uint64_t number, uint64_t size) {
    uint64_t used = area_of(console, number)->used, room = number ? RK_CONSOLE_LAST : RK_CONSOLE_FIRST;
    if (used + size <= room) return extend(start_of(number) + used + size);
    rotate_area(console, number);
    return true;
}

/* Makes room for a record of this size in the area of this number, with signals blocked. */
static bool make_room(struct rk_console *console, uint64_t number, uint64_t size) {
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->console_lock);
    if (!rk_process->console_full) rk_process->console_full = !prepare_area(console, number, size);
    bool is_full = rk_process->console_full;
    rk_unlock(&rk_process->console_lock);
    rk_restore_signals(before);
    return !is_full;
}

static uint8_t *claim(struct rk_console *console, uint64_t size) {
    for (;;) {
        uint64_t number = __atomic_load_n(&console->current, __ATOMIC_ACQUIRE);
        struct rk_console_area *area = area_of(console, number);
        uint64_t used = __atomic_load_n(&area->used, __ATOMIC_ACQUIRE), end = start_of(number) + used + size;
        bool has_room = used + size <= (number ? RK_CONSOLE_LAST : RK_CONSOLE_FIRST) &&
                        end <= __atomic_load_n(&rk_process->console_reserved, __ATOMIC_ACQUIRE);
        if (RK_UNLIKELY(!has_room)) {
            if (!make_room(console, number, size)) return NULL;
        } else if (__atomic_compare_exchange_n(&area->used, &used, used + size, true, __ATOMIC_ACQ_REL,
                                               __ATOMIC_RELAXED)) {
            return (uint8_t *)console + end - size;
        }
    }
}

/* Returns the file, which is created for the first `size` bytes that are printed; NULL if it cannot be. */
static struct rk_console *own_console(uint64_t size) {
    struct rk_console *console = __atomic_load_n(&rk_process->console, __ATOMIC_ACQUIRE);
    if (RK_LIKELY(console != NULL) || rk_process->console_full) return console;
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->console_lock);
    if (!rk_process->console && !rk_process->console_full)
        __atomic_store_n(&rk_process->console, make_console(size), __ATOMIC_RELEASE);
    console = rk_process->console;
    rk_unlock(&rk_process->console_lock);
    rk_restore_signals(before);
    return console;
}

/* ---- what is printed ----------------------------------------------------------------------------------------- */

static void store(struct rk_console *console, int stream, const uint8_t *bytes, size_t size) {
    const char *thread = rk_thread.generation == rk_generation ? rk_thread.identity : "?";
    if (stream & FORWARDED) __atomic_or_fetch(&console->unseen, RK_CONSOLE_FORWARDED << (stream & 1), __ATOMIC_RELAXED);
    struct rk_console_record record = {.stream = (uint8_t)(stream & 1), .thread = (uint8_t)strlen(thread)};
    for (size_t piece; size > 0; bytes += piece, size -= piece) {
        piece = size < PIECE ? size : PIECE;
        record.size = (uint32_t)piece;
        uint8_t *at = rk_process->console_full ? NULL : claim(console, sizeof(record) + record.thread + piece);
        if (!at) {
            __atomic_fetch_add(&console->lost, size, __ATOMIC_RELAXED);
            return;
        }
        memcpy(at, &record, sizeof(record));
        memcpy(at + sizeof(record), thread, record.thread);
        memcpy(at + sizeof(record) + record.thread, bytes, piece);
    }
}

static inline bool may_be_console(int fd, ssize_t size) { return (fd == 1 || fd == 2) && size > 0 && rk_active(); }

/* Stores the `size` bytes that were written. */
static __attribute__((noinline)) void store_written(int fd, const struct iovec *parts, int count, size_t size) {
    if (rk_plan.prints) rk_process_check();
    int stream = rk_plan.prints ? cached_stream_of(fd) : NO_FILE;
    struct rk_console *console = stream == NO_FILE ? NULL : own_console(size);
    for (int i = 0; console && i < count && size > 0; i++) {
        size_t part = parts[i].iov_len < size ? parts[i].iov_len : size;
        store(console, stream, parts[i].iov_base, part);
        size -= part;
    }
}

#define WRITE(name)                                                                                  \
    RK_EXPORT ssize_t name(int fd, const void *buffer, size_t size) {                                \
        ssize_t written = RK_REAL(name)(fd, buffer, size);                                           \
        if (may_be_console(fd, written))                                                             \
            store_written(fd, &(struct iovec){(void *)buffer, (size_t)written}, 1, (size_t)written); \
        return written;                                                                              \
    }
WRITE(write)
WRITE(__write)

RK_EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t written = RK_REAL(writev)(fd, parts, count);
    if (may_be_console(fd, written)) store_written(fd, parts, count, (size_t)written);
    return written;
}

/* ---- what stdio printed ------------------------------------------------------------------------------------- */

static int stdio_before_fork; /* bits by stream, inherited: a forked child has its parent's stdio state */

static bool is_of_command(int stream) { return stream == 0 || stream == 1; }

static int streams_of_stdio(void) {
    FILE *const streams[] = {stdout, stderr};
    int streams_found = 0;
    for (int stream = 0; stream < 2; stream++) {
        int fd = streams[stream] ? streams[stream]->_fileno : -1;
        if (fd == stream + 1 && streams[stream]->_flags & PUTTING && is_of_command(stream_of(fd)))
            streams_found |= 1 << stream;
    }
    return streams_found;
}

void rk_console_before_fork(void) {
    if (rk_plan.prints) stdio_before_fork |= streams_of_stdio();
}

/* Notes what was not seen in a file without text, for which no memory is needed. */
static void write_unseen(uint32_t unseen) {
    int fd = open_or_create();
    if (fd < 0) return;
    write_head(fd, rk_process->console_missed, unseen);
    rk_close(fd);
}

void rk_console_end(void) {
    if (!rk_plan.prints) return;
    rk_process_check();
    uint32_t unseen = (uint32_t)(streams_of_stdio() & ~(rk_is_forked ? stdio_before_fork : 0));
    if (!unseen) return;
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->console_lock);
    if (rk_process->console)
        __atomic_or_fetch(&rk_process->console->unseen, unseen, __ATOMIC_RELAXED);
    else
        write_unseen(unseen);
    rk_unlock(&rk_process->console_lock);
    rk_restore_signals(before);
}
