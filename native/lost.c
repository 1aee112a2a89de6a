/* lost.c - tells the launcher of a program that can reach neither the run directory nor a supervisor, or that the
 * supervisor may not look into.
 *
 * By a socket whose name is no file: neither user nor root nor mounts matter, but a network namespace of its own does.
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "internal.h"

_Static_assert(sizeof(struct rk_lost_message) == 272, "the layout of what a lost program sends");

static void send_to_launcher(const struct rk_lost_message *message) {
    struct sockaddr_un address = {.sun_family = AF_UNIX}; /* its name begins with a zero byte */
    size_t n = rk_append(address.sun_path + 1, sizeof(address.sun_path) - 1, 0, "reprokit-");
    n = rk_append_hex(address.sun_path + 1, sizeof(address.sun_path) - 1, n, rk_check(rk_run, RK_RUN_PATH, 0));
    size_t size = offsetof(struct sockaddr_un, sun_path) + 1 + n;
    int fd = (int)rk_call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, 0, 0, 0);
    if (fd < 0) return;
    rk_call(SYS_sendto, fd, (long)message, sizeof(*message), MSG_DONTWAIT | MSG_NOSIGNAL, (long)&address, (long)size);
    rk_close(fd);
}

void rk_tell_lost(enum rk_lost reason, const char *identity) {
    static uint64_t told;
    uint64_t what = rk_check(identity, strlen(identity), reason);
    if (__atomic_exchange_n(&told, what, __ATOMIC_RELAXED) == what) return;
    struct rk_lost_message message = {.magic = "RKLOST", .abi = RK_ABI, .reason = reason};
    rk_append(message.identity, sizeof(message.identity), 0, identity);
    send_to_launcher(&message);
}
