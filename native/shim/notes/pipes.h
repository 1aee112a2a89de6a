/* pipes.h - pipes from outside of the run. */
#ifndef REPROKIT_NOTES_PIPES_H
#define REPROKIT_NOTES_PIPES_H

#include <sys/types.h>

struct stat;
int rk_pipe_of(int fd, const struct stat *status); /* its index, or -1 for a pipe of the run itself */
void rk_pipe_opened(int fd, const char *path);     /* opened by a descriptor's name, such as /dev/fd/63 */
ssize_t rk_pipe_given(int number, const void *buffer, ssize_t given);
void rk_pipes_end(void); /* at the end of this process */

#endif
