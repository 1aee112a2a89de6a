/* forks.c - forked processes that draw, and what each was given, a line a process: "NUMBER HEX".
 *
 * forks many COUNT       one after the other, 16 bytes each
 * forks beside COUNT     all at once
 * forks long COUNT       300 times 200 bytes each: more than a slot has room for
 * forks large COUNT      16 bytes, then 300000 at once
 * forks killed COUNT     each is killed while it draws; what it was given is printed as far as it had come
 * forks threads COUNT    by threads
 * forks handler COUNT    by a signal handler, in the midst of requests
 * forks vfork COUNT      each forked process has a vfork child that draws too
 * forks spawn COUNT      runs itself ("draw") COUNT times by posix_spawn
 * forks mappings COUNT   the lines of /proc/self/maps that name the pool
 */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM 400000
#define MOST 4000

extern char **environ;

static struct given {
    volatile size_t size;
    unsigned char bytes[ROOM];
} *all;

static void draw(struct given *given, size_t size) {
    unsigned char bytes[ROOM];
    if (getrandom(bytes, size, 0) != (ssize_t)size) abort();
    if (given->size + size > ROOM) return;
    memcpy(given->bytes + given->size, bytes, size);
    given->size += size;
}

static void child(const char *way, struct given *given) {
    int times = strcmp(way, "long") == 0 ? 300 : 1;
    for (int i = 0; i < times; i++) draw(given, times > 1 ? 200 : 16);
    if (strcmp(way, "large") == 0) draw(given, 300000);
    while (strcmp(way, "killed") == 0) draw(given, 24);
    if (strcmp(way, "vfork") == 0) {
        if (vfork() == 0) {
            draw(given, 8);
            _exit(0);
        }
        wait(NULL);
        draw(given, 8);
    }
    if (strcmp(way, "mappings") == 0) {
        char line[4096];
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof(line), maps))
            if (strstr(line, "/pool.entropy")) printf("%s", line);
        fflush(stdout);
    }
    _exit(0);
}

static pid_t start(const char *way, int number) {
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) child(way, &all[number]);
    return pid;
}

static void *in_thread(void *number) {
    waitpid(start("many", (int)(long)number), NULL, 0);
    return NULL;
}

static volatile sig_atomic_t handled;
static int wanted;
static void handle(int number) {
    (void)number;
    if (handled < wanted) waitpid(start("many", handled++), NULL, 0);
}

static void by_handler(int count) {
    char bytes[64];
    struct itimerval often = {{0, 500}, {0, 500}};
    wanted = count;
    signal(SIGALRM, handle);
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < wanted)
        if (getrandom(bytes, sizeof(bytes), 0) < 0) abort();
}

static void by_threads(int count) {
    pthread_t threads[MOST];
    for (long i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, in_thread, (void *)i)) abort();
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

static void by_spawn(char *program, int count) {
    char *arguments[] = {program, "draw", "1", NULL};
    for (int i = 0; i < count; i++) {
        pid_t pid;
        if (posix_spawn(&pid, program, NULL, NULL, arguments, environ)) abort();
        waitpid(pid, NULL, 0);
    }
}

static void by_fork(const char *way, int count) {
    pid_t pids[MOST];
    for (int i = 0; i < count; i++) {
        pids[i] = start(way, i);
        if (strcmp(way, "beside") == 0) continue;
        if (strcmp(way, "killed") == 0) {
            usleep((unsigned)(rand() % 3000));
            kill(pids[i], SIGKILL);
        }
        waitpid(pids[i], NULL, 0);
    }
    while (wait(NULL) > 0) continue;
}

int main(int argc, char **arguments) {
    const char *way = argc > 1 ? arguments[1] : "many";
    int count = argc > 2 ? atoi(arguments[2]) : 10;
    if (count > MOST) return 97;
    all = mmap(NULL, sizeof(*all) * (size_t)count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return 98;
    if (strcmp(way, "draw") == 0) draw(all, 16);
    else if (strcmp(way, "threads") == 0) by_threads(count);
    else if (strcmp(way, "handler") == 0) by_handler(count);
    else if (strcmp(way, "spawn") == 0) by_spawn(arguments[0], count);
    else by_fork(way, count);
    for (int i = 0; i < count; i++) {
        if (!all[i].size) continue;
        printf("%d ", i);
        for (size_t j = 0; j < all[i].size; j++) printf("%02x", all[i].bytes[j]);
        printf("\n");
    }
    return 0;
}
