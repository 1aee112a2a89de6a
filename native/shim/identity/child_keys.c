/* child_keys.c - matches the children that a replay starts or forks with the children of the recording.
 *
 * By numbers alone a child would get another one's entropy if one run starts an additional helper, such as a compiler.
 * So a recording stores keys of each child's program and arguments, and hashes of the call site: the lines of the
 * script that started it, if the agent reports them. A replay names a child after the recorded one with the same keys
 * and call site. A forked process has a name before it executes a program. A child without a recorded counterpart is
 * marked by "?" in its name and takes no recorded name.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/host.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/identity/child_keys.h"
#include "shim/identity/state.h"

_Static_assert(sizeof(struct rk_child) == 128, "the layout of a recorded child");

#define FILE_NAME "/children.entropy"
#define MOST      (1u << 20) /* recorded children that are read */

/* ---- the recording's children ---------------------------------------------------------------------------------- */

/* The recorded children of a process. Shared with its forks, which may claim a child when they execute a program. */
struct recording {
    const struct rk_child *children;
    uint64_t parent; /* of the children that can be claimed */
    uint32_t count;
    uint32_t kinds;     /* of these, a bit for each enum rk_child_kind */
    uint32_t disturbed; /* the forked children differ from the recording's */
    uint32_t skips[];   /* for each child: 0, or how many from it on are claimed or another parent's */
};

static struct recording numbers_only;   /* an older recording, which stored no children */
static struct recording *own_recording; /* of this process's own children; NULL before the first */
static uint32_t incarnation; /* of the process that created a child last: this one, or its parent before it forked */

/* The state of a forked process until it executes its first program. */
static struct {
    struct recording *recording; /* of its parent's children */
    struct rk_child child;
    char identity[RK_IDENTITY]; /* its parent's; then that of the program */
    bool is_pending, is_named;
} forked;

static const struct rk_child *map_children(uint32_t *count) {
    char path[sizeof(rk_plan.profile) + 32];
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, rk_plan.profile), FILE_NAME);
    int fd = rk_open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0) return NULL;
    long size = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    uint64_t all = size > 0 ? (uint64_t)size / sizeof(struct rk_child) : 0;
    *count = all < MOST ? (uint32_t)all : MOST;
    void *children = *count ? rk_map(*count * sizeof(struct rk_child), PROT_READ, MAP_SHARED, fd, 0) : NULL;
    rk_close(fd);
    return children;
}

static struct recording *map_recording(uint64_t parent) {
    uint32_t count = 0;
    const struct rk_child *children = map_children(&count);
    if (!children && !rk_plan.children) return &numbers_only;
    if (!children) count = 0;
    struct recording *recording = rk_map(sizeof(*recording) + (count + 1) * sizeof(*recording->skips),
                                         PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!recording) return &numbers_only;
    recording->children = children;
    recording->parent = parent;
    recording->count = count;
    for (uint32_t i = count; i-- > 0;) {
        if (children[i].parent != parent)
            recording->skips[i] = 1 + recording->skips[i + 1];
        else
            recording->kinds |= 1u << children[i].kind % 32;
    }
    return recording;
}

/* Returns the recorded children of a process, by the hash that they store of it; NULL if children have numbers only. */
static struct recording *recorded_children(uint64_t parent) {
    if (rk_plan.mode != RK_MODE_REPLAY) return NULL;
    struct recording *recording = __atomic_load_n(&own_recording, __ATOMIC_ACQUIRE);
    while (!recording || (recording != &numbers_only && recording->parent != parent)) { /* or now an incarnation */
        struct recording *mapped = map_recording(parent);
        if (__atomic_compare_exchange_n(&own_recording, &recording, mapped, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            recording = mapped;
    }
    return recording == &numbers_only ? NULL : recording;
}

/* Returns the first child from this index on that can be claimed, or the count. Shortens the way for the next search:
 * a claimed child stays claimed, so that whatever a thread or fork stores here meanwhile is as true. */
static uint32_t next_unclaimed(struct recording *recording, uint32_t index) {
    uint32_t first = index, skipped;
    while (index < recording->count && (skipped = __atomic_load_n(&recording->skips[index], __ATOMIC_ACQUIRE)))
        index += skipped;
    if (index > first) __atomic_store_n(&recording->skips[first], index - first, __ATOMIC_RELEASE);
    return index;
}

static bool claim(struct recording *recording, const struct rk_child *child) {
    uint32_t unclaimed = 0;
    return __atomic_compare_exchange_n(&recording->skips[child - recording->children], &unclaimed, 1, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_of_word(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

static void mix(uint64_t *key, char c) { *key = (*key ^ (uint8_t)c) * UINT64_C(0x100000001b3); } /* FNV-1a */

static bool follows(const char *text, size_t at, const char *before) {
    size_t length = strlen(before);
    return at >= length && memcmp(text + at - length, before, length) == 0;
}

/* Returns the length of a generated name (a temporary file, a hash), which varies between runs; 0 if there is none. */
static size_t generated_name_length(const char *text, size_t at) {
    if (at > 0 && is_of_word(text[at - 1])) return 0;
    if (follows(text, at, "/tmp/") || strncmp(text + at, "tmp", 3) == 0) return strcspn(text + at, "/ \t\n\"',:;");
    size_t length = 0, digits = 0;
    for (; is_of_word(text[at + length]); length++) digits += is_digit(text[at + length]);
    return length >= 8 && digits >= 3 ? length : 0;
}

static bool is_descriptor(const char *text, size_t at) {
    return follows(text, at, "fd=") || follows(text, at, "fd/") || follows(text, at, "handle=");
}

/* Adds a text to a key, with "#" for each descriptor and, if is_general, for each number and generated name. */
static void add_to_key(uint64_t *key, const char *text, size_t size, bool is_general) {
    for (size_t at = 0; at < size;) {
        size_t skipped = is_general ? generated_name_length(text, at) : 0;
        if (!skipped && is_digit(text[at]) && (is_general || is_descriptor(text, at)))
            skipped = strspn(text + at, "0123456789");
        mix(key, skipped ? '#' : text[at]);
        at += skipped ? skipped : 1;
    }
    mix(key, 0);
}

/* Returns the length of an argument's stable part: all of a script or code, the name of an option without its value. */
static size_t stable_length(const char *argument, bool is_first) {
    if (is_first || strpbrk(argument, " \n")) return strlen(argument);
    return *argument == '-' ? strcspn(argument, "=") : 0;
}

static void make_keys(struct rk_child *child, const char *file, char *const arguments[]) {
    if (!file) file = arguments && *arguments ? *arguments : "";
    const char *slash = strrchr(file, '/'), *program = slash ? slash + 1 : file;
    for (int i = 0; i < RK_CHILD_KEYS; i++) add_to_key(&child->keys[i], program, strlen(program), false);
    for (size_t i = 1; arguments && arguments[0] && arguments[i]; i++) {
        size_t size = strlen(arguments[i]);
        add_to_key(&child->keys[0], arguments[i], size, false);
        add_to_key(&child->keys[1], arguments[i], size, true);
        add_to_key(&child->keys[2], arguments[i], stable_length(arguments[i], i == 1), true);
    }
}

static uint64_t hash_of(const char *text) { return rk_check(text, strlen(text), 0); }

/* ---- matching -------------------------------------------------------------------------------------------------- */

/* From the strictest rule on: the same arguments, also if another thread of a pool started the child; other numbers
 * and generated names; other values of options. */
static const struct {
    uint8_t key;
    bool by_any_thread, by_number;
} match_rules[] = {{0, false, true}, {0, false, false}, {0, true, false}, {1, false, false}, {2, false, false}};

/* How call sites are compared, from the strictest rule on: the same lines of the script; any lines of a script that was
 * edited; any call site, if one of them is unknown or a later recorded child of the thread was claimed already, so that
 * no other child will match this one. */
enum site_rule { SAME_LINES, EDITED_SCRIPT, ANY_SITE, SITE_RULES };

/* last: the result of last_claimed(), which only ANY_SITE needs. */
static bool is_site_matching(const struct rk_child *child, const struct rk_child *target, enum site_rule rule,
                             uint32_t last) {
    const struct rk_call_site *recorded = &child->place, *current = &target->place;
    if (rule == SAME_LINES) return recorded->lines == current->lines;
    if (rule == EDITED_SCRIPT) return recorded->files == current->files && recorded->sources != current->sources;
    return !recorded->lines || !current->lines || (child->thread == target->thread && child->number < last);
}

/* Returns whether the same thread of the same process created both. */
static bool are_siblings(const struct rk_child *child, const struct rk_child *other) {
    return child->parent == other->parent && child->thread == other->thread;
}

/* Returns the highest number of the claimed children that the target's thread created. */
static uint32_t last_claimed(const struct recording *recording, const struct rk_child *target) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < recording->count; i++)
        if (recording->children[i].number > last && are_siblings(recording->children + i, target) &&
            __atomic_load_n(&recording->skips[i], __ATOMIC_ACQUIRE))
            last = recording->children[i].number;
    return last;
}

static bool is_intact(const struct rk_child *child) {
    return child->check == rk_check(child, offsetof(struct rk_child, check), 0) &&
           memchr(child->name, 0, sizeof(child->name));
}

static const struct rk_child *oldest_match(struct recording *recording, const struct rk_child *target, size_t rule,
                                           enum site_rule site_rule) {
    const struct rk_child *match = NULL;
    uint8_t key = match_rules[rule].key;
    uint32_t last = site_rule == ANY_SITE ? last_claimed(recording, target) : 0, count = recording->count;
    /* A thread writes its children in the order of their numbers, but forked programs only when they execute. */
    bool is_first_oldest =
        target->kind == RK_CHILD_FORKED ? match_rules[rule].by_number : !match_rules[rule].by_any_thread;
    for (uint32_t i = next_unclaimed(recording, 0); i < count; i = next_unclaimed(recording, i + 1)) {
        const struct rk_child *child = recording->children + i;
        if (child->keys[key] != target->keys[key] || child->kind != target->kind ||
            (child->thread != target->thread && !match_rules[rule].by_any_thread) ||
            (child->number != target->number && match_rules[rule].by_number) ||
            !is_site_matching(child, target, site_rule, last) || (match && match->number <= child->number) ||
            !is_intact(child))
            continue;
        match = child;
        if (is_first_oldest) break;
    }
    return match;
}

/* Claims the best match. Several forked processes may execute the same program at once: numbers decide between them
 * until one of them does not match. One that the recording did not fork has none. */
static const struct rk_child *claim_match(struct recording *recording, const struct rk_child *target) {
    bool has_number =
        target->kind == RK_CHILD_FORKED && target->number && !__atomic_load_n(&recording->disturbed, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < SITE_RULES * RK_LENGTH(match_rules); i++) {
        size_t rule = i % RK_LENGTH(match_rules);
        if (match_rules[rule].by_number && !has_number) continue;
        const struct rk_child *match;
        while ((match = oldest_match(recording, target, rule, i / RK_LENGTH(match_rules)))) {
            if (!claim(recording, match)) continue;
            if (has_number && !match_rules[rule].by_number)
                __atomic_store_n(&recording->disturbed, 1, __ATOMIC_RELEASE);
            return match;
        }
    }
    if (has_number) __atomic_store_n(&recording->disturbed, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static struct rk_child new_child(const struct rk_thread *thread, enum rk_child_kind kind) {
    if (kind == RK_CHILD_STARTED) incarnation = rk_process->incarnation; /* a forked child has none yet */
    uint64_t parent = rk_check(rk_identity, strlen(rk_identity), incarnation);
    return (struct rk_child){
        .parent = parent, .thread = hash_of(thread->identity), .kind = kind, .place = thread->place};
}

/* Writes a child to the recording, by the part of its name after its parent's (rk_child_identity). */
static void write_child(struct rk_child *child, const char *identity) {
    const char *slash = strrchr(identity, '/');
    if (!rk_records()) return;
    rk_append(child->name, sizeof(child->name), 0, slash ? slash + 1 : identity);
    child->check = rk_check(child, offsetof(struct rk_child, check), 0);
    rk_append_line("/entropy" FILE_NAME, (const char *)child, sizeof(*child));
}

static void name_as_recorded(char *text, const char *parent, const struct rk_child *child, const char *more) {
    size_t length = rk_append(text, RK_IDENTITY, 0, parent);
    length = rk_append(text, RK_IDENTITY, length, "/");
    length = rk_append(text, RK_IDENTITY, length, child->name);
    rk_append(text, RK_IDENTITY, length, more);
    rk_shorten(text);
}

/* Numbers a child that the recording lacks. In a run that is continued it is another child of the same run: its number
 * comes after the recorded ones. If this process cannot reach the run directory, neither could the recorded
 * one: its further children are numbered after the last one that it wrote. */
static uint32_t number_of_stranger(const struct recording *recording, struct rk_thread *thread,
                                   const struct rk_child *target, bool *is_stranger) {
    char path[RK_RUN_PATH + 16];
    uint32_t last = 0;
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, rk_run), "/entropy");
    *is_stranger = !rk_continues() && rk_call(SYS_faccessat, AT_FDCWD, (long)path, 0, 0, 0, 0) == 0;
    for (uint32_t i = 0; i < recording->count && !*is_stranger; i++) {
        const struct rk_child *child = recording->children + i;
        if (are_siblings(child, target) && child->number > last) last = child->number;
    }
    return last + ++thread->strangers;
}

/* Names a child after its recorded counterpart, or by its number. */
static void name_by_birth(char *text, const struct rk_thread *thread, const struct rk_birth *birth) {
    if (birth->recorded) {
        name_as_recorded(text, rk_identity, birth->recorded, "");
        return;
    }
    rk_child_identity(text, thread, birth->number);
    if (birth->is_stranger) rk_append(text, RK_IDENTITY, strlen(text), "?");
}

void rk_name_started(char *text, struct rk_thread *thread, struct rk_birth *birth, const char *file,
                     char *const arguments[]) {
    if (!birth->number) { /* it has no name yet */
        struct rk_child child = new_child(thread, RK_CHILD_STARTED);
        struct recording *recording = recorded_children(child.parent);
        make_keys(&child, file, arguments);
        birth->recorded = recording ? claim_match(recording, &child) : NULL;
        if (birth->recorded)
            birth->number = birth->recorded->number;
        else
            birth->number =
                recording ? number_of_stranger(recording, thread, &child, &birth->is_stranger) : ++thread->children;
        child.number = birth->number;
        rk_child_identity(text, thread, birth->number);
        if (!birth->recorded) write_child(&child, text);
    }
    name_by_birth(text, thread, birth);
}

/* Numbers a forked child, skipping recorded children that a script's line forked or that were started directly. */
static uint32_t next_fork_number(const struct recording *recording, struct rk_thread *thread,
                                 const struct rk_child *target) {
    thread->children++;
    if (!recording || !(recording->kinds & ~(1u << RK_CHILD_FORKED))) return thread->children;
    for (uint32_t i = 0; i < recording->count; i++) {
        const struct rk_child *child = recording->children + i;
        if (!are_siblings(child, target) || child->kind == RK_CHILD_FORKED) continue;
        if (child->number == thread->children) thread->children++;
    }
    return thread->children;
}

void rk_number_fork(struct rk_thread *thread) {
    struct rk_child child = new_child(thread, RK_CHILD_STARTED);
    struct recording *recording = recorded_children(child.parent);
    struct rk_birth *birth = &thread->fork_birth;
    *birth = (struct rk_birth){0};
    child.kind = RK_CHILD_BORN;
    if (child.place.lines && recording && recording->kinds & 1u << RK_CHILD_BORN) {
        birth->recorded = claim_match(recording, &child);
        birth->number = birth->recorded ? birth->recorded->number
                                        : number_of_stranger(recording, thread, &child, &birth->is_stranger);
    } else {
        birth->number = next_fork_number(recording, thread, &child);
    }
    child.number = birth->number;
    if (!child.place.lines || birth->recorded) return;
    char identity[RK_IDENTITY];
    rk_child_identity(identity, thread, child.number);
    write_child(&child, identity);
}

void rk_name_forked(char *text, const struct rk_thread *thread) { name_by_birth(text, thread, &thread->fork_birth); }

void rk_forked(const struct rk_thread *thread) {
    forked.child = new_child(thread, RK_CHILD_FORKED);
    forked.recording = recorded_children(forked.child.parent);
    forked.child.number = thread->fork_birth.is_stranger ? 0 : thread->fork_birth.number;
    memcpy(forked.identity, rk_identity, sizeof(forked.identity));
    forked.is_pending = true;
    forked.is_named = false;
    own_recording = NULL;
}

/* Returns whether the recording has a program with the number of this forked process. */
static bool is_number_recorded(const struct recording *recording, const struct rk_child *target) {
    for (uint32_t i = 0; i < recording->count; i++) {
        const struct rk_child *child = recording->children + i;
        if (are_siblings(child, target) && child->kind == target->kind && child->number == target->number) return true;
    }
    return false;
}

static void name_forked(const char *file, char *const arguments[]) {
    char parent[RK_IDENTITY];
    make_keys(&forked.child, file, arguments);
    const struct rk_child *match = forked.recording ? claim_match(forked.recording, &forked.child) : NULL;
    if (!match) write_child(&forked.child, rk_identity);
    memcpy(parent, forked.identity, sizeof(parent));
    rk_append(forked.identity, RK_IDENTITY, rk_append(forked.identity, RK_IDENTITY, 0, rk_identity), "+");
    if (match) name_as_recorded(forked.identity, parent, match, "+");
    if (!match && forked.recording && is_number_recorded(forked.recording, &forked.child))
        rk_append(forked.identity, RK_IDENTITY, strlen(forked.identity), "?");
    forked.is_named = true;
}

void rk_name_executed(char *text, const char *file, char *const arguments[]) {
    if (!forked.is_pending) {
        rk_append(text, RK_IDENTITY, rk_append(text, RK_IDENTITY, 0, rk_identity), "+");
        return;
    }
    if (!forked.is_named) name_forked(file, arguments);
    rk_append(text, RK_IDENTITY, 0, forked.identity);
}
