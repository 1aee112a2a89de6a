/* varied.c - answers that a replay varies on purpose, to test whether they matter: the order of directory listings, the
 * host's name, the number of processors (clock.c: the time of day).
 *
 * All of it is off unless the plan enables it. A listing is read completely at the first call and returned backwards.
 * One thread at a time uses a DIR, so an entry of the table needs no lock. /proc and /sys are unchanged, as their order
 * is not that of files. Listings by libc's scandir, fts and nftw, and by programs without the shim, do not get here.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include "recorder/calls.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/hooks.h"

#define TABLE_SIZE 1024 /* open directories at once; further ones keep their order */
#define PROC_MAGIC 0x9fa0
#define SYS_MAGIC  0x62656572
#define FIRST_SIZE (UINT64_C(64) << 10)

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "readdir and readdir64 give the same");

/* Entries of a directory, each followed by its length, so that they can be read backwards. */
struct listing {
    DIR *stream; /* NULL: this table entry is free */
    uint8_t *bytes;
    uint64_t size, used, at; /* at: the end of the next entry to return */
};

static struct listing listings[TABLE_SIZE];

/* ---- listings -------------------------------------------------------------------------------------- */

static size_t first_index(const DIR *stream) { return ((uintptr_t)stream >> 4) % TABLE_SIZE; }

static struct listing *find(const DIR *stream) {
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        struct listing *listing = &listings[(first_index(stream) + i) % TABLE_SIZE];
        if (__atomic_load_n(&listing->stream, __ATOMIC_RELAXED) == stream) return listing;
    }
    return NULL;
}

static struct listing *claim(DIR *stream) {
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        struct listing *listing = &listings[(first_index(stream) + i) % TABLE_SIZE];
        DIR *nobody = NULL;
        if (__atomic_compare_exchange_n(&listing->stream, &nobody, stream, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return listing;
    }
    return NULL;
}

static void forget(DIR *stream) {
    struct listing *listing = rk_plan.backwards ? find(stream) : NULL;
    if (!listing) return;
    if (listing->bytes) rk_unmap(listing->bytes, listing->size);
    listing->bytes = NULL;
    listing->size = listing->used = listing->at = 0;
    __atomic_store_n(&listing->stream, NULL, __ATOMIC_RELEASE);
}

static bool has_room(struct listing *listing, uint64_t more) {
    if (listing->used + more <= listing->size) return true;
    uint64_t size = listing->size ? 2 * listing->size : FIRST_SIZE;
    uint8_t *bytes = rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!bytes) return false;
    if (listing->bytes) {
        memcpy(bytes, listing->bytes, listing->used);
        rk_unmap(listing->bytes, listing->size);
    }
    listing->bytes = bytes;
    listing->size = size;
    return true;
}

static bool read_all_entries(struct listing *listing) {
    const struct dirent64 *entry;
    while ((entry = RK_REAL(readdir64)(listing->stream))) {
        uint64_t length = entry->d_reclen;
        if (!has_room(listing, length + sizeof(length))) return false;
        memcpy(listing->bytes + listing->used, entry, length);
        memcpy(listing->bytes + listing->used + length, &length, sizeof(length));
        listing->used += length + sizeof(length);
    }
    listing->at = listing->used;
    return true;
}

static bool is_ordinary_directory(DIR *stream) {
    struct statfs system = {0};
    if (rk_call(SYS_fstatfs, dirfd(stream), (long)&system, 0, 0, 0, 0) != 0) return false;
    return system.f_type != PROC_MAGIC && system.f_type != SYS_MAGIC;
}

/* Returns the listing of a stream that is returned backwards; NULL if its order is unchanged. */
static struct listing *listing_of(DIR *stream) {
    if (!stream) return NULL;
    struct listing *listing = find(stream);
    if (listing || !is_ordinary_directory(stream) || !(listing = claim(stream))) return listing;
    int before = errno;
    if (!read_all_entries(listing)) {
        forget(stream);
        RK_REAL(rewinddir)(stream);
        listing = NULL;
    }
    errno = before;
    return listing;
}

static void *previous_entry(struct listing *listing) {
    uint64_t length;
    if (listing->at == 0) return NULL;
    listing->at -= sizeof(length);
    memcpy(&length, listing->bytes + listing->at, sizeof(length));
    listing->at -= length;
    return listing->bytes + listing->at;
}

RK_EXPORT struct dirent64 *readdir64(DIR *stream) {
    struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    return listing ? previous_entry(listing) : RK_REAL(readdir64)(stream);
}

RK_EXPORT struct dirent *readdir(DIR *stream) {
    struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    return listing ? previous_entry(listing) : RK_REAL(readdir)(stream);
}

RK_EXPORT int closedir(DIR *stream) {
    forget(stream);
    return RK_REAL(closedir)(stream);
}

RK_EXPORT void rewinddir(DIR *stream) {
    forget(stream);
    RK_REAL(rewinddir)(stream);
}

/* A position is the number of bytes returned so far: 0 is the beginning, also before the first call. */
RK_EXPORT long telldir(DIR *stream) {
    const struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    return listing ? (long)(listing->used - listing->at) : RK_REAL(telldir)(stream);
}

RK_EXPORT void seekdir(DIR *stream, long position) {
    struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    if (!listing)
        RK_REAL(seekdir)(stream, position);
    else if (position >= 0 && (uint64_t)position <= listing->used)
        listing->at = listing->used - (uint64_t)position;
}

/* ---- the host's name ---------------------------------------------------------------------------------- */

RK_BEFORE_TSAN RK_EXPORT int uname(struct utsname *name) {
    int result = RK_REAL(uname)(name);
    if (RK_UNLIKELY(rk_plan.host[0]) && result == 0) rk_append(name->nodename, sizeof(name->nodename), 0, rk_plan.host);
    return result;
}

RK_BEFORE_TSAN RK_EXPORT int gethostname(char *name, size_t size) {
    if (RK_LIKELY(!rk_plan.host[0])) return RK_REAL(gethostname)(name, size);
    rk_append(name, size, 0, rk_plan.host);
    if (strlen(rk_plan.host) < size) return 0;
    errno = ENAMETOOLONG;
    return -1;
}

/* ---- the number of processors --------------------------------------------------------------------------- */

/* libc's sysconf under its other name: allocators call it before the loader can resolve symbols. */
long __sysconf(int name);

RK_BEFORE_TSAN RK_EXPORT long sysconf(int name) {
    long value = __sysconf(name);
    bool counts = name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF;
    return RK_UNLIKELY(counts && rk_plan.processors) && value > rk_plan.processors ? rk_plan.processors : value;
}

RK_BEFORE_TSAN RK_EXPORT int get_nprocs(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
RK_BEFORE_TSAN RK_EXPORT int get_nprocs_conf(void) { return (int)sysconf(_SC_NPROCESSORS_CONF); }
