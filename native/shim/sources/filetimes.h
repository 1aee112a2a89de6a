/* filetimes.h - times of files. */
#ifndef REPROKIT_SOURCES_FILETIMES_H
#define REPROKIT_SOURCES_FILETIMES_H

struct stat;
int rk_show_times(int result, struct stat *status, const char *path, const void *caller);

#endif
