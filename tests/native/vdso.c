/* native/recorder/vdso.c by itself: its code called where it was put, and images of a vDSO that are damaged. */
#include "recorder/vdso.c"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>

#define DIE(what) (perror(what), exit(99))
#define CHECK(condition) \
    if (!(condition)) DIE(#condition)

typedef long (*function)(void *, size_t, unsigned, void *, size_t);

static long answer(void *buffer, size_t size, unsigned flags) {
    memset(buffer, 0x5a, size);
    return (long)(size + flags);
}

static function placed(const uint8_t *code, size_t size) {
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && size <= RK_VDSO_CODE);
    memcpy(page, code, size);
    CHECK(mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0);
    __builtin___clear_cache((char *)page, (char *)page + size);
    return (function)page;
}

static void try_code(void) {
    uint8_t code[RK_VDSO_CODE], bytes[32] = {0}, zeros[32] = {0};
    function calling = placed(code, rk_vdso_call(code));
    CHECK(calling(bytes, 32, 0, NULL, 144) == 32 && memcmp(bytes, zeros, 32) != 0);
    CHECK(calling(bytes, 32, 0xff00, NULL, 144) == -EINVAL);
    CHECK(calling(NULL, 0, 0, bytes, ~0UL) == -ENOSYS);
    function jumping = placed(code, rk_vdso_jump(code, (const void *)answer));
    CHECK(jumping(bytes, 16, GRND_NONBLOCK, NULL, 144) == 17 && bytes[0] == 0x5a && bytes[15] == 0x5a);
    CHECK(jumping(NULL, 0, 0, bytes, ~0UL) == -ENOSYS);
}

/* In a buffer of its very size, so that AddressSanitizer sees each byte read past it. */
static void try_image(const uint8_t *image, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    uint64_t offset = 0;
    memcpy(copy, image, size);
    if (rk_vdso_find(copy, size, &offset)) CHECK(offset <= size - RK_VDSO_CODE);
    free(copy);
}

static void try_damaged(const uint8_t *image, size_t size) {
    uint64_t state = 1;
    for (size_t length = 0; length < size; length += 13) try_image(image, length);
    for (int i = 0; i < 20000; i++) {
        uint8_t *copy = malloc(size);
        memcpy(copy, image, size);
        for (int n = 0; n < 1 + i % 4; n++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            size_t place = (size_t)(state >> 33) % (i % 2 ? size : size / 4); /* the tables stand in front */
            copy[place] = (uint8_t)(state >> 24);
        }
        try_image(copy, size);
        free(copy);
    }
}

int main(void) {
    const uint8_t *image = (const uint8_t *)getauxval(AT_SYSINFO_EHDR);
    try_code();
    if (image) try_damaged(image, 4096); /* an image fills whole pages */
    return 0;
}
