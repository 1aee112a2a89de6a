/* Asks for entropy as its arguments say, and prints what it got: "16" is getrandom of 16 bytes, "16x9"
 * nine times that, "t16" the same in a thread, "r16" a read of /dev/urandom, "kill" a SIGKILL. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static void show(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) printf("%02x", bytes[i]);
    putchar('\n');
    fflush(stdout);
}

/* One call site for all sizes. */
__attribute__((noinline)) static void ask(size_t size) {
    uint8_t bytes[4096];
    if (getrandom(bytes, size, 0) != (ssize_t)size) abort();
    show(bytes, size);
}

static void *in_thread(void *size) {
    ask((size_t)size);
    return NULL;
}

static void from_device(size_t size) {
    uint8_t bytes[4096];
    int fd = open("/dev/urandom", O_RDONLY);
    if (read(fd, bytes, size) != (ssize_t)size) abort();
    close(fd);
    show(bytes, size);
}

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        char *text = arguments[i];
        size_t size = strtoul(text + strspn(text, "tr"), NULL, 10);
        char *times = strchr(text, 'x');
        if (strcmp(text, "kill") == 0) raise(SIGKILL);
        else if (*text == 'r') from_device(size);
        else if (*text == 't') {
            pthread_t thread;
            if (pthread_create(&thread, NULL, in_thread, (void *)size)) abort();
            pthread_join(thread, NULL);
        } else
            for (long n = times ? atol(times + 1) : 1; n > 0; n--) ask(size);
    }
    return 0;
}
