/* stack.c - replaces what the kernel gives a program at its start: 16 random bytes on the initial stack
 * (AT_RANDOM), and getrandom in the vDSO. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/chacha20.h"
#include "recorder/check.h"
#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "recorder/vdso.h"
#include "shim/notes/uncovered.h"
#include "shim/sources/stack.h"

/* ---- AT_RANDOM --------------------------------------------------------------------------------------
 *
 * Derived from the run's key and the identity: every replay has the same bytes without an event, and
 * the many children of a shell script need no files. libc has taken its stack guard from the
 * kernel's bytes by then. A forked child keeps its parent's bytes, as without the shim. */
static void make_at_random(void) {
    uint8_t *bytes = (uint8_t *)getauxval(AT_RANDOM), block[64]; /* NOLINT: an address by its definition */
    if (!bytes) return;
    uint64_t nonce = rk_check("AT_RANDOM", 9, rk_check(rk_identity, strlen(rk_identity), 0));
    rk_chacha20(rk_plan.key, nonce, 0, block);
    memcpy(bytes, block, 16);
}

/* ---- the vDSO ------------------------------------------------------------------------------------------- */

static ssize_t get_kernel(struct rk_real *self, void *buffer, size_t size) {
    return rk_random(buffer, size, (unsigned)self->argument);
}

/* Replaces the vDSO's getrandom, which returns errors and leaves errno unchanged. */
static long vdso_getrandom(void *buffer, size_t size, unsigned flags) {
    struct rk_real real = {.get = get_kernel, .argument = (long)flags};
    int error = errno;
    bool is_request = buffer && flags < 6; /* GRND_RANDOM and GRND_INSECURE together are none */
    ssize_t given =
        is_request ? rk_fill(RK_SOURCE_SYSCALL, RK_CALLER(), buffer, size, &real) : real.get(&real, buffer, size);
    long result = given < 0 ? -errno : given;
    errno = error;
    return result;
}

/* Writes code to a page. The page stays executable meanwhile, as other threads may read the clock in it. */
static bool write_unprotected(uint8_t *to, const uint8_t *code, size_t size) {
    uintptr_t page = (uintptr_t)getauxval(AT_PAGESZ), start = (uintptr_t)to & -page;
    size_t length = (((uintptr_t)to + size + page - 1) & -page) - start;
    if (rk_call(SYS_mprotect, (long)start, (long)length, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0) != 0)
        return false;
    memcpy(to, code, size);
    rk_call(SYS_mprotect, (long)start, (long)length, PROT_READ | PROT_EXEC, 0, 0, 0);
    return true;
}

/* Writes despite the page's protection, for pages whose protection is fixed: sealed mappings (Linux 6.16), SELinux. */
static bool write_to_memory(uint8_t *to, const uint8_t *code, size_t size) {
    int fd = rk_open("/proc/self/mem", O_WRONLY, 0);
    if (fd < 0) return false;
    long n = rk_call(SYS_pwrite64, fd, (long)code, (long)size, (long)to, 0, 0);
    rk_close(fd);
    return n == (long)size;
}

static size_t image_size(const uint8_t *image) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    const Elf64_Phdr *parts = (const Elf64_Phdr *)(image + head->e_phoff);
    for (int i = 0; i < head->e_phnum; i++)
        if (parts[i].p_type == PT_LOAD) return parts[i].p_memsz;
    return 0;
}

static void replace_vdso(void) {
    uint8_t *image = (uint8_t *)getauxval(AT_SYSINFO_EHDR), code[RK_VDSO_CODE]; /* NOLINT: as above */
    uint64_t offset;
    if (!image || !rk_vdso_find(image, image_size(image), &offset)) return;
    size_t size = rk_vdso_jump(code, (const void *)vdso_getrandom);
    if (!write_unprotected(image + offset, code, size) && !write_to_memory(image + offset, code, size))
        rk_uncovered("vdso");
    __builtin___clear_cache((char *)image + offset, (char *)image + offset + size);
}

void rk_stack_start(void) {
    make_at_random();
    replace_vdso();
}
