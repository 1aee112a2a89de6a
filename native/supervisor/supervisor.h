/* supervisor.h - what the files of the supervisor share. */
#ifndef REPROKIT_SUPERVISOR_H
#define REPROKIT_SUPERVISOR_H

#include <linux/seccomp.h>
#include <sys/ioctl.h>

#include "../internal.h"

#define RANGE (UINT64_C(32) << 30) /* of addresses, for the mappings of one program's file and profile */

/* Something that the event loop waits for: the first member of what it belongs to. */
struct watch {
    void (*ready)(struct watch *self, uint32_t events);
};

/* A program that a process executes; another one after the process's next exec. */
struct program {
    uint32_t references; /* by its process, and by the pipes that it is fed through */
    uint32_t slot;       /* of its range of addresses */
    bool shimmed;        /* has the shim: only what goes past it is answered */
    bool has_shim;       /* and it was seen there, or has asked for something itself */
    bool vdso_refused;   /* the vDSO could not be replaced: said at its end, if no shim has done it */
    bool unseen;         /* it opened something, and what that is may not be read: likewise */
    uint32_t fresh;      /* requests that could not be answered as it may not be looked into: likewise */
    bool is_static;      /* no dynamic loader, or one that the shim cannot live under */
    bool is_fixed;       /* linked to fixed addresses */
    bool is_go;          /* its goroutines wander between threads: they are one stream */
    uint32_t unknown;    /* threads named so far */
    uint32_t children;   /* processes named so far */
    uint64_t youngest;   /* of them, by its start and id */
    uint64_t addresses;  /* a hash of where its stack and code lie: another one after an exec */
    uint64_t map_next;
    uint64_t in_libc;   /* a call of glibc's for itself that was met before */
    uint64_t at_random; /* the address of the 16 bytes that the kernel gave it */
    uint8_t random[16]; /* those bytes, as they were last */
    bool has_random;    /* they were looked at */
    bool is_writable;   /* its memory was written to, or could have been */
    struct rk_process process;
    char inherited[RK_IDENTITY]; /* REPROKIT_ID of its environment */
    char identity[RK_IDENTITY];
    char executable[64]; /* a link to it */
    char loader[256];    /* the path of its dynamic loader, where it has one */
};

struct thread {
    int id;
    struct process *process;
    struct thread *voice;   /* whose stream it speaks in: its own, but for Go */
    struct thread *next;    /* of its process */
    struct thread *by_hash; /* of the same bucket */
    uint32_t devices;       /* opened so far */
    uint64_t checked;       /* the moment it was last known to be there */
    struct rk_thread state;
};

struct process {
    struct watch watch; /* of its pidfd */
    int id;
    int fd; /* a pidfd, -1 where there is none */
    uint64_t started;
    int executing; /* a thread whose exec call was seen: it asks again only where that has failed */
    struct program *program;
    struct thread *threads;
    struct process *by_hash;
    struct process *older, *newer;
};

/* What the supervisor shares with its standby. */
struct shared {
    uint64_t received; /* id of the notification received last */
    uint64_t answered;
    uint64_t let_go; /* how many times the standby has begun to let requests go on */
};

/* One request, as the kernel tells it. */
struct request {
    uint64_t id;
    uint64_t moment; /* when it was received: of a clock whose ticks are some milliseconds */
    uint64_t let_go; /* of struct shared, before that */
    bool in_doubt;   /* its process was executing a program: by now its id may be that one's */
    int thread;
    int number;
    uint64_t caller;
    const uint64_t *arguments;
};

/* An answer: a value, a failure, or "do it yourself". SENT: by another way already. */
struct answer {
    int64_t value;
    int error; /* negative */
    bool go_on, sent;
};

/* ---- supervisor.c ------------------------------------------------------------------------------ */

extern int rk_listener;
extern int rk_events;            /* an epoll descriptor */
extern bool rk_sees_exec;        /* else every request may come from another program than the one before */
extern bool rk_is_uninterrupted; /* a request that was received ends early by a SIGKILL only */
bool rk_is_waiting(const struct request *request); /* whether the program still waits */
bool rk_is_pending(const struct request *request); /* the same, but for a program that was killed just now */
void rk_notice(const char *text);                  /* once on stderr and in run.json */
void rk_watch(int fd, struct watch *watch, uint32_t events);
void rk_close_watched(int fd);

/* ---- processes.c ------------------------------------------------------------------------------- */

/* NULL where the process is gone or not to be known. */
struct thread *rk_find_thread(struct request *request);
void rk_executes(int thread);
void rk_may_have_executed(void); /* all of them: the standby let requests go on */
void rk_forget_all(void);
void rk_release(struct program *program);

/* ---- context.c --------------------------------------------------------------------------------- */

/* As rk_fill; -1 also where a strict replay stops here, after which the process is ended. */
ssize_t rk_fill_for(struct program *program, struct rk_thread *thread, enum rk_source source, uint64_t caller,
                    void *buffer, size_t size, unsigned flags);
uint32_t rk_take_slot(void);
void rk_free_slot(struct program *program);

bool rk_is_in_libc(struct program *program, uint64_t address);
bool rk_has_shim(struct program *program);                        /* once its libc asks for something */
bool rk_is_in_syscall(struct program *program, uint64_t address); /* the function, where libc is the launcher's too */

/* ---- memory.c ---------------------------------------------------------------------------------- */

bool rk_read_memory(int pid, uint64_t from, void *to, size_t size);
ssize_t rk_write_memory(int pid, uint64_t to, const void *from, size_t size); /* how much was, or -errno */
/* The same for one that is executing a program: the next one's memory is left alone. */
ssize_t rk_write_waiting(const struct request *request, uint64_t to, const void *from, size_t size);
bool rk_read_text(int pid, uint64_t from, char *text, size_t size);
/* Whether something is there; not_allowed where the system does not let this process look. */
bool rk_is_memory(int pid, uint64_t at, bool *not_allowed);
/* The whole of a small file of /proc; its length, or -1. */
long rk_read_proc(int pid, const char *name, char *text, size_t size);
const char *rk_proc_path(char path[64], int pid, const char *name);

/* ---- image.c ----------------------------------------------------------------------------------- */

void rk_look_into(struct program *program, int pid);                      /* what kind of program it is */
void rk_cover_start(struct program *program, int pid);                    /* AT_RANDOM and the vDSO */
bool rk_read_random(struct program *program, int pid, uint8_t bytes[16]); /* the bytes of AT_RANDOM */
void rk_say_uncovered(const char *line);                                  /* to the launcher, once the run has ended */
/* Whether the shim fits a program that cannot open it; a descriptor of it then, else -1. */
int rk_open_shim(const struct program *program, int pid);

/* ---- answers.c, devices.c ---------------------------------------------------------------------- */

struct answer rk_answer_getrandom(struct thread *thread, const struct request *request);
struct answer rk_answer_open(struct thread *thread, const struct request *request);
void rk_look_at_exec(const struct request *request); /* says that a program gains no rights */
/* A descriptor of ours becomes one of the program's. */
struct answer rk_hand_over(const struct request *request, int fd, bool close_on_exec);
int rk_open_memory(const char *name, const void *bytes, size_t size); /* a descriptor that reads these bytes */
int rk_open_feed(struct thread *thread, uint64_t caller);             /* a descriptor to read from */
void rk_close_feeds(void);

/* ---- broker.c ------------------------------------------------------------------------------------ */

struct answer rk_broker(struct thread *thread, const struct request *request);

/* ---- standby.c ----------------------------------------------------------------------------------- */

/* Counts a request for entropy that the kernel answers itself. */
void rk_note_fresh(void);
/* Starts the process that answers when this one does not; -errno on failure. */
int rk_start_standby(int listener, struct shared *shared, int alive);

#endif
