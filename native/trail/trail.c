/* trail.c - opens and closes the trail of a process. */
#include <errno.h>
#include <sys/mman.h>

#include "recorder/compiler.h"
#include "recorder/system.h"
#include "trail/trail.h"

/* Different from the shim's range, so that neither library displaces the other's mappings. */
#define FIRST_MAPPING UINT64_C(0x2f0000000000)

static struct rkt_trail *map_trail(void) {
    return rk_map(sizeof(struct rkt_trail), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Opens a trail for this process; NULL if it cannot be written, with the reason in *error. */
RK_EXPORT struct rkt_trail *reprokit_trail_open(const char *run, const char *identity, int *error) {
    rk_map_next = FIRST_MAPPING;
    struct rkt_trail *trail = map_trail();
    *error = trail ? rkt_make_file(trail, run, identity) : ENOMEM;
    if (trail) {
        trail->room = RKT_ROOM;
        trail->worker.work = rkt_digest_tensors;
    }
    return *error ? NULL : trail;
}

/* Closes the trail and trims the last series that has steps. No other call may follow. */
RK_EXPORT void reprokit_trail_close(struct rkt_trail *trail, struct rkt_series *last) {
    rkt_stop(&trail->worker, &trail->lock);
    rkt_trim(trail, last);
}

RK_EXPORT uint32_t reprokit_trail_abi(void) { return RKT_ABI; }
