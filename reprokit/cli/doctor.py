"""``reprokit doctor``: says line by line what this machine and this interpreter allow."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from reprokit.core.errors import EXIT_TROUBLE, ReprokitError
from reprokit.core.printable import printable
from reprokit.core.version import VERSION
from reprokit.model.states import words_of
from reprokit.run import machine
from reprokit.run.machine import DoctorFinding, DoctorState, absent, bad, good
from reprokit.run.short_command import tried

PROBE = "import ctypes, os; os.urandom(8); print(ctypes.CDLL(None).reprokit_abi())"
ABOUT = "import platform, sys; print(platform.python_implementation(), platform.python_version(), sys.abiflags)"
TRIAL = "import os; os.urandom(8)"
PROBE_LIMIT = 30  # seconds


@click.command(epilog="Example: reprokit doctor")
def command() -> int:
    """Say line by line what recording and replaying need, and whether it works here.

    A line begins with ok, with no where something needed does not work, or with -- where something is
    absent that only some runs need; its text says what that means. Exits 0 if no line begins with no,
    else 2.
    """
    worst = 0
    for name, check in CHECKS.items():
        result = _checked(check)
        click.echo(f"{result.state.value}  {name}: {printable(result.text)}")
        worst = EXIT_TROUBLE if result.state is DoctorState.BAD else worst
    return worst


def _checked(check: Callable[[], DoctorFinding]) -> DoctorFinding:
    try:
        return check()
    except (ReprokitError, OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        return bad(str(error))


def _platform() -> DoctorFinding:
    from reprokit.run.platform_support import libc, require_supported

    require_supported()
    return good(f"{platform.system()} {platform.release()} on {platform.machine()}, {libc()}")


def _reprokit() -> DoctorFinding:
    return good(f"{VERSION} on Python {platform.python_version()} ({sys.executable})")


def _shim() -> DoctorFinding:
    from reprokit.core import native

    native.require_shim()
    return good(f"built, with the ABI of this reprokit ({native.shim_path()})")


def _preload() -> DoctorFinding:
    """Start a program under the shim and ask it."""
    from reprokit.run.environment import RUN, in_front, preload_paths, without_own

    with tempfile.TemporaryDirectory(prefix="reprokit-") as directory, preload_paths() as place:
        environment = {**without_own(os.environ), "LD_PRELOAD": in_front(place.preload, os.environ.get("LD_PRELOAD"))}
        environment[RUN] = directory
        number, failure = tried([sys.executable, "-c", PROBE], PROBE_LIMIT, env=environment)
    if number.isdigit():
        return good(f"a program under the shim runs and sees it (ABI {number})")
    return bad(f"a program cannot be started under the shim: {failure or 'the shim is not loaded in it'}")


def _addresses() -> DoctorFinding:
    from reprokit.run.kernel import without_randomization

    with without_randomization() as outcome:
        if not outcome.is_on:
            return good("can be switched off, so that addresses are the same in every run")
        why = outcome.why
    advice = "scripts that hash or sort by address may not replay"
    return bad(f"{why}; {advice} (in a container, allow personality() in its seccomp profile)")


def _storage() -> DoctorFinding:
    """Return what the shim does with its files: reserve space, map it, write it."""
    import mmap

    with tempfile.TemporaryFile(dir=".") as file:
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            mapped[:8] = b"reprokit"
    free = shutil.disk_usage(".").free
    return good(f"files can be created, reserved and mapped here; {free >> 20} MiB are free")


def _python() -> DoctorFinding:
    python = _interpreter()
    if python is None:
        return bad("there is no python on PATH; activate the environment of your training")
    about, failure = tried([python, "-c", ABOUT], PROBE_LIMIT)
    from reprokit.run.command import elf_refusal

    reason = elf_refusal(Path(os.path.realpath(python))).why if not _is_script(python) else ""
    if failure or reason:
        return bad(f"{python} {reason or 'does not run'}; the shim cannot work in it")
    return good(f"{python}, {about}")


def _interpreter() -> str | None:
    return shutil.which("python") or shutil.which("python3")


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


@contextmanager
def _trial() -> Iterator[tuple[Path, str]]:
    """Make a small recording with the Python on PATH; return its run directory, and any error."""
    with tempfile.TemporaryDirectory(prefix="reprokit-") as directory:
        run = Path(directory, "run")
        record = [sys.executable, "-m", "reprokit", "record", "-o", str(run), "--"]
        yield run, tried([*record, _interpreter() or "", "-c", TRIAL], PROBE_LIMIT, directory=directory)[1]


def _recording() -> DoctorFinding:
    """Return whether its os.urandom is recorded, by which call, and whether the agent is there."""
    from reprokit.entropy.request_counts import who_asked
    from reprokit.run_files.rundir import ENTROPY, RunDirectory

    with _trial() as (path, failure):
        if failure:
            return bad(failure)
        run, asking = RunDirectory(path).run, who_asked(path / ENTROPY)
        own = {f"{asker.source} from {asker.module or asker.program}" for asker in asking.rows}
    if run.shim is None or not run.shim.is_loaded or not own:
        return bad(f"the shim was {words_of(run.shim)}, {asking.total.requests} requests were recorded")
    works = f"its requests are recorded ({', '.join(sorted(own))})"
    if run.agent is None or not run.agent.is_loaded:
        return absent(
            f"{works}, but the agent was {words_of(run.agent)}: no metrics, weights or seeds; see sitecustomize, -I, -S"
        )
    return good(f"{works}, and the agent loads")


CHECKS: dict[str, Callable[[], DoctorFinding]] = {
    "reprokit": _reprokit,
    "platform": _platform,
    "C library": machine.c_library,
    "shim": _shim,
    "preload": _preload,
    "address randomization": _addresses,
    "forked memory": machine.forked_memory,
    "memory files": machine.memory_files,
    "supervisor": machine.supervisor,
    "vDSO": machine.vdso,
    "instructions": machine.instructions,
    "strace": machine.tracing,
    "current directory": _storage,
    "Python on PATH": _python,
    "trial recording": _recording,
}
