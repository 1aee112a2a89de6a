/* lost.c - reports to the launcher a program that can reach neither the run directory nor a supervisor, or whose memory
 * the supervisor may not read.
 *
 * It uses an abstract socket, which works for any user, root and mounts, but not in another network namespace.
 */
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/lost.h"
#include "recorder/plan.h"
#include "recorder/system.h"

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
    static uint64_t last_report;
    uint64_t report = rk_check(identity, strlen(identity), reason);
    if (__atomic_exchange_n(&last_report, report, __ATOMIC_RELAXED) == report) return;
    struct rk_lost_message message = {.magic = "RKLOST", .abi = RK_ABI, .reason = reason};
    rk_append(message.identity, sizeof(message.identity), 0, identity);
    send_to_launcher(&message);
}
