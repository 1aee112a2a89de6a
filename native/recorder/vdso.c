/* vdso.c - getrandom of the vDSO: its offset in the vDSO's image, and the code that replaces it.
 *
 * It answers a program without a system call, so that neither hooks nor a supervisor see it. glibc (2.41 and newer) and
 * Go first query the size of its state, and fall back to the system call only if that query fails. So the replacement
 * returns ENOSYS to the query, and answers requests for bytes by the system call or by a function of the shim.
 *
 * Nothing here changes the process it runs in: the shim writes to its own vDSO, a supervisor to that of a program
 * without the shim (/proc/PID/mem writes to a private copy of the page).
 */
#include <elf.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/compiler.h"
#include "recorder/vdso.h"

struct image {
    const uint8_t *bytes;
    size_t size;
    uint64_t symbols, strings, hash, gnu_hash; /* offsets */
};

/* Returns n bytes at an offset of the image; NULL if it ends before. */
static const void *at(const struct image *image, uint64_t offset, uint64_t n) {
    return offset <= image->size && n <= image->size - offset ? image->bytes + offset : NULL;
}

static uint32_t word(const struct image *image, uint64_t offset) {
    const void *bytes = at(image, offset, 4);
    uint32_t value = 0;
    if (bytes) memcpy(&value, bytes, 4);
    return value;
}

static void read_dynamic(struct image *image, uint64_t offset) {
    const Elf64_Dyn *entry;
    for (; (entry = at(image, offset, sizeof(*entry))) && entry->d_tag != DT_NULL; offset += sizeof(*entry)) {
        if (entry->d_tag == DT_SYMTAB) image->symbols = entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) image->strings = entry->d_un.d_ptr;
        if (entry->d_tag == DT_HASH) image->hash = entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) image->gnu_hash = entry->d_un.d_ptr;
    }
}

static bool read_image(struct image *image) {
    const Elf64_Ehdr *head = at(image, 0, sizeof(*head));
    if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64) return false;
    for (uint64_t i = 0; i < head->e_phnum; i++) {
        const Elf64_Phdr *part = at(image, head->e_phoff + i * sizeof(*part), sizeof(*part));
        if (part && part->p_type == PT_DYNAMIC) read_dynamic(image, part->p_vaddr);
    }
    return image->symbols && image->strings;
}

/* The last chain of a GNU hash table ends at the last symbol. */
static uint64_t count_by_gnu_hash(const struct image *image) {
    uint64_t buckets = word(image, image->gnu_hash), first = word(image, image->gnu_hash + 4);
    uint64_t table = image->gnu_hash + 16 + 8 * (uint64_t)word(image, image->gnu_hash + 8), last = 0;
    for (uint64_t i = 0; i < buckets && at(image, table + 4 * i, 4); i++) {
        uint64_t index = word(image, table + 4 * i);
        if (index > last) last = index;
    }
    uint64_t chains = table + 4 * buckets;
    while (last >= first && last && at(image, chains + 4 * (last - first), 4) &&
           !(word(image, chains + 4 * (last - first)) & 1))
        last++;
    return last + 1;
}

static bool is_getrandom(const struct image *image, const Elf64_Sym *symbol) {
    static const char *const names[] = {"__vdso_getrandom", "__kernel_getrandom"}; /* x86-64; aarch64 */
    for (size_t i = 0; i < RK_LENGTH(names); i++) {
        size_t size = strlen(names[i]) + 1;
        const void *name = at(image, image->strings + symbol->st_name, size);
        if (name && memcmp(name, names[i], size) == 0) return true;
    }
    return false;
}

bool rk_vdso_find(const uint8_t *bytes, size_t size, uint64_t *offset) {
    struct image image = {.bytes = bytes, .size = size};
    if (!read_image(&image)) return false;
    uint64_t count = image.hash ? word(&image, image.hash + 4) : count_by_gnu_hash(&image);
    for (uint64_t i = 0; i < count; i++) {
        const Elf64_Sym *symbol = at(&image, image.symbols + i * sizeof(*symbol), sizeof(*symbol));
        if (!symbol) return false;
        if (!is_getrandom(&image, symbol)) continue;
        *offset = symbol->st_value;
        return symbol->st_size >= RK_VDSO_CODE && at(&image, symbol->st_value, RK_VDSO_CODE);
    }
    return false;
}

/* long getrandom(void *buffer, size_t size, unsigned flags, void *state, size_t state_size), where a
 * state_size of ~0 queries what a state needs. */
#if defined(__x86_64__)
static const uint8_t call_code[] = {
    0xf3,
    0x0f,
    0x1e,
    0xfa, /* endbr64 */
    0x49,
    0x83,
    0xf8,
    0xff, /* cmp $-1, %r8 */
    0x74,
    0x08, /* je 1f */
    0xb8,
    SYS_getrandom & 0xff,
    SYS_getrandom >> 8,
    0,
    0, /* mov $SYS_getrandom, %eax */
    0x0f,
    0x05, /* syscall */
    0xc3, /* ret */
    0x48,
    0xc7,
    0xc0,
    0xda,
    0xff,
    0xff,
    0xff, /* 1: mov $-ENOSYS, %rax */
    0xc3, /* ret */
};
static const uint8_t jump_code[] = {
    0xf3, 0x0f, 0x1e, 0xfa,                            /* endbr64 */
    0x49, 0x83, 0xf8, 0xff,                            /* cmp $-1, %r8 */
    0x74, 0x0c,                                        /* je 1f */
    0x48, 0xb8, 0,    0,    0,    0,    0,    0, 0, 0, /* movabs $target, %rax */
    0xff, 0xe0,                                        /* jmp *%rax */
    0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff,          /* 1: mov $-ENOSYS, %rax */
    0xc3,                                              /* ret */
};
#define TARGET_OFFSET 12 /* where the address stands */
#elif defined(__aarch64__)
static const uint32_t call_code[] = {
    0xd503245f,                      /* bti c */
    0xb100049f,                      /* cmn x4, #1 */
    0x54000080,                      /* b.eq 1f */
    0xd2800008 | SYS_getrandom << 5, /* mov x8, #SYS_getrandom */
    0xd4000001,                      /* svc #0 */
    0xd65f03c0,                      /* ret */
    0x928004a0,                      /* 1: mov x0, #-ENOSYS */
    0xd65f03c0,                      /* ret */
};
static const uint32_t jump_code[] = {
    0xd503245f,    /* bti c */
    0xb100049f,    /* cmn x4, #1 */
    0x54000060,    /* b.eq 1f */
    0x580000b0,    /* ldr x16, 2f */
    0xd61f0200,    /* br x16 */
    0x928004a0,    /* 1: mov x0, #-ENOSYS */
    0xd65f03c0,    /* ret */
    0xd503201f,    /* nop */
    0,          0, /* 2: target */
};
#define TARGET_OFFSET 32
#endif
_Static_assert(sizeof(call_code) <= RK_VDSO_CODE && sizeof(jump_code) <= RK_VDSO_CODE, "room for the code");

size_t rk_vdso_call(uint8_t code[RK_VDSO_CODE]) {
    memcpy(code, call_code, sizeof(call_code));
    return sizeof(call_code);
}

size_t rk_vdso_jump(uint8_t code[RK_VDSO_CODE], const void *target) {
    memcpy(code, jump_code, sizeof(jump_code));
    memcpy(code + TARGET_OFFSET, &target, sizeof(target));
    return sizeof(jump_code);
}
