/* processes.c - identifies requesters: processes, their programs and threads, by names that are the same in every run.
 *
 * A program started by a process with the shim has its name in its environment. Any other process is named as a child
 * of a known one, numbered when its request arrives, or earlier if a younger sibling makes one. The first thread is
 * "m", the others are "?n" in the order of their creation. The supervisor records process X in a file of process "X@",
 * so that it never uses the file of a shim in the same process.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/lost.h"
#include "recorder/replay.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define BUCKETS 4096
#define DEPTH   64    /* maximum ancestors without a request that are added */
#define ALONE   DEPTH /* depth that adds no relatives */
#define LISTED  4096  /* maximum threads or children of one process */
#define ANY     (-1)  /* in process.executing: any of its threads may have executed a program unseen */

static struct process *processes[BUCKETS], *newest;
static struct thread *threads[BUCKETS];
static uint32_t orphans;

/* ---- /proc ------------------------------------------------------------------------------------------ */

struct status {
    int process, parent;
    uint64_t started, addresses;
};

/* Fields of /proc/PID/stat behind the name, which may contain anything: state is number 3. */
static bool read_stat(int pid, struct status *status) {
    char text[2048];
    if (rk_read_proc(pid, "stat", text, sizeof(text)) <= 0) return false;
    const char *at = strrchr(text, ')');
    if (!at) return false;
    uint64_t positions[8] = {0};
    size_t position_count = 0;
    at += 1;
    for (int field = 3; *at && field <= 51; field++) {
        while (*at == ' ') at++;
        uint64_t value = strtoull(at, NULL, 10);
        if (field == 4) status->parent = (int)value;
        if (field == 22) status->started = value;
        if (field == 26 || field == 28 || field >= 48) positions[position_count++] = value;
        while (*at && *at != ' ') at++;
    }
    struct stat file = {0};
    char path[64];
    rk_call(SYS_newfstatat, AT_FDCWD, (long)rk_proc_path(path, pid, "exe"), (long)&file, 0, 0, 0);
    status->addresses = rk_check(positions, sizeof(positions), file.st_ino);
    return true;
}

/* Returns the process of a thread. A quick check covers first threads, which most are. */
static int process_id_of(int thread) {
    char text[2048];
    if (rk_call(SYS_tgkill, thread, thread, 0, 0, 0, 0) != -ESRCH) return thread;
    if (rk_read_proc(thread, "status", text, sizeof(text)) <= 0) return 0;
    const char *line = strstr(text, "\nTgid:");
    return line ? atoi(line + 6) : 0;
}

static int compare_ids(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static int list_threads(int pid, int *ids) {
    struct entry {
        uint64_t inode, next;
        uint16_t length;
        uint8_t type;
        char name[];
    };
    char path[64], buffer[4096] __attribute__((aligned(8)));
    int count = 0, fd = rk_open(rk_proc_path(path, pid, "task"), O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return 0;
    for (long n; (n = rk_call(SYS_getdents64, fd, (long)buffer, sizeof(buffer), 0, 0, 0)) > 0;)
        for (long at = 0; at < n; at += ((struct entry *)(buffer + at))->length) {
            int id = atoi(((struct entry *)(buffer + at))->name);
            if (id > 0 && count < LISTED) ids[count++] = id;
        }
    rk_close(fd);
    qsort(ids, (size_t)count, sizeof(*ids), compare_ids);
    return count;
}

/* Lists the children of all threads; none if the kernel was built without these lists. */
static int list_children(int pid, int *ids) {
    static int thread_ids[LISTED];
    int count = 0, n = list_threads(pid, thread_ids);
    for (int i = 0; i < n; i++) {
        char name[48], text[16384];
        size_t length = rk_append(name, sizeof(name), 0, "task/");
        length = rk_append_number(name, sizeof(name), length, (uint64_t)thread_ids[i]);
        rk_append(name, sizeof(name), length, "/children");
        if (rk_read_proc(pid, name, text, sizeof(text)) <= 0) continue;
        char *at = text, *end;
        for (int id; count < LISTED && (id = (int)strtol(at, &end, 10)) > 0; at = end) ids[count++] = id;
    }
    qsort(ids, (size_t)count, sizeof(*ids), compare_ids);
    return count;
}

/* ---- programs ----------------------------------------------------------------------------------------- */

/* Reports unanswered requests at the program's end: only then is it known whether a shim was there. */
static void report_missed(struct program *program) {
    if (program->has_shim) return;
    while (program->fresh > 0 && program->fresh--) rk_note_fresh();
    if (program->vdso_refused) rk_say_uncovered("vdso\n");
    if (program->unseen) rk_tell_lost(RK_LOST_UNSEEN, program->identity);
}

void rk_release(struct program *program) {
    if (--program->references > 0) return;
    report_missed(program);
    rk_free_slot(program);
    free(program);
}

static void name_child(struct program *program, struct program *parent) {
    size_t n = parent ? rk_append(program->identity, RK_IDENTITY, 0, parent->identity) : 0;
    n = rk_append(program->identity, RK_IDENTITY, n, parent ? "/" : "?/");
    rk_append_number(program->identity, RK_IDENTITY, n, parent ? ++parent->children : ++orphans);
}

/* Appends "@", so that the identity is different from that of any shim. */
static void mark_as_supervised(struct program *program) {
    rk_shorten(program->identity);
    rk_append(program->identity, RK_IDENTITY, strlen(program->identity), "@");
}

static struct program *new_program(int pid, uint64_t addresses) {
    struct program *program = calloc(1, sizeof(*program));
    if (!program) return NULL;
    program->references = 1;
    program->addresses = addresses;
    program->slot = rk_take_slot();
    program->process.pid = pid;
    program->process.ready = 1;
    rk_look_into(program, pid);
    return program;
}

static bool has_name(const struct program *program, const struct program *parent) {
    return *program->inherited && (!parent || strcmp(program->inherited, parent->inherited) != 0);
}

static void name_program(struct program *program, struct program *parent) {
    if (has_name(program, parent))
        rk_append(program->identity, RK_IDENTITY, 0, program->inherited);
    else
        name_child(program, parent);
    mark_as_supervised(program);
}

/* ---- recognizing an exec ------------------------------------------------------------------------------ */

static void remember_random(struct program *program, int pid) {
    program->has_random = rk_read_random(program, pid, program->random);
}

/* Returns whether AT_RANDOM has changed: after an exec of the same command only these bytes differ. */
static bool has_other_random(struct program *program, int pid) {
    uint8_t bytes[sizeof(program->random)];
    return program->has_random && rk_read_random(program, pid, bytes) &&
           memcmp(bytes, program->random, sizeof(bytes)) != 0;
}

/* Returns whether a child runs its parent's program, whose start was covered. */
static bool is_copy(int pid, const struct program *program, struct process *parent) {
    if (!parent || parent->program->addresses != program->addresses) return false;
    remember_random(parent->program, parent->id);
    return !has_other_random(parent->program, pid);
}

/* Covers a program's start. If exec is not seen, AT_RANDOM identifies the program, unless the shim or Go's runtime
 * changes it. */
static void cover_program(struct program *program, int pid, bool is_new) {
    if (is_new) rk_cover_start(program, pid);
    if (!rk_sees_exec && !program->shimmed && !program->is_go) remember_random(program, pid);
}

/* ---- processes ------------------------------------------------------------------------------------------ */

static struct process **bucket_of(int id) { return &processes[(unsigned)id % BUCKETS]; }

static struct process *find_process(int id) {
    for (struct process *process = *bucket_of(id); process; process = process->by_hash)
        if (process->id == id) return process;
    return NULL;
}

static void free_thread(struct thread *thread) {
    struct thread **link = &threads[(unsigned)thread->id % BUCKETS];
    while (*link != thread) link = &(*link)->by_hash;
    *link = thread->by_hash;
    free(thread);
}

static void forget_threads(struct process *process) {
    for (struct thread *thread = process->threads, *next; thread; thread = next) {
        next = thread->next;
        free_thread(thread);
    }
    process->threads = NULL;
}

static void forget_process(struct process *process) {
    forget_threads(process);
    struct process **link = bucket_of(process->id);
    while (*link != process) link = &(*link)->by_hash;
    *link = process->by_hash;
    if (process->newer)
        process->newer->older = process->older;
    else
        newest = process->older;
    if (process->older) process->older->newer = process->newer;
    if (process->fd >= 0) rk_close_watched(process->fd);
    rk_release(process->program);
    free(process);
}

static void on_end(struct watch *watch, uint32_t events) {
    (void)events;
    forget_process((struct process *)watch);
}

void rk_forget_all(void) {
    while (newest) forget_process(newest);
    orphans = 0;
}

static struct process *add_process(int id, const struct status *status, struct program *program) {
    struct process *process = calloc(1, sizeof(*process));
    if (!process) return NULL;
    process->watch.ready = on_end;
    process->id = id;
    process->started = status->started;
    process->program = program;
    process->by_hash = *bucket_of(id);
    *bucket_of(id) = process;
    process->older = newest;
    if (newest) newest->newer = process;
    newest = process;
    process->fd = (int)rk_call(SYS_pidfd_open, id, 0, 0, 0, 0, 0);
    if (process->fd >= 0) rk_watch(process->fd, &process->watch, EPOLLIN);
    return process;
}

/* Returns whether a process still exists. Without a pidfd, as descriptors may be short, by its start time. */
static bool is_alive(struct process *process) {
    struct status status = {0};
    if (process->fd >= 0) return rk_call(SYS_pidfd_send_signal, process->fd, 0, 0, 0, 0, 0) != -ESRCH;
    return read_stat(process->id, &status) && status.started == process->started;
}

static struct process *add_new_process(int id, int depth);

/* Adds children older than the requesting one first, so that they have lower numbers. */
static void add_older_children(struct process *parent, int id) {
    static int ids[LISTED];
    int count = list_children(parent->id, ids);
    for (int i = 0; i < count && ids[i] != id; i++)
        if (!find_process(ids[i])) add_new_process(ids[i], ALONE);
}

/* Returns whether a process is the launcher or an ancestor of it, which adopts orphans: it is outside of the run. */
static bool is_outside_run(int id) {
    struct status status = {0};
    int above = rk_getpid();
    for (int depth = 0; depth < DEPTH && above > 1 && above != id; depth++)
        above = read_stat(above, &status) ? status.parent : 0;
    return above == id || id <= 1;
}

static struct process *parent_of(const struct status *status, int depth) {
    struct process *parent = find_process(status->parent);
    return parent || depth >= DEPTH || is_outside_run(status->parent) ? parent
                                                                      : add_new_process(status->parent, depth + 1);
}

static uint64_t age_of(int id, const struct status *status) { return status->started << 22 | (uint64_t)id; }

static struct process *add_new_process(int id, int depth) {
    struct status status = {0};
    if (id == rk_getpid() || !read_stat(id, &status)) return NULL;
    struct process *parent = parent_of(&status, depth);
    uint64_t age = age_of(id, &status);
    if (depth == ALONE && parent && age <= parent->program->youngest)
        return NULL; /* it was named before, and has ended */
    struct program *program = new_program(id, status.addresses), *origin = parent ? parent->program : NULL;
    if (!program) return NULL;
    if (origin && depth != ALONE && !has_name(program, origin)) add_older_children(parent, id);
    name_program(program, origin);
    if (origin && age > origin->youngest) origin->youngest = age;
    cover_program(program, id, !is_copy(id, program, parent));
    struct process *process = add_process(id, &status, program);
    if (!process) rk_release(program);
    return process;
}

/* Checks for a new program after an exec call, by its addresses and AT_RANDOM. The exec may have failed, or be under
 * way while another thread makes a request. */
static void check_exec(struct process *process, int asking) {
    struct status status = {0};
    bool has_failed = asking == process->executing || process->executing == ANY;
    if (!read_stat(process->id, &status)) return;
    bool is_another =
        status.addresses != process->program->addresses || has_other_random(process->program, process->id);
    if (is_another || has_failed) process->executing = 0;
    if (!is_another) return;
    struct program *before = process->program, *program = new_program(process->id, status.addresses);
    if (!program) return;
    if (*program->inherited && strcmp(program->inherited, before->inherited) != 0) {
        rk_append(program->identity, RK_IDENTITY, 0, program->inherited);
    } else {
        size_t n = rk_append(program->identity, RK_IDENTITY, 0, before->identity);
        rk_append(program->identity, RK_IDENTITY, n - 1, "+"); /* in place of the "@" */
    }
    mark_as_supervised(program);
    forget_threads(process);
    process->program = program;
    rk_release(before);
    cover_program(program, process->id, true);
}

/* ---- threads -------------------------------------------------------------------------------------------- */

static bool has_thread_ended(const struct thread *thread) {
    return rk_call(SYS_tgkill, thread->process->id, thread->id, 0, 0, 0, 0) == -ESRCH;
}

static struct thread *live_thread(int id) {
    for (struct thread *thread = threads[(unsigned)id % BUCKETS]; thread; thread = thread->by_hash)
        if (thread->id == id && !has_thread_ended(thread)) return thread;
    return NULL;
}

/* Returns a thread that was checked in the current tick: it still exists, as ids are not reused so soon. */
static struct thread *thread_checked_in_tick(const struct request *request) {
    struct thread *thread = threads[(unsigned)request->thread % BUCKETS];
    while (thread && (thread->id != request->thread || thread->checked != request->tick)) thread = thread->by_hash;
    return thread && !thread->process->executing && rk_sees_exec ? thread : NULL;
}

static struct thread *thread_of(struct process *process, int id) {
    for (struct thread *thread = process->threads; thread; thread = thread->next)
        if (thread->id == id) return thread;
    return NULL;
}

static struct thread *add_thread(struct process *process, int id) {
    struct thread *thread = calloc(1, sizeof(*thread));
    if (!thread) return NULL;
    bool is_first = id == process->id;
    struct program *program = process->program;
    size_t n = rk_append(thread->state.identity, RK_IDENTITY, 0, is_first ? "m" : "?");
    if (!is_first && !program->is_go) rk_append_number(thread->state.identity, RK_IDENTITY, n, ++program->unknown);
    rk_thread_begins(&program->process, thread->state.identity);
    thread->id = id;
    thread->process = process;
    thread->owner = thread;
    thread->next = process->threads;
    process->threads = thread;
    thread->by_hash = threads[(unsigned)id % BUCKETS];
    threads[(unsigned)id % BUCKETS] = thread;
    return thread;
}

/* Forgets threads that are not listed and have ended: a list read meanwhile may lack a living thread. */
static void forget_ended_threads(struct process *process, const int *ids, int count) {
    for (struct thread **link = &process->threads, *thread; (thread = *link);) {
        if (bsearch(&thread->id, ids, (size_t)count, sizeof(*ids), compare_ids) || !has_thread_ended(thread)) {
            link = &thread->next;
            continue;
        }
        *link = thread->next;
        free_thread(thread);
    }
}

/* Adds all threads, so that their numbers do not depend on which one makes a request first. */
static void add_threads(struct process *process) {
    static int ids[LISTED];
    int count = list_threads(process->id, ids);
    forget_ended_threads(process, ids, count);
    for (int i = 0; i < count; i++)
        if (!thread_of(process, ids[i])) add_thread(process, ids[i]);
}

static struct thread *new_thread(struct process *process, int id) {
    bool is_first = id == process->id, is_go = process->program->is_go;
    if (!is_first && !is_go) add_threads(process);
    struct thread *thread = thread_of(process, id);
    if (!thread) thread = add_thread(process, id);
    if (!thread || is_first || !is_go) return thread;
    struct thread *first = thread_of(process, process->id);
    if (!first) first = add_thread(process, process->id);
    if (first) thread->owner = first;
    return thread;
}

static struct process *find_or_add_process(int id) {
    int owner = process_id_of(id);
    if (owner <= 0) return NULL;
    struct process *process = find_process(owner);
    return process ? process : add_new_process(owner, 0);
}

static struct thread *find_or_add_thread(struct request *request) {
    int id = request->thread;
    struct thread *thread = live_thread(id);
    struct process *process = thread ? thread->process : NULL;
    if (process && !is_alive(process)) {
        forget_process(process);
        process = NULL;
    }
    if (process && !rk_sees_exec) process->executing = id;
    if (process && !process->executing) return thread;
    if (!process) process = find_or_add_process(id);
    if (!process) return NULL;
    request->in_doubt = process->executing;
    if (process->executing) check_exec(process, id);
    thread = thread_of(process, id);
    return thread ? thread : new_thread(process, id);
}

struct thread *rk_find_thread(struct request *request) {
    struct thread *thread = thread_checked_in_tick(request);
    if (RK_LIKELY(thread != NULL)) return thread->owner;
    thread = find_or_add_thread(request);
    if (!thread) return NULL;
    thread->checked = request->tick;
    return thread->owner;
}

/* Notes an exec call, and AT_RANDOM, by which a new program is recognized if everything else is the same. */
void rk_executes(int id) {
    struct thread *thread = live_thread(id);
    struct process *process = thread ? thread->process : find_process(process_id_of(id));
    if (!process) return;
    process->executing = id;
    remember_random(process->program, process->id);
}

void rk_may_have_executed(void) {
    for (struct process *process = newest; process; process = process->older) process->executing = ANY;
}
