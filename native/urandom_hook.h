/*
 * urandom_hook.h - the interface of the shim: ABI number, file layouts, exported calls.
 *
 * Read by the C code and, through cffi, by Python (reprokit/core/native.py), which parses the part
 * between the two marks below. That part therefore uses only what cffi's parser supports: plain
 * integer #defines, enums, structs and prototypes with the types of <stdint.h>.
 *
 * All integers are little-endian (both supported processors are). All structs have no padding:
 * the C side asserts their sizes. docs/format.md describes the files for readers in any language.
 */
#ifndef REPROKIT_URANDOM_HOOK_H
#define REPROKIT_URANDOM_HOOK_H

#include <stdint.h>

/* reprokit: begin of what cffi reads */

/* Raised whenever a struct, a tag or an exported call below changes its meaning. */
#define RK_ABI 6
/* Version of the entropy file format: the readers refuse a newer one. */
#define RK_FORMAT 4

/* REPROKIT_RUN is an absolute path padded with leading slashes to exactly this many bytes, so that
 * the size of the environment does not depend on the name of the run directory. */
#define RK_RUN_PATH 512
#define RK_IDENTITY 256 /* bytes of an identity, with its final NUL */

/* What the shim does in this run. */
enum rk_mode { RK_MODE_RECORD = 1, RK_MODE_REPLAY = 2 };

/* How a replay answers a request that the random profile lacks. */
enum rk_policy {
    RK_POLICY_STRICT = 1,  /* stop the process: exit status 125 */
    RK_POLICY_DERIVE = 2,  /* ChaCha20 under the profile's key, the identity and a counter */
    RK_POLICY_LIVE = 3,    /* real bytes */
    RK_POLICY_CONTINUE = 4 /* real bytes, recorded behind what the profile holds: reprokit continue */
};

/* Where a request came from. */
enum rk_source {
    RK_SOURCE_GETRANDOM = 1,
    RK_SOURCE_GETENTROPY = 2,
    RK_SOURCE_ARC4RANDOM = 3,
    RK_SOURCE_ARC4RANDOM_BUF = 4,
    RK_SOURCE_ARC4RANDOM_UNIFORM = 5,
    RK_SOURCE_SYSCALL = 6,        /* syscall(SYS_getrandom, ...) */
    RK_SOURCE_DEVICE = 7,         /* /dev/urandom or /dev/random through a descriptor */
    RK_SOURCE_STREAM = 8,         /* the same through stdio */
    RK_SOURCE_FEEDER = 9,         /* the same through a pipe that the shim fills (freopen) */
    RK_SOURCE_RANDOM_DEVICE = 10, /* libstdc++'s std::random_device */
    RK_SOURCE_KERNEL = 11,        /* a system call that the supervisor answered */
    RK_SOURCE_KERNEL_DEVICE = 12, /* /dev/urandom opened past the shim: a pipe that the supervisor fills */
    RK_SOURCE_TEXT = 13,          /* a file of /proc/sys/kernel/random: its text */
    RK_SOURCE_UUID = 14,          /* libuuid's uuid_generate and its relatives: 16 bytes */
    RK_SOURCE_AT_RANDOM = 15,     /* 16 bytes that the kernel puts on the initial stack */
    RK_SOURCE_CLOCK = 16,         /* before format 4: a read of the real-time clock, nanoseconds since 1970 */
    RK_SOURCES = 17               /* one more than the largest */
};

/* How replay answered a request. */
enum rk_match {
    RK_MATCH_EXACT = 0, /* next in the stream of the same thread, same source and size */
    RK_MATCH_MOVED = 1, /* same thread, call site and size, oldest unused: see replay.c */
    RK_MATCH_DERIVED = 2,
    RK_MATCH_LIVE = 3,
    RK_MATCHES = 4
};

/* The last, unused argument of the shim's own system calls, which the supervisor's filter lets pass. */
#define RK_MARK 0x52504b4d
/* The same argument of a request for a file of the run that this process cannot reach (reach.c). */
#define RK_BROKER 0x52504b42

/* Why the shim gave up (rk_file.gave_up); the training continues without it. */
enum rk_reason {
    RK_REASON_NONE = 0,
    RK_REASON_DISK_FULL = 1,
    RK_REASON_FILE_LIMIT = 2,  /* RLIMIT_FSIZE */
    RK_REASON_CANNOT_OPEN = 3, /* the run directory was removed or is read-only, or chroot */
    RK_REASON_CANNOT_MAP = 4,
    RK_REASON_BAD_PROFILE = 5 /* replay: the profile is damaged at the current position */
};

/* Why a process records no more reads of the clock; its entropy is recorded all the same. */
enum rk_calendar_end {
    RK_CALENDAR_GOES_ON = 0,
    RK_CALENDAR_SPENT = 1,  /* there were too many */
    RK_CALENDAR_NO_ROOM = 2 /* a full disk, or RLIMIT_FSIZE */
};

/* Runtimes whose cryptographic generator also serves draws that are no keys: withheld, and reported. */
enum rk_runtime { RK_RUNTIME_NONE = 0, RK_RUNTIME_GO = 1, RK_RUNTIME_JAVA = 2, RK_RUNTIME_NODE = 4 };

/* Why a program is not recorded, if it could not write this to the run directory. */
enum rk_lost {
    RK_LOST_PLAN = 1,  /* it cannot read shim.plan */
    RK_LOST_FILE = 2,  /* it cannot write its entropy file, or files of agent and trail */
    RK_LOST_SHIM = 3,  /* its loader cannot load the shim, and there is no supervisor */
    RK_LOST_UNSEEN = 4 /* the supervisor has seen no shim in it, and may not read its memory */
};

/* The datagram that reports a lost program, to the abstract socket "reprokit-" and 16 hexadecimal digits, the check of
 * REPROKIT_RUN. Any process of this machine can send one: it is a reason for doubt, and no proof. */
struct rk_lost_message {
    char magic[8]; /* "RKLOST\0\0" */
    uint32_t abi;
    uint32_t reason; /* enum rk_lost */
    char identity[256];
};

/* REPROKIT_RUN/shim.plan: the launcher's instructions for the shim. 2048 bytes. */
struct rk_plan {
    char magic[8];          /* "RKPLAN\0\0" */
    uint32_t abi;           /* RK_ABI */
    uint32_t mode;          /* enum rk_mode */
    uint32_t policy;        /* enum rk_policy */
    uint32_t record_crypto; /* 1: the bytes of cryptographic libraries are recorded too */
    uint8_t key[32];        /* the profile's key: of this run (record), of the profile (replay) */
    char profile[512];      /* replay: path of the recorded run's entropy directory */
    char shim[512];         /* put back into LD_PRELOAD at exec: what loads the shim (loader/loader.c) */
    char python_path[512];  /* directory of the agent's sitecustomize, put back into PYTHONPATH */
    char ranks[256];        /* " NAME=VALUE " or " NAME=VALUE@LAUNCH ": the launcher's own ranks, which name no child */
    uint32_t keyed;         /* 1: every request is answered from key, identity and a counter; nothing is stored */
    uint32_t clock;       /* 1: process ids have stand-ins, and the calendar is that of threads unknown to Python too */
    uint32_t hide_rdrand; /* 1: RDRAND and RDSEED are hidden by CPUID faulting */
    uint32_t backwards;   /* 1: directory listings are reversed */
    int64_t later;        /* nanoseconds added to the time of day */
    uint32_t processors;  /* number of processors that the program sees; 0: the real one */
    char host[64];        /* host name that the program sees; empty: the real one */
    uint32_t prints;      /* which output of the command is stored: bit 0 stdout, bit 1 stderr */
    uint64_t printed[2][2]; /* device and inode of these */
    uint32_t launcher;      /* process id of the launcher, which has them too */
    uint32_t has_pipe;      /* 1: the launcher's standard input is a pipe */
    uint64_t pipe[2];       /* device and inode of it */
    uint32_t children;      /* replay: 1 if the recording stored its children, even if it had none */
    uint32_t calendar;      /* 1: the time of day is recorded and replayed */
    int64_t ahead; /* replay: of the monotonic clock, by nanoseconds, is the calendar at real speed; 0: unknown */
    int64_t kernel_ahead; /* of the monotonic clock is the kernel's time of day, when the command starts */
    int64_t started; /* CLOCK_REALTIME by the run directory's file system: older files were not changed by the run */
    uint8_t reserved[8];
    uint64_t check; /* reprokit_check over all before it, seed 0 */
};

/* The head of REPROKIT_RUN/entropy/IDENTITYHASH-INCARNATION.entropy: one file for each process
 * that asked for entropy. Exactly RK_HEAD bytes, then chunks. Of a forked process these are the bytes of its slot of
 * the pool, followed by those of IDENTITYHASH-INCARNATION-rest.entropy where it needed more. */
#define RK_HEAD 1024
struct rk_file {
    char magic[8];        /* "RKENTROP" */
    uint32_t format;      /* RK_FORMAT */
    uint32_t mode;        /* enum rk_mode */
    uint64_t started_ns;  /* CLOCK_REALTIME; for people, never compared */
    uint32_t pid;         /* for people, never compared */
    uint32_t incarnation; /* 0, or n for the n-th further process of the same identity */
    char identity[256];   /* process identity, NUL-padded */
    char program[256];    /* path of the executable, cut at 255, NUL-padded */
    uint64_t head_check;  /* reprokit_check over all before it, seed 0 */
    /* The following fields change during the run. */
    uint64_t used;    /* bytes of the file handed out to chunks, this head included */
    uint32_t gave_up; /* enum rk_reason */
    uint32_t gave_up_errno;
    uint64_t matches[4];    /* replay: requests by enum rk_match; keyed: the first is all of them */
    uint64_t bytes[4];      /* the bytes that they were given */
    uint64_t withheld;      /* requests of cryptographic libraries and programs: real, bytes not recorded */
    uint64_t uncounted;     /* record: requests after the shim gave up */
    uint64_t clock_reads;   /* reads of the clock that were recorded, or replayed */
    uint64_t clock_past;    /* replay: reads of the clock that were not recorded */
    uint64_t streams;       /* keyed: threads that asked */
    uint64_t stand_in;      /* --clock: the process id that native code was given; 0 if it requested none */
    uint64_t ended;         /* 1: the process ended normally, not by a signal or an exec */
    uint64_t runtimes;      /* of withheld requests: bits of enum rk_runtime */
    uint64_t calendar_full; /* record: enum rk_calendar_end: why later reads of the clock were not recorded */
    uint64_t unprinted;     /* bytes that were printed while no console file could be opened */
    uint8_t reserved[312];
};

/* REPROKIT_RUN/entropy/pool.entropy: this page, then levels. A level is a table of claims, twice as many as it has
 * slots, and the slots, pages that are allocated in order. Level n has RK_POOL_SLOTS * 16^n slots. The first entry of a
 * table holds counts instead of a claim. */
#define RK_SLOT        4096
#define RK_POOL_LEVELS 4
#define RK_POOL_SLOTS  128
struct rk_pool {
    char magic[8];        /* "RKENTROP", so that a reader that knows of no pool finds a format that is too new */
    uint32_t format;      /* RK_FORMAT */
    uint8_t nothing[532]; /* zeros */
    uint64_t head_check;  /* reprokit_check over all before it, seed 0 */
    uint8_t reserved[3544];
};
/* A process's claim to a slot. The search starts at place 1 + hash % (places - 1): the n-th claim of a hash, on all
 * levels, is of incarnation n. */
struct rk_claim {
    uint64_t hash; /* reprokit_check of the process identity, seed 0 */
    uint64_t slot; /* 1 + its number on this level; 0 where none was given */
};
/* The first entry of a table, instead of a claim. */
struct rk_level {
    uint64_t taken;    /* slots taken; more than there are if some attempts failed */
    uint64_t reserved; /* slots that have blocks on the disk */
};

/* REPROKIT_RUN/entropy/children.entropy: one of these for each child that became a program, or was forked by a line
 * of a script, in no certain order. Numbers are of children of one thread, from 1. */
#define RK_CHILD_KEYS 3
/* Which lines of a script led to a child, as of reprokit_call_site: all 0 where none did. */
struct rk_call_site {
    uint32_t lines, files, sources;
};
enum rk_child_kind {
    RK_CHILD_STARTED = 1,
    RK_CHILD_FORKED = 2, /* named at the fork, before its program ran */
    RK_CHILD_BORN = 3,   /* it was forked, which is no program yet: without keys */
};
struct rk_child {
    uint64_t parent;  /* reprokit_check of the parent's identity, seeded with its incarnation */
    uint64_t thread;  /* of the thread that made it, likewise */
    uint64_t keys[3]; /* hashes of program and arguments: exact, without numbers and generated names, without values */
    uint32_t number;
    uint32_t kind; /* enum rk_child_kind */
    char name[60]; /* the part after the parent's identity and "/", NUL-padded */
    struct rk_call_site place;
    uint64_t check; /* reprokit_check over all before it, seed 0 */
};

/* A chunk: RK_CHUNK bytes of head, then records up to its size. Each chunk belongs to one stream,
 * that is one thread. A stream's chunks follow each other in the file in the stream's order. */
#define RK_CHUNK 48
struct rk_chunk {
    uint32_t magic;   /* RK_CHUNK_MAGIC */
    uint32_t size;    /* of the whole chunk in units of 64 bytes */
    uint64_t stream;  /* reprokit_check of the thread identity, seed 0 */
    uint64_t ordinal; /* 0, 1, ... of this chunk in its stream */
    uint64_t check;   /* reprokit_check over all before it, seed 0 */
    uint64_t events;  /* record: events in this chunk that were not withheld */
    uint64_t bytes;   /* and the bytes that they were given */
};
#define RK_CHUNK_MAGIC 0x4b4e4843 /* "CHNK" */

/* Records. A record begins with its tag; RK_TAG_END (zero) means that nothing more was written in
 * this chunk. The tag is written last, so that a record is either whole or absent. Every record
 * ends with a 32-bit check: the low half of reprokit_check over what stands between the tag and the
 * check, seeded with 256 times the previous record's check in the stream (0 for the first) plus the
 * tag.
 *
 *   RK_TAG_THREAD   u8 length, thread identity                       first record of a stream
 *   RK_TAG_SITE     u16 site, u64 offset, u8 length, module          names a call site from now on
 *   RK_TAG_EVENT    u8 source, u16 site, u8 flags, u64 asked, u64 given, bytes
 *   RK_TAG_REPEAT   bytes                 as the stream's last EVENT: same source, site, flags, sizes
 *   RK_TAG_MISMATCH u8 source, u16 site, u8 match, u64 asked          replay: not answered exactly
 *   RK_TAG_TIME     u16 place, u32 nanoseconds since the last TIME or DATE of the stream
 *   RK_TAG_DATE     u16 place, u64 nanoseconds since 1970
 *
 * Sites are numbered for each stream. The bytes of a withheld event are left out. */
enum rk_tag {
    RK_TAG_END = 0,
    RK_TAG_THREAD = 1,
    RK_TAG_SITE = 2,
    RK_TAG_EVENT = 3,
    RK_TAG_REPEAT = 4,
    RK_TAG_MISMATCH = 5,
    RK_TAG_TIME = 6, /* a read of the clock */
    RK_TAG_DATE = 7
};
#define RK_FLAG_WITHHELD 1 /* the bytes were real and are not here */

/* REPROKIT_RUN/console/IDENTITYHASH-INCARNATION.console: what a process printed. RK_CONSOLE_HEAD bytes of head, then
 * three areas: one of RK_CONSOLE_FIRST bytes, and two of RK_CONSOLE_LAST, which are written in turn. In an area records
 * follow each other: rk_console_record, the thread's identity, the bytes. */
#define RK_CONSOLE_FORMAT 1
#define RK_CONSOLE_HEAD   4096
#define RK_CONSOLE_FIRST  8384512
#define RK_CONSOLE_LAST   4194304
#define RK_CONSOLE_FORWARDED                                                                \
    4 /* shifted by the stream: its text went to the launcher of this rank, which prints it \
       */
struct rk_console_area {
    uint64_t number; /* areas that were started before this one */
    uint64_t used;   /* bytes of its records */
};
struct rk_console {
    char magic[8];   /* "RKCONSOL" */
    uint32_t format; /* RK_CONSOLE_FORMAT */
    uint32_t unseen; /* bits as of rk_plan.prints: C's stdio printed there, which is not stored; RK_CONSOLE_FORWARDED */
    uint64_t current;     /* number of the area that is written */
    uint32_t pid;         /* to tell process ids that are printed */
    uint32_t incarnation; /* as of an entropy file */
    char identity[256];   /* process identity, NUL-padded */
    struct rk_console_area areas[3];
    uint64_t dropped;          /* bytes of records that were overwritten */
    uint64_t lost;             /* bytes that could not be stored: a full disk, a limit */
    uint64_t missed;           /* bytes that were printed before all others, when the file could not be created */
    uint64_t dropped_lines[2]; /* ends of lines among the dropped bytes, by stream; UINT64_MAX: not known */
};
struct rk_console_record {
    uint32_t size;  /* of the bytes */
    uint8_t stream; /* 0: stdout, 1: stderr */
    uint8_t thread; /* bytes of its identity */
    uint16_t zero;
};

/* The ABI number this library was built with. */
uint32_t reprokit_abi(void);
/* A 64-bit check of n bytes; detects damage, is no defense against forgery. */
uint64_t reprokit_check(const void *data, uint64_t n, uint64_t seed);
uint64_t reprokit_first_wrong(const void *records, uint64_t count, uint64_t size, uint64_t first);
/* Copies the identity of the calling process and thread, NUL-terminated and cut to size bytes.
 * Returns 1 in a run, else 0 and an empty text. */
int reprokit_process_identity(char *text, uint64_t size);
int reprokit_thread_identity(char *text, uint64_t size);
/* Says which lines of a script are about to make a child of the calling thread, in which files, and what these hold;
 * three times NULL afterwards. */
void reprokit_call_site(const char *lines, const char *files, const char *sources);

/* reprokit: end of what cffi reads */

#endif
