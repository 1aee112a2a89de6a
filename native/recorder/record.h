/* record.h - the entropy file of this process. */
#ifndef REPROKIT_RECORDER_RECORD_H
#define REPROKIT_RECORDER_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/state.h"

#define RK_LARGE (1u << 17) /* an event that a replay reads into the program's buffer instead of copying it */

void rk_share_request(const struct rk_thread *thread);
bool rk_file_ready(void); /* creates the file at the first request */
bool rk_stream_open(struct rk_stream *stream, const char *identity);
struct rk_site *rk_stream_site(struct rk_thread *thread, struct rk_stream *stream, const void *caller);
/* Makes room for size bytes at stream->at; false if the shim gave up. buffer: the program's buffer for the bytes that
 * the record holds, or NULL. */
bool rk_stream_room(struct rk_stream *stream, uint64_t size, const void *buffer);
/* The same where the stream has no room left, without giving up: returns 0, an error, or EAGAIN for a temporary one. */
int rk_stream_spare_room(struct rk_stream *stream, uint64_t size);
void rk_write(uint8_t *at, const void *bytes, uint64_t size);
uint8_t *rk_put(uint8_t *at, uint64_t value, int bytes);
void rk_commit(struct rk_stream *stream, enum rk_tag tag, uint64_t length);
/* The same of at most 7 bytes, given as the low ones of a word: there must be room for 12 bytes at stream->at. */
void rk_commit_word(struct rk_stream *stream, enum rk_tag tag, uint64_t word, uint64_t length);
void rk_stream_repair(struct rk_stream *stream); /* after siglongjmp out of a request */

#endif
