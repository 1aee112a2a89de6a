/* pids.h - stand-ins for process ids. */
#ifndef REPROKIT_IDENTITY_PIDS_H
#define REPROKIT_IDENTITY_PIDS_H

#include <stdbool.h>
#include <sys/types.h>

#define RK_SYS_PIDFD_OPEN 434 /* of Linux 5.3, on every processor */
#define RK_REAL_PATH      256 /* longer paths are not translated */

struct sigaction;
void rk_pids_start(void);
void rk_pids_child(void);     /* before this process creates a child */
pid_t rk_real_pid(pid_t pid); /* the real process id for a stand-in; other numbers are unchanged */
/* After a call that failed: returns whether the path has stand-ins; text is the path with the real ids. */
bool rk_real_path(const char *path, char text[RK_REAL_PATH]);
int rk_sigaction_named(int number, const struct sigaction *action, struct sigaction *before, const void *caller);
void *rk_own_handler(int number, void *handler);
bool rk_syscall_pid(long number, const void *caller, long *result);

#endif
