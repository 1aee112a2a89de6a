/* text.h - /proc/sys/kernel/random/uuid and boot_id. */
#ifndef REPROKIT_SOURCES_TEXT_H
#define REPROKIT_SOURCES_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RK_HERE INT64_MIN /* reads at the descriptor's own offset, and moves it */

struct stat;
bool rk_is_text(int fd, const struct stat *status);
ssize_t rk_text_read(int fd, void *buffer, size_t size, int64_t offset, const void *caller);
void rk_text_replace(int fd, const void *caller); /* replaces the descriptor by a file that holds the text */

#endif
