/* profile.c - replay: finds and maps the recorded file of this process. It may be a slot of the pool and a file with
 * the rest, which are mapped next to each other.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/file.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/profile.h"
#include "recorder/system.h"

static int open_file(const char *ending) {
    char path[sizeof(rk_plan.profile) + 64];
    rk_entropy_path(path, sizeof(path), rk_plan.profile, rk_identity_hash(), rk_process->incarnation, ending);
    return rk_open(path, O_RDONLY | O_NOFOLLOW, 0);
}

static int open_pool(uint64_t *slot) {
    return rk_pool_find(rk_plan.profile, rk_identity_hash(), rk_process->incarnation, slot);
}

int rk_recorded_open(uint64_t *offset) {
    uint64_t slot;
    if (*offset >= rk_process->profile_in_slot) {
        *offset -= rk_process->profile_in_slot;
        return open_file(rk_process->profile_in_slot ? RK_REST : ".entropy");
    }
    int fd = open_pool(&slot);
    *offset += slot;
    return fd;
}

static uint64_t size_of(int fd) {
    long size = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    return size > 0 ? (uint64_t)size : 0;
}

static bool is_profile(const struct rk_file *file, uint64_t size) {
    return size >= RK_HEAD && memcmp(file->magic, "RKENTROP", 8) == 0 && file->format <= RK_FORMAT &&
           file->head_check == rk_check(file, offsetof(struct rk_file, head_check), 0) &&
           strncmp(file->identity, rk_identity, sizeof(file->identity)) == 0;
}

static void use_profile(const uint8_t *map, uint64_t size, uint32_t in_slot) {
    rk_process->slots = rk_map(RK_STREAMS_MOST * sizeof(*rk_process->slots), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!map || !rk_process->slots || !is_profile((const struct rk_file *)map, size)) {
        rk_give_up(RK_REASON_BAD_PROFILE, 0);
        return;
    }
    rk_keep(map, size);
    rk_keep(rk_process->slots, RK_STREAMS_MOST * sizeof(*rk_process->slots));
    rk_process->profile_in_slot = in_slot;
    rk_process->profile_size = size;
    rk_process->profile = map;
}

static void use_file(int fd) {
    uint64_t size = size_of(fd);
    use_profile(size ? rk_map(size, PROT_READ, MAP_SHARED, fd, 0) : NULL, size, 0);
}

/* Maps the slot, and after it the file with the rest. */
static const uint8_t *map_both(int fd, uint64_t slot, int rest, uint64_t size) {
    uint8_t *map = rk_map(RK_SLOT + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!map || !rk_map_at(map, RK_SLOT, fd, slot)) return NULL;
    return size == 0 || rk_map_at(map + RK_SLOT, size, rest, 0) ? map : NULL;
}

static void use_slot(int fd, uint64_t slot) {
    struct rk_file head = {0};
    if (slot == 0) return; /* the recorded process was killed before it was given anything */
    if (slot + RK_SLOT > size_of(fd)) {
        rk_give_up(RK_REASON_BAD_PROFILE, 0);
        return;
    }
    rk_call(SYS_pread64, fd, (long)&head, sizeof(head), (long)slot, 0, 0);
    static const char nothing[sizeof(head.magic)];
    if (memcmp(head.magic, nothing, sizeof(nothing)) == 0) return; /* killed before it wrote the head */
    int rest = head.used > RK_SLOT ? open_file(RK_REST) : -1;
    uint64_t size = rest >= 0 ? size_of(rest) : 0;
    if (rest >= 0)
        use_profile(map_both(fd, slot, rest, size), RK_SLOT + size, RK_SLOT);
    else
        use_profile(rk_map(RK_SLOT, PROT_READ, MAP_SHARED, fd, slot), RK_SLOT, RK_SLOT);
    if (rest >= 0) rk_close(rest);
}

/* Opens the recording of this process; without one the policy answers. Forked processes mostly have a slot, others a
 * file, which is tried first. */
void rk_profile_open(void) {
    uint64_t slot = 0;
    int fd = rk_is_forked ? open_pool(&slot) : open_file(".entropy");
    bool is_slot = rk_is_forked && fd >= 0;
    if (fd < 0 && rk_is_forked) {
        fd = open_file(".entropy");
    } else if (fd == -ENOENT) {
        fd = open_pool(&slot);
        is_slot = fd >= 0;
    }
    if (fd < 0) {
        if (fd != -ENOENT) rk_give_up(RK_REASON_BAD_PROFILE, -fd);
        return;
    }
    if (is_slot)
        use_slot(fd, slot);
    else
        use_file(fd);
    rk_close(fd);
}
