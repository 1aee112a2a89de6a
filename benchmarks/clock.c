/* Times one kind of read of the clock in this process, and prints the least nanoseconds a read of all rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define ROUNDS 20
#define READS  2000

static struct timespec time_read;
static struct timeval day_read;
static volatile time_t second_read;

static void read_clock(void) { clock_gettime(CLOCK_REALTIME, &time_read); }
static void read_day(void) { gettimeofday(&day_read, NULL); }
static void read_second(void) { second_read = time(NULL); }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*read)(void);
    } kinds[] = {{"clock_gettime", read_clock}, {"gettimeofday", read_day}, {"time", read_second}};
    for (size_t i = 0; count > 1 && i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strcmp(kinds[i].name, arguments[1]) != 0) continue;
        double least = 1e9;
        for (int round = 0; round < ROUNDS; round++) {
            double start = now();
            for (int n = 0; n < READS; n++) kinds[i].read();
            double each = (now() - start) / READS;
            if (each < least) least = each;
        }
        printf("%.2f\n", least);
        return 0;
    }
    return 97;
}
