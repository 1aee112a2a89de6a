/* written.h - names of files that are opened. */
#ifndef REPROKIT_NOTES_WRITTEN_H
#define REPROKIT_NOTES_WRITTEN_H

#include <stdbool.h>

void rk_written_start(void);
void rk_written(int fd);
bool rk_is_shared_memory(const char *path, int flags); /* created by a library, not by the program */
void rk_opened_to_read(int fd, const char *path);      /* path: as given by the program */
void rk_opened_to_change(int fd, const char *path);    /* opened for reading and writing */

#endif
