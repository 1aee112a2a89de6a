/* notes.h - lines of read.paths. */
#ifndef REPROKIT_NOTES_H
#define REPROKIT_NOTES_H

#include <stdbool.h>
#include <stddef.h>

#define RK_NOTES (64u << 10)                 /* size of a file of lines; names.py has it too */
bool rk_note(const char *line, size_t size); /* stores a line of read.paths; false: append it there */

#endif
