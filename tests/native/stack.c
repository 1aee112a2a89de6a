/* What the kernel gives a program when it starts it, chosen by the first argument: the 16 bytes at AT_RANDOM, of this
 * process and of children; bytes by the vDSO's getrandom, called as Go's runtime and glibc 2.41 call it. */
#include <elf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIE(what) (perror(what), exit(99))
#define CHECK(condition) \
    if (!(condition)) DIE(#condition)

static char *self;

static void show(const char *label, const uint8_t *bytes, size_t size) {
    printf("%s ", label);
    for (size_t i = 0; i < size; i++) printf("%02x", bytes[i]);
    printf("\n");
    fflush(stdout);
}

static const uint8_t *at_random(void) { return (const uint8_t *)getauxval(AT_RANDOM); }

static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A forked child keeps its parent's bytes; a program that is executed has its own. */
static void with_at_random(void) {
    uint8_t own[16];
    memcpy(own, at_random(), 16);
    show("own", own, 16);
    pid_t child = fork();
    if (child == 0) _exit(memcmp(own, at_random(), 16) != 0);
    wait_for(child);
    for (int i = 0; i < 2; i++) {
        child = fork();
        if (child == 0) execl(self, self, "child", NULL);
        wait_for(child);
    }
}
static void with_child(void) { show("child", at_random(), 16); }

struct parameters {
    uint32_t state_size, protection, flags, reserved[13];
};
typedef long (*vdso_function)(void *, size_t, unsigned, void *, size_t);

static vdso_function find(void) {
    const uint8_t *image = (const uint8_t *)getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
    const Elf64_Phdr *parts = (const Elf64_Phdr *)(image + head->e_phoff);
    const Elf64_Sym *symbols = NULL;
    const char *strings = NULL;
    for (int i = 0; i < head->e_phnum; i++)
        for (const Elf64_Dyn *at = (const Elf64_Dyn *)(image + parts[i].p_vaddr);
             parts[i].p_type == PT_DYNAMIC && at->d_tag; at++) {
            if (at->d_tag == DT_SYMTAB) symbols = (const Elf64_Sym *)(image + at->d_un.d_ptr);
            if (at->d_tag == DT_STRTAB) strings = (const char *)(image + at->d_un.d_ptr);
        }
    for (; (const char *)symbols < strings; symbols++)
        if (strcmp(strings + symbols->st_name, "__vdso_getrandom") == 0 ||
            strcmp(strings + symbols->st_name, "__kernel_getrandom") == 0)
            return (vdso_function)(image + symbols->st_value);
    exit(97); /* an older kernel */
}

static uint8_t bytes[64];

/* glibc has asked for the parameters before the shim came: the state is of the size it needs on every kernel. */
static void with_vdso(void) {
    vdso_function getrandom_here = find();
    struct parameters parameters = {
        .state_size = 144, .protection = PROT_READ | PROT_WRITE, .flags = MAP_PRIVATE | MAP_ANONYMOUS};
    getrandom_here(NULL, 0, 0, &parameters, ~0UL);
    void *state = mmap(NULL, 4096, (int)parameters.protection, (int)parameters.flags, -1, 0);
    CHECK(state != MAP_FAILED);
    for (int i = 0; i < 3; i++) {
        errno = 7;
        CHECK(getrandom_here(bytes, 24, GRND_NONBLOCK, state, parameters.state_size) == 24 && errno == 7);
        show("vdso", bytes, 24);
    }
    CHECK(getrandom(bytes, 16, 0) == 16);
    show("libc", bytes, 16);
    pid_t child = fork();
    if (child == 0) {
        CHECK(getrandom_here(bytes, 16, 0, state, parameters.state_size) == 16);
        show("fork", bytes, 16);
        _exit(0);
    }
    wait_for(child);
    CHECK(getrandom_here(bytes, 16, 0xff00, state, parameters.state_size) == -EINVAL);
    struct timespec now; /* its neighbor still works */
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && now.tv_sec > 0);
}

/* What a program finds that asks after the shim has come: nothing to allocate a state by. */
static void with_parameters(void) {
    struct parameters parameters;
    printf("%ld\n", find()(NULL, 0, 0, &parameters, ~0UL));
}

int main(int count, char **arguments) {
    self = arguments[0];
    const char *path = count > 1 ? arguments[1] : "";
    if (strcmp(path, "at_random") == 0) return with_at_random(), 0;
    if (strcmp(path, "child") == 0) return with_child(), 0;
    if (strcmp(path, "vdso") == 0) return with_vdso(), 0;
    if (strcmp(path, "parameters") == 0) return with_parameters(), 0;
    return 96;
}
