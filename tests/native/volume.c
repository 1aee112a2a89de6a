/* Much of one thing: "processes N" makes N short processes of 8 threads each, half of them by fork and half by
 * posix_spawn; "requests N" asks N times for 8 bytes; "bytes N" reads N single bytes of a stream. Prints a digest
 * of what was given; of each process on a line of its own, as they end in any order. */
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    if (!(condition)) (perror(#condition), exit(99))

enum { THREADS = 8, AT_ONCE = 4 };

static uint64_t fold(uint64_t digest, uint64_t value) {
    return (digest ^ value) * 0x9E3779B97F4A7C15u >> 1 ^ digest << 7;
}

static void *draw(void *result) {
    CHECK(getrandom(result, 16, 0) == 16);
    return NULL;
}
static void in_threads(long number) {
    pthread_t threads[THREADS];
    uint64_t drawn[THREADS][2], digest = 0;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, draw, drawn[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < THREADS; i++) digest = fold(fold(digest, drawn[i][0]), drawn[i][1]);
    char line[64];
    int length = sprintf(line, "%ld %016llx\n", number, (unsigned long long)digest);
    CHECK(write(1, line, (size_t)length) == length);
}
static void start_child(char *self, long number) {
    if (number % 2) {
        if (fork() == 0) _exit((in_threads(number), 0));
        return;
    }
    char text[24];
    char *arguments[] = {self, "threads", text, NULL};
    pid_t child;
    sprintf(text, "%ld", number);
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
}
static void wait_for_one(void) {
    int status;
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void processes(char *self, long count) {
    for (long i = 0; i < count; i++) {
        if (i >= AT_ONCE) wait_for_one();
        start_child(self, i);
    }
    for (long i = 0; i < AT_ONCE; i++) wait_for_one();
}
static void requests(long count) {
    uint64_t digest = 0, value;
    for (long i = 0; i < count; i++) {
        CHECK(getrandom(&value, 8, 0) == 8);
        digest = fold(digest, value);
    }
    printf("%016llx\n", (unsigned long long)digest);
}
static void bytes(long count) {
    FILE *stream = fopen("/dev/urandom", "rb");
    CHECK(stream && setvbuf(stream, NULL, _IONBF, 0) == 0);
    uint64_t digest = 0;
    for (long i = 0; i < count; i++) digest = fold(digest, (uint64_t)getc(stream));
    printf("%016llx\n", (unsigned long long)digest);
}
/* Tells where in its page each block was put, and how it begins. */
static void blocks(long count) {
    static unsigned char room[(1 << 17) + 4096];
    int fd = open("/dev/urandom", O_RDONLY);
    for (long i = 0; i < count; i++) {
        unsigned char *block = room + i * 24 % 4096;
        CHECK(read(fd, block, 1 << 17) == 1 << 17);
        printf("%lu ", (unsigned long)block % 4096);
        for (int k = 0; k < 16; k++) printf("%02x", block[k]);
        puts("");
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    long number = atol(arguments[2]);
    if (strcmp(arguments[1], "processes") == 0) processes(realpath("/proc/self/exe", NULL), number);
    if (strcmp(arguments[1], "threads") == 0) in_threads(number);
    if (strcmp(arguments[1], "requests") == 0) requests(number);
    if (strcmp(arguments[1], "bytes") == 0) bytes(number);
    if (strcmp(arguments[1], "blocks") == 0) blocks(number);
    return 0;
}
