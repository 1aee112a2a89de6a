/* pool.c - entropy/pool.entropy: a page for each of many forked processes, instead of a file for each.
 *
 * A process takes its page, its slot, at its first request. It opens the file itself: no descriptor or mapping is
 * inherited, and only the mapping of its slot stays. A process that cannot open the pool has a file of its own, as has
 * every executed program: the supervisor gives nobody a descriptor that can read other processes' bytes.
 *
 * Many processes take slots at once, and each may be killed at any instruction. A slot is taken by an atomic addition,
 * then a place in the table by compare-and-exchange, so that an unfinished attempt blocks nobody. The head of a slot is
 * written last: a slot without one was given nothing. Blocks are allocated before a slot is touched, as a write to a
 * mapped page on a full disk would end the process by SIGBUS.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/file.h"
#include "recorder/pool.h"
#include "recorder/reach.h"
#include "recorder/system.h"

#define AT_ONCE 16 /* slots that are allocated together */
#define AHEAD   8  /* claims that are read together */
#define PATH    (RK_RUN_PATH + 96)

_Static_assert(sizeof(struct rk_pool) == RK_SLOT, "the layout of a pool's first page");
_Static_assert(sizeof(struct rk_claim) == 16 && sizeof(struct rk_level) == 16, "the layout of a table");

bool rk_is_forked;

/* ---- the layout ------------------------------------------------------------------------------------------- */

static uint64_t slots_of(int level) { return (uint64_t)RK_POOL_SLOTS << 4 * level; }

static uint64_t places_of(int level) { return 2 * slots_of(level); }

static uint64_t table_size(int level) { return places_of(level) * sizeof(struct rk_claim); }

static uint64_t table_of(int level) {
    uint64_t offset = RK_SLOT;
    for (int i = 0; i < level; i++) offset += table_size(i) + slots_of(i) * RK_SLOT;
    return offset;
}

static uint64_t slot_at(int level, uint64_t slot) { return table_of(level) + table_size(level) + slot * RK_SLOT; }

static uint64_t first_place(int level, uint64_t hash) { return 1 + hash % (places_of(level) - 1); }

static uint64_t next_place(int level, uint64_t place) { return place + 1 < places_of(level) ? place + 1 : 1; }

/* Opens a file without the supervisor's help. */
static int open_here(const char *path, int flags) {
    return (int)rk_call(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0600, 0,
                        RK_MARK);
}

static void path_of(char path[PATH], const char *directory, const char *file) {
    rk_append(path, PATH, rk_append(path, PATH, 0, directory), file);
}

static int open_pool(const char *directory, int flags) {
    char path[PATH];
    path_of(path, directory, "/pool.entropy");
    return open_here(path, flags);
}

static bool read_at(int fd, void *bytes, uint64_t size, uint64_t offset) {
    return rk_call(SYS_pread64, fd, (long)bytes, (long)size, (long)offset, 0, 0) == (long)size;
}

/* ---- finding --------------------------------------------------------------------------------------------------- */

/* Counts the claims of a hash in a level, up to number + 1. The slot of claim `number`, if there, goes to *slot. */
static uint32_t count_claims(int fd, int level, uint64_t hash, uint32_t number, uint64_t *slot) {
    struct rk_claim claims[AHEAD];
    uint64_t place = first_place(level, hash);
    uint32_t claim_count = 0;
    for (uint64_t probed = 1; probed < places_of(level) && claim_count <= number;) {
        uint64_t batch = places_of(level) - place < AHEAD ? places_of(level) - place : AHEAD;
        if (!read_at(fd, claims, batch * sizeof(*claims), table_of(level) + place * sizeof(*claims)))
            return claim_count;
        for (uint64_t i = 0; i < batch && claim_count <= number; i++, probed++, place = next_place(level, place)) {
            if (!claims[i].hash) return claim_count;
            if (claims[i].hash == hash && claim_count++ == number) *slot = claims[i].slot;
        }
    }
    return claim_count;
}

/* Opens the pool of a directory if it has a claim of this hash and number; else returns a negative error. *offset: the
 * slot's, or 0 if the claim has no slot. */
int rk_pool_find(const char *directory, uint64_t hash, uint32_t number, uint64_t *offset) {
    int fd = open_pool(directory, O_RDONLY);
    if (fd < 0) return fd;
    for (int level = 0; level < RK_POOL_LEVELS; level++) {
        uint64_t slot = 0;
        uint32_t claim_count = count_claims(fd, level, hash, number, &slot);
        if (claim_count > number) {
            *offset = slot == 0 ? 0 : slot <= slots_of(level) ? slot_at(level, slot - 1) : UINT64_MAX - RK_SLOT;
            return fd;
        }
        number -= claim_count;
    }
    rk_close(fd);
    return -ENOENT;
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

/* Allocates blocks. Writing zeros instead could overwrite others' data: without fallocate there is no pool. */
static int allocate(int fd, uint64_t offset, uint64_t size) {
    if (!rk_within_limit(offset + size)) return -EFBIG;
    long error;
    do error = rk_call(SYS_fallocate, fd, 0, (long)offset, (long)size, 0, 0);
    while (error == -EINTR);
    return (int)error;
}

static int write_head(int fd) {
    struct rk_pool head = {.magic = "RKENTROP", .format = RK_FORMAT};
    head.head_check = rk_check(&head, offsetof(struct rk_pool, head_check), 0);
    int error = allocate(fd, 0, slot_at(0, 0));
    if (error) return error;
    long n = rk_call(SYS_pwrite64, fd, (long)&head, sizeof(head), 0, 0, 0);
    return n == sizeof(head) ? 0 : n < 0 ? (int)n : -ENOSPC;
}

/* Creates the pool and links it when it is complete: other processes create theirs at the same time. */
static int make_pool(const char *directory) {
    char path[PATH], temporary[PATH], file[64];
    size_t length = rk_append_number(file, sizeof(file), rk_append(file, sizeof(file), 0, "/pool-"), rk_getpid());
    rk_append(file, sizeof(file), length, ".new");
    path_of(temporary, directory, file);
    path_of(path, directory, "/pool.entropy");
    int fd = open_here(temporary, O_RDWR | O_CREAT | O_TRUNC);
    if (fd < 0) return fd;
    long error = write_head(fd);
    rk_close(fd);
    if (!error) error = rk_call(SYS_linkat, AT_FDCWD, (long)temporary, AT_FDCWD, (long)path, 0, 0);
    if (error == -EPERM || error == -EOPNOTSUPP)
        error = rk_call(SYS_renameat2, AT_FDCWD, (long)temporary, AT_FDCWD, (long)path, RK_NO_REPLACE, RK_MARK);
    rk_call(SYS_unlinkat, AT_FDCWD, (long)temporary, 0, 0, 0, 0);
    return error && error != -EEXIST ? (int)error : open_pool(directory, O_RDWR);
}

/* ---- taking ---------------------------------------------------------------------------------------------------- */

/* Finds the first level with free slots. Its table is allocated here, unless slots of it are already. */
static int find_level(int fd) {
    for (int level = 0; level < RK_POOL_LEVELS; level++) {
        struct rk_level counts = {0};
        if (!read_at(fd, &counts, sizeof(counts), table_of(level)) || !counts.reserved)
            return allocate(fd, table_of(level), table_size(level)) == 0 ? level : RK_POOL_LEVELS;
        if (counts.taken < slots_of(level)) return level;
    }
    return RK_POOL_LEVELS;
}

static int take_slot(int fd, int level, struct rk_level *counts, uint64_t *slot) {
    *slot = __atomic_fetch_add(&counts->taken, 1, __ATOMIC_RELAXED);
    if (*slot >= slots_of(level)) return -EAGAIN;
    uint64_t reserved = __atomic_load_n(&counts->reserved, __ATOMIC_ACQUIRE), end = (*slot / AT_ONCE + 1) * AT_ONCE;
    if (*slot < reserved) return 0;
    int error = allocate(fd, slot_at(level, reserved), (end - reserved) * RK_SLOT);
    while (!error && reserved < end &&
           !__atomic_compare_exchange_n(&counts->reserved, &reserved, end, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE))
        continue;
    return error;
}

/* Claims the next free place, after all of the same hash, which are added to *number. */
static struct rk_claim *claim_next(struct rk_claim *table, int level, uint64_t hash, uint32_t *number) {
    uint64_t place = first_place(level, hash);
    for (uint64_t probed = 1; probed < places_of(level); probed++, place = next_place(level, place)) {
        uint64_t occupant = 0;
        if (__atomic_compare_exchange_n(&table[place].hash, &occupant, hash, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return &table[place];
        if (occupant == hash) ++*number;
    }
    return NULL;
}

static bool has_file(const char *directory, uint64_t hash, uint32_t number) {
    char path[RK_RUN_PATH + 96];
    rk_entropy_path(path, sizeof(path), directory, hash, number, ".entropy");
    return rk_call(SYS_faccessat, AT_FDCWD, (long)path, 0, 0, 0, 0) == 0;
}

/* Claims a place for a slot, under this hash and the next number that no other process has. */
static bool claim_place(struct rk_claim *table, int fd, int level, uint64_t slot, const char *directory, uint64_t hash,
                        uint32_t *number) {
    uint64_t ignored;
    uint32_t below = 0;
    for (int i = 0; i < level; i++) below += count_claims(fd, i, hash, UINT32_MAX - 1, &ignored);
    struct rk_claim *place;
    do {
        *number = below;
        place = claim_next(table, level, hash, number);
    } while (place && has_file(directory, hash, *number));
    if (place) __atomic_store_n(&place->slot, slot + 1, __ATOMIC_RELEASE);
    return place != NULL;
}

/* Takes and maps a slot, then claims a place for it: memory may be short, and nobody is known by a claim without it. */
static int take_slot_and_claim(int fd, const char *directory, uint64_t hash, uint32_t *number, uint8_t **mapped) {
    for (int level; (level = find_level(fd)) < RK_POOL_LEVELS;) {
        struct rk_claim *table = rk_map(table_size(level), PROT_READ | PROT_WRITE, MAP_SHARED, fd, table_of(level));
        if (!table) return -ENOMEM;
        uint64_t slot;
        int error = take_slot(fd, level, (struct rk_level *)table, &slot);
        if (!error) *mapped = rk_map(RK_SLOT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, slot_at(level, slot));
        if (!error && !*mapped) error = -ENOMEM;
        if (!error && !claim_place(table, fd, level, slot, directory, hash, number)) error = -ENOSPC;
        rk_unmap(table, table_size(level));
        if (error != -EAGAIN) return error;
    }
    return -ENOSPC;
}

/* Returns a mapped slot for this process; NULL if it must use a file. */
uint8_t *rk_pool_take(const char *directory, uint64_t hash, uint32_t *number) {
    int fd = open_pool(directory, O_RDWR);
    if (fd == -ENOENT) fd = make_pool(directory);
    if (fd < 0) return NULL;
    uint8_t *slot = NULL;
    int error = hash ? take_slot_and_claim(fd, directory, hash, number, &slot) : -EINVAL;
    rk_close(fd);
    if (error && slot) rk_unmap(slot, RK_SLOT);
    return error ? NULL : slot;
}
