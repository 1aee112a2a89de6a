/* place.c - which place of a program reads the clock: the native call site and, of Python, the innermost lines.
 *
 * A place has a number that is the same in every run. It tells a poll from the read behind the loop, and finds code
 * that must be told the real time: what signs requests, checks certificates, compares files' times with now.
 *
 * Python's frames are read from memory, without Python.h and without the interpreter's help, which would make objects.
 * Their layout is that of the version (3.7 to 3.12), or what the interpreter says of itself (3.13 and newer). It is
 * checked once, by reads that cannot fault, on all frames of the first caller; where it does not hold, only the native
 * call site counts. A thread's own frames do not change during its call.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/host.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "shim/sources/place.h"

#define DEPTH     6    /* frames that make a place */
#define CHECKED   64   /* frames that are checked at first */
#define PLACES    1024 /* of the cache: a power of two */
#define LONGEST   256  /* bytes of a file's name that are looked at, from its end */
#define OWN_BITS  20   /* of a cache entry: the number and flags */
#define LINE_MOST 10000000
#define CODE_MOST (16u << 20)

/* ---- the layout of Python's frames ---------------------------------------------------------------------------- */

/* Offsets of fields. */
struct layout {
    uint16_t frame; /* of a thread state: its frame */
    uint16_t inner; /* of what that points to: the frame; DIRECT if it is the frame itself */
    uint16_t back, code, at;
    uint16_t file, name, line; /* of a code object */
    bool at_is_index;          /* `at` is an int, else a pointer into the code */
};

#define DIRECT UINT16_MAX

static const struct layout layouts[] = {
    [7] = {24, DIRECT, 24, 32, 104, 96, 104, 36, true},  [8] = {24, DIRECT, 24, 32, 104, 104, 112, 40, true},
    [9] = {24, DIRECT, 24, 32, 104, 104, 112, 40, true}, [10] = {24, DIRECT, 24, 32, 96, 104, 112, 40, true},
    [11] = {56, 8, 48, 32, 56, 112, 120, 72, false},     [12] = {56, 0, 8, 0, 56, 112, 120, 68, false},
};

/* struct _Py_DebugOffsets at the start of _PyRuntime, in words: where groups of offsets begin. */
enum { FREE_THREADED = 2, THREAD_3_13 = 19, THREAD_3_14 = 22, FRAME_3_13 = 28, FRAME_3_14 = 31 };
enum { CODE_3_13 = 34, CODE_3_14 = 39, OFFSETS = 45 };

static bool read_offsets(const uint64_t *words, int minor, struct layout *layout) {
    const uint64_t *thread = words + (minor == 13 ? THREAD_3_13 : THREAD_3_14);
    const uint64_t *frame = words + (minor == 13 ? FRAME_3_13 : FRAME_3_14);
    const uint64_t *code = words + (minor == 13 ? CODE_3_13 : CODE_3_14);
    if (memcmp(words, "xdebugpy", 8) != 0 || words[FREE_THREADED]) return false;
    *layout = (struct layout){(uint16_t)thread[4],
                              DIRECT,
                              (uint16_t)frame[1],
                              (uint16_t)frame[2],
                              (uint16_t)frame[3],
                              (uint16_t)code[1],
                              (uint16_t)code[2],
                              (uint16_t)code[5],
                              false};
    return true;
}

/* ---- finding it out ---------------------------------------------------------------------------------------------- */

static void *(*this_thread_state)(void); /* PyGILState_GetThisThreadState; NULL if the program is not Python */
static ssize_t (*text_length)(void *text);
static uint32_t (*text_character)(void *text, ssize_t index);
static void *code_type, *text_type;
static struct layout layout;
static enum { UNKNOWN, CHECKING, KNOWN, OFF } state;

static uintptr_t untagged(uintptr_t pointer) { return pointer & ~(uintptr_t)7; } /* 3.14 marks references */

/* Finds Python in the program itself or a library that it is linked with. */
void rk_place_start(void) {
    const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "Py_GetVersion");
    if (!version) return;
    this_thread_state = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
    text_length = (ssize_t (*)(void *))dlsym(RTLD_DEFAULT, "PyUnicode_GetLength");
    text_character = (uint32_t (*)(void *, ssize_t))dlsym(RTLD_DEFAULT, "PyUnicode_ReadChar");
    code_type = dlsym(RTLD_DEFAULT, "PyCode_Type");
    text_type = dlsym(RTLD_DEFAULT, "PyUnicode_Type");
    int minor = strncmp(version(), "3.", 2) == 0 ? atoi(version() + 2) : 0;
    const uint64_t *words = dlsym(RTLD_DEFAULT, "_PyRuntime");
    bool has_layout = minor == 13 || minor == 14 ? words && read_offsets(words, minor, &layout) : false;
    if (minor < (int)RK_LENGTH(layouts) && layouts[minor].frame) layout = layouts[minor], has_layout = true;
    if (!has_layout || !text_length || !text_character || !code_type || !text_type) state = OFF;
}

static uintptr_t load(uintptr_t address) { return *(const uintptr_t *)address; }

/* A read that fails instead of a fault. */
static bool peek(uintptr_t address, void *value, size_t size) {
    struct iovec to = {value, size}, from = {(void *)address, size};
    return rk_call(SYS_process_vm_readv, rk_getpid(), (long)&to, 1, (long)&from, 1, 0) == (long)size;
}

static bool peek_word(uintptr_t address, uintptr_t *value) { return peek(address, value, sizeof(*value)); }

static bool has_type(uintptr_t object, const void *type) {
    uintptr_t its_own;
    return object && peek_word(object + sizeof(uintptr_t), &its_own) && its_own == (uintptr_t)type;
}

/* Returns whether a frame's code, which is no code object in frames that the interpreter makes for itself, is one. */
static bool check_code(uintptr_t frame, uintptr_t code, bool *is_code) {
    uintptr_t at = 0, file, name;
    int line = 0, index = 0;
    *is_code = has_type(code, code_type);
    if (!*is_code) return true;
    bool is_readable = peek_word(code + layout.file, &file) && peek_word(code + layout.name, &name) &&
                       peek(code + layout.line, &line, sizeof(line)) && peek(frame + layout.at, &index, sizeof(index));
    if (!is_readable || !has_type(file, text_type) || !has_type(name, text_type)) return false;
    if (line < 0 || line > LINE_MOST) return false;
    if (layout.at_is_index) return index >= -1 && index < (int)CODE_MOST;
    return peek_word(frame + layout.at, &at) && at - code < CODE_MOST;
}

static bool check_frames(uintptr_t frame) {
    int codes = 0;
    for (int i = 0; frame && i < CHECKED; i++) {
        uintptr_t code, back;
        bool is_code;
        if (!peek_word(frame + layout.code, &code) || !peek_word(frame + layout.back, &back)) return false;
        if (!check_code(frame, untagged(code), &is_code)) return false;
        codes += is_code;
        frame = back;
    }
    return codes > 0;
}

static bool check_layout(uintptr_t thread) {
    uintptr_t frame;
    if (!peek_word(thread + layout.frame, &frame)) return false;
    if (layout.inner != DIRECT && !(frame && peek_word(frame + layout.inner, &frame))) return false;
    return check_frames(frame);
}

static uintptr_t first_frame(uintptr_t thread) {
    uintptr_t frame = load(thread + layout.frame);
    return layout.inner == DIRECT || !frame ? frame : load(frame + layout.inner);
}

/* Returns the innermost frame of the calling thread; 0 if it executes no Python. */
static uintptr_t frame_of(uintptr_t thread) {
    if (RK_LIKELY(__atomic_load_n(&state, __ATOMIC_ACQUIRE) == KNOWN)) return thread ? first_frame(thread) : 0;
    int expected = UNKNOWN;
    uintptr_t frame;
    bool is_unknown = __atomic_load_n(&state, __ATOMIC_RELAXED) == UNKNOWN;
    bool has_frame = thread && is_unknown && peek_word(thread + layout.frame, &frame) && frame;
    if (!has_frame ||
        !__atomic_compare_exchange_n((int *)&state, &expected, CHECKING, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return 0;
    bool holds = check_layout(thread);
    __atomic_store_n((int *)&state, holds ? KNOWN : OFF, __ATOMIC_RELEASE);
    return holds ? first_frame(thread) : 0;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t position(uintptr_t frame) {
    if (layout.at_is_index) return *(const uint32_t *)(frame + layout.at);
    return load(frame + layout.at) - untagged(load(frame + layout.code));
}

/* Copies the end of a text; characters beyond ASCII become one. */
static size_t copy_text(uintptr_t text, char copy[LONGEST + 1]) {
    ssize_t length = text_length((void *)text), from = length > LONGEST ? length - LONGEST : 0;
    for (ssize_t i = from; i < length; i++) {
        uint32_t character = text_character((void *)text, i);
        copy[i - from] = character && character < 128 ? (char)character : '?';
    }
    copy[length - from] = 0;
    return (size_t)(length - from);
}

static uint64_t hash_of(const char *text) { return rk_check(text, strlen(text), 0); }

/* What is the same in every run: names of files and functions, and positions in them. */
struct stable {
    uint64_t names, positions;
    bool is_real;
};

static void add_frame(struct stable *place, uintptr_t frame, int depth) {
    char file[LONGEST + 1], name[LONGEST + 1];
    uintptr_t code = untagged(load(frame + layout.code));
    if (load(code + sizeof(uintptr_t)) != (uintptr_t)code_type) return;
    copy_text(load(code + layout.file), file);
    copy_text(load(code + layout.name), name);
    const char *slash = strrchr(file, '/');
    place->names = mix(mix(place->names, hash_of(slash ? slash + 1 : file)), hash_of(name));
    place->positions = mix(place->positions, *(const uint32_t *)(code + layout.line));
    place->positions = mix(place->positions, position(frame));
    place->is_real |= rk_python_keeps_real_time(file, depth);
}

/* Two bytes: of names, and of positions. Never 0. */
static uint32_t describe(const void *caller, uintptr_t frame) {
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    const char *slash = strrchr(module, '/');
    struct stable place = {hash_of(slash ? slash + 1 : module), offset, rk_keeps_real_time(module)};
    for (int depth = 0; frame && depth < DEPTH; depth++, frame = load(frame + layout.back))
        add_frame(&place, frame, depth);
    uint32_t number = (uint32_t)(mix(place.names, 1) >> 56 << 8 | mix(place.positions, 1) >> 56);
    return (number ? number : 1) | (place.is_real ? RK_PLACE_REAL : 0);
}

/* An entry is the hash of addresses, but for its last bits, which hold what describe() returned. */
static uint64_t cache[PLACES];

/* Sums up the addresses of lines, which is all that a known place costs. */
static inline uint64_t sum_frames(uint64_t sum, uintptr_t frame) {
    const struct layout at = layout;
    for (int depth = 0; frame && depth < DEPTH; depth++, frame = load(frame + at.back)) {
        uint64_t line =
            at.at_is_index ? load(frame + at.code) + *(const uint32_t *)(frame + at.at) : load(frame + at.at);
        sum = (sum << 9 | sum >> 55) + line;
    }
    return sum;
}

uint32_t rk_place(const void *caller) {
    uintptr_t thread = 0, first = 0;
    uint64_t hash = (uintptr_t)caller ^ (uint64_t)__atomic_load_n(&rk_unloads, __ATOMIC_ACQUIRE) << 48;
    if (this_thread_state) {
        thread = (uintptr_t)this_thread_state();
        first = frame_of(thread);
        hash = sum_frames(hash, first);
    }
    hash = mix(hash, 0);
    uint64_t *entry = &cache[hash >> 54], seen = __atomic_load_n(entry, __ATOMIC_RELAXED);
    uint32_t foreign = this_thread_state && !thread ? RK_PLACE_FOREIGN : 0;
    const uint64_t own = (UINT64_C(1) << OWN_BITS) - 1;
    if (RK_LIKELY((seen & ~own) == (hash & ~own) && seen)) return (uint32_t)(seen & own) | foreign;
    uint32_t described = describe(caller, first);
    __atomic_store_n(entry, (hash & ~own) | described, __ATOMIC_RELAXED);
    return described | foreign;
}
