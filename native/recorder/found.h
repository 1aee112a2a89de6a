/* found.h - files from before the recording began. */
#ifndef REPROKIT_RECORDER_FOUND_H
#define REPROKIT_RECORDER_FOUND_H

enum rk_change { RK_OPENED, RK_REPLACED, RK_MOVED, RK_REMOVED };
/* Keeps what a path names, from before the recording began. Only RK_OPENED follows a symbolic link. */
void rk_before_change(int directory, const char *path, enum rk_change change);

#endif
