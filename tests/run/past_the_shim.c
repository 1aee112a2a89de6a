/* past_the_shim.c - asks the kernel for entropy by instructions of its own, linked dynamically or statically:
 * getrandom; device (reads /dev/urandom); thread, fork and vfork (getrandom in one of them). */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
#endif
}

static void show(const unsigned char *bytes, long size) {
    for (long i = 0; i < size; i++) printf("%02x", bytes[i]);
    puts("");
    fflush(stdout);
}

static void *ask(void *unused) {
    unsigned char bytes[24];
    show(bytes, call(SYS_getrandom, (long)bytes, sizeof(bytes), 0, 0));
    return unused;
}

static void read_device(void) {
    unsigned char bytes[12];
    long fd = call(SYS_openat, AT_FDCWD, (long)"/dev/urandom", O_RDONLY, 0);
    show(bytes, call(SYS_read, fd, (long)bytes, sizeof(bytes), 0));
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    pthread_t thread;
    if (strcmp(how, "getrandom") == 0) ask(NULL);
    if (strcmp(how, "device") == 0) read_device();
    if (strcmp(how, "thread") == 0 && pthread_create(&thread, NULL, ask, NULL) == 0) pthread_join(thread, NULL);
    if (strcmp(how, "fork") == 0 && fork() == 0) return ask(NULL) != NULL;
    if (strcmp(how, "vfork") == 0 && vfork() == 0) execl(words[0], words[0], "getrandom", NULL);
    wait(NULL);
    return 0;
}
