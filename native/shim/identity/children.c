/* children.c - threads and processes: gives each its identity, and each new program the variables that
 * load the shim and the agent, whatever environment the program was given. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/record.h"
#include "recorder/replay.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/child_keys.h"
#include "shim/identity/children.h"
#include "shim/identity/pids.h"
#include "shim/identity/state.h"
#include "shim/notes/modules.h"
#include "shim/notes/unshimmed.h"

/* ---- the environment of a child ------------------------------------------------------------------------ */

#define PUT_BACK 5 /* number of variables that a child always gets */

/* AddressSanitizer's runtime would end a program in which a preloaded library stands before it. It is called behind the
 * shim's hooks then, as libc is. Also in environment.py. */
#define LINK_ORDER "verify_asan_link_order=0"

static const char *variable_value(const char *entry, const char *name) {
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

static const char *look_up(char *const environment[], const char *name) {
    const char *value = NULL;
    for (; environment && *environment && !value; environment++) value = variable_value(*environment, name);
    return value;
}

static size_t count_variables(char *const environment[]) {
    size_t n = 0;
    while (environment && environment[n]) n++;
    return n;
}

static size_t old_size(char *const environment[], const char *name) {
    const char *value = look_up(environment, name);
    return value ? strlen(value) : 0;
}

/* Returns the bytes that build_environment() needs: pointers, and the variables, three of which keep their old value.
 */
static size_t size_of_copy(char *const environment[]) {
    size_t old_values = old_size(environment, "LD_PRELOAD") + old_size(environment, "PYTHONPATH") +
                        old_size(environment, "ASAN_OPTIONS");
    return (count_variables(environment) + PUT_BACK + 1) * sizeof(char *) + old_values + sizeof(rk_plan.shim) +
           sizeof(rk_plan.python_path) + RK_RUN_PATH + RK_IDENTITY + 128;
}

static bool is_listed(const char *list, const char *item) {
    size_t length = strlen(item);
    for (const char *at = list; (at = strstr(at, item)); at += length)
        if ((at == list || strchr(": ", at[-1])) && (!at[length] || strchr(": ", at[length]))) return true;
    return false;
}

static char *write_variable(char **text, const char *name, const char *value, const char *rest) {
    char *start = *text;
    size_t length = rk_append(start, SIZE_MAX, 0, name);
    length = rk_append(start, SIZE_MAX, length, "=");
    length = rk_append(start, SIZE_MAX, length, value);
    if (rest && *rest) {
        length = rk_append(start, SIZE_MAX, length, ":");
        length = rk_append(start, SIZE_MAX, length, rest);
    }
    *text += length + 1;
    return start;
}

/* Writes a variable with item in front of its old value, unless that contains it. */
static char *write_list(char **text, const char *name, const char *item, const char *old_value) {
    if (old_value && is_listed(old_value, item)) return write_variable(text, name, old_value, NULL);
    return write_variable(text, name, item, old_value);
}

/* Writes ASAN_OPTIONS with the option behind the old ones, of which the last counts, unless they contain it. */
static char *write_options(char **text, const char *name, const char *option, const char *old_value) {
    if (!old_value || !*old_value) return write_variable(text, name, option, NULL);
    return write_variable(text, name, old_value, strstr(old_value, option) ? NULL : option);
}

static bool replace(char **environment, size_t n, const char *name, char *entry) {
    for (size_t i = 0; i < n; i++)
        if (variable_value(environment[i], name)) {
            environment[i] = entry;
            return true;
        }
    return false;
}

/* Copies the environment into memory of size_of_copy() bytes, with the variables of this run. */
static char **build_environment(void *memory, char *const original[], const char *identity) {
    static const char *const names[PUT_BACK] = {"LD_PRELOAD", "PYTHONPATH", "REPROKIT_RUN", "REPROKIT_ID",
                                                "ASAN_OPTIONS"};
    size_t n = count_variables(original);
    char **environment = memory, *text = (char *)(environment + n + PUT_BACK + 1);
    for (size_t i = 0; i < n; i++) environment[i] = original[i];
    char *entries[PUT_BACK] = {
        write_list(&text, names[0], rk_plan.shim, look_up(original, names[0])),
        write_list(&text, names[1], rk_plan.python_path, look_up(original, names[1])),
        write_variable(&text, names[2], rk_run, NULL),
        write_variable(&text, names[3], identity, NULL),
        write_options(&text, names[4], LINK_ORDER, look_up(original, names[4])),
    };
    for (int i = 0; i < PUT_BACK; i++)
        if (!replace(environment, n, names[i], entries[i])) environment[n++] = entries[i];
    environment[n] = NULL;
    return environment;
}

/* Returns whether the environment is for a run within this run, which has its own launcher. */
static bool is_another_run(char *const environment[]) {
    const char *run = look_up(environment, "REPROKIT_RUN");
    return run && strcmp(run, rk_run) != 0;
}

/* ---- memory for the environment
 * ---------------------------------------------------------------------------------------
 *
 * Small environments are on the stack. A mapping by a vfork child stays in its parent, until the thread that
 * created the child starts the next one. */

#define LARGE (8u << 10) /* bytes; threads may have stacks of 16 KiB */

static struct leftover {
    const struct rk_thread *thread;
    void *start;
    size_t size;
} leftovers[16];

static struct leftover *leftover_of(const struct rk_thread *thread) {
    for (struct leftover *leftover = leftovers; leftover < leftovers + RK_LENGTH(leftovers); leftover++)
        if (__atomic_load_n(&leftover->thread, __ATOMIC_ACQUIRE) == thread) return leftover;
    return NULL;
}

static void release_large(void *start, size_t size) {
    struct leftover *leftover = leftover_of(&rk_thread);
    rk_unmap(start, size);
    if (leftover) __atomic_store_n(&leftover->thread, NULL, __ATOMIC_RELEASE);
}

/* Notes a mapping of a vfork child. If the table is full, it stays mapped. */
static void note_leftover(void *start, size_t size) {
    for (struct leftover *leftover = leftovers; leftover < leftovers + RK_LENGTH(leftovers); leftover++) {
        const struct rk_thread *nobody = NULL;
        if (!__atomic_compare_exchange_n(&leftover->thread, &nobody, &rk_thread, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_RELAXED))
            continue;
        leftover->start = start;
        leftover->size = size;
        return;
    }
}

static void *map_large(size_t size) {
    struct leftover *last = leftover_of(&rk_thread);
    if (last) release_large(last->start, last->size);
    void *start = rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start && rk_is_another_process()) note_leftover(start, size);
    return start;
}

/* Declares `own`: a copy with this run's variables, or the given environment if that is for another run. */
#define CHILD_ENVIRONMENT(own, before, identity)                                     \
    char **own = (char **)(before);                                                  \
    size_t size = is_another_run(before) ? 0 : size_of_copy(before);                 \
    void *memory = size == 0 ? NULL : size < LARGE ? alloca(size) : map_large(size); \
    if (memory) own = build_environment(memory, before, identity);

/* ---- exec -------------------------------------------------------------------------------------------------- */

/* Names the program that this process becomes. A vfork child shares its parent's memory, so the parent's thread
 * names it, and only once: Python and execvp try every directory of PATH. */
static void exec_identity(char *text, const char *file, char *const arguments[]) {
    rk_process_check();
    struct rk_thread *thread = rk_thread_check();
    if (!rk_is_another_process()) {
        rk_name_executed(text, file, arguments);
        return;
    }
    int pid = rk_getpid();
    rk_pids_child();
    if (thread->vfork_pid != pid) {
        thread->vfork_pid = pid;
        thread->vfork_birth = (struct rk_birth){0};
    }
    rk_name_started(text, thread, &thread->vfork_birth, file, arguments);
}

/* Retries an exec: a signal may interrupt one that waits for the supervisor, though never the kernel's own. */
#define EXECUTE(call)                                         \
    do call;                                                  \
    while (errno == EINTR);                                   \
    if (memory && size >= LARGE) release_large(memory, size); \
    return -1

RK_EXPORT int execve(const char *path, char *const arguments[], char *const environment[]) {
    if (!rk_active()) return RK_REAL(execve)(path, arguments, environment);
    char identity[RK_IDENTITY];
    exec_identity(identity, path, arguments);
    CHILD_ENVIRONMENT(own, environment, identity)
    rk_look_for_shim(path, false, identity);
    EXECUTE(RK_REAL(execve)(path, arguments, own));
}

RK_EXPORT int execvpe(const char *file, char *const arguments[], char *const environment[]) {
    if (!rk_active()) return RK_REAL(execvpe)(file, arguments, environment);
    char identity[RK_IDENTITY];
    exec_identity(identity, file, arguments);
    CHILD_ENVIRONMENT(own, environment, identity)
    rk_look_for_shim(file, true, identity);
    EXECUTE(RK_REAL(execvpe)(file, arguments, own));
}

RK_EXPORT int fexecve(int fd, char *const arguments[], char *const environment[]) {
    if (!rk_active()) return RK_REAL(fexecve)(fd, arguments, environment);
    char identity[RK_IDENTITY];
    exec_identity(identity, NULL, arguments);
    CHILD_ENVIRONMENT(own, environment, identity)
    rk_look_for_shim(NULL, false, identity);
    EXECUTE(RK_REAL(fexecve)(fd, arguments, own));
}

RK_EXPORT int execveat(int directory, const char *path, char *const arguments[], char *const environment[], int flags) {
    if (!rk_active()) return RK_REAL(execveat)(directory, path, arguments, environment, flags);
    char identity[RK_IDENTITY];
    exec_identity(identity, NULL, arguments);
    CHILD_ENVIRONMENT(own, environment, identity)
    rk_look_for_shim(NULL, false, identity);
    EXECUTE(RK_REAL(execveat)(directory, path, arguments, own, flags));
}

RK_EXPORT int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }
RK_EXPORT int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

/* Collects the arguments of execl, execlp or execle in an array; what follows the NULL stays in `rest`. */
#define ARGUMENTS(array, first, rest)          \
    va_list counting;                          \
    size_t length = 1;                         \
    va_start(counting, first);                 \
    while (va_arg(counting, char *)) length++; \
    va_end(counting);                          \
    char *array[length + 1];                   \
    va_start(rest, first);                     \
    array[0] = (char *)(first);                \
    for (size_t i = 1; i <= length; i++) array[i] = va_arg(rest, char *);

RK_EXPORT int execl(const char *path, const char *first, ...) {
    va_list rest;
    ARGUMENTS(arguments, first, rest)
    va_end(rest);
    return execve(path, arguments, environ);
}

RK_EXPORT int execlp(const char *file, const char *first, ...) {
    va_list rest;
    ARGUMENTS(arguments, first, rest)
    va_end(rest);
    return execvpe(file, arguments, environ);
}

RK_EXPORT int execle(const char *path, const char *first, ...) {
    va_list rest;
    ARGUMENTS(arguments, first, rest)
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, arguments, environment);
}

/* ---- posix_spawn, system, popen ------------------------------------------------------------------------------ */

static void name_child(char *identity, const char *file, char *const arguments[]) {
    struct rk_birth birth = {0};
    rk_process_check();
    rk_pids_child();
    rk_name_started(identity, rk_thread_check(), &birth, file, arguments);
}

#define SPAWN(name, in_path)                                                                                      \
    RK_EXPORT int name(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                   \
                       const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) { \
        if (!rk_active()) return RK_REAL(name)(pid, path, actions, attributes, arguments, environment);           \
        char identity[RK_IDENTITY];                                                                               \
        name_child(identity, path, arguments);                                                                    \
        CHILD_ENVIRONMENT(child, environment, identity)                                                           \
        rk_look_for_shim(path, in_path, identity);                                                                \
        int error = RK_REAL(name)(pid, path, actions, attributes, arguments, child);                              \
        if (memory && size >= LARGE) release_large(memory, size);                                                 \
        return error;                                                                                             \
    }
SPAWN(posix_spawn, false)
SPAWN(posix_spawnp, true)

/* libc's system and popen start the shell without passing any hook, and with the unchanged environment. So they are
 * implemented here with posix_spawn, as POSIX specifies them. */
static int spawn_shell(pid_t *pid, const char *command, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes) {
    char *arguments[] = {"sh", "-c", (char *)command, NULL};
    return posix_spawn(pid, "/bin/sh", actions, attributes, arguments, environ);
}

static struct {
    struct sigaction interrupt, quit;
} before_system; /* guarded by rk_process->system_lock */

static void ignore_terminal_signals(void) {
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    rk_lock(&rk_process->system_lock);
    if (rk_process->system_calls++ == 0) {
        sigaction(SIGINT, &ignore, &before_system.interrupt);
        sigaction(SIGQUIT, &ignore, &before_system.quit);
    }
    rk_unlock(&rk_process->system_lock);
}

static void restore_terminal_signals(void) {
    rk_lock(&rk_process->system_lock);
    if (--rk_process->system_calls == 0) {
        sigaction(SIGINT, &before_system.interrupt, NULL);
        sigaction(SIGQUIT, &before_system.quit, NULL);
    }
    rk_unlock(&rk_process->system_lock);
}

/* The shell of a waiting thread: if the thread is canceled, the shell is killed, as by libc. */
struct waiting {
    pid_t pid;
    const sigset_t *mask;
};

static void kill_shell(void *argument) {
    struct waiting *waiting = argument;
    kill(waiting->pid, SIGKILL);
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    while (waitpid(waiting->pid, NULL, 0) < 0 && errno == EINTR) continue;
    pthread_setcancelstate(state, NULL);
    restore_terminal_signals();
    pthread_sigmask(SIG_SETMASK, waiting->mask, NULL);
}

static int wait_for(pid_t pid, const sigset_t *mask) {
    struct waiting waiting = {pid, mask};
    int status;
    pthread_cleanup_push(kill_shell, &waiting);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) {
            status = -1;
            break;
        }
    pthread_cleanup_pop(0);
    return status;
}

static int run_shell(const char *command, const sigset_t *mask) {
    sigset_t defaults;
    sigemptyset(&defaults);
    if (before_system.interrupt.sa_handler != SIG_IGN) sigaddset(&defaults, SIGINT);
    if (before_system.quit.sa_handler != SIG_IGN) sigaddset(&defaults, SIGQUIT);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, mask);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    pid_t pid;
    int status = 127 << 8; /* as if the shell could not be executed */
    int error = spawn_shell(&pid, command, NULL, &attributes);
    posix_spawnattr_destroy(&attributes);
    return error ? status : wait_for(pid, mask);
}

RK_EXPORT int system(const char *command) {
    if (!command || !rk_active()) return RK_REAL(system)(command);
    sigset_t child, before;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    rk_process_check();
    pthread_sigmask(SIG_BLOCK, &child, &before);
    ignore_terminal_signals();
    int status = run_shell(command, &before), error = errno;
    restore_terminal_signals();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return status;
}

/* A stream that popen opened. */
struct popen_stream {
    FILE *stream;
    pid_t pid;
    struct popen_stream *next;
};
static struct popen_stream *pipes; /* guarded by rk_process->popen_lock */

static void remember_pipe(struct popen_stream *pipe, FILE *stream, pid_t pid) {
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->popen_lock);
    *pipe = (struct popen_stream){stream, pid, pipes};
    __atomic_store_n(&pipes, pipe, __ATOMIC_RELEASE);
    rk_unlock(&rk_process->popen_lock);
    rk_restore_signals(before);
}

/* Removes a stream from the list; returns the process id of its shell, or 0. */
static pid_t forget_pipe(FILE *stream) {
    if (RK_LIKELY(!__atomic_load_n(&pipes, __ATOMIC_ACQUIRE))) return 0;
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->popen_lock);
    struct popen_stream **at = &pipes, *entry;
    while (*at && (*at)->stream != stream) at = &(*at)->next;
    if ((entry = *at)) *at = entry->next;
    rk_unlock(&rk_process->popen_lock);
    rk_restore_signals(before);
    pid_t pid = entry ? entry->pid : 0;
    free(entry);
    return pid;
}

/* Closes the streams of earlier popen calls in the child, as POSIX requires. */
static void close_other_pipes(posix_spawn_file_actions_t *actions, int own) {
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->popen_lock);
    for (struct popen_stream *pipe = pipes; pipe; pipe = pipe->next) {
        int fd = fileno(pipe->stream);
        if (fd >= 0 && fd != own) posix_spawn_file_actions_addclose(actions, fd);
    }
    rk_unlock(&rk_process->popen_lock);
    rk_restore_signals(before);
}

static int spawn_piped(pid_t *pid, const char *command, int child_end, int child_fd) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    close_other_pipes(&actions, child_fd);
    int error = posix_spawn_file_actions_adddup2(&actions, child_end, child_fd);
    if (!error) error = spawn_shell(pid, command, &actions, NULL);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

static FILE *open_pipe(const char *command, bool reads, bool close_on_exec) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return NULL;
    int ours = ends[reads ? 0 : 1], theirs = ends[reads ? 1 : 0], child_fd = reads ? 1 : 0;
    struct popen_stream *pipe = malloc(sizeof(*pipe));
    FILE *stream = pipe ? RK_REAL(fdopen)(ours, reads ? "r" : "w") : NULL;
    pid_t pid;
    int error = stream ? spawn_piped(&pid, command, theirs, child_fd) : errno;
    close(theirs);
    if (!error) {
        remember_pipe(pipe, stream, pid); /* before another popen's child could keep it */
        if (!close_on_exec) RK_REAL(fcntl)(ours, F_SETFD, 0);
        return stream;
    }
    free(pipe);
    if (stream)
        RK_REAL(fclose)(stream);
    else
        close(ours);
    errno = error;
    return NULL;
}

RK_EXPORT FILE *popen(const char *command, const char *mode) {
    bool reads = strchr(mode, 'r'), writes = strchr(mode, 'w');
    if (!rk_active() || reads == writes) return RK_REAL(popen)(command, mode);
    rk_process_check();
    return open_pipe(command, reads, strchr(mode, 'e'));
}

static int close_piped(FILE *stream, pid_t pid) {
    RK_REAL(fclose)(stream);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return status;
}

RK_EXPORT int pclose(FILE *stream) {
    pid_t pid = rk_active() ? forget_pipe(stream) : 0;
    return pid ? close_piped(stream, pid) : RK_REAL(pclose)(stream);
}

/* Waits for the shell if the stream is one of popen, as libc does. */
RK_EXPORT int fclose(FILE *stream) {
    pid_t pid = rk_active() ? forget_pipe(stream) : 0;
    return pid ? close_piped(stream, pid) : RK_REAL(fclose)(stream);
}

/* ---- fork ------------------------------------------------------------------------------------------------------ */

/* Called before fork, forkpty and daemon. The kernel zeroes the state in the child. */
static void before_fork(void) {
    rk_process_check();
    rk_pids_child();
    rk_modules_before_fork();
    rk_program_before_fork();
    struct rk_thread *thread = rk_thread_check();
    if (RK_UNLIKELY(thread->depth > 0)) rk_share_request(thread);
    rk_number_fork(thread);
}

/* Zeroes the state again, as emulators and sandboxes accept MADV_WIPEONFORK without doing it. */
static void in_child(void) {
    if (rk_process->ready && rk_is_another_process()) memset(rk_process, 0, sizeof(*rk_process));
    rk_process_check();
}

/* Calls both functions itself, as _Fork runs no handlers of pthread_atfork. */
RK_EXPORT int _Fork(void) {
    if (!rk_active()) return RK_REAL(_Fork)();
    before_fork();
    int pid = RK_REAL(_Fork)();
    if (pid == 0) in_child();
    return pid;
}

void rk_children_start(void) { pthread_atfork(before_fork, NULL, in_child); }

/* ---- threads ------------------------------------------------------------------------------------------------------
 */

#define SLOTS 256 /* threads that are created and not running yet */

struct new_thread {
    void *(*start)(void *);
    int (*start_c11)(void *);
    void *argument;
    char identity[RK_IDENTITY];
};
struct slot {
    uint32_t taken;
    struct new_thread new_thread;
};
static struct slot slots[SLOTS];

static struct slot *free_slot(void) {
    for (int i = 0; i < SLOTS; i++)
        if (!__atomic_exchange_n(&slots[i].taken, 1, __ATOMIC_ACQUIRE)) return &slots[i];
    return rk_map(sizeof(struct slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static struct slot *take_slot(void *argument) {
    struct rk_thread *thread = rk_thread_check();
    uint32_t number = ++thread->threads;
    struct slot *slot = free_slot();
    if (!slot) return NULL; /* the thread gets no name of its own */
    slot->new_thread.argument = argument;
    rk_thread_name(slot->new_thread.identity, thread->identity, number);
    rk_thread_begins(rk_process, slot->new_thread.identity);
    return slot;
}

static void release_slot(struct slot *slot) {
    if (slot >= slots && slot < slots + SLOTS)
        __atomic_store_n(&slot->taken, 0, __ATOMIC_RELEASE);
    else
        rk_unmap(slot, sizeof(*slot));
}

static struct new_thread become_thread(struct slot *slot) {
    struct new_thread copy = slot->new_thread;
    release_slot(slot);
    memset(&rk_thread, 0, sizeof(rk_thread));
    memcpy(rk_thread.identity, copy.identity, sizeof(copy.identity));
    rk_thread.generation = rk_generation;
    return copy;
}

static void *run_thread(void *slot) {
    struct new_thread copy = become_thread(slot);
    return copy.start(copy.argument);
}

static int run_thread_c11(void *slot) {
    struct new_thread copy = become_thread(slot);
    return copy.start_c11(copy.argument);
}

RK_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                             void *argument) {
    if (!rk_active()) return RK_REAL(pthread_create)(thread, attributes, function, argument);
    rk_process_check();
    struct slot *slot = take_slot(argument);
    if (!slot) return RK_REAL(pthread_create)(thread, attributes, function, argument);
    slot->new_thread.start = function;
    int error = RK_REAL(pthread_create)(thread, attributes, run_thread, slot);
    if (error) {
        rk_thread.threads--;
        release_slot(slot);
    }
    return error;
}

RK_EXPORT int thrd_create(thrd_t *thread, thrd_start_t function, void *argument) {
    if (!rk_active()) return RK_REAL(thrd_create)(thread, function, argument);
    rk_process_check();
    struct slot *slot = take_slot(argument);
    if (!slot) return RK_REAL(thrd_create)(thread, function, argument);
    slot->new_thread.start_c11 = function;
    int result = RK_REAL(thrd_create)(thread, run_thread_c11, slot);
    if (result != thrd_success) {
        rk_thread.threads--;
        release_slot(slot);
    }
    return result;
}
