/* context.c - lets the shim's recorder and replayer work for another process.
 *
 * It is the host of the files of recorder/, which are compiled a second time here. The variables and calls of
 * recorder/host.h tell them what "this process" and "this thread" are; they are set before each request.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define FIRST_ADDRESS UINT64_C(0x2e0000000000)
#define SLOTS         1024
#define MAPS          (1u << 20) /* bytes that are read */
#define PAGE          4096
#define CODES         64 /* requesting addresses in glibc that are cached, and bytes of code that are compared */
#define CODE          64
#define SYSCALL       64 /* maximum bytes of libc's syscall() */

int rk_state = RK_STATE_ON;
struct rk_process *rk_process;
char rk_identity[RK_IDENTITY];

static struct rk_thread *current_thread;
static struct program *current_program;
static const struct program *cached_program; /* program of the last lookup in rk_module */
static jmp_buf stopping;
static uint64_t slots[SLOTS / 64];

bool rk_start(void) { return false; }
void rk_process_check(void) {}
struct rk_thread *rk_thread_check(void) { return current_thread; }
void rk_calendar_repair(struct rk_thread *thread) { (void)thread; } /* it reads no clock */

/* Ends a strict replay: the reason is in the run directory, and the request is never answered. */
void rk_end(int status) { longjmp(stopping, status); }

/* ---- addresses ---------------------------------------------------------------------------------------
 *
 * Each program's mappings are in a separate range, so that one call removes them all. */

uint32_t rk_take_slot(void) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint64_t bit = UINT64_C(1) << i % 64;
        if (slots[i / 64] & bit) continue;
        slots[i / 64] |= bit;
        return i;
    }
    return SLOTS; /* no range is free: the mappings of this program stay */
}

static uint64_t first_address(const struct program *program) { return FIRST_ADDRESS + program->slot * RANGE; }

void rk_free_slot(struct program *program) {
    if (cached_program == program) cached_program = NULL;
    if (program->slot == SLOTS) return;
    uint64_t first = first_address(program);
    if (program->map_next > first && program->map_next - first < RANGE)
        rk_unmap((void *)first, program->map_next - first); /* NOLINT: an address that was asked for */
    slots[program->slot / 64] &= ~(UINT64_C(1) << program->slot % 64);
}

/* Makes the recorder work for this thread. */
static void enter_program(struct program *program, struct rk_thread *thread) {
    bool has_room = program->slot < SLOTS && program->map_next < first_address(program) + RANGE / 2;
    if (!program->map_next && program->slot < SLOTS) program->map_next = first_address(program);
    rk_map_next = has_room || program->map_next == first_address(program) ? program->map_next : 0;
    rk_process = &program->process;
    rk_executable = program->executable;
    memcpy(rk_identity, program->identity, sizeof(rk_identity));
    current_program = program;
    current_thread = thread;
}

static void leave_program(struct program *program) {
    if (rk_map_next >= FIRST_ADDRESS) program->map_next = rk_map_next;
}

/* ---- a request ------------------------------------------------------------------------------------------- */

static ssize_t get_kernel(struct rk_real *self, void *buffer, size_t size) {
    long n = rk_call(SYS_getrandom, (long)buffer, (long)size, self->argument, 0, 0, RK_MARK);
    if (n >= 0) return n;
    errno = (int)-n;
    return -1;
}

ssize_t rk_fill_for(struct program *program, struct rk_thread *thread, enum rk_source source, uint64_t caller,
                    void *buffer, size_t size, unsigned flags) {
    struct rk_real real = {.get = get_kernel, .argument = (long)flags};
    volatile ssize_t given = -1;
    enter_program(program, thread);
    errno = EINTR;
    if (setjmp(stopping) == 0) {
        given = rk_fill(source, (const void *)caller, buffer, size, &real); /* NOLINT: of the other process */
    } else {
        rk_call(SYS_kill, program->process.pid, SIGKILL, 0, 0, 0, 0);
        thread->depth = 0;
        errno = EPERM;
    }
    leave_program(program);
    return given;
}

/* ---- the requesting module -------------------------------------------------------------------------------------- */

struct place {
    const void *address;
    char name[512];
    uint64_t offset;
};

static uint64_t parse_number(const char **at, int base) {
    char *end;
    uint64_t value = strtoull(*at, &end, base);
    *at = *end ? end + 1 : end;
    return value;
}

/* Parses a line of maps: START-END RIGHTS OFFSET DEVICE INODE NAME. A module starts at its file's offset 0. */
static bool parse_line(const char *line, struct place *place, char *module, uint64_t *base) {
    uint64_t start = parse_number(&line, 16), end = parse_number(&line, 16);
    for (int spaces = 0; spaces < 1 && *line; line++) spaces += *line == ' ';
    uint64_t offset = parse_number(&line, 16);
    const char *name = strchr(line, '/');
    if (!name) name = "";
    if (offset == 0 && strcmp(name, module) != 0) {
        rk_append(module, sizeof(place->name), 0, name);
        *base = start;
    }
    uint64_t address = (uint64_t)place->address;
    if (address < start || address >= end) return false;
    rk_append(place->name, sizeof(place->name), 0, name);
    place->offset = *name && strcmp(name, module) == 0 && !current_program->is_fixed ? address - *base : address;
    return true;
}

static void find_place(struct place *place) {
    static char text[MAPS];
    char module[sizeof(place->name)] = "";
    uint64_t base = 0;
    place->name[0] = 0;
    place->offset = (uint64_t)place->address;
    if (rk_read_proc(rk_process->pid, "maps", text, sizeof(text)) <= 0) return;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (parse_line(line, place, module, &base)) return;
    }
}

/* Code around requesting addresses in glibc, by their offset in a page. Other programs have the same code there, which
 * saves reading their maps. */
static struct code {
    uint64_t place;
    uint8_t bytes[CODE];
} codes[CODES];

static struct code *read_code(const struct program *program, uint64_t address, struct code *code) {
    code->place = address % PAGE + 1;
    bool is_read = rk_read_memory(program->process.pid, address - CODE / 2, code->bytes, CODE);
    return is_read ? &codes[address % CODES] : NULL;
}

/* Whether this address of a program lies in glibc. */
bool rk_is_in_libc(struct program *program, uint64_t address) {
    if (program->in_libc == address) return true;
    uint64_t offset;
    struct code code, *cached = read_code(program, address, &code);
    if (cached && cached->place == code.place && memcmp(cached->bytes, code.bytes, CODE) == 0) {
        program->in_libc = address;
        return true;
    }
    enter_program(program, current_thread);
    const char *module = rk_module((const void *)address, &offset); /* NOLINT: of the other process */
    const char *slash = strrchr(module, '/'), *name = slash ? slash + 1 : module;
    leave_program(program);
    if (strncmp(name, "libc.so.", 8) != 0 && strncmp(name, "libc-2.", 7) != 0) return false;
    if (cached) *cached = code;
    program->in_libc = address;
    return true;
}

/* Returns whether the shim has started, by the state in its first mapping. */
static bool is_shim_running(const struct program *program) {
    struct rk_process process;
    return rk_read_memory(program->process.pid, RK_FIRST_MAPPING, &process, sizeof(process)) && process.ready == 1 &&
           process.pid == program->process.pid;
}

void rk_has_no_shim(struct program *program) {
    program->shimmed = false;
    rk_say_uncovered("no-shim\n");
    rk_cover_start(program, program->process.pid);
}

/* Returns whether the loader has loaded the shim. It does so before libc's first instruction, or never. */
bool rk_has_shim(struct program *program) {
    static char text[MAPS];
    if (!program->shimmed || program->has_shim) return program->shimmed;
    if ((program->has_shim = is_shim_running(program))) return true;
    if (rk_read_proc(program->process.pid, "maps", text, sizeof(text)) <= 0) return true;
    program->has_shim = strstr(text, "/" RK_SHIM);
    if (!program->has_shim) rk_has_no_shim(program);
    return program->has_shim;
}

/* The module and the offset in it of an address of this process. */
static bool find_own(const void *address, Dl_info *info, uint64_t *offset) {
    if (!dladdr(address, info) || !info->dli_fname) return false;
    *offset = (uint64_t)((const char *)address - (const char *)info->dli_fbase);
    return true;
}

/* Compares with the offset of syscall() in this process, if both use the same libc file. */
bool rk_is_in_syscall(struct program *program, uint64_t address) {
    Dl_info info;
    char own[PATH_MAX];
    uint64_t offset, start;
    if (!find_own((const void *)(uintptr_t)syscall, &info, &start) || !realpath(info.dli_fname, own)) return false;
    enter_program(program, current_thread);
    const char *module = rk_module((const void *)address, &offset); /* NOLINT: of the other process */
    leave_program(program);
    return strcmp(module, own) == 0 && offset >= start && offset - start < SYSCALL;
}

bool rk_is_go(void) { return current_program->is_go; }

/* Caches the last lookup, as the recorder makes two for each call site that is new in a stream. */
const char *rk_module(const void *address, uint64_t *offset) {
    static struct place place;
    if (place.address != address || cached_program != current_program) {
        place.address = address;
        cached_program = current_program;
        find_place(&place);
    }
    *offset = place.offset;
    return place.name;
}
