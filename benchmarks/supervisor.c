/* supervisor.c - how long a request of a static program takes: nanoseconds each, of many of 16 bytes. */
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

#define REQUESTS 50000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    unsigned char bytes[16];
    double start = now();
    for (int i = 0; i < REQUESTS; i++)
        if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return 1;
    return printf("%.0f\n", (now() - start) / REQUESTS) < 0;
}
