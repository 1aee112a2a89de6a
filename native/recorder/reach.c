/* reach.c - opens files of the run for a process that cannot reach them: of another user, in another root, or with a
 * read-only mount. A mark (RK_BROKER) makes the call a request to the supervisor, which opens the file and returns a
 * descriptor.
 *
 * A request is numbers in the arguments of an openat without a path, as the supervisor may lack the right to read this
 * process's memory (a container's root, without CAP_SYS_PTRACE). Without a supervisor the kernel returns EFAULT.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/compiler.h"
#include "recorder/reach.h"
#include "urandom_hook.h"

#define CREATE (O_CREAT | O_EXCL)
#define APPEND (O_WRONLY | O_CREAT | O_APPEND)

const struct rk_shared_file rk_shared_files[RK_SHARED_FILES] = {
    {RK_IN_RUN, "shim.plan", O_RDONLY},
    {RK_IN_RUN, "plan.json", O_RDONLY},
    {RK_IN_RUN, "seeds.jsonl", O_RDONLY},
    {RK_IN_RUN, "orders.jsonl", O_RDONLY},
    {RK_IN_RUN, "metrics.jsonl", APPEND},
    {RK_IN_RUN, "modules.paths", APPEND},
    {RK_IN_RUN, "written.paths", APPEND},
    {RK_IN_RUN, "read.paths", APPEND},
    {RK_IN_RUN, "pipes.list", APPEND},
    {RK_IN_RUN, "objects.jsonl", APPEND},
    {RK_IN_RUN, "stopped", O_WRONLY | CREATE},
    {RK_IN_RUN, "entropy/%-@.new", O_RDWR | O_CREAT | O_TRUNC},
    {RK_IN_RUN, "entropy/%-#.entropy", O_RDWR},
    {RK_IN_RUN, "entropy/%-#-rest.entropy", O_RDWR | O_CREAT},
    {RK_IN_RUN, "entropy/%-@-#-#.lost", O_WRONLY | O_CREAT},
    {RK_IN_RUN, "entropy/children.entropy", APPEND},
    {RK_IN_RUN, "entropy/process-ids", O_RDONLY},
    {RK_IN_RUN, "entropy/process-ids", APPEND},
    {RK_IN_RUN, "trail/%.@.new", O_RDWR | O_CREAT | O_TRUNC},
    {RK_IN_RUN, "trail/%-#.trail", O_RDWR},
    {RK_IN_RUN, "pending/@-#", O_RDWR | CREATE},
    {RK_IN_RUN, "numbers/%-#.numbers", O_RDWR | CREATE},
    {RK_IN_RUN, "numbers/%-#.numbers", O_RDWR},
    {RK_IN_RUN, "console/%-#.console", O_RDWR | CREATE},
    {RK_IN_RUN, "console/%-#.console", O_RDWR},
    {RK_IN_RUN, "evaluation/%-#.npy", O_WRONLY | CREATE},
    {RK_IN_RUN, "evaluation/%-#.npy", O_WRONLY},
    {RK_IN_PROFILE, "children.entropy", O_RDONLY},
    {RK_IN_PROFILE, "%-#.entropy", O_RDONLY},
    {RK_IN_PROC, "/proc/self/mem", O_WRONLY},
};

static const char *parse_hash(const char *text, uint64_t *value) {
    size_t n = strspn(text, "0123456789abcdef");
    *value = 0;
    for (size_t i = 0; i < 16 && n >= 16; i++)
        *value = *value << 4 | (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    return n >= 16 ? text + 16 : NULL;
}

static const char *parse_number(const char *text, uint64_t *value) {
    const char *at = text;
    for (*value = 0; *at >= '0' && *at <= '9'; at++) *value = *value * 10 + (uint64_t)(*at - '0');
    return at > text ? at : NULL;
}

/* Parses the placeholders of a form from a name; false if the name does not match. */
static bool match_form(const char *form, const char *name, struct rk_names *names) {
    uint64_t values[2] = {0}, own = 0;
    size_t count = 0;
    names->hash = 0;
    for (; *form && name; form++) {
        if (*form == '%')
            name = parse_hash(name, &names->hash);
        else if (*form == '#' && count < RK_LENGTH(values))
            name = parse_number(name, &values[count++]);
        else if (*form == '@')
            name = parse_number(name, &own);
        else
            name = *form == *name ? name + 1 : NULL;
    }
    names->number = (uint32_t)values[0];
    names->second = (uint16_t)values[1];
    return name && !*name;
}

/* Returns the part of a path that a form describes; NULL if the file is elsewhere. The run directory's path always has
 * RK_RUN_PATH bytes. */
static const char *relative_part(enum rk_place place, const char *path) {
    size_t length = strnlen(path, RK_RUN_PATH + 2);
    bool is_in_run = length > RK_RUN_PATH + 1 && path[0] == '/' && path[RK_RUN_PATH] == '/';
    const char *slash = strrchr(path, '/');
    if (place == RK_IN_RUN) return is_in_run ? path + RK_RUN_PATH + 1 : NULL;
    return is_in_run || place == RK_IN_PROC || !slash ? path : slash + 1;
}

static bool find_shared_file(const char *path, int flags, struct rk_names *names) {
    for (names->file = 0; names->file < RK_SHARED_FILES; names->file++) {
        const struct rk_shared_file *file = &rk_shared_files[names->file];
        const char *part = relative_part(file->place, path);
        if (part && (flags < 0 || file->flags == (flags & ~RK_MEANINGLESS)) && match_form(file->form, part, names))
            return true;
    }
    return false;
}

/* Returns whether an error may come from another user, another root or a read-only mount. */
bool rk_is_out_of_reach(long error) {
    return error == -EACCES || error == -EPERM || error == -EROFS || error == -ENOENT;
}

static long ask_supervisor(enum rk_task task, const struct rk_names *names, int flags) {
    uint64_t packed =
        (uint64_t)task | (uint64_t)names->file << 8 | (uint64_t)names->number << 16 | (uint64_t)names->second << 48;
    long result;
    do result = rk_call(SYS_openat, AT_FDCWD, 0, flags, (long)packed, (long)names->hash, RK_BROKER);
    while (result == -EINTR);
    return result;
}

int rk_open_by_broker(const char *path, int flags, int refused) {
    struct rk_names names;
    long result = find_shared_file(path, flags, &names) ? ask_supervisor(RK_TASK_OPEN, &names, flags) : -EFAULT;
    return result == -EFAULT ? refused : (int)result;
}

static long task_by_broker(enum rk_task task, const char *path, long refused) {
    struct rk_names names;
    if (!rk_is_out_of_reach(refused) || !find_shared_file(path, -1, &names)) return refused;
    long result = ask_supervisor(task, &names, 0);
    return result == -EFAULT ? refused : result;
}

long rk_link(const char *from, const char *to) {
    return task_by_broker(RK_TASK_LINK, to, rk_call(SYS_linkat, AT_FDCWD, (long)from, AT_FDCWD, (long)to, 0, 0));
}

long rk_rename(const char *from, const char *to) {
    long result = rk_call(SYS_renameat2, AT_FDCWD, (long)from, AT_FDCWD, (long)to, RK_NO_REPLACE, RK_MARK);
    return task_by_broker(RK_TASK_RENAME, to, result);
}

long rk_remove(const char *path) {
    return task_by_broker(RK_TASK_REMOVE, path, rk_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0));
}
