/* files.c - what programs do to files that the shim does not see. Of renames, as by Rust's safetensors, the names are
 * noted, and what they replace is kept, as the shim does (placed.c). Then the kernel executes them. It has not yet
 * checked the names: one that fails adds a name at which nothing is, or nothing new.
 *
 * Of static and Go programs it is only noted that there was one: what changed unseen may then be the run's.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/found.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define WHOLE (PATH_MAX + 64)

bool rk_is_rename(const struct request *request) {
    switch (request->number) {
#ifdef SYS_rename
    case SYS_rename:
#endif
#ifdef SYS_renameat
    case SYS_renameat:
#endif
    case SYS_renameat2:
        return true;
    default:
        return false;
    }
}

/* Reads a path, and makes it one of this process: in the program's root, or from its directory. */
static bool read_path(const struct request *request, int directory, uint64_t address, char whole[WHOLE]) {
    static char path[PATH_MAX];
    char name[32];
    if (!rk_read_text(request->thread, address, path, sizeof(path)) || !*path) return false;
    bool is_absolute = *path == '/';
    size_t n = rk_append(name, sizeof(name), 0, is_absolute ? "root" : directory == AT_FDCWD ? "cwd" : "fd/");
    if (!is_absolute && directory != AT_FDCWD) rk_append_number(name, sizeof(name), n, (uint64_t)directory);
    rk_proc_path(whole, request->thread, name);
    n = strlen(whole);
    if (!is_absolute) n = rk_append(whole, WHOLE, n, "/");
    rk_append(whole, WHOLE, n, path);
    return true;
}

void rk_note_rename(const struct request *request) {
    static char from[WHOLE], to[WHOLE];
    const uint64_t *arguments = request->arguments;
    bool is_short = false;
#ifdef SYS_rename
    is_short = request->number == SYS_rename;
#endif
    bool exchanges = request->number == SYS_renameat2 && arguments[4] & RENAME_EXCHANGE;
    if (request->thread <= 0 ||
        !read_path(request, is_short ? AT_FDCWD : (int)arguments[0], arguments[!is_short], from) ||
        !read_path(request, is_short ? AT_FDCWD : (int)arguments[2], arguments[is_short ? 1 : 3], to))
        return;
    rk_before_change(AT_FDCWD, from, RK_MOVED);
    rk_before_change(AT_FDCWD, to, exchanges ? RK_MOVED : RK_REPLACED);
    if (exchanges) rk_record_new_name(AT_FDCWD, to, AT_FDCWD, from);
    rk_record_new_name(AT_FDCWD, from, AT_FDCWD, to);
}

/* Notes once that a program is executed whose files the shim does not see. */
void rk_note_exec(const struct request *request) {
    static char path[WHOLE];
    static bool is_noted;
    bool at = request->number == SYS_execveat;
    if (is_noted || !rk_records() || request->thread <= 0) return;
    if (!read_path(request, at ? (int)request->arguments[0] : AT_FDCWD, request->arguments[at], path)) return;
    is_noted = rk_is_past_shim(path);
    if (is_noted) rk_append_line(RK_PAST_SHIM, "", 0);
}
