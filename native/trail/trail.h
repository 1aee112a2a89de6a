/* trail.h - the trail of a process: layouts of its file, which docs/format.md describes, and what the agent calls.
 *
 * A library of its own that the agent loads by ctypes where a training's framework is. What runs in its worker
 * thread (worker.c) touches no thread-local variable, allocates nothing and makes system calls directly, as that
 * thread is none of libc's. */
#ifndef REPROKIT_TRAIL_H
#define REPROKIT_TRAIL_H

#include "../internal.h"
#include "digest.h"

#define RKT_ABI         8
#define RKT_FORMAT      4
#define RKT_CHUNK_MAGIC 0x4B435254u
#define RKT_SMALL       (1u << 20)  /* bytes that are digested sooner than another processor has them in its cache */
#define RKT_KEPT        16          /* steps at either end whose single digests are kept */
#define RKT_ROOM        (32u << 20) /* bytes for them, at most */
#define RKT_LARGEST     (UINT64_C(4) << 30)
#define RKT_SERIES      4096
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
    RKT_UNCHANGED = 4096, /* no parameter was, since the step before, as far as the framework counts changes */
    RKT_INPUTS = 8192,
    RKT_INPUTS_PARTIAL = 16384, /* there were calls or arguments that do not count */
    RKT_INPUTS_SEVERAL = 32768  /* one of which counts came after another call */
};

/* What the agent knows beside of a step that is not written yet; records do not have it. */
#define RKT_BATCH_PARTIAL (UINT64_C(1) << 32) /* a part of it could not be read, so that it does not count */
#define RKT_CALLED        (UINT64_C(1) << 33) /* models were */

/* What the agent asks of a step beside. */
enum rkt_how { RKT_HERE = 1 /* digest in this thread */, RKT_LATER = 2 /* the digests are given later */ };

struct rkt_head {
    char magic[8];
    uint32_t format, incarnation, pid, zero;
    char identity[RK_IDENTITY];
    uint64_t check;
    uint64_t used;
    uint32_t gave_up, gave_up_errno;
    uint64_t lost; /* steps that could not be written */
    uint8_t zeros[200];
};

struct rkt_chunk {
    uint32_t magic;
    uint16_t kind, series;
    uint64_t size, first;
    uint32_t count, kept;
    uint64_t length, text_check;
    uint64_t check;
    uint64_t zero;
};

struct rkt_record {
    uint32_t check; /* written last; 0 in a record that is not there */
    uint32_t flags;
    uint64_t batch, loss, gradients, parameters, torch, python, numpy;
    uint64_t before, buffers; /* parameters as the step found them; buffers as it left them */
    uint64_t inputs;          /* what models were called with */
};

/* The digests of a step, tensor by tensor: gradients, then parameters. */
struct rkt_kept {
    uint64_t step; /* number + 1; 0 while it is written */
    uint64_t check;
    uint64_t digests[];
};

/* How numbers are laid out; a complex one is two. */
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

/* What the agent knows of a step: with the digests of batch and loss, and where the random states lie. */
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
    uint32_t count;                    /* of tensors */
    uint64_t bytes;                    /* of all of them, gradients and parameters */
    uint64_t first, next;              /* steps */
    uint64_t *sizes, *salts, *digests; /* 2 * count each */
    struct rkt_chunk *steps, *before;  /* the chunk being filled, and the one before it */
    struct rkt_chunk *tensors;         /* or NULL */
    const uint64_t *pointers;          /* of the step under way */
    struct rkt_record *record;         /* of the last step, NULL where there was no room */
    uint64_t step;                     /* its number */
    uint64_t end;                      /* of the chunk being filled, in the file */
};

#define RKT_QUEUE 64

/* A thread that works off what it is given, in that order. */
struct rkt_worker {
    uint64_t done, given; /* tickets */
    uint32_t wake, waiting, stopping;
    uint32_t thread; /* its id; the kernel zeroes it at its end */
    uint8_t *stack;
    void (*work)(void *job);
    void *queue[RKT_QUEUE];
};

struct rkt_trail {
    char path[RK_RUN_PATH + 96];
    struct rkt_head *head;
    uint32_t lock;
    uint32_t series;
    uint64_t room; /* left for the digests of single tensors */
    struct rkt_worker worker;
};

/* digest.c */
uint64_t rkt_sum(const void *data, uint64_t size);
uint64_t reprokit_trail_digest(const void *data, uint64_t size, uint64_t salt);
uint64_t reprokit_trail_fold(uint64_t before, const void *data, uint64_t size, uint64_t salt);
uint64_t reprokit_trail_list(const uint64_t *digests, uint64_t count);
/* finite.c */
uint64_t reprokit_trail_finite(const uint64_t *addresses, const struct rkt_numbers *numbers, uint64_t count);
/* file.c: under the trail's lock */
struct rkt_chunk *rkt_take(struct rkt_trail *trail, const struct rkt_chunk *head);
void rkt_unmap(const struct rkt_chunk *chunk);
/* record.c */
void rkt_digest_tensors(void *series);
/* worker.c */
uint64_t rkt_hand_over(struct rkt_worker *worker, void *job); /* a ticket, or 0: there is no worker, or no room */
void rkt_wait(struct rkt_worker *worker, uint64_t ticket);
void rkt_stop(struct rkt_worker *worker, uint32_t *lock);

#endif
