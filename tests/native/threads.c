/* Lets threads ask for 16 bytes in a given order, and stay: "threads create 3 1:9 3:2 kill" creates three threads, lets
 * the first one ask nine times and then the third twice, prints each as "NUMBER BYTES", and is killed; with "fork" a
 * child does all this. A thread that was not created before is created when it is first named. "library PATH 3i2" lets
 * the third one ask the library's next_id() twice. */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 16

static struct member {
    sem_t turn, done;
    long number, count;
    char what;
} members[MOST + 1];
static long created;
static uint64_t (*next_id)(void);

static void *ask(void *argument) {
    struct member *self = argument;
    for (;;) {
        sem_wait(&self->turn);
        for (long n = self->count; n > 0; n--) {
            if (self->what == 'i') {
                printf("%ld %016" PRIx64 "\n", self->number, next_id());
                continue;
            }
            uint8_t bytes[16];
            if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) abort();
            printf("%ld ", self->number);
            for (size_t i = 0; i < sizeof(bytes); i++) printf("%02x", bytes[i]);
            putchar('\n');
        }
        sem_post(&self->done);
    }
    return NULL;
}

static void create(long upto) {
    if (upto > MOST) exit(97);
    for (pthread_t thread; created < upto;) {
        struct member *member = &members[++created];
        member->number = created;
        sem_init(&member->turn, 0, 0), sem_init(&member->done, 0, 0);
        if (pthread_create(&thread, NULL, ask, member)) abort();
    }
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        char *rest;
        if (strcmp(arguments[i], "kill") == 0) fflush(stdout), raise(SIGKILL);
        else if (strcmp(arguments[i], "fork") == 0) {
            if (fork()) return wait(NULL) < 0;
        } else if (strcmp(arguments[i], "library") == 0) {
            void *library = dlopen(arguments[++i], RTLD_NOW | RTLD_LOCAL);
            if (!library || !(next_id = (uint64_t (*)(void))dlsym(library, "next_id"))) return 98;
        } else if (strcmp(arguments[i], "create") == 0) create(atol(arguments[++i]));
        else {
            long number = strtol(arguments[i], &rest, 10);
            create(number);
            members[number].what = *rest;
            members[number].count = atol(rest + 1);
            sem_post(&members[number].turn), sem_wait(&members[number].done);
        }
    }
    return 0;
}
