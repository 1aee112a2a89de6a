/* identity.c - names of processes and threads that are the same in every run of a program.
 *
 * Thread: "m" is the first one; the n-th that thread T creates is "T.n".
 * Process: "0" is the command; the n-th child that thread T of process P makes is "P/T:n", or "P/n"
 * where T is "m"; an exec in place appends "+". A rank of a distributed job names itself.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/replay.h"
#include "recorder/system.h"
#include "shim/identity/child_keys.h"
#include "shim/identity/identity.h"
#include "shim/identity/state.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

char rk_ranks[512];

/* Variables in which launchers set a rank, frameworks before process managers: torchrun, JAX, horovodrun, Open MPI,
 * MVAPICH, PMIx, MPICH, PALS, Slurm. TF_CONFIG is JSON. `launch` tells the ranks of one launch from equal ones of
 * another: Slurm's batch script has rank 0 as well as a task of its srun. */
static const struct {
    const char *name, *launch;
} rank_variables[] = {
    {"RANK", NULL},
    {"JAX_PROCESS_ID", NULL},
    {"TF_CONFIG", NULL},
    {"HOROVOD_RANK", NULL},
    {"OMPI_COMM_WORLD_RANK", NULL},
    {"MV2_COMM_WORLD_RANK", NULL},
    {"PMIX_RANK", "PMIX_NAMESPACE"},
    {"PMI_RANK", "PMI_JOBID"},
    {"PALS_RANKID", NULL},
    {"SLURM_PROCID", "SLURM_STEP_ID"},
};

#define RANK_DIGITS 20
#define ASSIGNMENT  (RANK_DIGITS + 64)

/* Returns the text after the first `"key":` in JSON; NULL if there is none. TF_CONFIG needs no real parser. */
static const char *json_value(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *match = text; (match = strstr(match, key)); match += length) {
        const char *after = match + length + strspn(match + length, " \t\n");
        if (*after == ':') return after + 1 + strspn(after + 1, " \t\n");
    }
    return NULL;
}

/* Writes the rank of a TensorFlow worker; a chief has rank 0. Other tasks have none, as they train nothing. */
static bool tensorflow_rank(const char *config, char *text, size_t size) {
    const char *task = json_value(config, "\"task\"");
    const char *type = task ? json_value(task, "\"type\"") : NULL;
    const char *index = task ? json_value(task, "\"index\"") : NULL;
    if (!type || !index) return false;
    index += *index == '"';
    bool is_chief = strncmp(type, "\"chief\"", 7) == 0, has_chief = json_value(config, "\"chief\"") != NULL;
    if (!is_chief && strncmp(type, "\"worker\"", 8) != 0) return false;
    size_t digits = strspn(index, "0123456789");
    if (digits == 0 || digits > 9) return false;
    rk_append_number(text, size, 0, strtoul(index, NULL, 10) + (has_chief && !is_chief));
    return true;
}

/* Writes the rank that a variable sets, as digits; false if it sets none. */
static bool rank_of(const char *variable, char *text, size_t size) {
    const char *value = getenv(variable);
    if (!value || !*value) return false;
    if (strcmp(variable, "TF_CONFIG") == 0) return tensorflow_rank(value, text, size);
    if (strlen(value) > RANK_DIGITS || strspn(value, "0123456789") != strlen(value)) return false;
    rk_append(text, size, 0, value);
    return true;
}

/* Returns the length of the rank prefix of this process's identity. */
static size_t rank_prefix(void) {
    size_t length = 0;
    for (const char *next = rk_identity; strncmp(next, "rank", 4) == 0; next = rk_identity + length + 1) {
        length = (size_t)(next - rk_identity) + 4 + strspn(next + 4, "0123456789");
        if (rk_identity[length] != '.') break;
    }
    return length;
}

/* Ranks that others started by MPI_Comm_spawn count from 0 again, beside them. PMIx names their job LAUNCHER@2, MPICH
 * says no number of it. */
static void append_job(void) {
    const char *job = getenv("PMIX_NAMESPACE"), *spawned = getenv("PMI_SPAWNED");
    job = job ? strrchr(job, '@') : spawned && strcmp(spawned, "1") == 0 ? "@" : NULL;
    if (!job || strcmp(job, "@1") == 0 || strspn(job + 1, "0123456789") != strlen(job + 1)) return;
    size_t length = rk_append(rk_identity, sizeof(rk_identity), strlen(rk_identity), "/job");
    rk_append(rk_identity, sizeof(rk_identity), length, job + 1);
}

/* Writes " VARIABLE=RANK ", or " VARIABLE=RANK@LAUNCH " with a check of what names the launch. */
static void write_assignment(char text[ASSIGNMENT], size_t variable, const char *rank) {
    const char *launch = rank_variables[variable].launch ? getenv(rank_variables[variable].launch) : NULL;
    size_t length = rk_append(text, ASSIGNMENT, 0, " ");
    length = rk_append(text, ASSIGNMENT, length, rank_variables[variable].name);
    length = rk_append(text, ASSIGNMENT, length, "=");
    length = rk_append(text, ASSIGNMENT, length, rank);
    if (launch && *launch) {
        length = rk_append(text, ASSIGNMENT, length, "@");
        length = rk_append_hex(text, ASSIGNMENT, length, rk_check(launch, strlen(launch), 0));
    }
    rk_append(text, ASSIGNMENT, length, " ");
}

/* Names this process by its rank if a variable sets one that its parent did not have. Inside a rank of another
 * launcher, as if mpirun starts torchrun, the outer rank's name comes first. Ranks of reprokit's own launcher name no
 * process, as a recording inside a job may be replayed outside of it. */
static void apply_ranks(void) {
    const char *before = getenv("REPROKIT_RANK");
    char rank[RANK_DIGITS + 1], assignment[ASSIGNMENT];
    bool is_named = false;
    for (size_t i = 0; i < RK_LENGTH(rank_variables); i++) {
        if (!rank_of(rank_variables[i].name, rank, sizeof(rank))) continue;
        write_assignment(assignment, i, rank);
        if (strstr(rk_plan.ranks, assignment)) continue;
        rk_append(rk_ranks, sizeof(rk_ranks), strlen(rk_ranks), assignment);
        if (is_named || (before && strstr(before, assignment))) continue;
        is_named = true;
        size_t length = rank_prefix();
        length = rk_append(rk_identity, sizeof(rk_identity), length, length ? ".rank" : "rank");
        rk_append(rk_identity, sizeof(rk_identity), length, rank);
        append_job();
        rk_shorten(rk_identity);
    }
}

/* Detaches requests in a child that a signal handler forked during them. A request continues when the handler returns:
 * with its stream unchanged, but on private memory instead of the parent's file. */
static void detach_requests(void) {
    for (uint32_t i = 0; i < RK_LENGTH(rk_thread.streams); i++) {
        uintptr_t start = (uintptr_t)rk_thread.streams[i].chunk & ~(uintptr_t)4095;
        uintptr_t end = ((uintptr_t)rk_thread.streams[i].end + 4095) & ~(uintptr_t)4095;
        if (start)
            rk_call(SYS_mmap, (long)start, (long)(end - start), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
    for (uint32_t i = rk_thread.depth; i < RK_STREAMS; i++) memset(&rk_thread.streams[i], 0, sizeof(struct rk_stream));
    rk_thread.threads = rk_thread.children = 0;
    rk_thread.place = (struct rk_call_site){0};
    rk_thread.vfork_pid = 0;
    rk_thread.detached = 1;
}

static void start_first_thread(void) {
    if (rk_thread.depth > 0)
        detach_requests();
    else
        memset(&rk_thread, 0, sizeof(rk_thread));
    rk_thread.generation = rk_generation;
    rk_append(rk_thread.identity, sizeof(rk_thread.identity), 0, "m");
    rk_thread_begins(rk_process, rk_thread.identity);
}

static void start_process_state(void) {
    rk_generation++;
    start_first_thread();
    rk_process->pid = rk_getpid();
    __atomic_store_n(&rk_process->ready, 1, __ATOMIC_RELEASE);
}

bool rk_identity_start(const char *identity) {
    rk_process = rk_map(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!rk_process || madvise(rk_process, 4096, MADV_WIPEONFORK) != 0) {
        rk_say("warning: this kernel lacks MADV_WIPEONFORK (Linux 4.14): this process runs without the shim");
        return false;
    }
    rk_append(rk_identity, sizeof(rk_identity), 0, identity);
    rk_shorten(rk_identity);
    apply_ranks();
    start_process_state();
    return true;
}

/* Starts the state of a forked child, whose only thread is a copy of the one that forked. */
static void start_forked(void) {
    char name[RK_IDENTITY];
    rk_forked(&rk_thread);
    rk_name_forked(name, &rk_thread);
    memcpy(rk_identity, name, sizeof(name));
    rk_is_forked = true;
    start_process_state();
}

void rk_process_check(void) {
    if (RK_LIKELY(__atomic_load_n(&rk_process->ready, __ATOMIC_ACQUIRE))) return;
    rk_signals before =
        rk_block_signals(); /* else a signal handler could start the state again with an incomplete name */
    if (!rk_process->ready) start_forked();
    rk_restore_signals(before);
}

struct rk_thread *rk_thread_check(void) {
    struct rk_thread *thread = &rk_thread;
    if (RK_LIKELY(thread->generation == rk_generation)) return thread;
    /* The thread was not created by pthread_create. */
    memset(thread, 0, sizeof(*thread));
    thread->generation = rk_generation;
    size_t length = rk_append(thread->identity, sizeof(thread->identity), 0, "?");
    uint32_t number = __atomic_add_fetch(&rk_process->unknown_threads, 1, __ATOMIC_RELAXED);
    rk_append_number(thread->identity, sizeof(thread->identity), length, number);
    rk_thread_begins(rk_process, thread->identity);
    return thread;
}
