/* trees.c - a tree of forked processes, each of which draws 16 bytes. */
#include <stdlib.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 4

static void grow(int depth) {
    char bytes[16];
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) abort();
    for (int i = 0; depth > 0 && i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid < 0) abort();
        if (pid == 0) {
            grow(depth - 1);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) continue;
}

int main(int count, char **arguments) {
    grow(count > 1 ? atoi(arguments[1]) : 6);
    return 0;
}
