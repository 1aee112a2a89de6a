/* What a program may do around its requests for entropy, chosen by the first argument; prints the bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
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
#include <ucontext.h>
#include <unistd.h>

#define CHECK(condition) \
    if (!(condition)) (perror(#condition), exit(99))
#define STACK 65536

static void show(void) {
    uint8_t bytes[16];
    CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) printf("%02x", bytes[i]);
    putchar('\n');
    fflush(stdout);
}

static void *in_thread(void *unused) {
    show();
    return unused;
}
static void show_in_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static char *map_stack(void) {
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    return stack;
}

static void with_every_descriptor_closed(void) {
    show();
    CHECK(syscall(436 /* close_range */, 3, ~0U, 0) == 0);
    for (int i = 0; i < 2000; i++) show();
    show_in_thread();
}

/* As Go and other runtimes of coroutines do. */
static ucontext_t outside, inside;
static void on_own_stack(void) {
    show();
    swapcontext(&inside, &outside);
    show();
}
static void with_own_stack(void) {
    CHECK(getcontext(&inside) == 0);
    inside.uc_stack.ss_sp = map_stack();
    inside.uc_stack.ss_size = STACK;
    inside.uc_link = &outside;
    makecontext(&inside, on_own_stack, 0);
    swapcontext(&outside, &inside);
    show();
    swapcontext(&outside, &inside);
    show();
}

static int in_clone(void *unused) {
    (void)unused;
    show();
    return 0;
}
static void with_clone(void) {
    wait_for(clone(in_clone, map_stack() + STACK, SIGCHLD, NULL));
    show();
}

static volatile int ready, stop;
static void *draw_until_stopped(void *unused) {
    char bytes[16];
    ready = 1;
    while (!stop) CHECK(getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) == sizeof(bytes));
    return unused;
}
/* The others hold whatever they hold at that moment. */
static void with_fork_beside_threads(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, draw_until_stopped, NULL) == 0);
    while (!ready) sched_yield();
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            show();
            show_in_thread();
            _exit(0);
        }
        wait_for(child);
    }
    stop = 1;
    pthread_join(thread, NULL);
}

/* The kernel gives a thread's memory, its stack and its variables, to the next one. */
static void with_threads_one_after_another(void) {
    for (int i = 0; i < 500; i++) show_in_thread();
}

/* A vfork child lives in its parent's memory, and is killed at any moment: mostly while the shim makes room for
 * what it asks for. Its parent asks before it has waited for it. */
static volatile pid_t victim;
static void *kill_victims(void *unused) {
    for (useconds_t delay = 0; !stop; delay = (delay + 137) % 1500) {
        while (!victim && !stop) sched_yield();
        usleep(delay);
        pid_t pid = victim;
        victim = 0;
        if (pid > 0) kill(pid, SIGKILL);
    }
    return unused;
}
static void with_vfork_killed(void) {
    static uint8_t bytes[1 << 20];
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kill_victims, NULL) == 0);
    for (int i = 0; i < 25; i++) {
        pid_t child = vfork();
        if (child == 0) {
            victim = (pid_t)syscall(SYS_gettid);
            for (;;) syscall(SYS_getrandom, bytes, sizeof(bytes), 0);
        }
        int status;
        show();
        show_in_thread();
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    }
    stop = 1;
    pthread_join(thread, NULL);
}

/* Modules at the same address, one after the other: the arguments name them. */
static char **modules;
static void with_modules(void) {
    static void *first;
    for (char **name = modules; *name; name++) {
        uint8_t bytes[16];
        void *module = dlopen(*name, RTLD_NOW);
        CHECK(module);
        long (*draw)(void *, size_t) = (long (*)(void *, size_t))dlsym(module, "draw");
        CHECK(draw && (!first || first == (void *)draw));
        first = (void *)draw;
        for (int i = 0; i < 2; i++) CHECK(draw(bytes, sizeof(bytes)) == sizeof(bytes));
        CHECK(dlclose(module) == 0);
    }
}

/* 20,000 variables, on a thread with the smallest stack. */
#define VARIABLES 20000
static char *variables[VARIABLES + 1];
static char itself[PATH_MAX];
static int count_mappings(void) {
    char line[PATH_MAX + 128];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps)) n++;
    CHECK(maps && fclose(maps) == 0);
    return n;
}
static void *start_programs(void *unused) {
    char *arguments[] = {itself, "nothing", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, itself, NULL, NULL, arguments, variables) == 0);
    wait_for(child);
    if ((child = vfork()) == 0) _exit(execve(itself, arguments, variables));
    wait_for(child);
    CHECK(execve("/nonexistent", arguments, variables) == -1 && errno == ENOENT);
    return unused;
}
static void with_large_environment(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    int mappings = 0;
    CHECK(readlink("/proc/self/exe", itself, sizeof(itself) - 1) > 0);
    for (int i = 0; i < VARIABLES; i++) CHECK(asprintf(&variables[i], "V%d=%d", i, i) > 0);
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    for (int i = 0; i < 20; i++) {
        CHECK(pthread_create(&thread, &attributes, start_programs, NULL) == 0 && pthread_join(thread, NULL) == 0);
        if (i == 4) mappings = count_mappings();
    }
    CHECK(count_mappings() <= mappings + 2);
    show();
}
static void with_nothing(void) { CHECK(!getenv("LD_PRELOAD") || (getenv("REPROKIT_ID") && getenv("V0") && getenv("V19999"))); }

#define WAY(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
    WAY(every_descriptor_closed), WAY(own_stack), WAY(clone), WAY(fork_beside_threads), WAY(threads_one_after_another),
    WAY(vfork_killed), WAY(modules), WAY(large_environment), WAY(nothing),
};

int main(int count, char **arguments) {
    modules = arguments + 2;
    for (size_t i = 0; count > 1 && i < sizeof(ways) / sizeof(*ways); i++)
        if (strcmp(ways[i].name, arguments[1]) == 0) return ways[i].run(), 0;
    return 97;
}
