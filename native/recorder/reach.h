/* reach.h - files of the run, opened by the supervisor if this process cannot reach them. */
#ifndef REPROKIT_RECORDER_REACH_H
#define REPROKIT_RECORDER_REACH_H

#include <stdbool.h>
#include <stdint.h>

enum rk_task { RK_TASK_OPEN = 1, RK_TASK_LINK, RK_TASK_RENAME, RK_TASK_REMOVE };
enum rk_place { RK_IN_RUN, RK_IN_PROFILE, RK_IN_PROC };

/* In a form '%' stands for 16 hexadecimal digits, '#' for a number, '@' for the requester's process id. */
struct rk_shared_file {
    enum rk_place place;
    const char *form;
    int flags;
};

#define RK_SHARED_FILES 30
#define RK_SHIM_PLAN    0                                     /* the first of them */
#define RK_MEANINGLESS  (O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) /* flags that change nothing for a file of the run */
#define RK_NO_REPLACE   1                                     /* RENAME_NOREPLACE */
extern const struct rk_shared_file rk_shared_files[RK_SHARED_FILES];

/* The values of a form's placeholders. */
struct rk_names {
    uint8_t file; /* index in rk_shared_files */
    uint64_t hash;
    uint32_t number;
    uint16_t second;
};

bool rk_is_out_of_reach(long error);
/* Returns a descriptor, or a negative error: `refused` without a supervisor, or for a file outside the run. */
int rk_open_by_broker(const char *path, int flags, int refused);
long rk_link(const char *from, const char *to);
long rk_rename(const char *from, const char *to); /* unless that name is taken */
long rk_remove(const char *path);

#endif
