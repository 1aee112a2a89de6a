/* start.c - starts the parts of the shim. */
#include <stdlib.h>
#include <string.h>

#include "recorder/host.h"
#include "recorder/record.h"
#include "shim/hooks.h"
#include "shim/identity/children.h"
#include "shim/identity/identity.h"
#include "shim/identity/pids.h"
#include "shim/notes/modules.h"
#include "shim/notes/placed.h"
#include "shim/notes/unshimmed.h"
#include "shim/notes/written.h"
#include "shim/sources/cpuid.h"
#include "shim/sources/devices.h"
#include "shim/sources/place.h"
#include "shim/sources/stack.h"

/* Returns whether this is the command's own process, whose file shows that the shim was loaded, even without requests.
 */
static bool is_root(void) { return !strpbrk(rk_identity, "/+"); }

__attribute__((constructor)) static void constructor(void) {
    rk_resolve();
    if (!rk_active()) return;
    const char *given = getenv("REPROKIT_ID"), *ranks = getenv("REPROKIT_RANK");
    /* A rank: the agent and its children read the variables. */
    if (given && strcmp(given, rk_identity) != 0) setenv("REPROKIT_ID", rk_identity, 1);
    bool is_rank = strcmp(ranks ? ranks : "", rk_ranks) != 0;
    if (given && is_rank) setenv("REPROKIT_RANK", rk_ranks, 1);
    rk_modules_start();
    rk_stack_start();
    rk_children_start();
    rk_devices_start();
    rk_written_start();
    rk_placed_start();
    rk_pids_start();
    rk_place_start();
    rk_cpuid_start();
    rk_look_for_supervisor(is_rank);
    if (is_root()) rk_file_ready();
}
