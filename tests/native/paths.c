/* One path by which entropy reaches a program, chosen by the first argument; prints the bytes in hex. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#define DIE(what) (perror(what), exit(99))
#define CHECK(condition) \
    if (!(condition)) DIE(#condition)

static char *self, *extra;

static void show(const void *bytes, size_t size) {
    char line[2 * 256 + 2];
    for (size_t i = 0; i < size; i++) sprintf(line + 2 * i, "%02x", ((const uint8_t *)bytes)[i]);
    line[2 * size] = '\n';
    CHECK(write(1, line, 2 * size + 1) == (ssize_t)(2 * size + 1));
}

static uint8_t buffer[256];

static void with_getrandom(void) {
    CHECK(getrandom(buffer, 16, 0) == 16);
    show(buffer, 16);
}
static void with_getrandom_flags(void) {
    CHECK(getrandom(buffer, 16, GRND_NONBLOCK) == 16);
    show(buffer, 16);
    errno = 0;
    CHECK(getrandom(buffer, 16, 0x80) == -1 && errno == EINVAL);
    CHECK(getrandom(NULL, 0, 0) == 0);
}
static void with_getentropy(void) {
    CHECK(getentropy(buffer, 16) == 0);
    show(buffer, 16);
    uint8_t large[257];
    CHECK(getentropy(large, 257) == -1 && errno == EIO);
}
#if __GLIBC_PREREQ(2, 36)
static void with_arc4random(void) {
    uint32_t value = arc4random();
    show(&value, 4);
}
static void with_arc4random_buf(void) {
    arc4random_buf(buffer, 32);
    show(buffer, 32);
}
static void with_arc4random_uniform(void) {
    for (int i = 0; i < 16; i++) {
        uint32_t value = arc4random_uniform(1000);
        CHECK(value < 1000);
        show(&value, 4);
    }
}
#endif
static void with_syscall(void) {
    CHECK(syscall(SYS_getrandom, buffer, 16, 0) == 16);
    show(buffer, 16);
    CHECK(syscall(SYS_getpid) == getpid());
    CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
}
static void with_syscall_read(void) {
    int fd = open("/dev/urandom", O_RDONLY), other = (int)syscall(SYS_openat, AT_FDCWD, "/dev/urandom", O_RDONLY, 0);
    CHECK(syscall(SYS_read, fd, buffer, 16) == 16);
    CHECK(syscall(SYS_read, other, buffer + 16, 16) == 16);
    CHECK(syscall(SYS_pread64, fd, buffer + 32, 16, 0L) == 16);
    show(buffer, 48);
    CHECK(syscall(SYS_read, fd, buffer, 0) == 0);
    CHECK(syscall(SYS_read, -1, buffer, 1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_openat, AT_FDCWD, "/nowhere", O_RDONLY, 0) == -1 && errno == ENOENT);
}
static void with_getrandom_sources(void) {
    unsigned flags[] = {GRND_RANDOM, GRND_RANDOM | GRND_NONBLOCK, GRND_INSECURE};
    for (int i = 0; i < 3; i++) {
        CHECK(getrandom(buffer, 16, flags[i]) == 16);
        show(buffer, 16);
    }
    CHECK(getrandom(buffer, 16, GRND_RANDOM | GRND_INSECURE) == -1 && errno == EINVAL);
}
static void read_from(int fd) {
    CHECK(fd >= 0);
    CHECK(read(fd, buffer, 16) == 16);
    show(buffer, 16);
    CHECK(close(fd) == 0);
}
static void with_open(void) { read_from(open("/dev/urandom", O_RDONLY)); }
static void with_open_random(void) { read_from(open("/dev/random", O_RDONLY)); }
static void with_open64(void) { read_from(open64("/dev/urandom", O_RDONLY | O_CLOEXEC)); }
static void with_openat(void) { read_from(openat(AT_FDCWD, "/dev/urandom", O_RDONLY)); }
static void with_openat_directory(void) {
    int directory = open("/dev", O_RDONLY | O_DIRECTORY);
    read_from(openat(directory, "urandom", O_RDONLY));
}
static void with_odd_spelling(void) { read_from(open("/dev/../dev//./urandom", O_RDONLY)); }
static void with_symlink(void) { read_from(open(extra, O_RDONLY)); }
static void with_read_write(void) { read_from(open("/dev/urandom", O_RDWR)); }
static void with_readv(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    struct iovec parts[2] = {{buffer, 7}, {buffer + 7, 9}};
    CHECK(readv(fd, parts, 2) == 16);
    show(buffer, 16);
}
static void with_pread(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    CHECK(pread(fd, buffer, 16, 5) == 16);
    show(buffer, 16);
    CHECK(pread64(fd, buffer, 16, 0) == 16);
    show(buffer, 16);
}
static void with_preadv(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    struct iovec part = {buffer, 16};
    CHECK(preadv(fd, &part, 1, 0) == 16);
    show(buffer, 16);
    CHECK(preadv2(fd, &part, 1, -1, 0) == 16);
    show(buffer, 16);
}
ssize_t __read_chk(int fd, void *bytes, size_t size, size_t room);
static void with_fortified_read(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    CHECK(__read_chk(fd, buffer, 16, sizeof(buffer)) == 16);
    show(buffer, 16);
}
static void with_large_read(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    size_t size = (5u << 20) + 123, done = 0;
    uint8_t *large = malloc(size);
    for (ssize_t n; done < size; done += (size_t)n) CHECK((n = read(fd, large + done, size - done)) > 0);
    uint8_t folded[32] = {0};
    for (size_t i = 0; i < size; i++) folded[i % 32] = (uint8_t)(folded[i % 32] * 31 + large[i]);
    show(folded, 32);
}
/* The device has no memory to map: as bare. */
static void with_mmap(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == ENODEV);
    read_from(fd);
}
static void with_dup(void) { read_from(dup(open("/dev/urandom", O_RDONLY))); }
static void with_dup2(void) { read_from(dup2(open("/dev/urandom", O_RDONLY), 40)); }
static void with_dup3(void) { read_from(dup3(open("/dev/urandom", O_RDONLY), 41, O_CLOEXEC)); }
static void with_fcntl(void) { read_from(fcntl(open("/dev/urandom", O_RDONLY), F_DUPFD_CLOEXEC, 50)); }
static void read_stream(FILE *stream) {
    CHECK(stream);
    CHECK(fread(buffer, 1, 16, stream) == 16);
    show(buffer, 16);
    buffer[0] = (uint8_t)fgetc(stream);
    buffer[1] = (uint8_t)getc_unlocked(stream);
    show(buffer, 2);
}
static void with_fopen(void) {
    FILE *stream = fopen("/dev/urandom", "rb");
    read_stream(stream);
    CHECK(fileno(stream) >= 3);
    CHECK(fclose(stream) == 0);
}
static void with_fopen_large(void) {
    FILE *stream = fopen64("/dev/urandom", "r");
    uint8_t large[20000];
    CHECK(fread(large, 1, sizeof(large), stream) == sizeof(large));
    show(large + sizeof(large) - 32, 32);
}
/* As NumPy before 1.17 does: a request for each byte. */
static void with_fopen_unbuffered(void) {
    FILE *stream = fopen("/dev/urandom", "rb");
    setvbuf(stream, NULL, _IONBF, 0);
    read_stream(stream);
}
static void with_fdopen(void) { read_stream(fdopen(open("/dev/urandom", O_RDONLY), "r")); }
static void with_freopen(void) {
    FILE *stream = fopen("/dev/null", "r");
    read_stream(freopen("/dev/urandom", "r", stream));
}
static void with_stdin(void) { read_stream(stdin); }
static void with_stdin_read(void) {
    CHECK(read(0, buffer, 16) == 16);
    show(buffer, 16);
}
static void wait_for(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void with_fork(void) {
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            with_getrandom();
            pid_t grandchild = fork();
            if (grandchild == 0) {
                with_getrandom();
                _exit(0);
            }
            wait_for(grandchild);
            _exit(0);
        }
        wait_for(child);
    }
    with_getrandom();
}
/* The children have no order among themselves: each is named by its number, and shows it. */
static void with_concurrent_forks(void) {
    int ends[8][2];
    for (int i = 0; i < 8; i++) {
        CHECK(pipe(ends[i]) == 0);
        if (fork() == 0) {
            getrandom(buffer, 16, 0);
            CHECK(write(ends[i][1], buffer, 16) == 16);
            _exit(0);
        }
    }
    for (int i = 0; i < 8; i++) {
        CHECK(read(ends[i][0], buffer, 16) == 16);
        show(buffer, 16);
    }
    while (wait(NULL) > 0) continue;
}
static void with_descriptor_through_fork(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    pid_t child = fork();
    if (child == 0) {
        read_from(fd);
        _exit(0);
    }
    wait_for(child);
    read_from(fd);
}
static void with_descriptor_through_exec(void) {
    CHECK(dup2(open("/dev/urandom", O_RDONLY), 0) == 0);
    execl(self, self, "stdin_read", NULL);
    DIE("execl");
}
static void with_stdin_through_exec(void) {
    CHECK(dup2(open("/dev/urandom", O_RDONLY), 0) == 0);
    execl(self, self, "stdin", NULL);
    DIE("execl");
}
static void with_vfork(void) {
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/no/such/directory/paths", "paths", NULL);
            execl(self, self, "getrandom", NULL);
            _exit(98);
        }
        wait_for(child);
    }
}
static void with_empty_environment(void) {
    char *arguments[] = {self, "getrandom", NULL}, *environment[] = {NULL};
    pid_t child = fork();
    if (child == 0) {
        execve(self, arguments, environment);
        _exit(98);
    }
    wait_for(child);
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environment) == 0);
    wait_for(child);
}
static void with_posix_spawn(void) {
    char *arguments[] = {self, "getrandom", NULL};
    pid_t child;
    for (int i = 0; i < 3; i++) {
        CHECK(posix_spawnp(&child, self, NULL, NULL, arguments, environ) == 0);
        wait_for(child);
    }
    CHECK(posix_spawn(&child, "/no/such/program", NULL, NULL, arguments, environ) == ENOENT);
}
static void with_exec(void) {
    char *arguments[] = {self, "getrandom", NULL};
    with_getrandom();
    execv(self, arguments);
    DIE("execv");
}
static void with_execlp(void) { execlp(self, self, "getrandom", NULL); }
static void with_execle(void) {
    char *environment[] = {"A=1", NULL};
    execle(self, self, "getrandom", NULL, environment);
}
static void with_system(void) {
    char command[4200];
    snprintf(command, sizeof(command), "'%s' getrandom; '%s' getrandom", self, self);
    CHECK(system(command) == 0);
    clearenv();
    CHECK(system(command) == 0);
    CHECK(WEXITSTATUS(system("exit 3")) == 3);
    int status = system("kill -9 $$");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == 9);
}
static void with_popen(void) {
    char command[4200], line[256];
    snprintf(command, sizeof(command), "'%s' getrandom", self);
    for (int i = 0; i < 3; i++) {
        FILE *stream = popen(command, "r");
        CHECK(stream && fgets(line, sizeof(line), stream));
        CHECK(write(1, line, strlen(line)) > 0);
        CHECK(pclose(stream) == 0);
    }
    FILE *stream = popen("exec cat", "w");
    CHECK(stream && fputs("through cat\n", stream) > 0);
    CHECK(pclose(stream) == 0);
    CHECK(WEXITSTATUS(pclose(popen("exit 5", "r"))) == 5);
}

static uint8_t from_threads[8][32];
static void *draw(void *index) {
    for (int i = 0; i < 2; i++) CHECK(getrandom(from_threads[(intptr_t)index] + 16 * i, 16, 0) == 16);
    return NULL;
}
static void with_threads(void) {
    pthread_t threads[8];
    for (intptr_t i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, draw, (void *)i) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    show(from_threads, 256);
    with_getrandom();
}
static void *draw_below(void *index) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, draw, index) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return draw(index);
}
static void with_threads_of_threads(void) {
    pthread_t threads[8];
    for (intptr_t i = 0; i < 8; i++) CHECK(pthread_create(&threads[i], NULL, draw_below, (void *)i) == 0);
    for (int i = 0; i < 8; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    show(from_threads, 256);
}
static int draw_c11(void *index) {
    draw(index);
    return 0;
}
static void with_c11_thread(void) {
    thrd_t thread;
    CHECK(thrd_create(&thread, draw_c11, (void *)0) == thrd_success);
    CHECK(thrd_join(thread, NULL) == thrd_success);
    show(from_threads, 32);
}
static void *fork_in_thread(void *index) {
    (void)index;
    pid_t child = fork();
    if (child == 0) {
        with_threads();
        _exit(0);
    }
    wait_for(child);
    return NULL;
}
static void with_fork_in_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fork_in_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    with_getrandom();
}
static void in_handler(int number) {
    (void)number;
    uint8_t bytes[8];
    CHECK(getrandom(bytes, 8, 0) == 8);
    show(bytes, 8);
}
static void with_signal_handler(void) {
    signal(SIGUSR1, in_handler);
    with_getrandom();
    raise(SIGUSR1);
    with_getrandom();
}
static void with_closed_descriptors(void) {
    with_getrandom();
    for (int fd = 3; fd < 1024; fd++) close(fd);
    for (int i = 0; i < 1000; i++) CHECK(getrandom(buffer, 200, 0) == 200);
    show(buffer, 200);
    CHECK(open("/dev/null", O_RDONLY) == 3);
}
/* A number that was the device's is an ordinary file's now, closed and opened past every hook. */
static void with_reused_descriptor(void) {
    int fd = open("/dev/urandom", O_RDONLY);
    syscall(SYS_close, fd);
    CHECK(syscall(SYS_openat, AT_FDCWD, self, O_RDONLY, 0) == fd);
    CHECK(read(fd, buffer, 4) == 4);
    CHECK(memcmp(buffer, "\177ELF", 4) == 0);
    with_getrandom();
}
static void with_many(void) { /* far beyond the first chunk and window */
    uint64_t sum[4] = {0};
    for (int i = 0; i < 20000; i++) {
        size_t size = 1 + (size_t)i % 200;
        CHECK(getrandom(buffer, size, 0) == (ssize_t)size);
        for (size_t j = 0; j < size; j++) sum[j % 4] = sum[j % 4] * 31 + buffer[j];
    }
    show(sum, sizeof(sum));
}

#define PATH(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    PATH(getrandom), PATH(getrandom_flags), PATH(getrandom_sources), PATH(mmap), PATH(getentropy), PATH(syscall),
    PATH(syscall_read), PATH(open),
    PATH(open_random), PATH(open64), PATH(openat), PATH(openat_directory), PATH(odd_spelling), PATH(symlink),
    PATH(read_write), PATH(readv), PATH(pread), PATH(preadv), PATH(fortified_read), PATH(large_read), PATH(dup),
    PATH(dup2), PATH(dup3), PATH(fcntl), PATH(fopen), PATH(fopen_large), PATH(fopen_unbuffered), PATH(fdopen),
    PATH(freopen), PATH(stdin), PATH(stdin_read), PATH(fork), PATH(concurrent_forks), PATH(descriptor_through_fork),
    PATH(descriptor_through_exec), PATH(stdin_through_exec), PATH(vfork), PATH(empty_environment), PATH(posix_spawn),
    PATH(exec), PATH(execlp), PATH(execle), PATH(system), PATH(popen), PATH(threads), PATH(threads_of_threads),
    PATH(c11_thread), PATH(fork_in_thread), PATH(signal_handler), PATH(closed_descriptors), PATH(reused_descriptor),
    PATH(many),
#if __GLIBC_PREREQ(2, 36)
    PATH(arc4random), PATH(arc4random_buf), PATH(arc4random_uniform),
#endif
};

int main(int count, char **arguments) {
    self = realpath(arguments[0], NULL);
    extra = count > 2 ? arguments[2] : NULL;
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        if (count < 2) puts(paths[i].name);
        else if (strcmp(paths[i].name, arguments[1]) == 0) return paths[i].run(), 0;
    }
    return count < 2 ? 0 : 97;
}
