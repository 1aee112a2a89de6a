/* image.c - what kind of program a process executes, and what the kernel gave it when it started. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/chacha20.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "recorder/vdso.h"
#include "supervisor/supervisor.h"

#define PARTS       64
#define ENVIRONMENT (4u << 20)  /* maximum bytes that are read */
#define IMAGE       (64u << 10) /* maximum size of a vDSO */
#define PAGE        4096

static bool read_at(int fd, uint64_t offset, void *to, size_t size) {
    return rk_call(SYS_pread64, fd, (long)to, (long)size, (long)offset, 0, 0) == (long)size;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static void read_loader(struct program *program, int fd, const Elf64_Phdr *part) {
    size_t size = part->p_filesz < sizeof(program->loader) ? part->p_filesz : sizeof(program->loader) - 1;
    program->is_static = read_at(fd, part->p_offset, program->loader, size) && strstr(program->loader, "ld-musl");
}

static void read_notes(struct program *program, int fd, const Elf64_Phdr *part) {
    char notes[4096];
    size_t size = part->p_filesz < sizeof(notes) ? part->p_filesz : sizeof(notes);
    if (!read_at(fd, part->p_offset, notes, size)) return;
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) + 4 <= size;) {
        const Elf64_Nhdr *note = (const Elf64_Nhdr *)(notes + at);
        const char *name = notes + at + sizeof(*note);
        if (note->n_namesz == 4 && memcmp(name, "Go\0", 4) == 0) program->is_go = true;
        at += sizeof(*note) + (((uint64_t)note->n_namesz + 3) & ~UINT64_C(3)) +
              (((uint64_t)note->n_descsz + 3) & ~UINT64_C(3));
    }
}

/* Reads the release of Go, 1.18 or later, as run/modules.py does: a file that `go run` made is gone at the end.
 */
static void read_release(struct program *program, int fd, const Elf64_Phdr *part) {
    static const char magic[] = "\xff Go buildinf:";
    static char data[64 << 10];
    size_t size = part->p_filesz < sizeof(data) ? part->p_filesz : sizeof(data), n = 0;
    const char *at = read_at(fd, part->p_offset, data, size) ? memmem(data, size, magic, sizeof(magic) - 1) : NULL;
    if (!at || (size_t)(data + size - at) < 64 || !(at[15] & 2)) return;
    for (at += 33; n + 1 < sizeof(program->go) && at + n < data + size && strchr(".0123456789go", at[n]) && at[n]; n++)
        program->go[n] = at[n];
    program->go[n] = 0;
}

static void examine_file(struct program *program, int fd) {
    Elf64_Ehdr head;
    Elf64_Phdr parts[PARTS];
    if (!read_at(fd, 0, &head, sizeof(head)) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return;
    size_t count = head.e_phnum < PARTS ? head.e_phnum : PARTS;
    if (head.e_phentsize != sizeof(parts[0]) || !read_at(fd, head.e_phoff, parts, count * sizeof(parts[0]))) return;
    program->is_fixed = head.e_type == ET_EXEC;
    program->is_static = true;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].p_type == PT_INTERP) read_loader(program, fd, &parts[i]);
        if (parts[i].p_type == PT_NOTE) read_notes(program, fd, &parts[i]);
    }
    for (size_t i = 0; i < count; i++)
        if (program->is_go && parts[i].p_type == PT_LOAD && parts[i].p_flags & PF_W)
            read_release(program, fd, &parts[i]);
}

bool rk_is_past_shim(const char *path) {
    static struct program program;
    int fd = rk_open(path, O_RDONLY, 0);
    if (fd < 0) return false;
    program.is_static = program.is_go = false;
    examine_file(&program, fd);
    rk_close(fd);
    return program.is_static || program.is_go;
}

/* ---- the environment ------------------------------------------------------------------------------------ */

static const char *variable_value(const char *entry, const char *name) {
    size_t n = strlen(name);
    return strncmp(entry, name, n) == 0 && entry[n] == '=' ? entry + n + 1 : NULL;
}

/* Reads the environment as it was at the exec. */
static void examine_environment(struct program *program, int pid) {
    static char text[ENVIRONMENT];
    long length = rk_read_proc(pid, "environ", text, sizeof(text));
    const char *value;
    for (char *entry = text; entry < text + length; entry += strlen(entry) + 1) {
        if ((value = variable_value(entry, "REPROKIT_ID"))) rk_append(program->inherited, RK_IDENTITY, 0, value);
        if ((value = variable_value(entry, "LD_PRELOAD")) && strstr(value, rk_plan.shim)) program->shimmed = true;
    }
}

void rk_look_into(struct program *program, int pid) {
    rk_proc_path(program->executable, pid, "exe");
    int fd = rk_open(program->executable, O_RDONLY, 0);
    if (fd >= 0) examine_file(program, fd);
    if (fd >= 0) rk_close(fd);
    examine_environment(program, pid);
    if (program->is_static) program->shimmed = false;
}

/* ---- the shim, for programs that cannot open it --------------------------------------------------------------- */

bool rk_path_in_root(char place[RK_PLACE], int pid, const char *path) {
    char root[64];
    size_t n = rk_append(place, RK_PLACE, 0, rk_proc_path(root, pid, "root"));
    return rk_append(place, RK_PLACE, n, path) + 1 < RK_PLACE;
}

bool rk_is_same_file(const char *path, int pid, const char *path_in_root) {
    struct stat left, right;
    char place[RK_PLACE];
    return rk_path_in_root(place, pid, path_in_root) &&
           rk_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&left, 0, 0, 0) == 0 &&
           rk_call(SYS_newfstatat, AT_FDCWD, (long)place, (long)&right, 0, 0, 0) == 0 && left.st_dev == right.st_dev &&
           left.st_ino == right.st_ino;
}

static bool is_of_another_user(int pid) {
    struct stat status;
    char path[64];
    return rk_call(SYS_newfstatat, AT_FDCWD, (long)rk_proc_path(path, pid, ""), (long)&status, 0, 0, 0) == 0 &&
           status.st_uid != (uid_t)rk_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

const char *rk_shim_path(void) {
    static char path[sizeof(rk_plan.shim) + sizeof(RK_SHIM)];
    const char *slash = strrchr(rk_plan.shim, '/');
    size_t n = slash ? (size_t)(slash + 1 - rk_plan.shim) : 0;
    memcpy(path, rk_plan.shim, n);
    rk_append(path, sizeof(path), n, RK_SHIM);
    return path;
}

int rk_open_for(int pid, const char *path) {
    return rk_is_same_file(path, pid, path) && !is_of_another_user(pid) ? -1 : rk_open(path, O_RDONLY, 0);
}

/* ---- what the kernel gives a program --------------------------------------------------------------------------- */

static uint64_t auxiliary(int pid, uint64_t type) {
    char text[1024] __attribute__((aligned(8)));
    long length = rk_read_proc(pid, "auxv", text, sizeof(text));
    for (long at = 0; at + 16 <= length; at += 16) {
        const uint64_t *entry = (const uint64_t *)(text + at);
        if (entry[0] == type) return entry[1];
    }
    return 0;
}

bool rk_read_random(struct program *program, int pid, uint8_t bytes[16]) {
    if (!program->at_random) program->at_random = auxiliary(pid, AT_RANDOM);
    return program->at_random && rk_read_memory(pid, program->at_random, bytes, 16);
}

/* Replaces AT_RANDOM like the shim does (stack.c): from the run's key and the identity. */
static void replace_at_random(const struct program *program, int pid) {
    uint64_t address = auxiliary(pid, AT_RANDOM);
    if (!address) return;
    uint8_t block[64];
    uint64_t nonce = rk_check("AT_RANDOM", 9, rk_check(program->identity, strlen(program->identity), 0));
    rk_chacha20(rk_plan.key, nonce, 0, block);
    rk_write_memory(pid, address, block, 16);
}

/* Returns the offset of getrandom in the vDSO, which is the same for all processes; 0 if there is none. */
static uint64_t find_getrandom_in_vdso(void) {
    const uint8_t *own = (const uint8_t *)getauxval(AT_SYSINFO_EHDR); /* NOLINT: an address by its definition */
    static uint8_t image[IMAGE];
    uint64_t offset = 0;
    size_t size = 0;
    while (own && size < IMAGE && rk_read_memory(rk_getpid(), (uint64_t)own + size, image + size, PAGE)) size += PAGE;
    return size && rk_vdso_find(image, size, &offset) ? offset : 0;
}

/* Writes the same line as the shim (modules.c). */
void rk_say_uncovered(const char *line) {
    char path[RK_RUN_PATH + 32];
    size_t n = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), n, "/modules.paths");
    int fd = rk_open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    rk_call(SYS_write, fd, (long)line, (long)strlen(line), 0, 0, 0);
    rk_close(fd);
}

/* Lists a program that no shim lists, once a run: "PATH", or "go1.19.8 PATH" ("go PATH" of an unknown release), as Go's
 * runtime may seed itself by itself. Go programs end past libc, so that no shim lists them either. */
static void list_program(const struct program *program, int pid) {
    static uint64_t listed[1024];
    char link[64], line[PATH_MAX + 32];
    uint64_t run;
    size_t n = rk_append(line, sizeof(line), 0, !program->is_go ? "" : *program->go ? program->go : "go");
    n = rk_append(line, sizeof(line), n, program->is_go ? " " : "");
    long size =
        rk_call(SYS_readlinkat, AT_FDCWD, (long)rk_proc_path(link, pid, "exe"), (long)(line + n), PATH_MAX, 0, 0);
    if (size <= 0 || line[n] != '/' || memchr(line + n, '\n', (size_t)size)) return;
    n = rk_append(line, sizeof(line), n + (size_t)size, "\n");
    memcpy(&run, rk_plan.key, sizeof(run));
    uint64_t hash = rk_check(line, n, run) | 1;
    if (listed[hash / 2 % RK_LENGTH(listed)] == hash) return;
    listed[hash / 2 % RK_LENGTH(listed)] = hash;
    rk_say_uncovered(line);
}

static bool is_refused(long error) { return error == -EACCES || error == -EPERM || error == -EIO; }

/* Replaces getrandom in the vDSO. /proc/PID/mem may write to a read-only page, as a private copy of the program. */
static void replace_in_vdso(struct program *program, int pid) {
    static uint64_t offset;
    static bool is_searched;
    if (!is_searched) offset = find_getrandom_in_vdso();
    is_searched = true;
    if (!offset) return;
    uint8_t code[RK_VDSO_CODE];
    char path[64];
    size_t size = rk_vdso_call(code);
    long result = rk_open(rk_proc_path(path, pid, "mem"), O_WRONLY, 0);
    int fd = (int)result;
    uint64_t start = fd < 0 ? 0 : auxiliary(pid, AT_SYSINFO_EHDR);
    if (start) result = rk_call(SYS_pwrite64, fd, (long)code, (long)size, (long)(start + offset), 0, 0);
    program->vdso_refused = is_refused(result);
    if (fd >= 0) rk_close(fd);
}

void rk_cover_start(struct program *program, int pid) {
    if (program->is_go || !program->shimmed) list_program(program, pid);
    if (program->shimmed) return;
    replace_at_random(program, pid);
    replace_in_vdso(program, pid);
}
