/* uuid.c - the generators of libuuid: UUIDs from random bytes, or from the time and random bytes. */
#include <string.h>

#include "recorder/fill.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/state.h"

#define BYTES 16

/* Declarations of libuuid, whose header need not be installed. */
void uuid_generate(uint8_t *out);
void uuid_generate_random(uint8_t *out);
void uuid_generate_time(uint8_t *out);
int uuid_generate_time_safe(uint8_t *out);

/* Sets the version bits of RFC 9562, which derived bytes lack. */
static void set_version(uint8_t *bytes, unsigned version) {
    bytes[6] = (uint8_t)((bytes[6] & 0x0f) | version << 4);
    bytes[8] = (uint8_t)((bytes[8] & 0x3f) | 0x80);
}

/* Calls libuuid. Its own requests meanwhile are hidden, as they are not the program's. */
static ssize_t get_uuid(struct rk_real *self, void *buffer, size_t size) {
    int (*generate)(uint8_t *) = (int (*)(uint8_t *))rk_libuuid(self->object);
    if (!generate) return rk_random(buffer, size, 0);
    uint8_t *bytes = buffer, out[BYTES];
    uint32_t depth = rk_thread.depth;
    rk_thread.depth = RK_HIDDEN;
    int result = generate(out);
    rk_thread.depth = depth;
    memcpy(bytes, out, BYTES);
    if (size > BYTES) bytes[BYTES] = result != 0;
    return (ssize_t)size;
}

static void generate(const char *name, unsigned version, uint8_t *bytes, size_t size, const void *caller) {
    struct rk_real real = {.get = get_uuid, .object = (void *)name};
    rk_fill(RK_SOURCE_UUID, caller, bytes, size, &real);
    set_version(bytes, version);
}

RK_EXPORT void uuid_generate(uint8_t *out) { generate("uuid_generate", 4, out, BYTES, RK_CALLER()); }
RK_EXPORT void uuid_generate_random(uint8_t *out) { generate("uuid_generate_random", 4, out, BYTES, RK_CALLER()); }
RK_EXPORT void uuid_generate_time(uint8_t *out) { generate("uuid_generate_time", 1, out, BYTES, RK_CALLER()); }

/* Returns 0 for a UUID that was generated safely, -1 otherwise; the byte after the UUID records which. */
RK_EXPORT int uuid_generate_time_safe(uint8_t *out) {
    uint8_t bytes[BYTES + 1];
    generate("uuid_generate_time_safe", 1, bytes, sizeof(bytes), RK_CALLER());
    memcpy(out, bytes, BYTES);
    return bytes[BYTES] == 0 ? 0 : -1;
}
