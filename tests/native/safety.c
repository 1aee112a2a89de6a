/* What a program may do around its requests for entropy, chosen by the first argument; prints the bytes. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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

#define WAY(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} ways[] = {
    WAY(every_descriptor_closed), WAY(own_stack), WAY(clone), WAY(fork_beside_threads), WAY(threads_one_after_another),
};

int main(int count, char **arguments) {
    for (size_t i = 0; count > 1 && i < sizeof(ways) / sizeof(*ways); i++)
        if (strcmp(ways[i].name, arguments[1]) == 0) return ways[i].run(), 0;
    return 97;
}
