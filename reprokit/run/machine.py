"""Checks what this machine allows beyond recording: each check tries the feature itself, in a child if necessary."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.run.host import cpu_facts
from reprokit.run.platform_support import libc

PR_SET_NO_NEW_PRIVS = 38
SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_SET_MODE_FILTER = 1
NEW_LISTENER, WAIT_KILLABLE = 8, 32  # SECCOMP_FILTER_FLAG_...
RET_ALLOW = 0x7FFF0000
NOTIF_ADDFD = 0x40182103  # SECCOMP_IOCTL_NOTIF_ADDFD
MADV_WIPEONFORK = 18
EXIT_LIMIT = 200


class DoctorState(Enum):
    """The word at the beginning of a line of doctor's."""

    GOOD = "ok"
    BAD = "no"  # a requirement of recording does not work
    ABSENT = "--"  # a feature is missing; the text says what that means


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one check."""

    state: DoctorState
    text: str


def good(text: str) -> DoctorFinding:
    return DoctorFinding(DoctorState.GOOD, text)


def bad(text: str) -> DoctorFinding:
    return DoctorFinding(DoctorState.BAD, text)


def absent(text: str) -> DoctorFinding:
    return DoctorFinding(DoctorState.ABSENT, text)


def in_child(check: Callable[[], int]) -> int:
    """Return the check's result from a forked child, whose state is separate; -1 if the child died."""
    pid = os.fork()
    if pid == 0:
        status = EXIT_LIMIT
        try:
            status = check()
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if 0 <= code < EXIT_LIMIT else -1


def supervisor() -> DoctorFinding:
    """Check seccomp's user notification: a child installs a filter with a listener."""
    if platform.machine() not in SYS_SECCOMP:
        return absent("not on this processor")
    outcome = in_child(_listen)
    if outcome == 0:
        return good("seccomp's user notification works: what the shim cannot reach is answered by the supervisor")
    if outcome == _TOO_OLD:
        return absent("this kernel cannot hand out descriptors (Linux 5.9); what the shim cannot reach is not recorded")
    known_reasons = {
        errno.EBUSY: "a listener is there already: this container or tool has one, and a tree has one only"
    }
    problem = known_reasons.get(outcome) or (os.strerror(outcome) if outcome > 0 else "the trial died")
    return absent(f"{problem}; what the shim cannot reach, such as static programs, is not recorded")


_TOO_OLD = 199


def _listen() -> int:
    """Install a filter with a listener; return 0, an errno, or _TOO_OLD."""
    call = ctypes.CDLL(None, use_errno=True)
    call.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    instruction = ctypes.create_string_buffer(struct.pack("<HBBI", 0x06, 0, 0, RET_ALLOW), 8)  # return
    program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 1, ctypes.addressof(instruction)), 16)
    number = SYS_SECCOMP[platform.machine()]
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        fd: int = call.syscall(number, SECCOMP_SET_MODE_FILTER, flags, program)
        if fd >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    if fd < 0:
        return ctypes.get_errno()
    request = ctypes.create_string_buffer(24)  # matches no notification: ENOENT if the kernel knows the call
    if call.ioctl(fd, ctypes.c_ulong(NOTIF_ADDFD), request) < 0 and ctypes.get_errno() in (errno.ENOTTY, errno.EINVAL):
        return _TOO_OLD
    return 0


def vdso() -> DoctorFinding:
    """Check whether the vDSO has getrandom, which needs no system call, and whether it can be replaced."""
    image, flags = _vdso()
    if image is None:
        return absent("there is no vDSO in this process")
    if b"vdso_getrandom\0" not in image and b"kernel_getrandom\0" not in image:
        return good("it has no getrandom: every request to the kernel is a system call")
    if "sl" in flags.split():
        return good("it has getrandom and is sealed: replaced through /proc/self/mem, or the run says that it is not")
    return good("it has getrandom, which is replaced in each process of a run")


def _vdso() -> tuple[bytes | None, str]:
    """Return the image of this process's vDSO, and the flags of its mapping."""
    inside, image, flags = False, None, ""
    with open("/proc/self/smaps") as file:
        for line in file:
            words = line.split()
            if words and "-" in words[0] and not words[0].endswith(":"):
                inside = words[-1] == "[vdso]"
                if inside:
                    start, end = (int(part, 16) for part in words[0].split("-"))
                    image = ctypes.string_at(start, end - start)
            elif inside and line.startswith("VmFlags:"):
                flags = line.partition(":")[2]
    return image, flags


def c_library() -> DoctorFinding:
    """Report glibc's version, and which of its functions give entropy."""
    library = ctypes.CDLL(None)
    names = [name for name in ("getrandom", "getentropy", "arc4random") if hasattr(library, name)]
    return good(f"{libc()}, with {', '.join(names)}")


def instructions() -> DoctorFinding:
    """Check for processor instructions that give entropy, which no hook sees."""
    if platform.machine() != "x86_64":
        return good("the processor's own instructions are no part of what trainings use here")
    flags = cpu_facts()["flags"]
    names = [name.upper() for name in ("rdrand", "rdseed") if name in flags]
    if not names:
        return good("this processor offers neither RDRAND nor RDSEED")
    hiding = "can hide them" if "cpuid_fault" in flags else "cannot hide them on this processor"
    return absent(
        f"{' and '.join(names)} are there: std::random_device is recorded, code with the instructions inside is"
        f" reported as not covered; --hide-rdrand {hiding}"
    )


def forked_memory() -> DoctorFinding:
    """Check MADV_WIPEONFORK, which keeps a forked child from using its parent's state."""
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        page[0] = 1
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        if ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(mmap.PAGESIZE), MADV_WIPEONFORK) != 0:
            return bad("the kernel does not know MADV_WIPEONFORK; Linux 4.14 or newer is needed")
        wiped = in_child(lambda: page[0])
    if wiped == 0:
        return good("is zeroed in children as asked (MADV_WIPEONFORK)")
    return absent("the system takes MADV_WIPEONFORK and does nothing; the shim clears its page itself")


def memory_files() -> DoctorFinding:
    """Check memfd_create; such a file holds the recorded text of /proc/sys/kernel/random/uuid."""
    os.close(os.memfd_create("reprokit"))
    return good("can be made (memfd_create)")


def tracing() -> DoctorFinding:
    """Check strace, which record --prove needs."""
    from reprokit.run import prove

    try:
        strace = prove.find(Path("."), Path("."))
    except ReprokitError as error:
        return absent(f"{error}")
    return good(f"{strace.program} works: record --prove can account for every request")
