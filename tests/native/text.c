/* One way to a random text of the kernel's or a UUID of libuuid's, chosen by the first argument; prints it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIE(what) (perror(what), exit(99))
#define CHECK(condition) \
    if (!(condition)) DIE(#condition)
#define UUID "/proc/sys/kernel/random/uuid"
#define TEXT 37

extern char **environ;
static char text[256];

static void show(const char *what, size_t size) {
    CHECK(write(1, what, size) == (ssize_t)size);
    if (size == 0 || what[size - 1] != '\n') CHECK(write(1, "\n", 1) == 1);
}

static int opened(const char *path, int flags) {
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

/* The kernel makes another one at each read. */
static void with_read(void) {
    int fd = opened(UUID, O_RDONLY | O_CLOEXEC);
    CHECK(read(fd, text, sizeof(text)) == TEXT);
    show(text, TEXT);
    CHECK(text[8] == '-' && text[14] == '4' && strchr("89ab", text[19]) && text[36] == '\n');
    CHECK(read(fd, text, sizeof(text)) == 0);
    CHECK(lseek(fd, 0, SEEK_CUR) == TEXT && lseek(fd, 0, SEEK_SET) == 0);
    char again[TEXT];
    CHECK(read(fd, again, TEXT) == TEXT && memcmp(again, text, TEXT) != 0);
    show(again, TEXT);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && close(fd) == 0);
}
static void with_characters(void) {
    int fd = opened(UUID, O_RDONLY);
    for (int i = 0; i < TEXT; i++) CHECK(read(fd, text + i, 1) == 1);
    CHECK(read(fd, text, 1) == 0 && text[8] == '-' && text[23] == '-' && text[36] == '\n');
    show(text, TEXT);
}
static void with_pread(void) {
    int fd = opened("/proc/sys/../sys/kernel//random/./uuid", O_RDONLY);
    CHECK(pread(fd, text, 10, 3) == 10);
    show(text, 10);
    CHECK(pread(fd, text, 10, TEXT) == 0 && pread(fd, text, 10, -1) == -1);
    CHECK(lseek(fd, 0, SEEK_CUR) == 0);
    struct iovec parts[2] = {{text, 9}, {text + 9, 100}};
    CHECK(readv(fd, parts, 2) > 9);
    show(text, 9);
    CHECK(preadv(fd, parts, 1, 1) == 9);
    show(text, 9);
}
static void with_duplicate(void) {
    int fd = dup(opened(UUID, O_RDONLY)), copy = fcntl(fd, F_DUPFD, 300);
    CHECK(read(fd, text, 20) == 20 && read(copy, text + 20, 100) == TEXT - 20);
    show(text, TEXT);
}
static void with_stream(void) {
    FILE *stream = fopen(UUID, "re");
    CHECK(stream && fgets(text, sizeof(text), stream) && strlen(text) == TEXT);
    show(text, TEXT);
    CHECK(fgetc(stream) == EOF && feof(stream));
    rewind(stream);
    CHECK(fgets(text, sizeof(text), stream) && fclose(stream) == 0);
    show(text, TEXT);
    stream = fdopen(opened(UUID, O_RDONLY), "r");
    CHECK(stream && fread(text, 1, sizeof(text), stream) == TEXT && fclose(stream) == 0);
    show(text, TEXT);
    CHECK(freopen(UUID, "r", stdin) && fgets(text, sizeof(text), stdin));
    show(text, TEXT);
}
static void with_stdin(void) {
    CHECK(fgets(text, sizeof(text), stdin));
    show(text, TEXT);
}
static void with_fork(void) {
    int fd = opened(UUID, O_RDONLY);
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(fd, text, 9) == 9);
        show(text, 9);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child && read(fd, text, 100) == TEXT - 9);
    show(text, TEXT - 9);
    child = vfork();
    if (child == 0) {
        lseek(fd, 0, SEEK_SET);
        if (read(fd, text, TEXT) == TEXT) _exit(0);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    show(text, TEXT);
}
static void with_child(void) {
    char *arguments[] = {"cat", UUID, UUID, NULL};
    pid_t child;
    CHECK(posix_spawnp(&child, "cat", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, NULL, 0) == child);
}
/* A file of another kind under the same name is its own, and other files of procfs are read as they are. */
static void with_others(void) {
    int fd = opened("/proc/sys/kernel/random/poolsize", O_RDONLY);
    CHECK(read(fd, text, sizeof(text)) > 0 && strcmp(text, "256\n") == 0);
    int own = memfd_create("sys/kernel/random/uuid", 0);
    CHECK(write(own, "own\n", 4) == 4 && pread(own, text, 4, 0) == 4 && memcmp(text, "own\n", 4) == 0);
    CHECK(close(fd) == 0 && open(UUID, O_RDONLY) == fd && read(fd, text, sizeof(text)) == TEXT);
    show(text, TEXT);
    CHECK(read(fd, NULL, 0) == 0 && open(UUID, O_WRONLY) == -1);
}
static void with_boot_id(void) {
    for (int i = 0; i < 2; i++) {
        int fd = opened("/proc/sys/kernel/random/boot_id", O_RDONLY);
        CHECK(read(fd, text + i * TEXT, TEXT) == TEXT);
    }
    CHECK(memcmp(text, text + TEXT, TEXT) == 0);
    show(text, TEXT);
    with_read();
}

static void *library;
static void generate(const char *name) {
    uint8_t bytes[17] = {[16] = 0xa5};
    int (*function)(uint8_t *) = (int (*)(uint8_t *))dlsym(library, name);
    CHECK(function);
    int result = function(bytes);
    CHECK(bytes[16] == 0xa5);
    void (*unparse)(const uint8_t *, char *) = (void (*)(const uint8_t *, char *))dlsym(library, "uuid_unparse");
    unparse(bytes, text);
    text[36] = '\n';
    show(text, TEXT);
    if (strstr(name, "safe")) {
        CHECK(result == 0 || result == -1);
        printf("%d\n", result);
    }
}
/* As a program linked with libuuid calls it: through the global scope. */
static void with_libuuid(void) {
    CHECK(dlopen("libuuid.so.1", RTLD_NOW | RTLD_LOCAL));
    library = dlopen(NULL, RTLD_NOW);
    if (!dlsym(library, "uuid_generate")) library = dlopen("libuuid.so.1", RTLD_NOW); /* without the shim */
    void *unparse = dlopen("libuuid.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(unparse);
    generate("uuid_generate");
    generate("uuid_generate_random");
    generate("uuid_generate_time");
    generate("uuid_generate_time_safe");
}

#define PATH(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    PATH(read), PATH(characters), PATH(pread),  PATH(duplicate), PATH(stream),  PATH(stdin),
    PATH(fork), PATH(child),      PATH(others), PATH(boot_id),   PATH(libuuid),
};

int main(int count, char **arguments) {
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        if (count < 2)
            puts(paths[i].name);
        else if (strcmp(paths[i].name, arguments[1]) == 0)
            return paths[i].run(), 0;
    }
    return count < 2 ? 0 : 97;
}
