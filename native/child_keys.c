/* child_keys.c - programs that are started: which child of the recording each of them is.
 *
 * Numbers alone would give a child another's entropy as soon as one run starts a helper more than the other: a
 * compiler, a probe. So a recording writes down what each child was started with, and by which line of a script as
 * far as the agent says so; a replay gives a child the name of the recorded one that was started likewise. What was
 * forked has a name before it becomes a program. A child that the recording does not know is called so ("?"), and takes
 * nobody's name.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "internal.h"

_Static_assert(sizeof(struct rk_child) == 128, "the layout of a recorded child");

#define FILE_NAME "/children.entropy"
#define MOST      (1u << 20) /* children that are looked at */

/* ---- what is known of a recording's children ------------------------------------------------------------------- */

/* Shared with what this process forks, which may take a child when it becomes a program. */
struct known {
    const struct rk_child *children;
    uint32_t count;
    uint32_t disturbed; /* not all that were forked come as in the recording */
    uint8_t taken[];    /* by child */
};

static struct known nothing; /* an older recording: numbers are all there is */
static struct known *known;  /* of this process's own children; NULL before the first */
static uint32_t incarnation; /* of the process that began a child last: this one, or its parent before it forked */

/* A process that was forked, until it executes a program for the first time. */
static struct {
    struct known *known; /* of its parent's children */
    struct rk_child wanted;
    char identity[RK_IDENTITY]; /* its parent's; then that of the program */
    bool waits, is_named;
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

static struct known *look_up(void) {
    uint32_t count = 0;
    const struct rk_child *children = map_children(&count);
    if (!children && !rk_plan.children) return &nothing;
    if (!children) count = 0;
    struct known *found =
        rk_map(sizeof(*found) + count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!found) return &nothing;
    found->children = children;
    found->count = count;
    return found;
}

/* NULL where numbers are all there is. */
static struct known *known_children(void) {
    if (rk_plan.mode != RK_MODE_REPLAY) return NULL;
    struct known *now = __atomic_load_n(&known, __ATOMIC_ACQUIRE), *none = NULL;
    if (!now) {
        now = look_up();
        if (!__atomic_compare_exchange_n(&known, &none, now, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) now = none;
    }
    return now == &nothing ? NULL : now;
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

/* How long a name is that another run makes up anew, of a temporary file or by a hash; 0 where there is none. */
static size_t made_up(const char *text, size_t at) {
    if (at > 0 && is_of_word(text[at - 1])) return 0;
    if (follows(text, at, "/tmp/") || strncmp(text + at, "tmp", 3) == 0) return strcspn(text + at, "/ \t\n\"',:;");
    size_t length = 0, digits = 0;
    for (; is_of_word(text[at + length]); length++) digits += is_digit(text[at + length]);
    return length >= 8 && digits >= 3 ? length : 0;
}

static bool is_descriptor(const char *text, size_t at) {
    return follows(text, at, "fd=") || follows(text, at, "fd/") || follows(text, at, "handle=");
}

/* Adds a text to a key: descriptors only as such; if asked for, any number and made-up name only as such. */
static void add(uint64_t *key, const char *text, size_t size, bool generally) {
    for (size_t at = 0; at < size;) {
        size_t skipped = generally ? made_up(text, at) : 0;
        if (!skipped && is_digit(text[at]) && (generally || is_descriptor(text, at)))
            skipped = strspn(text + at, "0123456789");
        mix(key, skipped ? '#' : text[at]);
        at += skipped ? skipped : 1;
    }
    mix(key, 0);
}

/* What of an argument says what the program is to do: a script, code and the names of options, not their values. */
static size_t telling_part(const char *argument, bool is_first) {
    if (is_first || strpbrk(argument, " \n")) return strlen(argument);
    return *argument == '-' ? strcspn(argument, "=") : 0;
}

static void make_keys(struct rk_child *child, const char *file, char *const arguments[]) {
    if (!file) file = arguments && *arguments ? *arguments : "";
    const char *slash = strrchr(file, '/'), *program = slash ? slash + 1 : file;
    for (int i = 0; i < RK_CHILD_KEYS; i++) add(&child->keys[i], program, strlen(program), false);
    for (size_t i = 1; arguments && arguments[0] && arguments[i]; i++) {
        size_t size = strlen(arguments[i]);
        add(&child->keys[0], arguments[i], size, false);
        add(&child->keys[1], arguments[i], size, true);
        add(&child->keys[2], arguments[i], telling_part(arguments[i], i == 1), true);
    }
}

static uint64_t hash_of(const char *text) { return rk_check(text, strlen(text), 0); }

static uint32_t hash_of_some(const char *text) { return text ? (uint32_t)hash_of(text) | 1 : 0; }

RK_EXPORT void reprokit_call_site(const char *lines, const char *files, const char *sources) {
    if (!rk_active()) return;
    rk_process_check();
    rk_thread_check()->place = (struct rk_call_site){
        .lines = hash_of_some(lines), .files = hash_of_some(files), .sources = hash_of_some(sources)};
}

/* ---- matching -------------------------------------------------------------------------------------------------- */

/* From the most alike on: with the same arguments, also where another thread of a pool started it; with other
 * numbers and made-up names in them; with other values of options. */
static const struct {
    uint8_t key;
    bool by_any_thread, by_number;
} likenesses[] = {{0, false, true}, {0, false, false}, {0, true, false}, {1, false, false}, {2, false, false}};

/* From the nearest on: the same lines of the script; any of a script that was edited; where no script is known, or the
 * recording's next child of that thread has come, so that nobody else will ask. */
enum nearness { SAME_LINES, EDITED, ANY_PLACE, NEARNESSES };

static bool is_near(const struct rk_child *child, const struct rk_child *wanted, enum nearness nearness,
                    uint32_t last) {
    const struct rk_call_site *place = &child->place, *here = &wanted->place;
    if (nearness == SAME_LINES) return place->lines == here->lines;
    if (nearness == EDITED) return place->files == here->files && place->sources != here->sources;
    return !place->lines || !here->lines || (child->thread == wanted->thread && child->number < last);
}

static bool are_siblings(const struct rk_child *child, const struct rk_child *other) {
    return child->parent == other->parent && child->thread == other->thread;
}

/* The number of the recorded child that came last of those that have come. */
static uint32_t last_taken(const struct known *of, const struct rk_child *wanted) {
    uint32_t last = 0;
    for (uint32_t i = 0; i < of->count; i++)
        if (of->children[i].number > last && are_siblings(of->children + i, wanted) &&
            __atomic_load_n(&of->taken[i], __ATOMIC_ACQUIRE))
            last = of->children[i].number;
    return last;
}

static bool is_whole(const struct rk_child *child) {
    return child->check == rk_check(child, offsetof(struct rk_child, check), 0) &&
           memchr(child->name, 0, sizeof(child->name));
}

static const struct rk_child *oldest(const struct known *of, const struct rk_child *wanted, size_t likeness,
                                     enum nearness nearness) {
    const struct rk_child *found = NULL;
    uint8_t key = likenesses[likeness].key;
    uint32_t last = nearness == ANY_PLACE ? last_taken(of, wanted) : 0;
    for (uint32_t i = 0; i < of->count; i++) {
        const struct rk_child *child = of->children + i;
        if (child->keys[key] != wanted->keys[key] || child->parent != wanted->parent || child->kind != wanted->kind ||
            (child->thread != wanted->thread && !likenesses[likeness].by_any_thread) ||
            (child->number != wanted->number && likenesses[likeness].by_number) ||
            !is_near(child, wanted, nearness, last) || __atomic_load_n(&of->taken[i], __ATOMIC_ACQUIRE) ||
            (found && found->number <= child->number))
            continue;
        if (is_whole(child)) found = child;
    }
    return found;
}

/* Several that were forked may execute the same program at once: each is the recorded one of its number, until one
 * turns out to be another. */
static const struct rk_child *take(struct known *of, const struct rk_child *wanted) {
    bool has_number = wanted->kind == RK_CHILD_FORKED && !__atomic_load_n(&of->disturbed, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < NEARNESSES * RK_LENGTH(likenesses); i++) {
        size_t likeness = i % RK_LENGTH(likenesses);
        if (likenesses[likeness].by_number && !has_number) continue;
        const struct rk_child *found;
        while ((found = oldest(of, wanted, likeness, i / RK_LENGTH(likenesses)))) {
            if (__atomic_exchange_n(&of->taken[found - of->children], 1, __ATOMIC_ACQ_REL)) continue;
            if (has_number && !likenesses[likeness].by_number) __atomic_store_n(&of->disturbed, 1, __ATOMIC_RELEASE);
            return found;
        }
    }
    if (has_number) __atomic_store_n(&of->disturbed, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static struct rk_child begin(const struct rk_thread *thread, enum rk_child_kind kind) {
    if (kind == RK_CHILD_STARTED) incarnation = rk_process->incarnation; /* which a forked child's is not yet */
    uint64_t parent = rk_check(rk_identity, strlen(rk_identity), incarnation);
    return (struct rk_child){
        .parent = parent, .thread = hash_of(thread->identity), .kind = kind, .place = thread->place};
}

/* Behind the name of its parent, which is as of rk_child_identity. */
static void write_down(struct rk_child *child, const char *identity) {
    const char *slash = strrchr(identity, '/');
    if (rk_plan.mode != RK_MODE_RECORD) return;
    rk_append(child->name, sizeof(child->name), 0, slash ? slash + 1 : identity);
    child->check = rk_check(child, offsetof(struct rk_child, check), 0);
    rk_append_line("/entropy" FILE_NAME, (const char *)child, sizeof(*child));
}

static void name_as_known(char *text, const char *parent, const struct rk_child *child, const char *more) {
    size_t length = rk_append(text, RK_IDENTITY, 0, parent);
    length = rk_append(text, RK_IDENTITY, length, "/");
    length = rk_append(text, RK_IDENTITY, length, child->name);
    rk_append(text, RK_IDENTITY, length, more);
    rk_shorten(text);
}

/* Where a process cannot reach the run directory, the recorded one could not either: its children are those behind the
 * last one that it could write down. */
static uint32_t number_unknown(const struct known *of, struct rk_thread *thread, const struct rk_child *wanted,
                               bool *is_stranger) {
    char path[RK_RUN_PATH + 16];
    uint32_t last = 0;
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, rk_run), "/entropy");
    *is_stranger = rk_call(SYS_faccessat, AT_FDCWD, (long)path, 0, 0, 0, 0) == 0;
    for (uint32_t i = 0; i < of->count && !*is_stranger; i++) {
        const struct rk_child *child = of->children + i;
        if (are_siblings(child, wanted) && child->number > last) last = child->number;
    }
    return last + ++thread->strangers;
}

static void name_born(char *text, const struct rk_thread *thread, const struct rk_birth *birth) {
    if (birth->recorded) {
        name_as_known(text, rk_identity, birth->recorded, "");
        return;
    }
    rk_child_identity(text, thread, birth->number);
    if (birth->is_stranger) rk_append(text, RK_IDENTITY, strlen(text), "?");
}

void rk_name_started(char *text, struct rk_thread *thread, struct rk_birth *birth, const char *file,
                     char *const arguments[]) {
    struct known *of = known_children();
    bool is_new = !birth->number;
    if (is_new) {
        struct rk_child child = begin(thread, RK_CHILD_STARTED);
        make_keys(&child, file, arguments);
        birth->recorded = of ? take(of, &child) : NULL;
        if (birth->recorded)
            birth->number = birth->recorded->number;
        else
            birth->number = of ? number_unknown(of, thread, &child, &birth->is_stranger) : ++thread->children;
        child.number = birth->number;
        rk_child_identity(text, thread, birth->number);
        write_down(&child, text);
    }
    name_born(text, thread, birth);
}

/* Whether the recording says by which lines this process forked. */
static bool knows_births(const struct known *of, const struct rk_child *wanted) {
    for (uint32_t i = 0; of && i < of->count; i++)
        if (of->children[i].parent == wanted->parent && of->children[i].kind == RK_CHILD_BORN) return true;
    return false;
}

/* Those that the recording started without a fork, or forked by a line of a script, are no others. */
static uint32_t next_fork(const struct known *of, struct rk_thread *thread, const struct rk_child *wanted) {
    thread->children++;
    for (uint32_t i = 0; of && i < of->count; i++) {
        const struct rk_child *child = of->children + i;
        if (!are_siblings(child, wanted) || child->kind == RK_CHILD_FORKED) continue;
        if (child->number == thread->children) thread->children++;
    }
    return thread->children;
}

void rk_number_fork(struct rk_thread *thread) {
    struct known *of = known_children();
    struct rk_child child = begin(thread, RK_CHILD_STARTED);
    struct rk_birth *birth = &thread->fork_birth;
    *birth = (struct rk_birth){0};
    child.kind = RK_CHILD_BORN;
    if (child.place.lines && knows_births(of, &child)) {
        birth->recorded = take(of, &child);
        birth->number = birth->recorded ? birth->recorded->number : number_unknown(of, thread, &child, &birth->is_stranger);
        return;
    }
    child.number = birth->number = next_fork(of, thread, &child);
    if (!child.place.lines) return;
    char identity[RK_IDENTITY];
    rk_child_identity(identity, thread, child.number);
    write_down(&child, identity);
}

void rk_name_forked(char *text, const struct rk_thread *thread) { name_born(text, thread, &thread->fork_birth); }

void rk_forked(const struct rk_thread *thread) {
    forked.known = known_children();
    forked.wanted = begin(thread, RK_CHILD_FORKED);
    forked.wanted.number = thread->fork_birth.is_stranger ? 0 : thread->fork_birth.number;
    memcpy(forked.identity, rk_identity, sizeof(forked.identity));
    forked.waits = true;
    forked.is_named = false;
    known = NULL;
}

/* Whether the recording knows a program by the number that a process was forked with. */
static bool is_anothers(const struct known *of, const struct rk_child *wanted) {
    for (uint32_t i = 0; i < of->count; i++) {
        const struct rk_child *child = of->children + i;
        if (are_siblings(child, wanted) && child->kind == wanted->kind && child->number == wanted->number) return true;
    }
    return false;
}

static void name_forked(const char *file, char *const arguments[]) {
    char parent[RK_IDENTITY];
    make_keys(&forked.wanted, file, arguments);
    write_down(&forked.wanted, rk_identity);
    const struct rk_child *found = forked.known ? take(forked.known, &forked.wanted) : NULL;
    memcpy(parent, forked.identity, sizeof(parent));
    rk_append(forked.identity, RK_IDENTITY, rk_append(forked.identity, RK_IDENTITY, 0, rk_identity), "+");
    if (found) name_as_known(forked.identity, parent, found, "+");
    if (!found && forked.known && is_anothers(forked.known, &forked.wanted))
        rk_append(forked.identity, RK_IDENTITY, strlen(forked.identity), "?");
    forked.is_named = true;
}

void rk_name_executed(char *text, const char *file, char *const arguments[]) {
    if (!forked.waits) {
        rk_append(text, RK_IDENTITY, rk_append(text, RK_IDENTITY, 0, rk_identity), "+");
        return;
    }
    if (!forked.is_named) name_forked(file, arguments);
    rk_append(text, RK_IDENTITY, 0, forked.identity);
}
