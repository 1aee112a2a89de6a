/* supervised.c - programs that the shim does not reach: linked statically, or calling the kernel themselves.
 * Each path prints what it was given. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4

/* By instructions of its own, past libc. */
static long call(long number, long a, long b, long c) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x5) : "memory");
    return x0;
#endif
}

static long ask(void *buffer, long size) { return call(SYS_getrandom, (long)buffer, size, 0); }

static void show(const unsigned char *bytes, long n) {
    for (long i = 0; i < n; i++) printf("%02x", bytes[i]);
    printf("\n");
    fflush(stdout);
}

static void ask_and_show(void) {
    unsigned char bytes[16];
    show(bytes, ask(bytes, sizeof(bytes)));
}

static void path_getrandom(void) {
    for (int i = 0; i < 3; i++) ask_and_show();
}

static void path_large(void) {
    static unsigned char bytes[3000001];
    unsigned hash = 5381;
    long n = ask(bytes, sizeof(bytes));
    for (long i = 0; i < n; i++) hash = hash * 33 + bytes[i];
    printf("%ld %u\n", n, hash);
}

static void path_bad_address(void) {
    printf("%ld\n", ask((void *)8, 16));
    ask_and_show();
}

static unsigned char drawn[THREADS][32];
static pthread_barrier_t barrier;

static void *work(void *argument) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 32; i += 8) ask((unsigned char *)argument + i, 8);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void path_threads(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, drawn[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) show(drawn[i], sizeof(drawn[i]));
}

/* All children at once; what each was given comes through a pipe of its own. */
static void path_fork(void) {
    int ends[THREADS][2];
    unsigned char bytes[8];
    ask_and_show();
    for (int i = 0; i < THREADS; i++) {
        if (pipe(ends[i]) != 0 || fork() != 0) continue;
        long n = ask(bytes, sizeof(bytes));
        _exit(write(ends[i][1], bytes, (size_t)n) != n);
    }
    for (int i = 0; i < THREADS; i++)
        if (read(ends[i][0], bytes, sizeof(bytes)) == sizeof(bytes)) show(bytes, sizeof(bytes));
    while (wait(NULL) > 0) continue;
    ask_and_show();
}

static void read_and_show(int fd) {
    unsigned char bytes[24];
    long n = read(fd, bytes, sizeof(bytes));
    show(bytes, n);
    n = read(fd, bytes, 3);
    show(bytes, n);
}

static void path_device(void) {
    int first = open("/dev/urandom", O_RDONLY), second = open("/dev//./random", O_RDONLY | O_CLOEXEC);
    read_and_show(first);
    read_and_show(second);
    close(first);
    printf("%d\n", fcntl(second, F_GETFD));
}

/* As much of the first device as AHEAD says; its pipe is filled again behind that. */
static void path_ahead(void) {
    static unsigned char bytes[16384];
    long size = getenv("AHEAD") ? atol(getenv("AHEAD")) : 16;
    int first = open("/dev/urandom", O_RDONLY);
    for (long n, done = 0; done < size && (n = read(first, bytes + done, (size_t)(size - done))) > 0;) done += n;
    show(bytes, 16);
    int second = open("/dev/urandom", O_RDONLY);
    show(bytes, read(second, bytes, 16));
}

static void path_relative(void) {
    int directory = open("/dev", O_RDONLY | O_DIRECTORY);
    read_and_show(openat(directory, "urandom", O_RDONLY));
    if (chdir("/dev/shm") == 0) read_and_show(open("../urandom", O_RDONLY));
}

static void path_many_reads(void) {
    unsigned char byte, sum[16] = {0};
    int fd = open("/dev/urandom", O_RDONLY);
    for (int i = 0; i < 10000 && read(fd, &byte, 1) == 1; i++) sum[i % 16] = (unsigned char)(sum[i % 16] * 31 + byte);
    show(sum, sizeof(sum));
}

static void path_uuid(void) {
    for (int i = 0; i < 2; i++) {
        char text[64] = "";
        int fd = open("/proc/sys/kernel/random/uuid", O_RDONLY);
        long n = read(fd, text, sizeof(text));
        printf("%ld %s", n, text);
        close(fd);
    }
}

/* What libc's functions open is the shim's where there is one, and the rest the supervisor's. */
static void path_opens(void) {
    static const char *const names[] = {"/dev/urandom", "/dev/random", "/proc/sys/kernel/random/uuid",
                                        "/proc/sys/kernel/random/boot_id"};
    unsigned char bytes[16];
    for (int i = 0; i < 4; i++) {
        int fds[] = {(int)call(SYS_openat, AT_FDCWD, (long)names[i], O_RDONLY),
                     (int)syscall(SYS_openat, AT_FDCWD, names[i], O_RDONLY), open(names[i], O_RDONLY)};
        FILE *stream = fopen(names[i], "r");
        for (int j = 0; j < 3; j++) show(bytes, read(fds[j], bytes, sizeof(bytes)));
        show(bytes, (long)fread(bytes, 1, sizeof(bytes), stream));
    }
}

static void path_at_random(void) {
    ask_and_show(); /* the supervisor meets the program at its first request */
    show((const unsigned char *)getauxval(AT_RANDOM), 16);
}

static void path_exec(void) {
    ask_and_show();
    execl("/proc/self/exe", "supervised", "getrandom", NULL);
}

static void *ask_for_ever(void *unused) {
    unsigned char bytes[8];
    while (ask(bytes, sizeof(bytes)) == sizeof(bytes)) continue;
    return unused;
}

/* The same command with the same variables again, and what the kernel put on its stack. A pipe counts: its
 * first byte is for the program that is executed. */
static void path_exec_alike(void) {
    char *const command[] = {"supervised", "exec_alike", NULL}, *const variables[] = {NULL};
    int ends[2];
    char end = 'x';
    bool is_first = fcntl(100, F_GETFD) < 0;
    ask_and_show();
    show((const unsigned char *)getauxval(AT_RANDOM), 16);
    if (!is_first && read(100, &end, 1) != 1) return;
    if (is_first && (pipe(ends) != 0 || dup2(ends[0], 100) != 100 || write(ends[1], "xx", 2) != 2)) return;
    if (is_first) close(ends[1]);
    execve("/proc/self/exe", command, variables);
}

/* What the kernel says of addresses that are not there, or there in part, or only to be read. */
static void path_faults(void) {
    unsigned char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_READ);
    ask_and_show();
    printf("%ld %ld\n", ask((void *)8, 16), ask(pages + 4096, 16));
    show(pages + 4080, ask(pages + 4080, 32));
}

/* A thread asks while another one is executing a program. */
static void path_exec_beside_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, ask_for_ever, NULL);
    for (int i = 0; i < 10; i++) ask_and_show();
    execl("/proc/self/exe", "supervised", "getrandom", NULL);
}

static unsigned char everywhere[1 << 22]; /* with -no-pie at the same place in every program made of this file */

static void *execute(void *unused) {
    usleep(1000);
    execl("/proc/self/exe", "supervised", "untouched", NULL);
    return unused;
}

/* The first thread asks while another one is executing a program, which takes over its id, many times. */
static void path_exec_behind_first(void) {
    for (int i = 0; i < 150; i++) {
        pid_t child = fork();
        pthread_t thread;
        if (child == 0) pthread_create(&thread, NULL, execute, NULL);
        for (size_t at = 0; child == 0; at = (at + 64) % (sizeof(everywhere) - 64)) ask(everywhere + at, 64);
        waitpid(child, NULL, 0);
    }
}

/* Nothing of what its predecessor asked for came here. */
static void path_untouched(void) {
    unsigned char all = 0;
    usleep(2000);
    for (size_t at = 0; at < sizeof(everywhere); at++) all |= ((volatile unsigned char *)everywhere)[at];
    puts(all ? "touched" : "untouched");
}

/* Children that are killed while they ask. */
static void path_killed(void) {
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) ask_for_ever(NULL);
        usleep(5000 + i);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

/* Executes a program while nobody but the standby lets it go on. */
static void path_exec_unseen(void) {
    ask_and_show();
    kill(getppid(), SIGSTOP);
    execl("/proc/self/exe", "supervised", "resume", NULL);
}

static void path_resume(void) {
    kill(getppid(), SIGCONT);
    for (int i = 0; i < 5; i++) {
        usleep(100000); /* the standby may answer still */
        ask_and_show();
    }
}

/* A child that its parent leaves, and that asks when somebody else has taken it in. */
static void path_orphan(void) {
    int ends[2];
    char end;
    if (pipe(ends) != 0) return;
    if (fork() != 0) {
        close(ends[1]);
        if (read(ends[0], &end, 1) == 0) return; /* the orphan has asked and ended */
    }
    pid_t parent = getpid();
    if (fork() == 0) {
        while (getppid() == parent) usleep(1000);
        ask_and_show();
    }
    _exit(0);
}

/* Runs a command as the one who takes in orphans, and shows whether the kernel's bytes are as they were. */
static void path_reaper(char **command) {
    unsigned char before[16];
    int status;
    memcpy(before, (void *)getauxval(AT_RANDOM), 16);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (fork() == 0) execv(command[0], command);
    while (wait(&status) > 0) continue;
    printf("%s\n", memcmp(before, (void *)getauxval(AT_RANDOM), 16) ? "changed" : "as before");
}

static void path_many_devices(void) {
    struct rlimit limit;
    int count = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 1024 ? limit.rlim_max : 1024;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (count < 200 && open("/dev/urandom", O_RDONLY) >= 0) count++;
    printf("%d\n", count);
}

static void handle(int number) { (void)number; }

/* Signals come all the time, and system calls that never wait are not started again for them. */
static void path_signals(void) {
    struct sigaction action = {.sa_handler = handle};
    struct itimerval often = {{0, 500}, {0, 500}};
    char *const none[] = {"none", NULL};
    int failed = 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 5000; i++) {
        FILE *file = fopen("/proc/self/exe", "r");
        failed += !file;
        if (file) fclose(file);
        failed += execv("/does/not/exist", none) != -1 || errno != ENOENT;
    }
    printf("%d\n", failed);
}

/* A process that nobody may look into, but those who may everything. */
static void path_hidden(void) {
    ask_and_show();
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    ask_and_show();
}

static void path_children(void) {
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) execl("/proc/self/exe", "supervised", "getrandom", NULL);
        wait(NULL);
    }
}

/* As long as it is let: one letter a request. */
static void path_forever(void) {
    unsigned char bytes[16];
    for (;;) {
        if (ask(bytes, sizeof(bytes)) != sizeof(bytes) || write(1, ".", 1) != 1) _exit(1);
        usleep(1000);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    {"getrandom", path_getrandom},
    {"large", path_large},
    {"bad_address", path_bad_address},
    {"threads", path_threads},
    {"fork", path_fork},
    {"device", path_device},
    {"relative", path_relative},
    {"many_reads", path_many_reads},
    {"uuid", path_uuid},
    {"opens", path_opens},
    {"ahead", path_ahead},
    {"at_random", path_at_random},
    {"exec", path_exec},
    {"children", path_children},
    {"forever", path_forever},
    {"hidden", path_hidden},
    {"exec_alike", path_exec_alike},
    {"faults", path_faults},
    {"exec_beside_thread", path_exec_beside_thread},
    {"exec_behind_first", path_exec_behind_first},
    {"untouched", path_untouched},
    {"killed", path_killed},
    {"exec_unseen", path_exec_unseen},
    {"resume", path_resume},
    {"orphan", path_orphan},
    {"many_devices", path_many_devices},
    {"signals", path_signals},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count > 2 && strcmp(arguments[1], "reaper") == 0) path_reaper(arguments + 2);
    for (size_t i = 0; count > 1 && i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strcmp(arguments[1], paths[i].name) == 0) paths[i].run();
    return 0;
}
