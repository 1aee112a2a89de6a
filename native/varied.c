/* varied.c - what a replay is told otherwise than its recording was, to see whether that matters: the order of
 * directory listings, the host's name, the number of processors (clock.c: the hour).
 *
 * Nothing of it happens unless the plan asks for it. A listing is read whole at the first look and given from its
 * end. One DIR is used by one thread at a time, so that a place in the table needs no lock. /proc and /sys
 * are left as they are: their order is not that of files. What libc's own scandir, fts and nftw list, and
 * programs without the shim, is not seen.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include "hooks.h"

#define PLACES     1024 /* directories that are open at once; what is beyond keeps its order */
#define PROC_MAGIC 0x9fa0
#define SYS_MAGIC  0x62656572
#define FIRST_SIZE (UINT64_C(64) << 10)

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "readdir and readdir64 give the same");

/* Each entry is followed by its length, so that it can be found from its end. */
struct listing {
    DIR *stream; /* NULL: this place is free */
    uint8_t *bytes;
    uint64_t size, used, at; /* at: the end of the entry that is next */
};

static struct listing listings[PLACES];

/* ---- listings -------------------------------------------------------------------------------------- */

static size_t first_place(const DIR *stream) { return ((uintptr_t)stream >> 4) % PLACES; }

static struct listing *find(const DIR *stream) {
    for (size_t i = 0; i < PLACES; i++) {
        struct listing *listing = &listings[(first_place(stream) + i) % PLACES];
        if (__atomic_load_n(&listing->stream, __ATOMIC_RELAXED) == stream) return listing;
    }
    return NULL;
}

static struct listing *claim(DIR *stream) {
    for (size_t i = 0; i < PLACES; i++) {
        struct listing *listing = &listings[(first_place(stream) + i) % PLACES];
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

static bool read_whole(struct listing *listing) {
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

static bool is_of_files(DIR *stream) {
    struct statfs system = {0};
    if (rk_call(SYS_fstatfs, dirfd(stream), (long)&system, 0, 0, 0, 0) != 0) return false;
    return system.f_type != PROC_MAGIC && system.f_type != SYS_MAGIC;
}

/* The listing of a stream that is given backwards; NULL where its order is left alone. */
static struct listing *listing_of(DIR *stream) {
    if (!stream) return NULL;
    struct listing *listing = find(stream);
    if (listing || !is_of_files(stream) || !(listing = claim(stream))) return listing;
    int before = errno;
    if (!read_whole(listing)) {
        forget(stream);
        RK_REAL(rewinddir)(stream);
        listing = NULL;
    }
    errno = before;
    return listing;
}

static void *next(struct listing *listing) {
    uint64_t length;
    if (listing->at == 0) return NULL;
    listing->at -= sizeof(length);
    memcpy(&length, listing->bytes + listing->at, sizeof(length));
    listing->at -= length;
    return listing->bytes + listing->at;
}

RK_EXPORT struct dirent64 *readdir64(DIR *stream) {
    struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    return listing ? next(listing) : RK_REAL(readdir64)(stream);
}

RK_EXPORT struct dirent *readdir(DIR *stream) {
    struct listing *listing = RK_UNLIKELY(rk_plan.backwards) ? listing_of(stream) : NULL;
    return listing ? next(listing) : RK_REAL(readdir)(stream);
}

RK_EXPORT int closedir(DIR *stream) {
    forget(stream);
    return RK_REAL(closedir)(stream);
}

RK_EXPORT void rewinddir(DIR *stream) {
    forget(stream);
    RK_REAL(rewinddir)(stream);
}

/* A position is how much was given: 0 is the beginning, also before the first look. */
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

/* The real one under its other name: allocators ask while the loader cannot look anything up yet. */
long __sysconf(int name);

RK_BEFORE_TSAN RK_EXPORT long sysconf(int name) {
    long value = __sysconf(name);
    bool counts = name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF;
    return RK_UNLIKELY(counts && rk_plan.processors) && value > rk_plan.processors ? rk_plan.processors : value;
}

RK_BEFORE_TSAN RK_EXPORT int get_nprocs(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
RK_BEFORE_TSAN RK_EXPORT int get_nprocs_conf(void) { return (int)sysconf(_SC_NPROCESSORS_CONF); }
