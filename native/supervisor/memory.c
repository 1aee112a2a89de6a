/* memory.c - the memory of other processes, their files in /proc, and the module behind an address. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "recorder/calls.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define PAGE UINT64_C(4096)

const char *rk_proc_path(char path[64], int pid, const char *name) {
    size_t n = rk_append(path, 64, 0, "/proc/");
    n = rk_append_number(path, 64, n, (uint64_t)pid);
    n = rk_append(path, 64, n, "/");
    rk_append(path, 64, n, name);
    return path;
}

/* Accesses memory by /proc/PID/mem, which may be allowed if process_vm_writev is not. */
static bool access_by_proc(int pid, uint64_t at, void *buffer, size_t size, bool writes) {
    char path[64];
    int fd = rk_open(rk_proc_path(path, pid, "mem"), writes ? O_WRONLY : O_RDONLY, 0);
    if (fd < 0) return false;
    long n = rk_call(writes ? SYS_pwrite64 : SYS_pread64, fd, (long)buffer, (long)size, (long)at, 0, 0);
    rk_close(fd);
    return n == (long)size;
}

bool rk_read_memory(int pid, uint64_t from, void *to, size_t size) {
    struct iovec here = {to, size}, there = {(void *)from, size}; /* NOLINT: an address of another process */
    long n = rk_call(SYS_process_vm_readv, pid, (long)&here, 1, (long)&there, 1, 0);
    return n == (long)size || (n < 0 && n != -EFAULT && access_by_proc(pid, from, to, size, false));
}

ssize_t rk_write_memory(int pid, uint64_t to, const void *from, size_t size) {
    struct iovec here = {(void *)from, size}, there = {(void *)to, size}; /* NOLINT: as above */
    long n = rk_call(SYS_process_vm_writev, pid, (long)&here, 1, (long)&there, 1, 0);
    bool is_final = n >= 0 || n == -EFAULT;
    return !is_final && access_by_proc(pid, to, (void *)from, size, true) ? (ssize_t)size : n;
}

/* The opened file stays the requester's memory, even if another program replaces it meanwhile. */
ssize_t rk_write_waiting(const struct request *request, uint64_t to, const void *from, size_t size) {
    char path[64];
    int fd = rk_open(rk_proc_path(path, request->thread, "mem"), O_WRONLY, 0);
    long n = -ESRCH;
    if (rk_is_waiting(request))
        n = fd < 0 ? rk_write_memory(request->thread, to, from, size)
                   : rk_call(SYS_pwrite64, fd, (long)from, (long)size, (long)to, 0, 0);
    if (fd >= 0) rk_close(fd);
    return n == -EIO ? -EFAULT : n;
}

bool rk_is_memory(int pid, uint64_t at, bool *not_allowed) {
    uint8_t byte;
    struct iovec here = {&byte, 1}, there = {(void *)at, 1}; /* NOLINT: as above */
    long n = rk_call(SYS_process_vm_readv, pid, (long)&here, 1, (long)&there, 1, 0);
    *not_allowed = n < 0 && n != -EFAULT && !access_by_proc(pid, at, &byte, 1, false);
    return n != -EFAULT && !*not_allowed;
}

/* Reads page by page, as the next one may not be mapped. Returns false for a longer text. */
bool rk_read_text(int pid, uint64_t from, char *text, size_t size) {
    for (size_t done = 0; done < size;) {
        size_t part = PAGE - ((from + done) & (PAGE - 1));
        if (part > size - done) part = size - done;
        if (!rk_read_memory(pid, from + done, text + done, part)) return false;
        if (memchr(text + done, 0, part)) return true;
        done += part;
    }
    return false;
}

long rk_read_proc(int pid, const char *name, char *text, size_t size) {
    char path[64];
    int fd = rk_open(rk_proc_path(path, pid, name), O_RDONLY, 0);
    if (fd < 0) return -1;
    size_t length = 0;
    long n;
    while (length + 1 < size &&
           (n = rk_call(SYS_read, fd, (long)text + (long)length, (long)(size - 1 - length), 0, 0, 0)) > 0)
        length += (size_t)n;
    rk_close(fd);
    text[length] = 0;
    return (long)length;
}
