/* CPUID under --hide-rdrand, and what a program does with its own SIGSEGV meanwhile. Built with -DINSIDE it holds the
 * shim's handler itself, so that the handler is tried where no processor makes CPUID fault. */
#ifdef INSIDE
#include "shim/sources/cpuid.c" /* of native/, whose other files are linked */
#endif
#include <cpuid.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIE(what) (perror(what), exit(99))
#define CHECK(condition) \
    if (!(condition)) DIE(#condition)

static sigjmp_buf back;
static volatile sig_atomic_t called;
static void *volatile where;

static void jump(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    called++;
    where = info->si_addr;
    siglongjmp(back, 1);
}
static void count(int number) { called += number == SIGSEGV; }

static void fault(uintptr_t address) {
    if (sigsetjmp(back, 1) == 0) *(volatile char *)address = 1;
}

static int ends_by(void (*action)(void)) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        action();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
static void store(void) { *(volatile char *)16 = 1; }
static void send(void) { raise(SIGSEGV); }

static void try_handlers(void) {
    struct sigaction action = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO}, before;
    CHECK(ends_by(store) == SIGSEGV && ends_by(send) == SIGSEGV);
    CHECK(sigaction(SIGSEGV, &action, &before) == 0 && before.sa_handler == SIG_DFL);
    fault(16);
    CHECK(called == 1 && where == (void *)16);
    fault(UINT64_C(1) << 63); /* no address: a general fault, as CPUID's is */
    CHECK(called == 2);
    CHECK(signal(SIGSEGV, count) == (void (*)(int))jump);
    raise(SIGSEGV);
    raise(SIGSEGV);
    CHECK(called == 4);
    CHECK(signal(SIGSEGV, SIG_IGN) == count && raise(SIGSEGV) == 0);
    CHECK(ends_by(store) == SIGSEGV && ends_by(send) == 0);
    action = (struct sigaction){.sa_handler = count, .sa_flags = SA_RESETHAND};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && raise(SIGSEGV) == 0 && called == 5);
    CHECK(sigaction(SIGSEGV, NULL, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(signal(SIGUSR1, count) == SIG_DFL && raise(SIGUSR1) == 0 && called == 5);
}

static void print_bits(void) {
    unsigned a, b, c, d;
    __cpuid(1, a, b, c, d);
    printf("%u ", c >> 30 & 1);
    __cpuid_count(7, 0, a, b, c, d);
    printf("%u\n", b >> 18 & 1);
}

#ifdef INSIDE
static void try_answer(uint32_t leaf, uint32_t subleaf, int hidden, uint32_t bit) {
    static const uint8_t code[] = {0x0f, 0xa2};
    siginfo_t info = {.si_code = GENERAL_FAULT};
    ucontext_t context = {0};
    greg_t *registers = context.uc_mcontext.gregs;
    unsigned expected[4];
    registers[REG_RIP] = (greg_t)code;
    registers[REG_RAX] = (greg_t)(UINT64_C(0xffffffff00000000) | leaf);
    registers[REG_RCX] = subleaf;
    CHECK(is_cpuid(&info, &context));
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1); /* the handler before made the instruction fault, where that can be */
    __cpuid_count(leaf, subleaf, expected[0], expected[1], expected[2], expected[3]);
    handler(SIGSEGV, &info, &context);
    static const int names[] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX};
    for (int i = 0; i < 4; i++) {
        uint64_t mask = ~(uint64_t)(i == hidden ? bit : 0);
        if (leaf == 1 && i == 1) mask &= 0xffffff; /* the processor that it happens to run on */
        CHECK(((uint64_t)registers[names[i]] & mask) == (expected[i] & mask & 0xffffffff) || leaf == 11);
        CHECK(i != hidden || !((uint32_t)registers[names[i]] & bit));
    }
    CHECK(registers[REG_RIP] == (greg_t)code + 2);
    info.si_code = SEGV_MAPERR;
    registers[REG_RIP] = (greg_t)code;
    CHECK(!is_cpuid(&info, &context));
}
#endif

int main(int count_, char **arguments) {
    const char *path = count_ > 1 ? arguments[1] : "";
    if (strcmp(path, "bits") == 0) print_bits();
    if (strcmp(path, "handlers") == 0) try_handlers();
#ifdef INSIDE
    rk_resolve();
    try_answer(0, 0, -1, 0);
    try_answer(1, 0, 2, UINT32_C(1) << 30);
    try_answer(7, 0, 1, UINT32_C(1) << 18);
    install();
    try_handlers();
#endif
    return 0;
}
