/* state.c - the state of this process and of its threads, and the names that are made from it. */
#include <string.h>

#include "recorder/host.h"
#include "recorder/system.h"
#include "shim/identity/state.h"

struct rk_process *rk_process;
char rk_identity[RK_IDENTITY];
uint32_t rk_generation;
__thread struct rk_thread rk_thread __attribute__((tls_model("initial-exec")));

void rk_thread_name(char *text, const char *creator, uint32_t number) {
    size_t length = rk_append(text, RK_IDENTITY, 0, creator);
    length = rk_append(text, RK_IDENTITY, length, ".");
    rk_append_number(text, RK_IDENTITY, length, number);
    rk_shorten(text);
}

void rk_child_identity(char *text, const struct rk_thread *thread, uint32_t number) {
    size_t length = rk_append(text, RK_IDENTITY, 0, rk_identity);
    length = rk_append(text, RK_IDENTITY, length, "/");
    if (strcmp(thread->identity, "m") != 0) {
        /* Leaves room for the number: 200 + 1 + 40 + 1 + 10 < 256. */
        size_t name = strlen(thread->identity);
        length = rk_append(text, RK_IDENTITY, length, thread->identity + (name > 40 ? name - 40 : 0));
        length = rk_append(text, RK_IDENTITY, length, ":");
    }
    rk_append_number(text, RK_IDENTITY, length, number);
    rk_shorten(text);
}

bool rk_is_another_process(void) { return rk_getpid() != rk_process->pid; }
