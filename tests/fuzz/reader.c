/* reader.c - gives a file to the shim's replay as the recorded one and asks for entropy: what the fuzzer
 * drives. Linked with the shim's own objects; see targets.py. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/profile.h"
#include "recorder/replay.h"
#include "recorder/system.h"
#include "shim/identity/identity.h"
#include "shim/identity/state.h"
#include "shim/sources/calendar.h"

#define PAGE     4096
#define LARGEST  8192 /* room for an answer */
#define BEFORE   64   /* bytes of that room */
#define FILLER   0x5a
#define WINDOW   65536
#define EXPORTED __attribute__((visibility("default")))

/* ---- coverage: gcc reports places, libFuzzer counts bytes ------------------------------------------- */

#ifdef RK_COVERAGE
#define PLACES (1u << 16)
void __sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *stop);
void __sanitizer_cov_pcs_init(const uintptr_t *start, const uintptr_t *stop);
static uint8_t counters[PLACES];
static uintptr_t places[PLACES][2];

void __sanitizer_cov_trace_pc(void) {
    uintptr_t place = (uintptr_t)__builtin_return_address(0);
    places[place % PLACES][0] = place;
    counters[place % PLACES]++;
}

static void count_coverage(void) {
    __sanitizer_cov_8bit_counters_init(counters, counters + PLACES);
    __sanitizer_cov_pcs_init(places[0], places[PLACES]);
}
#else
static void count_coverage(void) {}
#endif

/* ---- the shim's memory: ends at a page that nobody may touch ------------------------------------------ */

static struct {
    char *base;
    size_t size;
} mappings[64];
static size_t mapped;

static char *map_before_guard(size_t size) {
    size_t room = (size + PAGE - 1) / PAGE * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *base = mmap(NULL, room + PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base == MAP_FAILED || mprotect(base + room, PAGE, PROT_NONE) != 0) abort();
    if (mapped == RK_LENGTH(mappings)) abort();
    mappings[mapped].base = base;
    mappings[mapped++].size = room + PAGE;
    return base + room - size;
}

/* In the place of rk_map, rk_map_at and rk_unmap, by the linker's --wrap. */
void *__wrap_rk_map(size_t size, int protection, int flags, int fd, uint64_t offset) {
    (void)flags;
    char *start = map_before_guard(size);
    if (fd < 0) return start;
    if (pread(fd, start, size, (off_t)offset) != (ssize_t)size) abort();
    uintptr_t page = (uintptr_t)start / PAGE * PAGE;
    mprotect((void *)page, (uintptr_t)start + size - page, protection);
    return start;
}

void *__wrap_rk_map_at(void *address, size_t size, int fd, uint64_t offset) {
    return pread(fd, address, size, (off_t)offset) == (ssize_t)size ? address : NULL;
}

void __wrap_rk_unmap(void *address, size_t size) {
    for (size_t i = 0; i < size; i += PAGE) ((volatile char *)address)[i]; /* all of it is there */
}

/* Likewise: a wrong touch of memory kills before it is reported where its signal is blocked. */
rk_signals __wrap_rk_block_signals(void) { return (rk_signals){0}; }

void __wrap_rk_restore_signals(rk_signals before) { (void)before; }

static void unmap_all(void) {
    while (mapped > 0) {
        mapped--;
        munmap(mappings[mapped].base, mappings[mapped].size);
    }
}

/* ---- one input ---------------------------------------------------------------------------------------- */

static int file = -1;
static char *answer;  /* LARGEST bytes before a guard page */
static char *log_end; /* where the next answer is noted, if anybody wants them */

/* directory is where the recorded file lies. */
EXPORTED int fuzz_start(const char *directory) {
    if (!rk_identity_start("0")) return 1;
    rk_plan.mode = RK_MODE_REPLAY;
    rk_plan.policy = RK_POLICY_LIVE;
    rk_plan.calendar = 1;
    char path[1024];
    size_t length = rk_append(rk_plan.profile, sizeof(rk_plan.profile), 0, directory);
    if (length + 1 == sizeof(rk_plan.profile)) return 2;
    length = rk_append(path, sizeof(path), 0, directory);
    length = rk_append(path, sizeof(path), length, "/");
    length = rk_append_hex(path, sizeof(path), length, rk_check("0", 1, 0));
    rk_append(path, sizeof(path), length, "-0.entropy");
    file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    answer = map_before_guard(LARGEST);
    mapped = 0; /* these stay */
    rk_state = RK_STATE_ON;
    count_coverage();
    return file < 0;
}

static void begin_process(void) {
    static struct rk_file head;
    memset(&head, 0, sizeof(head));
    int pid = rk_process->pid;
    memset(rk_process, 0, sizeof(*rk_process));
    rk_process->pid = pid;
    rk_process->ready = rk_process->opened = 1;
    rk_process->file = &head;
    rk_process->windows[0] = (struct rk_window){(uint8_t *)map_before_guard(WINDOW), RK_HEAD, WINDOW};
    head.used = RK_HEAD;
}

static void begin_thread(const char *identity) {
    memset(&rk_thread, 0, sizeof(rk_thread));
    rk_thread.generation = rk_generation;
    rk_append(rk_thread.identity, RK_IDENTITY, 0, identity);
}

/* What the profile does not hold. */
static ssize_t get_filler(struct rk_real *self, void *buffer, size_t size) {
    (void)self;
    memset(buffer, FILLER, size);
    return (ssize_t)size;
}

/* Nothing before the answer may change, nor the end of it that was not given. */
static void ask(uint8_t source, uintptr_t site, uint32_t size) {
    struct rk_real real = {.get = get_filler};
    char *buffer = answer + LARGEST - size;
    memset(buffer - BEFORE, FILLER, BEFORE + size);
    ssize_t given = rk_fill(source, (void *)site, buffer, size, &real);
    if (given < 0 || given > (ssize_t)size) abort();
    for (char *at = buffer - BEFORE; at < buffer + size; at++)
        if ((at < buffer || at >= buffer + given) && *at != FILLER) abort();
    if (!log_end) return;
    memcpy(log_end, &size, sizeof(size));
    memcpy(log_end + sizeof(size), buffer, size);
    log_end += sizeof(size) + size;
}

/* As profiles.py records them, and then some that are not there. */
static void ask_for_all(void) {
    for (int i = 0; i < 4; i++) ask(RK_SOURCE_GETRANDOM, 0x10, 16);
    for (int i = 0; i < 3; i++) ask(RK_SOURCE_STREAM, 0x20, 1);
    ask(RK_SOURCE_DEVICE, 0x30, 200);
    ask(RK_SOURCE_GETRANDOM, 0x10, 5000);
    ask(RK_SOURCE_RANDOM_DEVICE, 0x40, 4);
    ask(RK_SOURCE_GETRANDOM, 0x20, 8);
}

/* Whatever was recorded, the time is one that a program can have. */
static void read_clock(void) {
    for (uint16_t i = 0; i < 12; i++) {
        int64_t time = rk_calendar_read(CLOCK_REALTIME, (uint16_t)(i % 4 + 0x101));
        int64_t shown = rk_calendar_of_file(RK_LATEST - i);
        if (time < 0 || time > RK_LATEST + RK_LATEST / 4 || shown < 0) abort();
    }
}

static void replay(bool is_forked) {
    rk_is_forked = is_forked;
    begin_process();
    rk_profile_open();
    static const char *const threads[] = {"m", "m.1", "m.2", "m"};
    for (size_t i = 0; i < RK_LENGTH(threads); i++) {
        begin_thread(threads[i]);
        ask_for_all();
        read_clock();
    }
    unmap_all();
}

EXPORTED void fuzz_replay(const uint8_t *data, size_t size) {
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size) abort();
    replay(false);
}

/* Of the pool that is there: a forked process's. */
EXPORTED void fuzz_replay_forked(void) { replay(true); }

/* The same as fuzz_replay, and notes every answer behind its size. Returns how much it wrote. */
EXPORTED size_t fuzz_answers(const uint8_t *data, size_t size, char *log) {
    log_end = log;
    fuzz_replay(data, size);
    size = (size_t)(log_end - log);
    log_end = NULL;
    return size;
}
