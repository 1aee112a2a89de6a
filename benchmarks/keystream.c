/* 1,000 threads in turn, each asks 16 times for 64 bytes; what they are given goes to stdout, on and on.
 * Of a keyed run that is an interleaving of 1,000 streams: docs/benchmarks.md has what PractRand says. */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#define THREADS 1000
#define ROUNDS  16

static unsigned char all[ROUNDS][THREADS][64];
static sem_t go[THREADS], done;

static void *work(void *number) {
    for (long i = (long)number;;) {
        sem_wait(&go[i]);
        for (int round = 0; round < ROUNDS; round++)
            if (getrandom(all[round][i], 64, 0) != 64) abort();
        sem_post(&done);
    }
}

static int write_all(void) {
    for (size_t at = 0; at < sizeof(all);) {
        ssize_t n = write(1, (char *)all + at, sizeof(all) - at);
        if (n <= 0) return 0;
        at += (size_t)n;
    }
    return 1;
}

int main(void) {
    sem_init(&done, 0, 0);
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        sem_init(&go[i], 0, 0);
        if (pthread_create(&thread, NULL, work, (void *)i)) abort();
    }
    do {
        for (int i = 0; i < THREADS; i++) sem_post(&go[i]);
        for (int i = 0; i < THREADS; i++) sem_wait(&done);
    } while (write_all());
    return 0;
}
