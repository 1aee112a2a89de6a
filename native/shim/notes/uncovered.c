/* uncovered.c - writes to REPROKIT_RUN/modules.paths: the modules (modules.c), and what the shim could not hook. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "shim/notes/uncovered.h"

#define MOST (16u << 20) /* bytes of modules.paths */

bool rk_append_to_modules(const char *lines, size_t length) {
    char file[RK_RUN_PATH + 32];
    if (!*rk_run) return false; /* a test that is linked with the shim */
    size_t n = rk_append(file, sizeof(file), 0, rk_run);
    rk_append(file, sizeof(file), n, "/modules.paths");
    int fd = rk_open(file, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0), written = 0;
    if (end >= 0 && (uint64_t)end + length <= MOST && rk_within_limit((uint64_t)end + length))
        written = rk_call(SYS_write, fd, (long)lines, (long)length, 0, 0, 0);
    rk_close(fd);
    return written == (long)length;
}

void rk_uncovered(const char *word) {
    char line[64];
    size_t length = rk_append(line, sizeof(line), 0, word);
    rk_append_to_modules(line, rk_append(line, sizeof(line), length, "\n"));
}

/* "clock PATH": native code that reads the time of day, and may seed itself from it. */
void rk_clock_reader(const void *caller) {
    char line[PATH_MAX + 16], program[PATH_MAX];
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    size_t length = rk_append(line, sizeof(line), 0, "clock ");
    length = rk_append(line, sizeof(line), length, *module ? module : rk_program(program));
    if (!memchr(line, '\n', length)) rk_append_to_modules(line, rk_append(line, sizeof(line), length, "\n"));
}
