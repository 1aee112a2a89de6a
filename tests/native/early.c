/* A library whose constructor, which runs before that of any preloaded one, asks for entropy. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#ifdef LIBRARY
uint64_t early_bytes;
__attribute__((constructor)) static void early(void) {
    if (getrandom(&early_bytes, sizeof(early_bytes), 0) != sizeof(early_bytes)) abort();
}
#else
extern uint64_t early_bytes;
int main(void) {
    uint64_t late;
    if (getrandom(&late, sizeof(late), 0) != sizeof(late)) abort();
    printf("%016lx %016lx\n", (unsigned long)early_bytes, (unsigned long)late);
    return 0;
}
#endif
