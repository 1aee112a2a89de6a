/* Times one kind of request in this process and prints nanoseconds a request, once for each of the given
 * number of rounds; of "memory" the most memory (KiB) that the process had by then; of "print" on stderr. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static char buffer[1 << 20];

static void getrandom_16(long n) {
    while (n--)
        if (getrandom(buffer, 16, 0) != 16) abort();
}

static void read_with(const char *path, size_t size, long n) {
    int fd = open(path, O_RDONLY);
    while (n--) {
        if (read(fd, buffer, size) != (ssize_t)size) abort();
        if (size < sizeof(buffer)) lseek(fd, 0, SEEK_SET);
    }
    close(fd);
}

static void open_close(const char *path, long n) {
    while (n--) close(open(path, O_RDONLY));
}

static void print_80(long n) {
    memset(buffer, '.', 79);
    buffer[79] = '\n';
    while (n--)
        if (write(1, buffer, 80) != 80) abort();
}

static long most_memory(void) {
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof(line), status)) sscanf(line, "VmHWM: %ld", &kib);
    if (status) fclose(status);
    return kib;
}

int main(int count, char **arguments) {
    if (count < 4) return 97;
    const char *kind = arguments[1], *file = arguments[0];
    long n = atol(arguments[2]);
    for (int rounds = atoi(arguments[3]); rounds > 0; rounds--) {
        double start = now();
        if (strcmp(kind, "getrandom") == 0 || strcmp(kind, "memory") == 0)
            getrandom_16(n);
        else if (strcmp(kind, "read") == 0)
            read_with(file, 4096, n);
        else if (strcmp(kind, "open") == 0)
            open_close(file, n);
        else if (strcmp(kind, "bulk") == 0)
            read_with("/dev/urandom", sizeof(buffer), n);
        else if (strcmp(kind, "print") == 0)
            print_80(n);
        else
            return 97;
        if (strcmp(kind, "memory") == 0)
            printf("%ld\n", most_memory());
        else
            fprintf(strcmp(kind, "print") ? stdout : stderr, "%.2f\n", (now() - start) / (double)n);
    }
    return 0;
}
