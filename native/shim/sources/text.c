/* text.c - /proc/sys/kernel/random/uuid and boot_id: random bytes that the kernel gives as text.
 *
 * The kernel generates another UUID for each read, even of a single character, and so does this file: each read is an
 * event of 16 bytes, and its text from the offset on is the answer. The descriptor stays the real one and its offset
 * advances as by a read, so that duplicates, seeks, forks and exec work. devices.c decides which descriptors get here.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "recorder/calls.h"
#include "recorder/fill.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/sources/text.h"

#define BYTES 16
#define TEXT  37 /* 36 characters and a line feed */

static bool ends_with(const char *text, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

/* By its name below the mount point, as procfs gives no file a number that can be relied on. Files of
 * procfs have no size and no device behind them: others do not pay for the name. */
bool rk_is_text(int fd, const struct stat *status) {
    if (!S_ISREG(status->st_mode) || status->st_size != 0 || major(status->st_dev) != 0) return false;
    char link[40], path[256];
    size_t n = rk_append(link, sizeof(link), 0, "/proc/self/fd/");
    rk_append_number(link, sizeof(link), n, (uint64_t)fd);
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, sizeof(path), 0, 0);
    if (length <= 0 || length == sizeof(path)) return false;
    if (!ends_with(path, (size_t)length, "/sys/kernel/random/uuid") &&
        !ends_with(path, (size_t)length, "/sys/kernel/random/boot_id"))
        return false;
    struct statfs file_system;
    return rk_call(SYS_fstatfs, fd, (long)&file_system, 0, 0, 0, 0) == 0 && file_system.f_type == PROC_SUPER_MAGIC;
}

static bool has_dash_before(int byte) { return byte == 4 || byte == 6 || byte == 8 || byte == 10; }

static int digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse(const char *text, uint8_t bytes[BYTES]) {
    for (int i = 0; i < BYTES; i++) {
        if (has_dash_before(i) && *text++ != '-') return false;
        int high = digit(*text++), low = high < 0 ? -1 : digit(*text++);
        if (low < 0) return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Formats a UUID of version 4 (RFC 9562). Recorded bytes have these bits already, derived ones do not. */
static void format(uint8_t bytes[BYTES], char text[TEXT]) {
    bytes[6] = (uint8_t)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (uint8_t)((bytes[8] & 0x3f) | 0x80);
    for (int i = 0; i < BYTES; i++) {
        if (has_dash_before(i)) *text++ = '-';
        *text++ = "0123456789abcdef"[bytes[i] >> 4];
        *text++ = "0123456789abcdef"[bytes[i] & 15];
    }
    *text = '\n';
}

static ssize_t get_text(struct rk_real *self, void *buffer, size_t size) {
    char text[64];
    long n = rk_call(SYS_pread64, self->argument, (long)text, sizeof(text), 0, 0, 0);
    if (n >= TEXT - 1 && size == BYTES && parse(text, buffer)) return BYTES;
    errno = n < 0 ? (int)-n : EIO;
    return -1;
}

static ssize_t next_text(int fd, char text[TEXT], const void *caller) {
    struct rk_real real = {.get = get_text, .argument = fd};
    uint8_t bytes[BYTES] = {0};
    ssize_t given = rk_fill(RK_SOURCE_TEXT, caller, bytes, BYTES, &real);
    if (given < 0) return -1;
    format(bytes, text);
    return TEXT;
}

ssize_t rk_text_read(int fd, void *buffer, size_t size, int64_t offset, const void *caller) {
    char text[TEXT];
    int64_t from = offset == RK_HERE ? rk_call(SYS_lseek, fd, 0, SEEK_CUR, 0, 0, 0) : offset;
    if (from < 0) {
        errno = offset == RK_HERE ? (int)-from : EINVAL;
        return -1;
    }
    if (from >= TEXT || size == 0) return 0;
    if (next_text(fd, text, caller) < 0) return -1;
    size_t n = size < (size_t)(TEXT - from) ? size : (size_t)(TEXT - from);
    memcpy(buffer, text + from, n);
    if (offset == RK_HERE) rk_call(SYS_lseek, fd, (long)n, SEEK_CUR, 0, 0, 0);
    return (ssize_t)n;
}

/* Replaces a descriptor, for a stream that no hook sees reading and that must stay the same object (freopen). */
void rk_text_replace(int fd, const void *caller) {
    char text[TEXT];
    if (next_text(fd, text, caller) < 0) return;
    int close_on_exec = RK_REAL(fcntl)(fd, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0;
    int copy = (int)rk_call(SYS_memfd_create, (long)"uuid", MFD_CLOEXEC, 0, 0, 0, 0);
    if (copy < 0) return;
    if (rk_call(SYS_pwrite64, copy, (long)text, TEXT, 0, 0, 0) == TEXT) RK_REAL(dup3)(copy, fd, close_on_exec);
    rk_close(copy);
}
