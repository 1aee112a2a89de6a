/* Makes the mistake that the sanitizer named by the first argument has to find. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int shared, ready;

static void *count(void *unused) {
    /* Both at once, told without an order between them: a race that lies far apart may be forgotten. */
    __atomic_fetch_add(&ready, 1, __ATOMIC_RELAXED);
    while (__atomic_load_n(&ready, __ATOMIC_RELAXED) < 2) sched_yield();
    for (int i = 0; i < 1000; i++) shared++;
    return unused;
}

static void race(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, count, NULL)) abort();
    count(NULL);
    pthread_join(thread, NULL);
}

int main(int number, char **arguments) {
    const char *sanitizer = number > 1 ? arguments[1] : "";
    size_t size = 2 * strlen(sanitizer);
    int sum = 0;
    char *bytes = malloc(8);
    if (strcmp(sanitizer, "address") == 0) sum = (int)getrandom(bytes, size, 0); /* the shim writes beyond it */
    if (strcmp(sanitizer, "undefined") == 0) sum = 0x7fffffff + number;
    if (strcmp(sanitizer, "thread") == 0) race();
    printf("%d %d\n", sum, shared);
    free(bytes);
    return 0;
}
