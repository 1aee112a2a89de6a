/* state.h - the state of a thread and of a process, which the recorder and its hosts share. */
#ifndef REPROKIT_RECORDER_STATE_H
#define REPROKIT_RECORDER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "recorder/chacha20.h"
#include "urandom_hook.h"

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

#endif
