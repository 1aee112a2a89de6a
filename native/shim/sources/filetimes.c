/* filetimes.c - the times of files that a program is shown in a replay.
 *
 * Files keep their real times. But programs compare them with the time that they were told, which has passed: a lock
 * would never grow old, and a file that was just written would be of the future. So a time later than what the thread
 * would be told now is shown as the time that was told when it was current. What older files have is unchanged.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/plan.h"
#include "recorder/replay.h"
#include "shim/hooks.h"
#include "shim/sources/calendar.h"
#include "shim/sources/filetimes.h"
#include "shim/sources/place.h"

#define SECOND INT64_C(1000000000)

/* Python keeps the times of its sources in the bytecode, which later runs use too. */
static bool is_source(const char *path) {
    size_t length = path ? strlen(path) : 0;
    return length > 3 && strcmp(path + length - 3, ".py") == 0;
}

static void show(struct timespec *time) {
    if (time->tv_sec < 0 || time->tv_sec > RK_LATEST / SECOND) return;
    int64_t shown = rk_calendar_of_file(time->tv_sec * SECOND + time->tv_nsec);
    time->tv_sec = shown / SECOND;
    time->tv_nsec = shown % SECOND;
}

static void show_extended(struct statx_timestamp *time) {
    struct timespec shown = {.tv_sec = time->tv_sec, .tv_nsec = time->tv_nsec};
    show(&shown);
    time->tv_sec = shown.tv_sec;
    time->tv_nsec = (uint32_t)shown.tv_nsec;
}

static bool is_shown(int result, const char *path, const void *caller) {
    return result == 0 && !is_source(path) && !(rk_place(caller) & RK_PLACE_REAL);
}

static bool is_on(void) { return RK_UNLIKELY(rk_plan.calendar && rk_plan.mode == RK_MODE_REPLAY); }

/* Changes what a call has returned: of `result`, which is returned. path: NULL where only a descriptor is known. */
int rk_show_times(int result, struct stat *status, const char *path, const void *caller) {
    if (!is_on()) return result;
    int error = errno;
    if (is_shown(result, path, caller)) {
        show(&status->st_atim);
        show(&status->st_mtim);
        show(&status->st_ctim);
    }
    errno = error;
    return result;
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "stat and stat64 give the same");

/* Each name that a glibc has. Those with an X are called by programs that were linked before 2.33; the others are not
 * in an older one, which then links no program with them. */
#define STATS(name, parameters, path, ...)                                                         \
    RK_BEFORE_TSAN RK_EXPORT int name parameters {                                                 \
        int result = RK_REAL(name) ? rk_real_##name(__VA_ARGS__) : (errno = ENOSYS, -1);           \
        return is_on() ? rk_show_times(result, (struct stat *)status, path, RK_CALLER()) : result; \
    }
STATS(stat, (const char *restrict path, struct stat *restrict status), path, path, status)
STATS(stat64, (const char *restrict path, struct stat64 *restrict status), path, path, status)
STATS(lstat, (const char *restrict path, struct stat *restrict status), path, path, status)
STATS(lstat64, (const char *restrict path, struct stat64 *restrict status), path, path, status)
STATS(fstatat, (int directory, const char *restrict path, struct stat *restrict status, int flags), path, directory,
      path, status, flags)
STATS(fstatat64, (int directory, const char *restrict path, struct stat64 *restrict status, int flags), path, directory,
      path, status, flags)
STATS(__xstat, (int version, const char *path, struct stat *status), path, version, path, status)
STATS(__xstat64, (int version, const char *path, struct stat64 *status), path, version, path, status)
STATS(__lxstat, (int version, const char *path, struct stat *status), path, version, path, status)
STATS(__lxstat64, (int version, const char *path, struct stat64 *status), path, version, path, status)
STATS(__fxstat, (int version, int fd, struct stat *status), NULL, version, fd, status)
STATS(__fxstat64, (int version, int fd, struct stat64 *status), NULL, version, fd, status)
STATS(__fxstatat, (int version, int directory, const char *path, struct stat *status, int flags), path, version,
      directory, path, status, flags)
STATS(__fxstatat64, (int version, int directory, const char *path, struct stat64 *status, int flags), path, version,
      directory, path, status, flags)

RK_BEFORE_TSAN RK_EXPORT int statx(int directory, const char *restrict path, int flags, unsigned mask,
                                   struct statx *restrict status) {
    int result = RK_REAL(statx) ? rk_real_statx(directory, path, flags, mask, status) : (errno = ENOSYS, -1);
    if (!is_on()) return result;
    int error = errno;
    if (is_shown(result, path, RK_CALLER())) {
        show_extended(&status->stx_atime);
        show_extended(&status->stx_mtime);
        show_extended(&status->stx_ctime);
        show_extended(&status->stx_btime);
    }
    errno = error;
    return result;
}
