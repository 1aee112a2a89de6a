/* broker.c - opens the run's own files for programs that cannot reach them: those of another user, in another root, or
 * that see the run directory read-only.
 *
 * The shim sends a request after the kernel has refused a file (reach.c): the file's index in the list there, and the
 * values of its name's placeholders. A requester gets only these files, and of entropy files only its own and its
 * recording. A program of another user gets a different key.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/chacha20.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define PATH (RK_RUN_PATH + 128)

/* The requesting process, from the kernel's data. */
struct asker {
    int thread;
    uint32_t pid; /* in its own namespace */
    bool is_foreign;
};

/* Returns the last number of a line of /proc/PID/status; 0 if there is none. */
static uint64_t last_number(const char *text, const char *name) {
    const char *line = strstr(text, name), *end = line ? strchr(line + 1, '\n') : NULL;
    while (end && end > line && end[-1] >= '0' && end[-1] <= '9') end--;
    return end ? strtoull(end, NULL, 10) : 0;
}

static bool examine_asker(int thread, struct asker *asker) {
    char text[4096];
    if (rk_read_proc(thread, "status", text, sizeof(text)) <= 0) return false;
    asker->thread = thread;
    asker->pid = (uint32_t)last_number(text, "\nNStgid:");
    asker->is_foreign = last_number(text, "\nUid:") != (uint64_t)rk_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    return asker->pid != 0 && strstr(text, "\nUid:");
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static void append_form(char path[PATH], size_t n, const char *form, const struct rk_names *names, uint32_t pid) {
    for (size_t numbers = 0; *form; form++) {
        const char literal[] = {*form, 0};
        if (*form == '%')
            n = rk_append_hex(path, PATH, n, names->hash);
        else if (*form == '#')
            n = rk_append_number(path, PATH, n, numbers++ ? names->second : names->number);
        else if (*form == '@')
            n = rk_append_number(path, PATH, n, pid);
        else
            n = rk_append(path, PATH, n, literal);
    }
}

static void make_path(char path[PATH], const char *directory, const char *form, const struct rk_names *names,
                      const struct asker *asker) {
    size_t n = rk_append(path, PATH, 0, directory);
    n = rk_append(path, PATH, n, "/");
    append_form(path, n, form, names, asker->pid);
}

/* ---- opening ------------------------------------------------------------------------------------------------------
 */

/* Opens the plan. A program of another user can read the key in its memory, so it gets a key that reveals no other
 * process's bytes. */
static int open_plan(const struct asker *asker) {
    struct rk_plan plan = rk_plan;
    uint8_t block[64];
    rk_chacha20(rk_plan.key, UINT64_MAX, UINT64_MAX, block);
    if (asker->is_foreign) memcpy(plan.key, block, sizeof(plan.key));
    plan.check = rk_check(&plan, offsetof(struct rk_plan, check), 0);
    return rk_open_memory("shim.plan", &plan, sizeof(plan));
}

/* Opens a file, and creates its directory if needed. */
static int open_in_directory(char path[PATH], int flags) {
    int fd = rk_open(path, flags | O_NOFOLLOW, 0600);
    if (fd != -ENOENT || !(flags & O_CREAT)) return fd;
    char *slash = strrchr(path, '/');
    *slash = 0;
    rk_call(SYS_mkdirat, AT_FDCWD, (long)path, 0700, 0, 0, 0);
    *slash = '/';
    return rk_open(path, flags | O_NOFOLLOW, 0600);
}

/* Returns whether a file holds the entropy of one process, not of all. */
static bool is_entropy(const char *form) { return strstr(form, "#.entropy") || strstr(form, RK_REST); }

/* Returns whether a file belongs to one process; a console file does once it exists. */
static bool is_private(const struct rk_shared_file *file) {
    return is_entropy(file->form) || (strstr(file->form, ".console") && !(file->flags & O_CREAT));
}

static int find_pool_slot(const struct rk_names *names, uint64_t *offset) {
    char path[PATH];
    rk_append(path, PATH, rk_append(path, PATH, 0, rk_run), "/entropy");
    return rk_pool_find(path, names->hash, names->number, offset);
}

/* Returns whether the requester owns the file of this name, or the slot that the file follows. */
static bool is_file_of_asker(const char *form, const struct rk_names *names, const struct asker *asker) {
    struct rk_file head;
    char path[PATH];
    uint64_t offset = 0;
    make_path(path, rk_run, is_entropy(form) ? "entropy/%-#.entropy" : form, names, asker);
    int fd = strstr(form, RK_REST) ? find_pool_slot(names, &offset) : rk_open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0) return false;
    long n = rk_call(SYS_pread64, fd, (long)&head, sizeof(head), (long)offset, 0, 0);
    rk_close(fd);
    return n == sizeof(head) && head.pid == asker->pid;
}

/* Returns whether the recording has no process of this name. */
static bool is_absent_from_recording(const struct rk_shared_file *file, const struct rk_names *names,
                                     const struct asker *asker) {
    char path[PATH];
    if (file->place != RK_IN_PROFILE) return false;
    make_path(path, rk_plan.profile, file->form, names, asker);
    return rk_call(SYS_faccessat, AT_FDCWD, (long)path, 0, 0, 0, 0) == -ENOENT;
}

static int open_file(const struct rk_shared_file *file, const struct rk_names *names, const struct asker *asker) {
    char path[PATH], memory[64];
    if (names->file == RK_SHIM_PLAN) return open_plan(asker);
    if (is_private(file) && !is_file_of_asker(file->form, names, asker))
        return is_absent_from_recording(file, names, asker) ? -ENOENT : -EACCES;
    if (file->place == RK_IN_PROC) /* the requester's memory, in which its shim replaces the vDSO */
        return rk_open(rk_proc_path(memory, asker->thread, "mem"), file->flags, 0);
    make_path(path, file->place == RK_IN_RUN ? rk_run : rk_plan.profile, file->form, names, asker);
    return open_in_directory(path, file->flags);
}

static struct answer answer_open(const struct request *request, const struct rk_names *names,
                                 const struct asker *asker) {
    int fd = open_file(&rk_shared_files[names->file], names, asker);
    if (fd < 0) return (struct answer){.error = fd};
    struct answer answer = rk_hand_over(request, fd, request->arguments[2] & O_CLOEXEC);
    rk_close(fd);
    return answer;
}

/* ---- the name of a file that was written
 * ----------------------------------------------------------------------------- */

static const struct written {
    const char *temporary, *final;
} written[] = {
    {"entropy/%-@.new", "entropy/%-#.entropy"},
    {"trail/%.@.new", "trail/%-#.trail"},
};

/* Removes the new name if its process has a slot of the pool. */
static int unless_in_pool(const struct rk_names *names, const char *path) {
    uint64_t offset;
    int fd = find_pool_slot(names, &offset);
    if (fd < 0) return 0;
    rk_close(fd);
    rk_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0);
    return -EEXIST;
}

static int change_name(enum rk_task task, const char *from, const char *to) {
    switch (task) {
    case RK_TASK_LINK:
        return (int)rk_call(SYS_linkat, AT_FDCWD, (long)from, AT_FDCWD, (long)to, 0, 0);
    case RK_TASK_RENAME:
        return (int)rk_call(SYS_renameat2, AT_FDCWD, (long)from, AT_FDCWD, (long)to, RK_NO_REPLACE, 0);
    default:
        return (int)rk_call(SYS_unlinkat, AT_FDCWD, (long)from, 0, 0, 0, 0);
    }
}

static struct answer answer_task(enum rk_task task, const struct rk_names *names, const struct asker *asker) {
    const char *form = rk_shared_files[names->file].form;
    char from[PATH], to[PATH];
    for (size_t i = 0; i < RK_LENGTH(written); i++) {
        if (strcmp(form, task == RK_TASK_REMOVE ? written[i].temporary : written[i].final) != 0) continue;
        make_path(from, rk_run, written[i].temporary, names, asker);
        make_path(to, rk_run, written[i].final, names, asker);
        int error = change_name(task, from, to);
        if (!error && task != RK_TASK_REMOVE && is_entropy(form)) error = unless_in_pool(names, to);
        return (struct answer){.error = error};
    }
    return (struct answer){.error = -EACCES};
}

struct answer rk_broker(struct thread *thread, const struct request *request) {
    uint64_t packed = request->arguments[3];
    struct rk_names names = {(uint8_t)(packed >> 8), request->arguments[4], (uint32_t)(packed >> 16),
                             (uint16_t)(packed >> 48)};
    struct asker asker;
    if (names.file >= RK_SHARED_FILES || request->thread <= 0 || !examine_asker(request->thread, &asker))
        return (struct answer){.go_on = true};
    if (thread) thread->process->program->shimmed = thread->process->program->has_shim = true;
    if ((uint8_t)packed == RK_TASK_OPEN) return answer_open(request, &names, &asker);
    return answer_task((enum rk_task)(uint8_t)packed, &names, &asker);
}
