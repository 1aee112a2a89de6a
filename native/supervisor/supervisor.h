/* supervisor.h - what the files of the supervisor share. */
#ifndef REPROKIT_SUPERVISOR_H
#define REPROKIT_SUPERVISOR_H

#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include "recorder/state.h"

#define RK_SHIM "liburandom_hook.so" /* beside what LD_PRELOAD names */
#define RANGE   (UINT64_C(32) << 30) /* of addresses, for the mappings of one program's file and profile */

/* An event source of the event loop: the first member of the struct that it belongs to. */
struct watch {
    void (*ready)(struct watch *self, uint32_t events);
};

/* A program that a process executes; each exec starts another one. */
struct program {
    uint32_t references; /* of its process, and of the pipes that feed it */
    uint32_t slot;       /* index of its range of addresses */
    bool shimmed;        /* should have the shim: only requests that bypass it are answered */
    bool has_shim;       /* the shim was seen, or has made a request */
    bool vdso_refused;   /* the vDSO could not be replaced; reported at the end, unless a shim has done it */
    bool unseen;         /* it opened a file by an unreadable path; reported at the end likewise */
    uint32_t fresh;      /* unanswered requests, as its memory is inaccessible; reported at the end likewise */
    bool is_static;      /* no dynamic loader, or one that does not support the shim */
    bool is_fixed;       /* linked to fixed addresses */
    char go[24];         /* the release of Go that built it: "go1.19.8", or empty if that is not known */
    bool is_go;          /* goroutines move between threads, so all its threads are one stream */
    uint32_t unknown;    /* threads named so far */
    uint32_t children;   /* processes named so far */
    uint64_t youngest;   /* age_of() the youngest of these */
    uint64_t addresses;  /* a hash of the addresses of stack and code, which differs after an exec */
    uint64_t map_next;
    uint64_t in_libc;   /* an address in glibc that made a request before */
    uint64_t at_random; /* the address of the 16 bytes of AT_RANDOM */
    uint8_t random[16]; /* these bytes when they were read last */
    bool has_random;    /* random is set */
    bool is_writable;   /* its memory is known to be writable */
    struct rk_process process;
    char inherited[RK_IDENTITY]; /* REPROKIT_ID of its environment */
    char identity[RK_IDENTITY];
    char executable[64]; /* a link to it */
    char loader[256];    /* the path of its dynamic loader, or empty */
};

struct thread {
    int id;
    struct process *process;
    struct thread *owner;   /* the thread whose stream it uses: itself, except in Go programs */
    struct thread *next;    /* next one of its process */
    struct thread *by_hash; /* next one of the same bucket */
    uint32_t devices;       /* opened so far */
    uint64_t checked;       /* the tick in which it was last known to exist */
    struct rk_thread state;
};

struct process {
    struct watch watch; /* of its pidfd */
    int id;
    int fd; /* a pidfd, or -1 */
    uint64_t started;
    int executing; /* a thread whose exec call was seen: further requests of it mean that the exec failed */
    struct program *program;
    struct thread *threads;
    struct process *by_hash;
    struct process *older, *newer;
};

/* What the supervisor shares with its standby. */
struct shared {
    uint64_t received; /* id of the notification received last */
    uint64_t answered;
    uint64_t let_go; /* number of requests that the standby has begun to let continue */
};

/* One request, from the kernel's notification. */
struct request {
    uint64_t id;
    uint64_t tick;   /* when it was received, by a clock with ticks of some milliseconds */
    uint64_t let_go; /* shared.let_go before it was received */
    bool in_doubt;   /* its process was in an exec: its id may belong to the next program by now */
    int thread;
    int number;
    uint64_t caller;
    const uint64_t *arguments;
};

/* An answer: a value, an error, or go_on: the kernel executes the call. sent: it was answered already. */
struct answer {
    int64_t value;
    int error; /* negative */
    bool go_on, sent;
};

/* ---- filter.c ---------------------------------------------------------------------------------- */

extern bool rk_sees_exec;        /* if false, every request may come from another program than the previous one */
extern bool rk_is_uninterrupted; /* only a SIGKILL ends a received request early */

/* ---- listener.c -------------------------------------------------------------------------------- */

extern int rk_listener;
extern int rk_events; /* an epoll descriptor */
extern struct shared *rk_shared;
void rk_find_id_reuse(void);
uint64_t rk_current_tick(void);
uint64_t rk_requests_let_go(void);
bool rk_is_waiting(const struct request *request); /* whether the program still waits */
bool rk_is_pending(const struct request *request); /* faster, but may miss that the program was killed just now */
extern char rk_notice_text[1024];
void rk_notice(const char *text); /* shown once on stderr and in run.json */
void rk_watch(int fd, struct watch *watch, uint32_t events);
void rk_close_watched(int fd);

/* ---- processes.c ------------------------------------------------------------------------------- */

/* Returns NULL if the process has ended or cannot be examined. */
struct thread *rk_find_thread(struct request *request);
void rk_executes(int thread);
void rk_may_have_executed(void); /* marks all processes: the standby let requests continue */
void rk_forget_all(void);
void rk_release(struct program *program);

/* ---- context.c --------------------------------------------------------------------------------- */

/* Like rk_fill; also returns -1 if a strict replay stops here, and then ends the process. */
ssize_t rk_fill_for(struct program *program, struct rk_thread *thread, enum rk_source source, uint64_t caller,
                    void *buffer, size_t size, unsigned flags);
uint32_t rk_take_slot(void);
void rk_free_slot(struct program *program);

bool rk_is_in_libc(struct program *program, uint64_t address);
bool rk_has_shim(struct program *program); /* called once its libc makes a request */
void rk_has_no_shim(struct program *program);
bool rk_is_in_syscall(struct program *program,
                      uint64_t address); /* in libc's syscall(), if the launcher uses the same libc */

/* ---- memory.c ---------------------------------------------------------------------------------- */

bool rk_read_memory(int pid, uint64_t from, void *to, size_t size);
ssize_t rk_write_memory(int pid, uint64_t to, const void *from, size_t size); /* bytes written, or -errno */
/* Writes to a process that is in an exec, but never to the memory of the next program. */
ssize_t rk_write_waiting(const struct request *request, uint64_t to, const void *from, size_t size);
bool rk_read_text(int pid, uint64_t from, char *text, size_t size);
/* Returns whether an address is mapped; sets *not_allowed if the system denies access. */
bool rk_is_memory(int pid, uint64_t at, bool *not_allowed);
/* Reads all of a small file of /proc; returns its length, or -1. */
long rk_read_proc(int pid, const char *name, char *text, size_t size);
const char *rk_proc_path(char path[64], int pid, const char *name);

/* ---- image.c ----------------------------------------------------------------------------------- */

void rk_look_into(struct program *program, int pid);                      /* finds out what kind of program it is */
void rk_cover_start(struct program *program, int pid);                    /* AT_RANDOM and the vDSO */
bool rk_read_random(struct program *program, int pid, uint8_t bytes[16]); /* the bytes of AT_RANDOM */
void rk_say_uncovered(const char *line);                                  /* reported to the launcher after the run */
#define RK_PLACE 1024
/* Writes the path of a program's file, seen through its root; false if it is too long. */
bool rk_path_in_root(char place[RK_PLACE], int pid, const char *path);
/* Returns whether a path of this process and one of a program are the same file. */
bool rk_is_same_file(const char *path, int pid, const char *path_in_root);
const char *rk_shim_path(void);
int rk_open_for(int pid, const char *path); /* opens a file that the program cannot open itself; -1 if it can */

/* ---- libc.c ------------------------------------------------------------------------------------ */

/* Opens the shim for a program whose loader cannot open it; -1 if it can, or if its libc is not known, -ENOENT if it
 * must not. */
int rk_open_shim(const struct program *program, int pid);
bool rk_is_past_shim(const char *path); /* whether a program is static, or written in Go */

/* ---- answers.c, devices.c ---------------------------------------------------------------------- */

struct answer rk_answer_getrandom(struct thread *thread, const struct request *request);
struct answer rk_answer_open(struct thread *thread, const struct request *request);
void rk_look_at_exec(const struct request *request); /* warns that a program gains no privileges */
/* Duplicates a descriptor into the program. */
struct answer rk_hand_over(const struct request *request, int fd, bool close_on_exec);
int rk_open_memory(const char *name, const void *bytes, size_t size); /* a descriptor that reads these bytes */
int rk_open_feed(struct thread *thread, uint64_t caller);             /* a descriptor to read from */
void rk_close_feeds(void);

/* ---- files.c ------------------------------------------------------------------------------------- */

void rk_note_exec(const struct request *request);

bool rk_is_rename(const struct request *request);
void rk_note_rename(const struct request *request); /* notes the names, and keeps a file that loses its own */

/* ---- broker.c ------------------------------------------------------------------------------------ */

struct answer rk_broker(struct thread *thread, const struct request *request);

/* ---- standby.c ----------------------------------------------------------------------------------- */

/* Counts a request for entropy that the kernel answers with fresh bytes. */
void rk_note_fresh(void);
/* Starts the process that answers if this one does not; -errno on failure. */
int rk_start_standby(int listener, struct shared *shared, int alive);

#endif
