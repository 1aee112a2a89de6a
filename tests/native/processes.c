/* One way of making threads and processes, chosen by the first argument; each of them prints 16 bytes, in an
 * order that is always the same. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#define CHECK(condition) \
    if (!(condition)) (perror(#condition), exit(99))

static char *self;

static void draw(void) {
    uint8_t bytes[16];
    char line[34];
    CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) sprintf(line + 2 * i, "%02x", bytes[i]);
    line[32] = '\n';
    CHECK(write(1, line, 33) == 33);
}
static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, __WALL) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void child_draws(pid_t child) {
    CHECK(child >= 0);
    if (child == 0) {
        draw();
        _exit(0);
    }
    wait_for(child);
}

/* ---- system calls of the program's own ---------------------------------------------------------------- */

static char stack[3][65536] __attribute__((aligned(16)));
static uint32_t alive;

static int run_clone(void *unused) {
    (void)unused;
    draw();
    return 0;
}
static void with_clone(void) {
    for (int i = 0; i < 3; i++) wait_for(clone(run_clone, stack[i] + sizeof(stack[i]), SIGCHLD, NULL));
    draw();
}
/* As a language runtime of its own makes threads: without pthread_create, on the creator's thread-locals. */
static void with_clone_thread(void) {
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    for (int i = 0; i < 3; i++) {
        CHECK(clone(run_clone, stack[i] + sizeof(stack[i]), flags, NULL, &alive, NULL, &alive) > 0);
        for (uint32_t id; (id = __atomic_load_n(&alive, __ATOMIC_ACQUIRE));) syscall(SYS_futex, &alive, FUTEX_WAIT, id, NULL);
    }
    draw();
}
static void with_clone_shared_memory(void) {
    wait_for(clone(run_clone, stack[0] + sizeof(stack[0]), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
    draw();
}
static void with_syscall_clone(void) {
    for (int i = 0; i < 3; i++) child_draws((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    draw();
}
static void with_syscall_clone3(void) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    for (int i = 0; i < 3; i++) child_draws((pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments)));
    draw();
}

/* ---- libc's ways of forking --------------------------------------------------------------------------- */

static void with_double_fork(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(setsid() > 0);
        if (fork() == 0) draw();
        _exit(0);
    }
    wait_for(child);
    close(ends[1]);
    CHECK(read(ends[0], &child, 1) == 0); /* when the last holder of the other end is gone */
    draw();
}
static void with_daemon(void) {
    draw();
    CHECK(daemon(1, 1) == 0);
    draw();
}
static void copy_terminal(int terminal) {
    char line[64];
    ssize_t n, total = 0;
    while (total < 34 && (n = read(terminal, line + total, sizeof(line) - (size_t)total)) > 0) total += n;
    CHECK(total == 34 && write(1, line, 32) == 32); /* the terminal makes \r\n of \n */
}
static void with_forkpty(void) {
    int terminal;
    pid_t child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0) {
        draw();
        _exit(0);
    }
    copy_terminal(terminal);
    wait_for(child);
}
static void with_openpty(void) {
    int terminal, other;
    CHECK(openpty(&terminal, &other, NULL, NULL, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(login_tty(other) == 0);
        execl(self, self, "draw", NULL);
        _exit(98);
    }
    copy_terminal(terminal);
    wait_for(child);
}

/* ---- programs in a shell, also from threads ---------------------------------------------------------------- */

static void command(char text[4200]) { snprintf(text, 4200, "'%s' draw", self); }
static void with_popen_write(void) {
    char text[4200];
    command(text);
    FILE *stream = popen(text, "w");
    CHECK(stream && pclose(stream) == 0);
    CHECK((stream = popen(text, "we")) && pclose(stream) == 0);
}
static void *system_in_thread(void *unused) {
    char text[4200];
    command(text);
    CHECK(system(text) == 0);
    return unused;
}
static void *popen_in_thread(void *unused) {
    char text[4200], line[64];
    command(text);
    FILE *stream = popen(text, "r");
    CHECK(stream && fgets(line, sizeof(line), stream) && pclose(stream) == 0);
    CHECK(write(1, line, strlen(line)) == 33);
    return unused;
}
static void *spawn_in_thread(void *unused) {
    char *arguments[] = {self, "draw", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    wait_for(child);
    return unused;
}
static void one_after_the_other(void *(*start)(void *)) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, start, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
    draw();
}
static void with_system_in_thread(void) { one_after_the_other(system_in_thread); }
static void with_popen_in_thread(void) { one_after_the_other(popen_in_thread); }
static void with_spawn_in_thread(void) { one_after_the_other(spawn_in_thread); }

/* ---- exec in every form, also of a vfork child ------------------------------------------------------------------ */

static void exec_by(const char *how) {
    char *arguments[] = {self, "draw", NULL}, *nothing[] = {NULL};
    int fd = open(self, O_RDONLY | O_CLOEXEC), directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (strcmp(how, "execl") == 0) execl(self, self, "draw", NULL);
    if (strcmp(how, "execlp") == 0) execlp(self, self, "draw", NULL);
    if (strcmp(how, "execle") == 0) execle(self, self, "draw", NULL, nothing);
    if (strcmp(how, "execv") == 0) execv(self, arguments);
    if (strcmp(how, "execvp") == 0) execvp(self, arguments);
    if (strcmp(how, "execvpe") == 0) execvpe(self, arguments, nothing);
    if (strcmp(how, "execve") == 0) execve(self, arguments, nothing);
    if (strcmp(how, "fexecve") == 0) fexecve(fd, arguments, nothing);
    if (strcmp(how, "execveat") == 0) execveat(directory, self + 1, arguments, nothing, 0);
    if (strcmp(how, "execveat_empty") == 0) execveat(fd, "", arguments, nothing, AT_EMPTY_PATH);
    _exit(98);
}
#define EXEC(name)                             \
    static void with_##name(void) {            \
        draw();                                \
        for (int i = 0; i < 2; i++) {          \
            pid_t child = fork();              \
            if (child == 0) exec_by(#name);    \
            wait_for(child);                   \
        }                                      \
        pid_t child = vfork();                 \
        if (child == 0) exec_by(#name);        \
        wait_for(child);                       \
        exec_by(#name);                        \
    }
EXEC(execl)
EXEC(execlp)
EXEC(execle)
EXEC(execv)
EXEC(execvp)
EXEC(execvpe)
EXEC(execve)
EXEC(fexecve)
EXEC(execveat)
EXEC(execveat_empty)

/* ---- posix_spawn with all that it can be asked for ---------------------------------------------------------------- */

static void with_spawn_attributes(void) {
    char *arguments[] = {self, "draw", NULL}, *nothing[] = {NULL};
    short flags[] = {POSIX_SPAWN_SETPGROUP, POSIX_SPAWN_SETSIGMASK, POSIX_SPAWN_SETSIGDEF, POSIX_SPAWN_RESETIDS,
                     POSIX_SPAWN_USEVFORK, POSIX_SPAWN_SETSID};
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
        posix_spawnattr_t attributes;
        CHECK(posix_spawnattr_init(&attributes) == 0 && posix_spawnattr_setflags(&attributes, flags[i]) == 0);
        pid_t child;
        CHECK(posix_spawn(&child, self, NULL, &attributes, arguments, nothing) == 0);
        wait_for(child);
    }
}
static void with_spawn_actions(void) {
    char *arguments[] = {self, "draw", NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    char line[33];
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 9, "/dev/urandom", O_RDONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, 9) == 0);
    pid_t child;
    CHECK(posix_spawnp(&child, self, &actions, NULL, arguments, environ) == 0);
    CHECK(read(ends[0], line, 33) == 33 && write(1, line, 33) == 33);
    wait_for(child);
}

#define PATH(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    PATH(clone), PATH(clone_thread), PATH(clone_shared_memory), PATH(syscall_clone), PATH(syscall_clone3),
    PATH(double_fork), PATH(daemon), PATH(forkpty), PATH(openpty), PATH(popen_write), PATH(system_in_thread),
    PATH(popen_in_thread), PATH(spawn_in_thread), PATH(execl), PATH(execlp), PATH(execle), PATH(execv), PATH(execvp),
    PATH(execvpe), PATH(execve), PATH(fexecve), PATH(execveat), PATH(execveat_empty), PATH(spawn_attributes),
    PATH(spawn_actions), {"draw", draw},
};

int main(int count, char **arguments) {
    self = realpath("/proc/self/exe", NULL);
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        if (count < 2) puts(paths[i].name);
        else if (strcmp(paths[i].name, arguments[1]) == 0) return paths[i].run(), 0;
    }
    return count < 2 ? 0 : 97;
}
