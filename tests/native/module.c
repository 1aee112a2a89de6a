/* A module that asks for entropy: built under several names. */
#include <stddef.h>
#include <sys/random.h>

long draw(void *buffer, size_t size) {
    long given = getrandom(buffer, size, 0);
    return given;
}
