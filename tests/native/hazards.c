/* What a program may do that a careless preload breaks, chosen by the first argument. Each prints the
 * same bare and under the shim. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    if (!(condition)) (perror(#condition), exit(99))

static void open_for_writing(void) {
    int fd = open("written-here", O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    close(fd);
}

static void *in_small_thread(void *unused) {
    open_for_writing();
    return unused;
}
static void with_small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, 16384) == 0);
    CHECK(pthread_create(&thread, &attributes, in_small_thread, NULL) == 0);
    pthread_join(thread, NULL);
}

static void open_in_handler(int number) {
    (void)number;
    open_for_writing();
}
/* A log opened by a crash handler: what lies below its stack is the heap. */
static void with_signal_stack(void) {
    enum { GUARD = 65536, SIZE = 8192 };
    char *memory = malloc(GUARD + SIZE);
    memset(memory, 7, GUARD + SIZE);
    stack_t stack = {.ss_sp = memory + GUARD, .ss_size = SIZE};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = open_in_handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    int overwritten = 0;
    for (int i = 0; i < GUARD; i++) overwritten += memory[i] != 7;
    printf("%d bytes overwritten\n", overwritten);
}

static void with_popen_closed_by_fclose(void) {
    FILE *first = popen("exit 3", "r");
    CHECK(first && fclose(first) >= 0);
    FILE *second = popen("exit 5", "r");
    CHECK(second);
    printf("status %d\n", WEXITSTATUS(pclose(second)));
    printf("children left: %d\n", waitpid(-1, NULL, WNOHANG) > 0);
}
static void with_many_popens(void) {
    static FILE *streams[300];
    for (int i = 0; i < 300; i++) CHECK(streams[i] = popen("read x", "w"));
    for (int i = 0; i < 300; i++) pclose(streams[i]);
}

static void *run_shell(void *unused) {
    if (system("exec sleep 60 >/dev/null 2>&1")) return NULL;
    return unused;
}
static void with_cancelled_system(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_shell, NULL) == 0);
    struct sigaction action;
    do {
        usleep(1000);
        sigaction(SIGINT, NULL, &action);
    } while (action.sa_handler != SIG_IGN);
    usleep(20000); /* it has come to wait */
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    sigaction(SIGINT, NULL, &action);
    printf("SIGINT ignored: %d\n", action.sa_handler == SIG_IGN);
    printf("children left: %d\n", waitpid(-1, NULL, WNOHANG) >= 0);
}

static volatile int forks, is_child;
static void fork_in_handler(int number) {
    (void)number;
    int error = errno;
    if (is_child || forks == 100) return;
    forks++;
    if (fork() == 0) {
        struct itimerval none = {{0, 0}, {0, 0}};
        is_child = 1;
        setitimer(ITIMER_REAL, &none, NULL);
    }
    errno = error;
}
static void with_fork_in_handler(void) {
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    char bytes[64];
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (forks < 100 && !is_child) getrandom(bytes, sizeof(bytes), 0);
    if (is_child) {
        for (int i = 0; i < 10; i++) getrandom(bytes, sizeof(bytes), 0);
        _exit(0);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    int status, died = 0;
    pid_t pid;
    while ((pid = wait(&status)) > 0 || errno == EINTR)
        if (pid > 0) died += status != 0;
    printf("%d children died\n", died);
}

static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }
/* Leaves requests in their midst, then makes a thousand that must be recorded. */
static void with_jumps_out_of_requests(void) {
    static volatile int jumps;
    char bytes[256];
    signal(SIGALRM, jump);
    if (sigsetjmp(back, 1)) jumps++;
    if (jumps < 40) {
        struct itimerval once = {{0, 0}, {0, 700}};
        setitimer(ITIMER_REAL, &once, NULL);
        for (;;) getrandom(bytes, sizeof(bytes), 0);
    }
    for (int i = 0; i < 1000; i++) CHECK(getrandom(bytes, 77, 0) == 77);
}

__attribute__((noinline)) static void ask_here(char *bytes) { CHECK(getrandom(bytes, 16, 0) == 16); }
__attribute__((noinline, aligned(64))) static void ask_there(char *bytes) { CHECK(getrandom(bytes, 16, 0) == 16); }
static void with_two_call_sites(void) {
    char bytes[16];
    for (int i = 0; i < 20000; i++) {
        ask_here(bytes);
        ask_there(bytes);
    }
}

/* Of a recording without requests: asks only when told to. Memory and files must still be had then. */
static void with_requests_if_asked(void) {
    char bytes[16];
    for (int n = getenv("REQUESTS") ? atoi(getenv("REQUESTS")) : 0; n > 0; n--) CHECK(getrandom(bytes, 16, 0) == 16);
    CHECK(malloc(8 << 20));
    CHECK(fopen("/dev/null", "r"));
}

static void *draw(void *unused) {
    char bytes[4];
    CHECK(getrandom(bytes, 4, 0) == 4);
    return unused;
}
static void with_full_descriptors(void) {
    struct rlimit few = {8, 8};
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (open("/dev/null", O_RDONLY) >= 0) continue;
    pthread_t thread;
    for (int i = 0; i < 1000; i++) draw(NULL);
    CHECK(pthread_create(&thread, NULL, draw, NULL) == 0);
    pthread_join(thread, NULL);
}

static void note_cancelled(void *count) { ++*(int *)count; }
static void *open_fifo(void *count) {
    pthread_cleanup_push(note_cancelled, count);
    if (open("fifo", O_RDONLY) >= 0) return NULL; /* nobody ever writes */
    pthread_cleanup_pop(0);
    return NULL;
}
static void with_cancelled_open(void) {
    pthread_t thread;
    int count = 0;
    CHECK(mkfifo("fifo", 0600) == 0 || errno == EEXIST);
    for (int wait = 0; wait < 2; wait++) {
        CHECK(pthread_create(&thread, NULL, open_fifo, &count) == 0);
        if (wait) usleep(50000); /* it is cancelled before the open and in its midst */
        CHECK(pthread_cancel(thread) == 0);
        pthread_join(thread, NULL);
    }
    printf("%d cancelled\n", count);
}

static int is_over;
static void *ask_on(void *unused) {
    char bytes[4096];
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    return unused;
}
/* Where a thread of a real-time class runs, no ordinary one of the same processor does: also not while it waits for
 * one by yielding. Without the right to be one it is ordinary. */
static void with_real_time_thread(void) {
    cpu_set_t first;
    sched_getaffinity(0, sizeof(first), &first);
    for (int cpu = CPU_SETSIZE - 1, left = CPU_COUNT(&first); left > 1; cpu--)
        if (CPU_ISSET(cpu, &first)) left--, CPU_CLR(cpu, &first);
    CHECK(sched_setaffinity(0, sizeof(first), &first) == 0);
    struct sched_param real_time = {.sched_priority = 1}, ordinary = {0};
    pthread_t threads[2];
    char bytes[4096];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, ask_on, NULL) == 0);
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &real_time);
    for (int i = 0; i < 1000; i++) {
        usleep(50);
        CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    }
    pthread_setschedparam(pthread_self(), SCHED_OTHER, &ordinary);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

#define HAZARD(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} hazards[] = {
    HAZARD(small_stack),      HAZARD(signal_stack),      HAZARD(popen_closed_by_fclose), HAZARD(many_popens),
    HAZARD(cancelled_system), HAZARD(fork_in_handler),   HAZARD(full_descriptors),       HAZARD(jumps_out_of_requests),
    HAZARD(two_call_sites),   HAZARD(requests_if_asked), HAZARD(cancelled_open),         HAZARD(real_time_thread),
};

int main(int count, char **arguments) {
    for (size_t i = 0; count > 1 && i < sizeof(hazards) / sizeof(*hazards); i++)
        if (strcmp(hazards[i].name, arguments[1]) == 0) {
            hazards[i].run();
            puts("done");
            return 0;
        }
    return 97;
}
