/* uncovered.h - what the shim could not hook. */
#ifndef REPROKIT_NOTES_UNCOVERED_H
#define REPROKIT_NOTES_UNCOVERED_H

#include <stdbool.h>
#include <stddef.h>

void rk_uncovered(const char *word);      /* reports a source that the shim could not hook */
void rk_clock_reader(const void *caller); /* reports a module whose reads of the clock are not recorded */
bool rk_append_to_modules(const char *lines, size_t length);

#endif
