/* urandom_hook.c - the shim: records the entropy that a program is given, and replays it.
 *
 * Loaded by LD_PRELOAD into every dynamically linked process of a run, it interposes the calls by
 * which entropy reaches a program on Linux. Each hook is a few lines over rk_fill (recorder/fill.c), which
 * appends the real call's bytes to a memory-mapped file (record.c) or answers from such a file
 * (replay.c). It changes no other bytes, and outside of a run it passes every call on.
 *
 * This file has the calls that are entropy by their name, and those that Python makes. Beside it:
 * shim/sources/ (devices, the time of day, and what else differs from run to run), shim/identity/
 * (names of processes and threads), shim/notes/ (files, modules and output), shim/start.c (the
 * constructor). recorder/ is compiled into the supervisor too.
 *
 * Rules of the shim:
 *   - No Python.h. No malloc, no stdio and no lock that a fork can leave held inside a call whose libc
 *     counterpart has none of them; memory comes from mmap (system.c), locks lie in a page that the
 *     kernel zeroes on fork, are held with signals blocked, and are taken from a vfork child that died.
 *   - The contract of the real call is kept: errno, short reads, EINTR, invalid arguments.
 *   - Correct before the constructor has run, in a vfork child (whose globals and thread-locals are
 *     its parent's), in a signal handler, and beside other preloaded libraries.
 *   - Descriptors are opened close-on-exec and closed before the call returns.
 *   - When it must give up it notes that in the run directory, and the program continues with real entropy.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/record.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/state.h"
#include "shim/syscalls.h"

/* ---- getrandom and its relatives ------------------------------------------------------------------- */

#define INSECURE 4u /* GRND_INSECURE, of Linux 5.6 */

/* Returns whether the kernel accepts these flags; if not, the kernel refuses the call, in a replay too. */
static bool are_valid(unsigned flags) {
    unsigned both = GRND_RANDOM | INSECURE;
    return !(flags & ~(GRND_NONBLOCK | both)) && (flags & both) != both;
}

static ssize_t get_getrandom(struct rk_real *self, void *buffer, size_t size) {
    if (RK_UNLIKELY(rk_hands_on)) return RK_REAL(getrandom)(buffer, size, (unsigned)self->argument);
    return rk_random(buffer, size, (unsigned)self->argument);
}

RK_EXPORT ssize_t getrandom(void *buffer, size_t size, unsigned flags) {
    struct rk_real real = {.get = get_getrandom, .argument = (long)flags};
    if (!buffer || !are_valid(flags)) return real.get(&real, buffer, size);
    return rk_fill(RK_SOURCE_GETRANDOM, RK_CALLER(), buffer, size, &real);
}

/* At most 256 bytes, which the kernel gives whole. */
static ssize_t get_getentropy(struct rk_real *self, void *buffer, size_t size) {
    (void)self;
    return rk_random(buffer, size, 0);
}

RK_EXPORT int getentropy(void *buffer, size_t size) {
    struct rk_real real = {.get = get_getentropy};
    if (size > 256) {
        errno = EIO;
        return -1;
    }
    return rk_fill(RK_SOURCE_GETENTROPY, RK_CALLER(), buffer, size, &real) == (ssize_t)size ? 0 : -1;
}

/* Hides the requests that a library makes while it serves one: they are not the program's. Returns the old depth. */
static uint32_t hide_inner_requests(void) {
    uint32_t depth = rk_thread.depth;
    rk_thread.depth = RK_HIDDEN;
    return depth;
}

/* Falls back to libc's arc4random_buf, which cannot fail, if the kernel refuses. */
static ssize_t get_arc4random(struct rk_real *self, void *buffer, size_t size) {
    (void)self;
    ssize_t given = rk_random(buffer, size, 0);
    if (given >= 0 || !RK_REAL(arc4random_buf)) return given;
    uint32_t depth = hide_inner_requests();
    RK_REAL(arc4random_buf)(buffer, size);
    rk_thread.depth = depth;
    return (ssize_t)size;
}

RK_EXPORT uint32_t arc4random(void) {
    struct rk_real real = {.get = get_arc4random};
    uint32_t value = 0;
    rk_fill(RK_SOURCE_ARC4RANDOM, RK_CALLER(), &value, sizeof(value), &real);
    return value;
}

RK_EXPORT void arc4random_buf(void *buffer, size_t size) {
    struct rk_real real = {.get = get_arc4random};
    rk_fill(RK_SOURCE_ARC4RANDOM_BUF, RK_CALLER(), buffer, size, &real);
}

/* Draws without bias: values below 2^32 modulo the bound are rejected. */
static ssize_t get_uniform(struct rk_real *self, void *buffer, size_t size) {
    uint32_t bound = (uint32_t)self->argument, value = 0;
    uint32_t least = bound < 2 ? 0 : -bound % bound;
    do {
        if (get_arc4random(self, &value, sizeof(value)) < 0) return -1;
    } while (value < least);
    value = bound < 2 ? 0 : value % bound;
    memcpy(buffer, &value, sizeof(value));
    return (ssize_t)size;
}

RK_EXPORT uint32_t arc4random_uniform(uint32_t bound) {
    struct rk_real real = {.get = get_uniform, .argument = (long)bound};
    uint32_t value = 0;
    rk_fill(RK_SOURCE_ARC4RANDOM_UNIFORM, RK_CALLER(), &value, sizeof(value), &real);
    /* Below the bound when recorded; derived bytes, or another bound, may not be. */
    return value < bound ? value : (uint32_t)((uint64_t)value * bound >> 32);
}

/* ---- syscall(SYS_getrandom, ...) ---------------------------------------------------------------------- */

static ssize_t get_syscall(struct rk_real *self, void *buffer, size_t size) {
    return rk_random(buffer, size, (unsigned)self->argument);
}

__attribute__((visibility("hidden"))) long rk_syscall_getrandom(long number, void *buffer, size_t size,
                                                                unsigned flags) {
    (void)number;
    struct rk_real real = {.get = get_syscall, .argument = (long)flags};
    if (!buffer || !are_valid(flags)) return real.get(&real, buffer, size);
    return rk_fill(RK_SOURCE_SYSCALL, RK_CALLER(), buffer, size, &real);
}

/* Before the constructor has run. */
__attribute__((visibility("hidden"))) long rk_syscall_early(long number, long a, long b, long c, long d, long e,
                                                            long f) {
    long result = rk_call(number, a, b, c, d, e, f);
    if (result >= 0 || result <= -4096) return result;
    errno = (int)-result;
    return -1;
}

/* In assembly, as the child of a syscall(SYS_clone, ...) returns on another stack: all numbers but getrandom's, and
 * those in rk_diverted (syscalls.c), are a jump to libc without a frame of the shim. */
#if defined(__x86_64__)
__asm__(".text\n.globl syscall\n.type syscall, @function\n"
        "syscall:\n"
        "  endbr64\n"
        "  cmpq $318, %rdi\n" /* SYS_getrandom */
        "  je rk_syscall_getrandom_entry\n"
        "  cmpq $512, %rdi\n" /* RK_DIVERTED */
        "  jae 1f\n"
        "  leaq rk_diverted(%rip), %rax\n"
        "  cmpb $0, (%rax,%rdi)\n"
        "  jne rk_syscall_diverted_entry\n"
        "1: movq rk_real_syscall@GOTPCREL(%rip), %rax\n"
        "  movq (%rax), %rax\n"
        "  testq %rax, %rax\n"
        "  je rk_syscall_early_entry\n"
        "  jmp *%rax\n"
        "rk_syscall_getrandom_entry: jmp rk_syscall_getrandom\n"
        "rk_syscall_diverted_entry: jmp rk_syscall_diverted\n"
        "rk_syscall_early_entry: jmp rk_syscall_early\n"
        ".size syscall, .-syscall\n");
_Static_assert(SYS_getrandom == 318 && RK_DIVERTED == 512, "the numbers in the assembly above");
#elif defined(__aarch64__)
__asm__(".text\n.globl syscall\n.type syscall, %function\n"
        "syscall:\n"
        "  hint #34\n"     /* bti c */
        "  cmp x0, #278\n" /* SYS_getrandom */
        "  b.eq rk_syscall_getrandom_entry\n"
        "  cmp x0, #512\n" /* RK_DIVERTED */
        "  b.hs 1f\n"
        "  adrp x16, rk_diverted\n"
        "  add x16, x16, :lo12:rk_diverted\n"
        "  ldrb w16, [x16, x0]\n"
        "  cbnz w16, rk_syscall_diverted_entry\n"
        "1: adrp x16, :got:rk_real_syscall\n"
        "  ldr x16, [x16, :got_lo12:rk_real_syscall]\n"
        "  ldr x16, [x16]\n"
        "  cbz x16, rk_syscall_early_entry\n"
        "  br x16\n"
        "rk_syscall_getrandom_entry: b rk_syscall_getrandom\n"
        "rk_syscall_diverted_entry: b rk_syscall_diverted\n"
        "rk_syscall_early_entry: b rk_syscall_early\n"
        ".size syscall, .-syscall\n");
_Static_assert(SYS_getrandom == 278 && RK_DIVERTED == 512, "the numbers in the assembly above");
#endif

/* ---- std::random_device ----------------------------------------------------------------------------------
 *
 * libstdc++ (GCC 12 to 16) answers the default token by RDSEED or RDRAND, instructions that no hook
 * sees: PyTorch's CUDA seed comes from them. So its exported members are interposed, for all tokens;
 * the second one is of GCC before 13.
 *
 * The kernel answers instead. The object is not used, as its layout is unknown: TensorFlow 2.19 has an
 * older libstdc++ of its own, in whose objects the system's would call a wrong function pointer.
 */
unsigned rk_random_device(void *self) __asm__("_ZNSt13random_device9_M_getvalEv");
unsigned rk_random_device_old(void *self) __asm__("_ZNSt13random_device16_M_getval_pretr1Ev");

static ssize_t get_random_device(struct rk_real *self, void *buffer, size_t size) {
    (void)self;
    return rk_random(buffer, size, 0);
}

static unsigned random_device(const void *caller) {
    struct rk_real real = {.get = get_random_device};
    unsigned value = 0;
    rk_fill(RK_SOURCE_RANDOM_DEVICE, caller, &value, sizeof(value), &real);
    return value;
}

RK_EXPORT unsigned rk_random_device(void *self) {
    (void)self;
    return random_device(RK_CALLER());
}

RK_EXPORT unsigned rk_random_device_old(void *self) {
    (void)self;
    return random_device(RK_CALLER());
}

/* ---- ids in TensorFlow --------------------------------------------------------------------------------------
 *
 * Each of its threads seeds a generator for ids: of executed functions in traces, of requests between workers, in names
 * of executables. No value is computed from them; New64, which seeds operators, is another function. Which threads of a
 * pool execute functions varies from run to run, and so would their requests for seeds.
 *
 * So the ids are derived from the run's key and the identity, without an event. The name was seen in tensorflow 2.21,
 * whose libtensorflow_framework.so.2 calls it through its PLT.
 */
uint64_t rk_thread_local_new64(void) __asm__("_ZN3tsl6random16ThreadLocalNew64Ev");

static uint64_t derive_seed(const struct rk_thread *thread) {
    char name[RK_IDENTITY];
    uint8_t block[64];
    uint64_t seed;
    rk_append(name, sizeof(name), rk_append(name, sizeof(name), 0, thread->identity), "#ids");
    rk_file_ready(); /* which finds the process's incarnation */
    rk_derive_block(name, block);
    memcpy(&seed, block, sizeof(seed));
    return seed;
}

/* Returns the check of the last id: a permutation, so that ids of a thread do not repeat. */
RK_EXPORT uint64_t rk_thread_local_new64(void) {
    struct rk_thread *thread = &rk_thread;
    if (RK_LIKELY(rk_active())) {
        rk_process_check();
        thread = rk_thread_check();
        if (RK_UNLIKELY(!thread->last_id)) thread->last_id = derive_seed(thread);
    } else if (!thread->last_id) {
        rk_random(&thread->last_id, sizeof(thread->last_id), 0);
    }
    thread->last_id = rk_check(&thread->last_id, sizeof(thread->last_id), 0);
    return thread->last_id;
}

/* ---- what Python calls -------------------------------------------------------------------------------------- */

RK_EXPORT uint32_t reprokit_abi(void) { return RK_ABI; }

static int copy_name(char *text, uint64_t size, const char *name) {
    if (size) rk_append(text, size, 0, name ? name : "");
    return name != NULL;
}

RK_EXPORT int reprokit_process_identity(char *text, uint64_t size) {
    if (!rk_active()) return copy_name(text, size, NULL);
    rk_process_check();
    return copy_name(text, size, rk_identity);
}

RK_EXPORT int reprokit_thread_identity(char *text, uint64_t size) {
    if (!rk_active()) return copy_name(text, size, NULL);
    rk_process_check();
    return copy_name(text, size, rk_thread_check()->identity);
}

/* Returns a hash that is never 0 of a text, and 0 without one. */
static uint32_t hash_or_zero(const char *text) { return text ? (uint32_t)rk_check(text, strlen(text), 0) | 1 : 0; }

RK_EXPORT void reprokit_call_site(const char *lines, const char *files, const char *sources) {
    if (!rk_active()) return;
    rk_process_check();
    rk_thread_check()->place = (struct rk_call_site){
        .lines = hash_or_zero(lines), .files = hash_or_zero(files), .sources = hash_or_zero(sources)};
}
