/* trail.h - the trail of a process: layouts of its file, which docs/format.md describes, and what the agent calls.
 *
 * A separate library, which the agent loads by ctypes into processes with a framework. Code of its worker thread
 * (worker.c) uses no thread-local variable, allocates nothing and makes direct system calls, as libc does not know that
 * thread. */
#ifndef REPROKIT_TRAIL_H
#define REPROKIT_TRAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "urandom_hook.h"

#define RKT_ABI         11
#define RKT_FORMAT      5
#define RKT_CHUNK_MAGIC 0x4B435254u
#define RKT_SMALL       (1u << 20)  /* bytes that are digested faster here than another processor could load them */
#define RKT_KEPT        16          /* first and last steps whose digests of single tensors are kept */
#define RKT_RECENT      16          /* chunks of a series that stay mapped at most */
#define RKT_WINDOW      1024        /* last steps that can be given digests */
#define RKT_ROOM        (32u << 20) /* maximum bytes for these digests */
#define RKT_LARGEST     (UINT64_C(4) << 30)
#define RKT_SERIES      4096
#define RKT_PARTS       64   /* placements of a series' tensors at most */
#define RKT_WORDS       2500 /* bytes of the state of a Mersenne Twister: 624 words and a position */

enum rkt_kind { RKT_KIND_SERIES = 1, RKT_KIND_STEPS = 2, RKT_KIND_TENSORS = 3 };

enum rkt_flag {
    RKT_BATCH = 1,
    RKT_LOSS = 2,
    RKT_GRADIENTS = 4,
    RKT_PARAMETERS = 8,
    RKT_TORCH = 16,
    RKT_PYTHON = 32,
    RKT_NUMPY = 64,
    RKT_BEFORE = 128,
    RKT_PARTIAL = 256,            /* some tensors could not be read, and count as 0 */
    RKT_UNSTEADY_GRADIENTS = 512, /* changed while they were read */
    RKT_UNSTEADY_PARAMETERS = 1024,
    RKT_BUFFERS = 2048,
    RKT_UNCHANGED = 4096, /* no parameter changed since the previous step, by the framework's version counters */
    RKT_INPUTS = 8192,
    RKT_INPUTS_PARTIAL = 16384, /* some calls or arguments are not included */
    RKT_INPUTS_SEVERAL = 32768, /* an included call came after another call */
    RKT_PASSED = 65536,         /* a step that the trail passes over: what is not here was not looked at */
    RKT_NOT_FINITE = 131072,    /* of TensorFlow: what the step returned, or a gradient, is not finite */
    RKT_RUINED = 262144         /* of TensorFlow: a weight is not finite after the step */
};

/* Further flags of a step that is not written yet; records do not have them. */
#define RKT_BATCH_PARTIAL (UINT64_C(1) << 32) /* a part of the batch could not be read, so that it is left out */
#define RKT_CALLED        (UINT64_C(1) << 33) /* a model was called */

/* Options of the agent for a step. */
enum rkt_how { RKT_HERE = 1 /* digest in this thread */, RKT_LATER = 2 /* the digests are given later */ };

struct rkt_head {
    char magic[8];
    uint32_t format, incarnation, pid, zero;
    char identity[RK_IDENTITY];
    uint64_t check;
    uint64_t used;
    uint32_t gave_up, gave_up_errno;
    uint64_t lost;    /* steps that could not be written */
    uint64_t stepped; /* of a rank: when its last step was written, nanoseconds since 1970 */
    uint8_t zeros[192];
};

struct rkt_chunk {
    uint32_t magic;
    uint16_t kind, series;
    uint64_t size, first;
    uint32_t count, kept; /* kept: of steps the parts of a record */
    uint64_t length, text_check;
    uint64_t check;
    uint64_t zero;
};

struct rkt_record {
    uint32_t check; /* written last; 0 in a record that was not written */
    uint32_t flags;
    uint64_t batch, loss, gradients, parameters, torch, python, numpy;
    uint64_t before, buffers; /* parameters before the step; buffers after it */
    uint64_t inputs;          /* arguments of model calls */
    uint64_t parts[];         /* of each placement, its parameters; 0: not known */
};

static inline uint64_t rkt_record_size(uint32_t parts) { return sizeof(struct rkt_record) + 8 * (uint64_t)parts; }

/* The digests of single tensors of a step: gradients, then parameters. */
struct rkt_kept {
    uint64_t step; /* number + 1; 0 while it is written */
    uint64_t check;
    uint64_t digests[];
};

/* Formats of numbers; a complex number is two. */
enum rkt_format {
    RKT_OTHER, /* always finite */
    RKT_FLOAT16,
    RKT_BFLOAT16,
    RKT_FLOAT32,
    RKT_FLOAT64,
    RKT_FLOAT8_E4M3FN,
    RKT_FLOAT8_E5M2,
    RKT_FLOAT8_FNUZ,
    RKT_FLOAT8_E8M0,
    RKT_FORMATS
};

struct rkt_numbers {
    uint64_t bytes, format;
};

struct rkt_stretch {
    uint64_t address, size;
};

/* Floating-point numbers to be reduced. */
struct rkt_array {
    uint64_t address, count, is_double;
};

enum rkt_reduction { RKT_MIN, RKT_MAX, RKT_SUM, RKT_MEAN, RKT_VARIANCE, RKT_STD, RKT_PROD, RKT_L1, RKT_L2, RKT_EACH };

/* The agent's data of a step: digests of batch and loss, and addresses of the random states. */
struct rkt_facts {
    uint64_t flags, how;
    uint64_t batch, loss, before, buffers, inputs;
    uint64_t torch_state, torch_size, torch_salt, torch_more; /* more: digest of further generators, or 0 */
    uint64_t python_state, numpy_state, words_salt;           /* 625 words of 32 bits each */
};

struct rkt_trail;

struct rkt_series {
    struct rkt_trail *trail;
    uint16_t number;
    uint32_t count;                       /* of tensors */
    uint32_t parts;                       /* placements that differ; 0 where there are not several */
    uint64_t bytes;                       /* of all of them, gradients and parameters */
    uint64_t first, next;                 /* steps */
    uint64_t *sizes, *salts, *digests;    /* 2 * count each */
    uint64_t *placements;                 /* of each tensor, from 0, where there are several */
    struct rkt_chunk *recent[RKT_RECENT]; /* chunks of steps, the one being filled first */
    struct rkt_chunk *tensors;            /* or NULL */
    const uint64_t *pointers;             /* tensors' addresses in the current step */
    struct rkt_record *record;            /* the last step's; NULL if there was no room */
    uint64_t step;                        /* its number */
    uint64_t end;                         /* of the chunk being filled, in the file */
};

#define RKT_QUEUE 64

/* A thread that processes jobs in the order of their queue. */
struct rkt_worker {
    uint64_t done, queued; /* tickets: numbers of jobs */
    uint32_t wake, waiting, stopping;
    uint32_t thread; /* its id; the kernel zeroes it when the thread ends */
    uint8_t *stack;
    void (*work)(void *job);
    void *queue[RKT_QUEUE];
};

struct rkt_trail {
    char path[RK_RUN_PATH + 96];
    struct rkt_head *head;
    uint32_t lock;
    uint32_t series;
    uint64_t room; /* bytes left for the digests of single tensors */
    struct rkt_worker worker;
};

/* digest.c */
uint64_t rkt_sum(const void *data, uint64_t size);
uint64_t reprokit_trail_digest(const void *data, uint64_t size, uint64_t salt);
uint64_t reprokit_trail_fold(uint64_t before, const void *data, uint64_t size, uint64_t salt);
uint64_t reprokit_trail_list(const uint64_t *digests, uint64_t count);
/* finite.c */
uint64_t reprokit_trail_finite(const uint64_t *addresses, const struct rkt_numbers *numbers, uint64_t count);
/* reductions.c */
void reprokit_trail_reduce(const struct rkt_array *arrays, uint64_t count, uint32_t wanted, double *results);
/* file.c: called with the trail's lock held */
struct rkt_chunk *rkt_take(struct rkt_trail *trail, const struct rkt_chunk *head);
void rkt_unmap(const struct rkt_chunk *chunk);
int rkt_make_file(struct rkt_trail *trail, const char *run, const char *identity); /* 0, or an error */
void rkt_trim(struct rkt_trail *trail, struct rkt_series *last);
/* record.c */
void rkt_digest_tensors(void *series);
/* worker.c */
uint64_t rkt_hand_over(struct rkt_worker *worker, void *job); /* a ticket, or 0 without a worker or room */
void rkt_wait(struct rkt_worker *worker, uint64_t ticket);
void rkt_stop(struct rkt_worker *worker, uint32_t *lock);

#endif
