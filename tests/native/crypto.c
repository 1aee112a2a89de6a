/* With -DLIBRARY a library that asks for entropy in every way, with -DINLINE too by system calls of its own; else a program that lets each library named in its
 * arguments ask, and prints what each got. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 24, REQUESTS = 4 };

#if defined(INLINE)

static long kernel(void *bytes) {
#if defined(__x86_64__)
    long result;
    register long flags __asm__("rdx") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getrandom), "D"(bytes), "S"((long)SIZE), "r"(flags)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long number __asm__("x8") = SYS_getrandom, first __asm__("x0") = (long)bytes;
    register long size __asm__("x1") = SIZE, flags __asm__("x2") = 0;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(size), "r"(flags) : "memory");
    return first;
#endif
}

void ask(uint8_t bytes[REQUESTS][SIZE]) {
    for (int i = 0; i < REQUESTS; i++)
        if (kernel(bytes[i]) != SIZE) abort();
}

#elif defined(LIBRARY)

void ask(uint8_t bytes[REQUESTS][SIZE]) {
    FILE *stream = fopen("/dev/urandom", "rb");
    if (getrandom(bytes[0], SIZE, 0) != SIZE || getentropy(bytes[1], SIZE) != 0) abort();
    if (syscall(SYS_getrandom, bytes[2], SIZE, 0) != SIZE) abort();
    if (!stream || fread(bytes[3], 1, SIZE, stream) != SIZE) abort();
    fclose(stream);
}

#else
#include <dlfcn.h>

int main(int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        void *library = dlopen(arguments[i], RTLD_NOW);
        void (*ask)(uint8_t[REQUESTS][SIZE]) = library ? (void (*)(uint8_t[REQUESTS][SIZE]))dlsym(library, "ask") : NULL;
        uint8_t bytes[REQUESTS][SIZE];
        if (!ask) return fprintf(stderr, "%s\n", dlerror()), 99;
        ask(bytes);
        for (int request = 0; request < REQUESTS; request++) {
            for (int at = 0; at < SIZE; at++) printf("%02x", bytes[request][at]);
            puts("");
        }
    }
    return 0;
}
#endif
