/* internal.h - what the files of the shim share. Nothing here is exported. */
#ifndef REPROKIT_INTERNAL_H
#define REPROKIT_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "recorder/calls.h"
#include "urandom_hook.h"

#define RK_LARGE         (1u << 17) /* an event that a replay reads into the program's buffer instead of copying it */
#define RK_SHIM          "liburandom_hook.so" /* beside what LD_PRELOAD names */
#define RK_EXPORT        __attribute__((visibility("default")))
#define RK_LIKELY(x)     __builtin_expect(!!(x), 1)
#define RK_UNLIKELY(x)   __builtin_expect(!!(x), 0)
#define RK_CALLER()      __builtin_return_address(0)
#define RK_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* ---- start.c: whether this process belongs to a run ------------------------------------------ */

enum rk_state { RK_STATE_UNKNOWN = 0, RK_STATE_OFF = 1, RK_STATE_ON = 2 };
extern int rk_state; /* enum rk_state */
/* plan.c: stores the run directory's path and reads its shim.plan; returns 0, -EINVAL if that is damaged, or -errno. */
int rk_read_plan(const char *run);
bool rk_run_is_over(void); /* after rk_read_plan: the launcher has closed the run, of which no process was left */
extern struct rk_plan rk_plan;
extern char rk_run[RK_RUN_PATH + 1];
bool rk_start(void);                               /* returns whether this process belongs to a run */
__attribute__((noreturn)) void rk_end(int status); /* ends the requesting process: a strict replay */

static inline bool rk_active(void) {
    int state = __atomic_load_n(&rk_state, __ATOMIC_ACQUIRE);
    return RK_LIKELY(state != RK_STATE_UNKNOWN) ? state == RK_STATE_ON : rk_start();
}

/* ---- system.c: system calls that neither touch errno nor pass through a hook ------------------ */

/* Like getrandom(2) and read(2), but by the shim's own instructions: strace and the supervisor's filter
 * distinguish them from calls that bypass the shim. */
ssize_t rk_random(void *buffer, size_t size, unsigned flags);
ssize_t rk_read(int fd, void *buffer, size_t size);
int rk_open(const char *path, int flags, int mode);
void rk_close(int fd);
void *rk_map(size_t size, int protection, int flags, int fd, uint64_t offset); /* NULL on failure */
#define RK_FIRST_MAPPING UINT64_C(0x2d0000000000)                     /* the shim's first mapping: struct rk_process */
extern uint64_t rk_map_next;                                          /* preferred address of the next mapping */
void *rk_map_at(void *address, size_t size, int fd, uint64_t offset); /* read-only, replacing existing mappings */
void rk_unmap(void *address, size_t size);
/* Removes whole pages of a mapped file from this process's memory; they stay in the page cache. */
void rk_leave(const void *start, const void *end);
int rk_getpid(void);
bool rk_within_limit(uint64_t end);                     /* whether a file may grow to `end`: RLIMIT_FSIZE */
int rk_reserve(int fd, uint64_t offset, uint64_t size); /* allocates blocks on the disk; 0, or errno */
size_t rk_append(char *text, size_t size, size_t length, const char *more);
size_t rk_append_number(char *text, size_t size, size_t length, uint64_t number);
size_t rk_append_hex(char *text, size_t size, size_t length, uint64_t number);
void rk_shorten(char *identity); /* replaces the front of a long one by a hash */
void rk_say(const char *text);   /* one line on stderr */

typedef struct {
    uint64_t bits;
} rk_signals;
rk_signals rk_block_signals(void);
void rk_restore_signals(rk_signals before);
bool rk_lock(uint32_t *lock); /* true if its holder died: the caller must repair what it guards */
void rk_unlock(uint32_t *lock);

/* ---- reach.c: files of the run, opened by the supervisor if this process cannot reach them ---------- */

enum rk_task { RK_TASK_OPEN = 1, RK_TASK_LINK, RK_TASK_RENAME, RK_TASK_REMOVE };
enum rk_place { RK_IN_RUN, RK_IN_PROFILE, RK_IN_PROC };

/* In a form '%' stands for 16 hexadecimal digits, '#' for a number, '@' for the requester's process id. */
struct rk_shared_file {
    enum rk_place place;
    const char *form;
    int flags;
};

#define RK_SHARED_FILES 28
#define RK_SHIM_PLAN    0                                     /* the first of them */
#define RK_MEANINGLESS  (O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) /* flags that change nothing for a file of the run */
#define RK_NO_REPLACE   1                                     /* RENAME_NOREPLACE */
extern const struct rk_shared_file rk_shared_files[RK_SHARED_FILES];

/* The values of a form's placeholders. */
struct rk_names {
    uint8_t file; /* index in rk_shared_files */
    uint64_t hash;
    uint32_t number;
    uint16_t second;
};

bool rk_is_out_of_reach(long error);
/* Returns a descriptor, or a negative error: `refused` without a supervisor, or for a file outside the run. */
int rk_open_by_broker(const char *path, int flags, int refused);
long rk_link(const char *from, const char *to);
long rk_rename(const char *from, const char *to); /* unless that name is taken */
long rk_remove(const char *path);

/* ---- identity.c ------------------------------------------------------------------------------- */

/* One request at a time writes to a stream. A signal handler that interrupts a request uses the
 * second one. */
#define RK_STREAMS    2
#define RK_HANDLERS   "!"              /* suffix to a thread's name: its second stream */
#define RK_CLOCK      RK_STREAMS       /* the stream of a thread's reads of the clock */
#define RK_HIDDEN     (RK_STREAMS + 1) /* depth during a call of a library that serves a request */
#define RK_SITE_CACHE 8

struct rk_site {
    const void *caller;
    uint32_t key; /* hash of its module's name and its offset there */
    uint16_t number;
    uint8_t flags;
};

/* A position in a recorded stream (replay). */
struct rk_reader {
    const uint8_t *at, *end; /* in the current chunk */
    const uint8_t *moving;   /* the record that advance() is passing, else NULL */
    uint64_t chunk;          /* offset of that chunk */
    uint64_t ordinal;        /* of the next chunk */
    uint64_t *consumed;      /* offset of the last event given, shared with threads that take events from this stream */
    uint64_t mapped_from;    /* offset of the first byte that was read and is still mapped */
    uint32_t link;           /* of a cursor over moved events: index of its chunk in rk_moved.links */
    uint32_t previous;       /* check of the last record */
    uint16_t site;           /* of the last EVENT, as are the next four */
    uint8_t source, flags;
    uint64_t asked, given;
    uint8_t search; /* 0: the stream was not searched for, 1: found, 2: absent or at its end */
};

#define RK_BLOCKS 256 /* bytes of ChaCha20 output per call */

struct rk_stream {
    uint8_t *at, *end; /* where the next record goes, in the current chunk of this process's file */
    struct rk_chunk *chunk;
    uint64_t id;
    uint64_t ordinal;  /* of the next chunk */
    uint64_t size;     /* of the next chunk */
    uint32_t previous; /* check of the last record */
    uint16_t sites;    /* numbered so far */
    uint16_t site;     /* of the last EVENT, as are the next four */
    uint8_t source, flags, any, opened;
    uint64_t asked, given;
    uint8_t *next; /* with next_previous: at and previous after the record under commit, see rk_stream_repair */
    uint32_t next_previous;
    uint8_t has_key;  /* in rk_thread.keys */
    uint16_t unloads; /* value of rk_unloads when the cache of call sites was checked */
    struct rk_reader reader;
};

/* A recorded read of the clock. */
struct rk_moment {
    int64_t time;                 /* nanoseconds since 1970 */
    const uint8_t *record, *next; /* in the recording: its bytes, and what follows them */
    uint32_t check;
    uint16_t place; /* 0: not known, as before format 4 */
};

/* What a thread was told about the time of day: see calendar.c. */
struct rk_calendar {
    int64_t last;  /* record: what was recorded last. Replay: the last recorded one that was told or passed */
    int64_t ahead; /* replay: by how much that was ahead of the monotonic clock; 0: none was told */
    int64_t floor; /* the latest time told that was not recorded */
    int64_t told;  /* replay: the time told last */
    int64_t lead;  /* what doubtful reads have gained on the monotonic clock */
    struct rk_moment next;
    uint8_t has_next;   /* enum rk_next */
    uint16_t places[2]; /* of the last reads */
    uint16_t recorded;  /* of the recorded read that was told last */
    uint16_t missed;    /* a place that was looked for behind next, and is not there */
    uint64_t passed[4]; /* Bloom filter of one hash: places in the recording before next */
};

/* The ChaCha20 key and position of a stream whose bytes are derived. */
struct rk_key {
    uint8_t key[32];
    uint64_t position;
};

/* The identity of a child. */
struct rk_birth {
    uint32_t number;                 /* 0: not assigned yet */
    const struct rk_child *recorded; /* replay: the recorded child that it matches, or NULL */
    bool is_stranger;                /* replay: no recorded child matches */
};

/* Every thread has one, from its start on: a hook allocates nothing. It takes part of each thread's stack, and dlopen
 * finds no room for so much: only LD_PRELOAD loads the shim (native.py). */
struct rk_thread {
    uint32_t generation;            /* rk_generation of the process that this state belongs to */
    uint32_t depth;                 /* requests under way */
    const char *frames[RK_STREAMS]; /* stack frame of each of them */
    uint32_t detached;              /* forked by a signal handler inside a request: see identity.c */
    uint32_t threads;               /* created by this one */
    uint32_t children;              /* child processes created by this thread */
    uint32_t strangers;             /* replay: children without a recorded counterpart */
    int vfork_pid;                  /* the vfork child named last; vfork_birth is its identity */
    struct rk_birth vfork_birth, fork_birth;
    struct rk_call_site place; /* the script's lines that are starting a child */
    char identity[RK_IDENTITY];
    struct rk_calendar calendar;
    struct rk_stream streams[RK_STREAMS + 1];
    struct rk_site sites[RK_STREAMS][RK_SITE_CACHE]; /* caches of the streams' call sites */
    struct rk_key keys[RK_STREAMS];
    uint64_t last_id;              /* of tsl::random::ThreadLocalNew64; 0: none was given */
    uint32_t unused;               /* record: unused bytes, at the end of prefetched */
    uint8_t prefetched[RK_BLOCKS]; /* for the first stream: the kernel's bytes (record) or derived ones */
};

/* A mapped part of the file, up to its end. */
struct rk_window {
    uint8_t *start;
    uint64_t offset, size;
};

/* Replay: the state of one recorded stream. */
struct rk_slot {
    uint64_t stream;
    uint64_t first;      /* offset of its first chunk, once index_streams() has run */
    uint64_t position;   /* offset after the last event that its owner was given */
    uint32_t last_link;  /* its last chunk so far, while link_chunks() runs */
    uint32_t first_link; /* its first chunk, after link_chunks() */
};

/* The state of one process. It lies in a page that the kernel zeroes in a forked child (MADV_WIPEONFORK), so that
 * no child uses its parent's state, however it was created. */
struct rk_process {
    uint32_t ready;
    int pid;
    uint32_t lock; /* of the file and of the moved events */
    uint32_t popen_lock, system_lock;
    uint32_t system_calls;    /* system() under way: the first ignores the terminal's signals, the last restores them */
    uint32_t unknown_threads; /* threads that were not created by pthread_create */
    uint32_t feeders;
    uint64_t uncounted; /* requests before the file was created */
    uint64_t runtimes;  /* rk_file.runtimes, before the file was created */
    uint32_t opened;    /* creating the file was tried */
    uint32_t incarnation;
    uint32_t in_slot;         /* bytes of the file in its slot of the pool; the others are in a separate file */
    int stand_in;             /* --clock: the process id that native code is given */
    uint32_t prefers_slot;    /* its first request is a read of the clock: it takes a slot of the pool */
    uint64_t calendar_bytes;  /* record: bytes of the chunks that hold reads of the clock */
    int64_t calendar_started; /* replay: the monotonic time of its first read */
    uint32_t noting;          /* a stretch is being added */
    /* replay: what the first thread was told first and last, at which monotonic times, and will be told next */
    int64_t first_began, first_began_now, first_told, first_now, first_next;
    struct rk_file *file;        /* the file's head; NULL before the first request and if it cannot be created */
    struct rk_window windows[2]; /* the window that chunks are allocated in, and a previous one */
    uint32_t window;             /* index of the current window */
    const uint8_t *profile;      /* replay: the recorded file of this process */
    uint64_t profile_size;
    uint32_t profile_in_slot;   /* as in_slot */
    struct rk_moved *moved;     /* replay: index for finding events out of order; built at the first mismatch */
    uint32_t any_taken;         /* replay: an event was given to another request than the next of its stream */
    uint32_t streams;           /* replay: entries in use of slots */
    uint32_t no_index;          /* replay: moved cannot be built, or would be empty */
    uint32_t is_torn;           /* replay: a holder of the lock died, perhaps while it changed moved */
    uint32_t is_indexed;        /* replay: slots holds the first chunk of every stream */
    uint64_t last_opened;       /* replay: first chunk of the stream opened last */
    struct rk_slot *slots;      /* replay: the position of each stream */
    struct rk_notes *notes;     /* file for lines of read.paths; NULL while there are few lines */
    uint32_t making_notes;      /* another such file is being created, or cannot be */
    uint32_t read_lines;        /* lines appended to read.paths itself */
    struct rk_console *console; /* what this process printed; NULL before it printed anything */
    uint64_t console_reserved;  /* bytes of the console file that have blocks on the disk */
    uint64_t console_missed;    /* bytes that were printed while the file could not be created */
    uint32_t console_lock;      /* guards all of the console */
    uint32_t console_full;      /* nothing more can be stored */
    uint32_t console_number;    /* of the file among those of this identity */
    uint32_t console_opened;    /* the file has its name */
    uint32_t started[512];      /* Bloom filter of one hash: streams of threads that have started */
};

extern struct rk_process *rk_process;
extern char rk_identity[RK_IDENTITY];
extern char rk_ranks[512]; /* " VARIABLE=NUMBER " of each rank that this process has, but not the launcher */
extern uint32_t rk_generation;
extern __thread struct rk_thread rk_thread __attribute__((tls_model("initial-exec")));

bool rk_identity_start(const char *identity);
void rk_process_check(void); /* gives a forked child a state of its own */
struct rk_thread *rk_thread_check(void);
void rk_child_identity(char *text, const struct rk_thread *thread, uint32_t number);
void rk_thread_name(char *text, const char *creator, uint32_t number);
bool rk_is_another_process(void);

/* ---- child_keys.c ----------------------------------------------------------------------------- */

/* file: NULL if the program is given by a descriptor. */
void rk_name_started(char *text, struct rk_thread *thread, struct rk_birth *birth, const char *file,
                     char *const arguments[]);
void rk_name_executed(char *text, const char *file, char *const arguments[]); /* replaces this process */
void rk_number_fork(struct rk_thread *thread);
void rk_name_forked(char *text, const struct rk_thread *thread);
void rk_forked(const struct rk_thread *thread); /* called in the child, which still has its parent's identity */

/* ---- site.c ----------------------------------------------------------------------------------- */

extern const char *rk_executable;            /* a link to the recorded program */
const char *rk_program(char path[PATH_MAX]); /* the target of that link */
void rk_program_before_fork(void);
/* Returns the module that contains an address ("" if none) and the address's offset in it. */
const char *rk_module(const void *address, uint64_t *offset);
uint64_t rk_site_key(const char *module, size_t length, uint64_t offset);
bool rk_is_crypto(const char *module);
bool rk_keeps_real_time(const char *module);
bool rk_python_keeps_real_time(const char *path, int depth);
bool rk_is_go(void); /* whether the program is written in Go: known to the supervisor */
/* Returns whether a module's requests get fresh bytes in every run. *runtime: the language runtime, if its generator
 * serves both keys and other draws. */
bool rk_withholds(const char *module, enum rk_runtime *runtime);
extern uint32_t rk_unloads; /* number of dlclose calls: an address may belong to another module afterwards */

/* ---- pool.c: slots of forked processes, instead of separate files ------------------------- */

#define RK_REST "-rest.entropy"
extern bool rk_is_forked; /* this process was forked and has executed no program since */
int rk_pool_find(const char *directory, uint64_t hash, uint32_t number, uint64_t *offset);
uint8_t *rk_pool_take(const char *directory, uint64_t hash, uint32_t *number);

/* ---- file.c -------------------------------------------------------------------------------------- */

uint64_t rk_identity_hash(void);
void rk_entropy_path(char *path, size_t size, const char *directory, uint64_t hash, uint32_t number,
                     const char *ending);
void rk_entropy_directory(char path[RK_RUN_PATH + 16]);                               /* of this run */
void rk_file_path(char *path, size_t size, uint32_t incarnation, const char *ending); /* of a file of this process */
void rk_keep(const void *start, uint64_t size);
void rk_give_up(enum rk_reason reason, int error);

/* ---- record.c: this process's file ------------------------------------------------------------- */

void rk_share_request(const struct rk_thread *thread);
bool rk_file_ready(void); /* creates the file at the first request */
bool rk_stream_open(struct rk_stream *stream, const char *identity);
struct rk_site *rk_stream_site(struct rk_thread *thread, struct rk_stream *stream, const void *caller);
/* Makes room for size bytes at stream->at; false if the shim gave up. buffer: the program's buffer for the bytes that
 * the record holds, or NULL. */
bool rk_stream_room(struct rk_stream *stream, uint64_t size, const void *buffer);
/* The same where the stream has no room left, without giving up: returns 0, an error, or EAGAIN for a temporary one. */
int rk_stream_spare_room(struct rk_stream *stream, uint64_t size);
void rk_write(uint8_t *at, const void *bytes, uint64_t size);
uint8_t *rk_put(uint8_t *at, uint64_t value, int bytes);
void rk_commit(struct rk_stream *stream, enum rk_tag tag, uint64_t length);
/* The same of at most 7 bytes, given as the low ones of a word: there must be room for 12 bytes at stream->at. */
void rk_commit_word(struct rk_stream *stream, enum rk_tag tag, uint64_t word, uint64_t length);
void rk_stream_repair(struct rk_stream *stream); /* after siglongjmp out of a request */

/* ---- profile.c: the recorded file of this process ------------------------------------------------- */

#define RK_STREAMS_MOST (1u << 20) /* entries of the table of positions; a power of two */
void rk_profile_open(void);
/* Opens the file that holds the byte at *offset of the recording and sets *offset to its position there; or returns a
 * negative error. */
int rk_recorded_open(uint64_t *offset);

/* ---- replay.c ---------------------------------------------------------------------------------- */

void rk_reader_repair(struct rk_reader *reader);
void rk_thread_begins(struct rk_process *process, const char *thread); /* a thread of this name has started */
/* Returns whether the source is a pipe that is filled ahead of its reader, by an amount that depends on timing. */
static inline bool rk_runs_ahead(uint8_t source) {
    return source == RK_SOURCE_FEEDER || source == RK_SOURCE_KERNEL_DEVICE;
}
/* Copies the bytes of the recorded event that answers this request; false if there is none. */
bool rk_replay_find(const char *thread, struct rk_stream *stream, uint8_t source, const void *caller, void *buffer,
                    uint64_t asked, uint64_t *given, enum rk_match *match);

/* Recorded reads of the clock: the next one, how to leave it behind, and one of a place behind it. */
bool rk_moment_next(struct rk_stream *stream, int64_t last, struct rk_moment *moment);
void rk_moment_pass(struct rk_stream *stream, const struct rk_moment *moment);
bool rk_moment_find(const struct rk_stream *stream, uint16_t place, const uint16_t loop[2], int64_t limit, int window,
                    struct rk_moment *moment);

/* ---- check.c, chacha20.c ------------------------------------------------------------------------ */

uint64_t rk_check(const void *data, uint64_t n, uint64_t seed);
/* The same of n < 8 bytes, which are the low ones of a word; the others are 0. */
uint64_t rk_check_word(uint64_t word, uint64_t n, uint64_t seed);
/* Like rk_check, but everything after the first `from` bytes is read from a copy. */
uint64_t rk_check_copied(const void *data, uint64_t n, uint64_t seed, const uint8_t *copy, uint64_t from);
void rk_chacha20(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t block[64]);
void rk_chacha20_blocks(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t blocks[RK_BLOCKS]);

/* ---- fill.c: every request passes through here ---------------------------------------------------- */

/* The real source of a request. get() behaves like read(2): -1 and errno on failure. */
struct rk_real {
    ssize_t (*get)(struct rk_real *self, void *buffer, size_t size);
    long argument; /* descriptor, flags */
    void *object;
};
ssize_t rk_fill(enum rk_source source, const void *caller, void *buffer, size_t size, struct rk_real *real);
/* Derives a block of ChaCha20 from the run's key, the process identity and a name. */
void rk_derive_block(const char *name, uint8_t block[64]);
/* Begins a request of the calling thread; NULL if `limit` requests are under way already. */
struct rk_thread *rk_begin_request(const char *frame, uint32_t limit);
void rk_end_request(struct rk_thread *thread);
bool rk_prepare_stream(struct rk_thread *thread, struct rk_stream *stream); /* to record */
void rk_prepare_replay(struct rk_thread *thread, struct rk_stream *stream);

/* ---- notes.c ---------------------------------------------------------------------------------------- */

#define RK_NOTES (64u << 10)                 /* size of a file of lines; names.py has it too */
bool rk_note(const char *line, size_t size); /* stores a line of read.paths; false: append it there */

/* ---- console.c ------------------------------------------------------------------------------------- */

extern uint8_t rk_printing[2];
/* The descriptor may refer to another file from now on. */
static inline void rk_descriptor_changed(int fd) {
    if (RK_UNLIKELY(fd == 1 || fd == 2)) __atomic_store_n(&rk_printing[fd - 1], 0, __ATOMIC_RELAXED);
}
void rk_console_before_fork(void);
void rk_console_end(void); /* at the end of this process */

/* ---- devices.c, names.c, written.c, placed.c ------------------------------------------------------------------------
 */

void rk_devices_start(void);
bool rk_is_of_libc(void *function);
/* open, openat, read and pread */
long rk_syscall_device(long number, long a, long b, long c, long d, long e, long f, const void *caller);
void rk_written_start(void);
void rk_placed_start(void);
void rk_written(int fd);
bool rk_is_shared_memory(const char *path, int flags);                  /* created by a library, not by the program */
void rk_append_line(const char *list, const char *line, size_t length); /* list: "/NAME" in the run directory */
void rk_opened_to_read(int fd, const char *path);                       /* path: as given by the program */
void rk_opened_to_change(int fd, const char *path);                     /* opened for reading and writing */
long rk_syscall_placed(long number, long a, long b, long c, long d, long e); /* gives a file a name */

/* ---- found.c --------------------------------------------------------------------------------------- */

enum rk_change { RK_OPENED, RK_REPLACED, RK_MOVED, RK_REMOVED };
/* Keeps what a path names, from before the recording began. Only RK_OPENED follows a symbolic link. */
void rk_before_change(int directory, const char *path, enum rk_change change);

/* ---- pipes.c ---------------------------------------------------------------------------------------- */

struct stat;
int rk_pipe_of(int fd, const struct stat *status); /* its index, or -1 for a pipe of the run itself */
void rk_pipe_opened(int fd, const char *path);     /* opened by a descriptor's name, such as /dev/fd/63 */
ssize_t rk_pipe_given(int number, const void *buffer, ssize_t given);
void rk_pipes_end(void); /* at the end of this process */

/* ---- text.c: /proc/sys/kernel/random/uuid and boot_id ---------------------------------------------- */

#define RK_HERE INT64_MIN /* reads at the descriptor's own offset, and moves it */

struct stat;
bool rk_is_text(int fd, const struct stat *status);
ssize_t rk_text_read(int fd, void *buffer, size_t size, int64_t offset, const void *caller);
void rk_text_replace(int fd, const void *caller); /* replaces the descriptor by a file that holds the text */

/* ---- vdso.c, stack.c --------------------------------------------------------------------------------- */

#define RK_VDSO_CODE 40 /* bytes, at most */

/* Finds the offset of getrandom in an image of a vDSO, from its first byte; false if it has none. */
bool rk_vdso_find(const uint8_t *image, size_t size, uint64_t *offset);
/* Write replacement code and return its size: one makes the system call, the other jumps to a function. */
size_t rk_vdso_call(uint8_t code[RK_VDSO_CODE]);
size_t rk_vdso_jump(uint8_t code[RK_VDSO_CODE], const void *target);
void rk_stack_start(void);

/* ---- modules.c, cpuid.c --------------------------------------------------------------------------------- */

void rk_modules_start(void);
void rk_modules_before_fork(void);
/* lost.c: reports a program to the launcher that cannot write to the run directory. */
void rk_tell_lost(enum rk_lost reason, const char *identity);
void rk_clock_reader(const void *caller);
void rk_uncovered(const char *word); /* reports a source that the shim could not hook */
bool rk_append_to_modules(const char *lines, size_t length);
void rk_cpuid_start(void);

/* ---- children.c ------------------------------------------------------------------------------------ */

void rk_children_start(void);

/* ---- unshimmed.c ------------------------------------------------------------------------------------ */

/* file: a path, or a name to look up in PATH if in_path; NULL if the program is given by a descriptor. */
void rk_look_for_shim(const char *file, bool in_path, const char *identity);
void rk_look_for_supervisor(bool is_rank);

/* ---- place.c ---------------------------------------------------------------------------------------- */

#define RK_PLACE_REAL    (1u << 16) /* it is told the real time in a replay */
#define RK_PLACE_FOREIGN (1u << 17) /* of a thread that Python does not know, in a program of Python */

void rk_place_start(void);
uint32_t rk_place(const void *caller); /* the place's number, which is not 0, and flags */

/* ---- calendar.c ------------------------------------------------------------------------------------- */

int64_t rk_calendar_read(int id, uint16_t place); /* the time of day, in nanoseconds since 1970 */
int64_t rk_calendar_smooth(int id);               /* the same for threads whose reads are not recorded */
int64_t rk_calendar_expected(void);               /* what the calling thread would be told if it read now */
int64_t rk_calendar_passed(void);                 /* the same, or a little before: what has surely come */
void rk_calendar_repair(struct rk_thread *thread);

/* Returns what a program is shown of a file's time, both in nanoseconds since 1970. */
int64_t rk_calendar_of_file(int64_t time);

/* ---- filetimes.c ------------------------------------------------------------------------------------ */

struct stat;
int rk_show_times(int result, struct stat *status, const char *path, const void *caller);

/* ---- clock.c ---------------------------------------------------------------------------------------- */

#define RK_LATEST INT64_C(4000000000000000000) /* nanoseconds since 1970: larger numbers mean "for ever" */

int64_t rk_clock_now(int id); /* nanoseconds of the kernel's clock */

struct timespec;
/* Converts a deadline of the program to the kernel's clock; moved: room for it. */
const struct timespec *rk_deadline(const struct timespec *given, struct timespec *moved, const void *caller);
long rk_syscall_time(long number, long a, long b, long result, const void *caller);

#define RK_DIVERTED       512 /* syscall() looks up numbers below this */
#define RK_SYS_PIDFD_OPEN 434 /* of Linux 5.3, on every processor */

/* ---- pids.c ----------------------------------------------------------------------------------------- */

#define RK_REAL_PATH 256 /* longer paths are not translated */

struct sigaction;
void rk_pids_start(void);
void rk_pids_child(void);     /* before this process creates a child */
pid_t rk_real_pid(pid_t pid); /* the real process id for a stand-in; other numbers are unchanged */
/* After a call that failed: returns whether the path has stand-ins; text is the path with the real ids. */
bool rk_real_path(const char *path, char text[RK_REAL_PATH]);
int rk_sigaction_named(int number, const struct sigaction *action, struct sigaction *before, const void *caller);
void *rk_own_handler(int number, void *handler);
bool rk_syscall_pid(long number, const void *caller, long *result);

/* ---- hooks.c: the real functions behind the hooks ------------------------------------------------- */

void rk_resolve(void);
extern bool rk_hands_on; /* another preloaded library also interposes getrandom */
void *rk_librt(const char *name);
void *rk_libuuid(const char *name);

#endif
