/* unshimmed.h - programs that will not load the shim. */
#ifndef REPROKIT_NOTES_UNSHIMMED_H
#define REPROKIT_NOTES_UNSHIMMED_H

#include <stdbool.h>

/* file: a path, or a name to look up in PATH if in_path; NULL if the program is given by a descriptor. */
void rk_look_for_shim(const char *file, bool in_path, const char *identity);
void rk_look_for_supervisor(bool is_rank);

#endif
