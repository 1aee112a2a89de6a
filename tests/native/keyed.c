/* Prints what each stream is given, a line a request, in ways that could give the same bytes twice:
 * "forks" in the midst of a loop of requests, "jumps" out of requests by a signal handler. */
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void ask(int times) {
    char line[2 * 16 + 2];
    uint8_t bytes[16];
    for (int i = 0; i < times; i++) {
        if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) abort();
        for (size_t j = 0; j < sizeof(bytes); j++) sprintf(line + 2 * j, "%02x", bytes[j]);
        line[32] = '\n';
        if (write(1, line, 33) != 33) abort();
    }
}

static void forks(void) {
    ask(5);
    for (int child = 0; child < 3; child++) {
        if (fork() == 0) {
            ask(20);
            if (vfork() == 0) {
                ask(3);
                _exit(0);
            }
            ask(3);
            _exit(0);
        }
        ask(1);
        wait(NULL);
    }
    ask(20);
}

static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }

static void jumps(void) {
    static volatile int jumped;
    uint8_t bytes[40];
    signal(SIGALRM, jump);
    if (sigsetjmp(back, 1)) jumped++;
    if (jumped < 60) {
        struct itimerval once = {{0, 0}, {0, 300}};
        setitimer(ITIMER_REAL, &once, NULL);
        for (;;) getrandom(bytes, sizeof(bytes), 0);
    }
    ask(100);
}

int main(int count, char **arguments) {
    if (count < 2) return 97;
    if (strcmp(arguments[1], "forks") == 0) forks();
    else jumps();
    return 0;
}
