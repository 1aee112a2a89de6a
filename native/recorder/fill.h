/* fill.h - every request passes through here. */
#ifndef REPROKIT_RECORDER_FILL_H
#define REPROKIT_RECORDER_FILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "recorder/state.h"

extern bool rk_hands_on; /* another preloaded library also interposes getrandom */

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

#endif
