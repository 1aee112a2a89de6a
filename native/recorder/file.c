/* file.c - the names of entropy files, and how this process gives up its own. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/file.h"
#include "recorder/host.h"
#include "recorder/lost.h"
#include "recorder/plan.h"
#include "recorder/system.h"

_Static_assert(sizeof(struct rk_file) == RK_HEAD, "the layout of an entropy file's head");
_Static_assert(sizeof(struct rk_chunk) == RK_CHUNK, "the layout of a chunk's head");

/* Keeps a mapping out of forked children, which neither need it nor pay for it. */
void rk_keep(const void *start, uint64_t size) {
    rk_call(SYS_madvise, (long)start, (long)size, MADV_DONTFORK, 0, 0, 0);
}

void rk_entropy_path(char *path, size_t size, const char *directory, uint64_t hash, uint32_t number,
                     const char *ending) {
    size_t length = rk_append(path, size, 0, directory);
    length = rk_append(path, size, length, "/");
    length = rk_append_hex(path, size, length, hash);
    length = rk_append(path, size, length, "-");
    length = rk_append_number(path, size, length, number);
    rk_append(path, size, length, ending);
}

uint64_t rk_identity_hash(void) { return rk_check(rk_identity, strlen(rk_identity), 0); }

void rk_entropy_directory(char path[RK_RUN_PATH + 16]) {
    rk_append(path, RK_RUN_PATH + 16, rk_append(path, RK_RUN_PATH + 16, 0, rk_run), "/entropy");
}

void rk_file_path(char *path, size_t size, uint32_t incarnation, const char *ending) {
    char directory[RK_RUN_PATH + 16];
    rk_entropy_directory(directory);
    rk_entropy_path(path, size, directory, rk_identity_hash(), incarnation, ending);
}

/* Notes in the run directory that this process is no longer recorded. Without an entropy file the reason is the name
 * of an empty file, which needs no block of the disk. */
void rk_give_up(enum rk_reason reason, int error) {
    if (rk_process->file) {
        if (rk_process->file->gave_up == RK_REASON_NONE) {
            rk_process->file->gave_up_errno = (uint32_t)error;
            rk_process->file->gave_up = reason;
        }
        return;
    }
    char path[RK_RUN_PATH + 96], ending[64];
    size_t length = rk_append(ending, sizeof(ending), 0, "-");
    length = rk_append_number(ending, sizeof(ending), length, reason);
    length = rk_append(ending, sizeof(ending), length, "-");
    length = rk_append_number(ending, sizeof(ending), length, (uint64_t)error);
    rk_append(ending, sizeof(ending), length, ".lost");
    rk_file_path(path, sizeof(path), (uint32_t)rk_process->pid, ending);
    int fd = rk_open(path, O_WRONLY | O_CREAT, 0600);
    if (fd < 0) rk_tell_lost(RK_LOST_FILE, rk_identity);
    if (fd >= 0) rk_close(fd);
}
