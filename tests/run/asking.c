/* asking.c - prints bytes of getrandom and of /dev/urandom; behind "run" its arguments are a program that it runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

static void print_bytes(const unsigned char *bytes) {
    for (int i = 0; i < 8; i++) printf("%02x", bytes[i]);
    putchar('\n');
}

int main(int number, char **arguments) {
    unsigned char bytes[8];
    int status = 0;
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return 90;
    print_bytes(bytes);
    FILE *device = fopen("/dev/urandom", "r");
    if (!device || fread(bytes, 1, sizeof(bytes), device) != sizeof(bytes)) return 91;
    print_bytes(bytes);
    fclose(device);
    fflush(stdout);
    if (number < 3 || strcmp(arguments[1], "run") != 0) return 0;
    if (fork() == 0) {
        execvp(arguments[2], arguments + 2);
        _exit(92);
    }
    wait(&status);
    return WEXITSTATUS(status);
}
