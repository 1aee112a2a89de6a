/* replay.h - recorded events, found again. */
#ifndef REPROKIT_RECORDER_REPLAY_H
#define REPROKIT_RECORDER_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/state.h"

#define RK_LATEST INT64_C(4000000000000000000) /* nanoseconds since 1970: larger numbers mean "for ever" */

void rk_reader_repair(struct rk_reader *reader);
void rk_thread_begins(struct rk_process *process, const char *thread); /* a thread of this name has started */
/* Returns whether the source is a pipe that is filled ahead of its reader, by an amount that depends on timing. */
static inline bool rk_runs_ahead(uint8_t source) {
    return source == RK_SOURCE_FEEDER || source == RK_SOURCE_KERNEL_DEVICE;
}
/* Copies the bytes of the recorded event that answers this request; false if there is none. */
bool rk_replay_find(const char *thread, struct rk_stream *stream, uint8_t source, const void *caller, void *buffer,
                    uint64_t asked, uint64_t *given, enum rk_match *match);

/* Lets what is recorded next come behind all of a recorded stream; false if there is none. */
bool rk_replay_end(struct rk_stream *stream);

/* Recorded reads of the clock: the next one, how to leave it behind, and one of a place behind it. */
bool rk_moment_next(struct rk_stream *stream, int64_t last, struct rk_moment *moment);
void rk_moment_pass(struct rk_stream *stream, const struct rk_moment *moment);
bool rk_moment_find(const struct rk_stream *stream, uint16_t place, const uint16_t loop[2], int64_t limit, int window,
                    struct rk_moment *moment);

#endif
