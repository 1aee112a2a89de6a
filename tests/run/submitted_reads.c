/* submitted_reads.c - reads /dev/urandom by io_submit ("list"), or makes an io_uring ("ring"); 77 if the kernel cannot.
 */

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int read_list(void) {
    aio_context_t context = 0;
    char whole[16], part[8];
    struct iovec parts = {part, sizeof(part)};
    int fd = open("/dev/urandom", O_RDONLY);
    struct iocb reads[2] = {
        {.aio_fildes = (uint32_t)fd,
         .aio_lio_opcode = IOCB_CMD_PREAD,
         .aio_buf = (uintptr_t)whole,
         .aio_nbytes = sizeof(whole)},
        {.aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PREADV, .aio_buf = (uintptr_t)&parts, .aio_nbytes = 1},
    };
    struct iocb *list[2] = {&reads[0], &reads[1]};
    struct io_event events[2];
    if (syscall(SYS_io_setup, 2, &context) != 0 || syscall(SYS_io_submit, context, 2, list) != 2) return 77;
    return syscall(SYS_io_getevents, context, 2, 2, events, NULL) == 2 ? 0 : 1;
}

static int make_ring(void) {
    char parameters[120] = {0}; /* struct io_uring_params */
    return syscall(SYS_io_uring_setup, 4, parameters) < 0 ? 77 : 0;
}

int main(int count, char **words) { return count > 1 && strcmp(words[1], "ring") == 0 ? make_ring() : read_list(); }
