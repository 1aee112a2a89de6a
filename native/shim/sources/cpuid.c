/* cpuid.c - record --hide-rdrand: CPUID says that there is neither RDRAND nor RDSEED.
 *
 * Processors with CPUID faulting (most of Intel's, arch_prctl(2) ARCH_SET_CPUID) raise a SIGSEGV for each CPUID.
 * The handler answers with the two bits cleared. Every other SIGSEGV goes to the program's own handler, which is
 * stored here. A program that executes CPUID with SIGSEGV blocked is killed, and one that installs its handler by a
 * direct system call gets the faults. Therefore this is optional.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "recorder/calls.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/pids.h"
#include "shim/notes/uncovered.h"
#include "shim/sources/cpuid.h"

static volatile sig_atomic_t is_hiding; /* the handler below is installed */
static struct sigaction program_action; /* the program's own action for SIGSEGV */

#if defined(__x86_64__)
#include <cpuid.h>

#define ARCH_SET_CPUID 0x1012
#define GENERAL_FAULT  0x80 /* si_code of a fault without an address: SI_KERNEL */

static long allow_cpuid(long allowed) { return rk_call(SYS_arch_prctl, ARCH_SET_CPUID, allowed, 0, 0, 0, 0); }

/* Intel's manual, volume 2, CPUID: leaf 1 ECX bit 30 is RDRAND, leaf 7.0 EBX bit 18 RDSEED. */
static void hide(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]) {
    if (leaf == 1) registers[2] &= ~(UINT32_C(1) << 30);
    if (leaf == 7 && subleaf == 0) registers[1] &= ~(UINT32_C(1) << 18);
}

static bool is_cpuid(const siginfo_t *info, const ucontext_t *context) {
    if (info->si_code != GENERAL_FAULT) return false;
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP]; /* NOLINT: executed just now */
    return code[0] == 0x0f && code[1] == 0xa2;
}

static void answer_cpuid(ucontext_t *context) {
    greg_t *registers = context->uc_mcontext.gregs;
    uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX], values[4];
    allow_cpuid(1);
    __cpuid_count(leaf, subleaf, values[0], values[1], values[2], values[3]);
    allow_cpuid(0);
    hide(leaf, subleaf, values);
    registers[REG_RAX] = values[0];
    registers[REG_RBX] = values[1];
    registers[REG_RCX] = values[2];
    registers[REG_RDX] = values[3];
    registers[REG_RIP] += 2;
}

static void set_handler(const struct sigaction *action) { RK_REAL(sigaction)(SIGSEGV, action, NULL); }

/* Ends the process by the default action: a fault is executed again, a signal that was sent is sent again. */
static void end_by_default(const siginfo_t *info) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    set_handler(&action);
    if (info->si_code <= 0) rk_call(SYS_tgkill, rk_getpid(), rk_call(SYS_gettid, 0, 0, 0, 0, 0, 0), SIGSEGV, 0, 0, 0);
}

static void call_program_handler(int number, siginfo_t *info, void *context) {
    struct sigaction action = program_action;
    if (action.sa_handler == SIG_IGN && info->si_code <= 0) return;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        end_by_default(info);
        return;
    }
    if (action.sa_flags & (int)SA_RESETHAND) program_action.sa_handler = SIG_DFL;
    sigset_t before;
    sigprocmask(SIG_BLOCK, &action.sa_mask, &before);
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(number, info, context);
    else
        action.sa_handler(number);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void handler(int number, siginfo_t *info, void *context) {
    int error = errno;
    if (is_cpuid(info, context))
        answer_cpuid(context);
    else
        call_program_handler(number, info, context);
    errno = error;
}

/* Installs the handler. SA_NODEFER: a CPUID in the program's own handler must be answered too. */
static void install(void) {
    struct sigaction own = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    RK_REAL(sigaction)(SIGSEGV, &own, &program_action);
    is_hiding = 1;
}

void rk_cpuid_start(void) {
    if (!rk_plan.hide_rdrand) return;
    install();
    if (allow_cpuid(0) == 0) return;
    is_hiding = 0;
    set_handler(&program_action);
    rk_uncovered("cpuid");
}
#else
void rk_cpuid_start(void) {
    if (rk_plan.hide_rdrand) rk_uncovered("cpuid");
}
#endif

/* ---- the program's own handler ---------------------------------------------------------------------------- */

static int replace_wanted(const struct sigaction *action, struct sigaction *before) {
    struct sigaction next = action ? *action : program_action;
    if (before) *before = program_action;
    program_action = next;
    return 0;
}

static sighandler_t replace_wanted_function(sighandler_t function) {
    struct sigaction action = {.sa_handler = function, .sa_flags = SA_RESTART}, before;
    replace_wanted(&action, &before);
    return before.sa_handler;
}

RK_BEFORE_TSAN RK_EXPORT int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (RK_UNLIKELY(is_hiding) && number == SIGSEGV) return replace_wanted(action, before);
    return rk_sigaction_named(number, action, before, RK_CALLER());
}

RK_BEFORE_TSAN RK_EXPORT sighandler_t signal(int number, sighandler_t function) {
    if (RK_UNLIKELY(is_hiding) && number == SIGSEGV) return replace_wanted_function(function);
    return (sighandler_t)rk_own_handler(number, (void *)RK_REAL(signal)(number, function));
}
