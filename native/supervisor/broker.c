/* broker.c - opens the run's own files for programs that cannot reach them: those of another user, in another root,
 * or that see the run directory read-only.
 *
 * The shim asks where the kernel has refused it. Whoever asks gets nothing but what stands in the rules below: of
 * entropy the file that it writes itself, and its recording. Another user's program gets a key of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "supervisor.h"

#define PATH        (RK_RUN_PATH + 128)
#define MEANINGLESS (O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) /* to a file of the run */
#define CREATE      (O_CREAT | O_EXCL)
#define APPEND      (O_WRONLY | O_CREAT | O_APPEND)

/* In a name '%' stands for 16 hexadecimal digits, '#' for a number, '@' for the process id of who asks. */
struct rule {
    const char *name;
    int flags;
    bool is_own; /* an entropy file: of the process that its head names */
};

static const struct rule rules[] = {
    {"plan.json", O_RDONLY, false},
    {"seeds.jsonl", O_RDONLY, false},
    {"metrics.jsonl", APPEND, false},
    {"modules.paths", APPEND, false},
    {"written.paths", APPEND, false},
    {"read.paths", APPEND, false},
    {"stopped", O_WRONLY | CREATE, false},
    {"entropy/%-@.new", O_RDWR | O_CREAT | O_TRUNC, false},
    {"entropy/%-#.entropy", O_RDWR, true},
    {"entropy/%-@-#-#.lost", O_WRONLY | O_CREAT, false},
    {"entropy/process-ids", O_RDONLY, false},
    {"entropy/process-ids", APPEND, false},
    {"trail/%.@.new", O_RDWR | O_CREAT | O_TRUNC, false},
    {"trail/%-#.trail", O_RDWR, false},
    {"pending/@-#", O_RDWR | CREATE, false},
    {"evaluation/%-#.npy", O_WRONLY | CREATE, false},
    {"evaluation/%-#.npy", O_WRONLY, false},
};

static const char *const temporary[] = {"entropy/%-@.new", "trail/%.@.new"};
static const char *const final[] = {"entropy/%-#.entropy", "trail/%-#.trail"};

/* Who asks, as the kernel knows it. */
struct asker {
    int thread;
    uint32_t pid; /* as it sees its own */
    bool is_foreign;
};

/* The last number of a line of /proc/PID/status; 0 where there is none. */
static uint64_t last_number(const char *text, const char *name) {
    const char *line = strstr(text, name), *end = line ? strchr(line + 1, '\n') : NULL;
    while (end && end > line && end[-1] >= '0' && end[-1] <= '9') end--;
    return end ? strtoull(end, NULL, 10) : 0;
}

static bool look_at(int thread, struct asker *asker) {
    char text[4096];
    if (rk_read_proc(thread, "status", text, sizeof(text)) <= 0) return false;
    asker->thread = thread;
    asker->pid = (uint32_t)last_number(text, "\nNStgid:");
    asker->is_foreign = last_number(text, "\nUid:") != (uint64_t)rk_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
    return asker->pid != 0 && strstr(text, "\nUid:");
}

/* ---- names -------------------------------------------------------------------------------------------------- */

static size_t digits_of(char sign, const char *name) {
    size_t n = strspn(name, sign == '%' ? "0123456789abcdef" : "0123456789");
    return sign == '%' ? (n >= 16 ? 16 : 0) : n;
}

static bool matches(const char *form, const char *name, const struct asker *asker) {
    for (; *form; form++) {
        size_t n = strchr("%#@", *form) ? digits_of(*form, name) : *form == *name;
        if (n == 0 || (*form == '@' && strtoull(name, NULL, 10) != asker->pid)) return false;
        name += n;
    }
    return !*name;
}

/* The name in a directory; NULL for a path that does not lead there as the shim writes it. */
static const char *name_in(const char *directory, const char *path) {
    size_t n = strlen(directory);
    return n > 0 && strncmp(path, directory, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

static bool read_name(const struct request *request, int argument, char path[PATH], const char **name) {
    if (!rk_read_text(request->thread, request->arguments[argument], path, PATH)) return false;
    *name = name_in(rk_run, path);
    return *name != NULL;
}

/* ---- opening ------------------------------------------------------------------------------------------------- */

static bool is_own(int fd, const struct asker *asker) {
    struct rk_file head;
    return rk_call(SYS_pread64, fd, (long)&head, sizeof(head), 0, 0, 0) == sizeof(head) && head.pid == asker->pid;
}

/* Another user's program may read the plan's key in its memory: it is given one that leads to no other process's bytes.
 */
static int open_plan(const struct asker *asker) {
    struct rk_plan plan = rk_plan;
    uint8_t block[64];
    rk_chacha20(rk_plan.key, UINT64_MAX, UINT64_MAX, block);
    if (asker->is_foreign) memcpy(plan.key, block, sizeof(plan.key));
    plan.check = rk_check(&plan, offsetof(struct rk_plan, check), 0);
    return rk_open_memory("shim.plan", &plan, sizeof(plan));
}

/* With its directory, which the first one to write there makes. */
static int open_there(const char *path, int flags) {
    int fd = rk_open(path, flags | O_NOFOLLOW, 0600);
    if (fd != -ENOENT || !(flags & O_CREAT)) return fd;
    char directory[PATH];
    rk_append(directory, sizeof(directory), 0, path);
    *strrchr(directory, '/') = 0;
    rk_call(SYS_mkdirat, AT_FDCWD, (long)directory, 0700, 0, 0, 0);
    return rk_open(path, flags | O_NOFOLLOW, 0600);
}

static int open_by_rule(const char *path, const char *name, int flags, const struct asker *asker) {
    for (const struct rule *rule = rules; rule < rules + RK_LENGTH(rules); rule++) {
        if (rule->flags != flags || !matches(rule->name, name, asker)) continue;
        int fd = open_there(path, flags);
        if (fd < 0 || !rule->is_own || is_own(fd, asker)) return fd;
        rk_close(fd);
        return -EACCES;
    }
    return -EACCES;
}

/* Of the process whose file in this run has the same name. */
static int open_recorded(const char *path, const char *name, const struct asker *asker) {
    char own[PATH];
    size_t n = rk_append(own, sizeof(own), 0, rk_run);
    n = rk_append(own, sizeof(own), n, "/entropy/");
    rk_append(own, sizeof(own), n, name);
    int fd = matches("%-#.entropy", name, asker) ? rk_open(own, O_RDONLY | O_NOFOLLOW, 0) : -EACCES;
    bool may = fd >= 0 && is_own(fd, asker);
    if (fd >= 0) rk_close(fd);
    return may ? rk_open(path, O_RDONLY | O_NOFOLLOW, 0) : -EACCES;
}

/* Its own, in which the shim replaces the vDSO: /proc may be missing, or read-only. */
static int open_memory_of(const struct asker *asker) {
    char path[64];
    return rk_open(rk_proc_path(path, asker->thread, "mem"), O_WRONLY, 0);
}

static int open_file(const char *path, int flags, const struct asker *asker) {
    const char *name = name_in(rk_run, path), *recorded = name_in(rk_plan.profile, path);
    if (strcmp(path, "/proc/self/mem") == 0) return flags == O_WRONLY ? open_memory_of(asker) : -EACCES;
    if (name && flags == O_RDONLY && strcmp(name, "shim.plan") == 0) return open_plan(asker);
    if (name) return open_by_rule(path, name, flags, asker);
    return recorded && flags == O_RDONLY ? open_recorded(path, recorded, asker) : -EACCES;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static struct answer answer_open(const struct request *request, const struct asker *asker) {
    char path[PATH];
    int flags = (int)request->arguments[2];
    if (!rk_read_text(request->thread, request->arguments[1], path, sizeof(path)))
        return (struct answer){.go_on = true};
    int fd = open_file(path, flags & ~MEANINGLESS, asker);
    if (fd < 0) return (struct answer){.error = fd};
    struct answer answer = rk_hand_over(request, fd, flags & O_CLOEXEC);
    rk_close(fd);
    return answer;
}

/* linkat and renameat2 have their arguments in the same places. */
static struct answer answer_naming(const struct request *request, const struct asker *asker) {
    char from[PATH], to[PATH];
    const char *old, *new;
    int flags = request->number == SYS_renameat2 ? 1 /* RENAME_NOREPLACE */ : 0;
    if (!read_name(request, 1, from, &old) || !read_name(request, 3, to, &new)) return (struct answer){.go_on = true};
    for (size_t i = 0; i < RK_LENGTH(final); i++)
        if (matches(temporary[i], old, asker) && matches(final[i], new, asker))
            return (struct answer){
                .error = (int)rk_call(request->number, AT_FDCWD, (long)from, AT_FDCWD, (long)to, flags, 0)};
    return (struct answer){.error = -EACCES};
}

static struct answer answer_removal(const struct request *request, const struct asker *asker) {
    char path[PATH];
    const char *name;
    if (!read_name(request, 1, path, &name)) return (struct answer){.go_on = true};
    for (size_t i = 0; i < RK_LENGTH(temporary); i++)
        if (matches(temporary[i], name, asker))
            return (struct answer){.error = (int)rk_call(SYS_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0)};
    return (struct answer){.error = -EACCES};
}

struct answer rk_broker(const struct request *request) {
    struct asker asker;
    if (request->thread <= 0 || !look_at(request->thread, &asker)) return (struct answer){.go_on = true};
    switch (request->number) {
    case SYS_openat:
        return answer_open(request, &asker);
    case SYS_linkat:
    case SYS_renameat2:
        return answer_naming(request, &asker);
    case SYS_unlinkat:
        return answer_removal(request, &asker);
    default:
        return (struct answer){.go_on = true};
    }
}
