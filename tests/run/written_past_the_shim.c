/* written_past_the_shim.c - writes files by instructions of its own, linked statically: TEXT into
 * new, sub/dir/new (whose directories it makes), renamed (by renameat2 from a temporary name), replaced (likewise), and
 * changed (in place, by a mapping, with the time of modification put back). */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d, long e) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
#endif
}

static void write_file(const char *path, const char *text) {
    long fd = call(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_TRUNC, 0644, 0);
    call(SYS_write, fd, (long)text, (long)strlen(text), 0, 0);
    call(SYS_close, fd, 0, 0, 0, 0);
}

static void change_in_place(const char *path, const char *text) {
    struct stat status;
    int fd = (int)call(SYS_openat, AT_FDCWD, (long)path, O_RDWR, 0, 0);
    if (fd < 0 || fstat(fd, &status) != 0) return;
    char *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memcpy(bytes, text, strlen(text));
    munmap(bytes, 4096);
    const struct timespec times[] = {status.st_atim, status.st_mtim};
    call(SYS_utimensat, fd, 0, (long)times, 0, 0);
    close(fd);
}

int main(int count, char **arguments) {
    const char *text = count > 1 ? arguments[1] : "text";
    write_file("new", text);
    call(SYS_mkdirat, AT_FDCWD, (long)"sub", 0755, 0, 0);
    call(SYS_mkdirat, AT_FDCWD, (long)"sub/dir", 0755, 0, 0);
    write_file("sub/dir/new", text);
    write_file(".tmp1", text);
    call(SYS_renameat2, AT_FDCWD, (long)".tmp1", AT_FDCWD, (long)"renamed", 0);
    write_file(".tmp2", text);
    call(SYS_renameat2, AT_FDCWD, (long)".tmp2", AT_FDCWD, (long)"replaced", 0);
    change_in_place("changed", text);
    return 0;
}
