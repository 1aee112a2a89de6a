"""``reprokit doctor``: says line by line whether this machine can record and replay."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from reprokit.errors import EXIT_TROUBLE, ReprokitError
from reprokit.printable import printable
from reprokit.version import VERSION

PROBE = "import ctypes, os; os.urandom(8); print(ctypes.CDLL(None).reprokit_abi())"
PROBE_LIMIT = 30  # seconds


@dataclass(frozen=True)
class Finding:
    """What a check found; without ``good`` something does not work."""

    good: bool
    text: str


@click.command()
def command() -> int:
    """Say what recording and replaying need, and whether it works here.

    Exits 0 if everything does, 2 if something does not.
    """
    worst = 0
    for name, check in CHECKS.items():
        found = _checked(check)
        click.echo(f"{'ok' if found.good else 'no':2}  {name}: {printable(found.text)}")
        worst = worst if found.good else EXIT_TROUBLE
    return worst


def _checked(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except (ReprokitError, OSError, subprocess.SubprocessError) as error:
        return Finding(False, str(error))


def _platform() -> Finding:
    from reprokit.launch.supported import libc, require_supported

    require_supported()
    return Finding(True, f"{platform.system()} {platform.release()} on {platform.machine()}, {libc()}")


def _reprokit() -> Finding:
    return Finding(True, f"{VERSION} on Python {platform.python_version()} ({sys.executable})")


def _shim() -> Finding:
    from reprokit import native

    native.load_shim()
    return Finding(True, f"built, with the ABI of this reprokit ({native.shim_path()})")


def _preload() -> Finding:
    """Start a program under the shim and ask it."""
    from reprokit import native
    from reprokit.launch.environment import RUN, in_front, without_own
    from reprokit.launch.placing import placed

    with tempfile.TemporaryDirectory(prefix="reprokit-") as directory, placed(native.shim_path()) as place:
        environment = {**without_own(os.environ), "LD_PRELOAD": in_front(place.shim, os.environ.get("LD_PRELOAD"))}
        environment[RUN] = directory
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT,
            check=False,
        )
    if done.returncode == 0 and done.stdout.strip().isdigit():
        return Finding(True, f"a program under the shim runs and sees it (ABI {done.stdout.strip()})")
    reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return Finding(False, f"a program cannot be started under the shim: {reason}")


def _addresses() -> Finding:
    from reprokit.launch.personality import without_randomization

    with without_randomization() as outcome:
        if outcome == "off":
            return Finding(True, "can be switched off, so that addresses are the same in every run")
        why = outcome.partition(": ")[2]
    advice = "scripts that hash or sort by address may not replay"
    return Finding(False, f"{why}; {advice} (in a container, allow personality() in its seccomp profile)")


def _storage() -> Finding:
    """What the shim does with its files: reserve space, map it, write it."""
    import mmap

    with tempfile.TemporaryFile(dir=".") as file:
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
            mapped[:8] = b"reprokit"
    free = shutil.disk_usage(".").free
    return Finding(True, f"files can be made, reserved and mapped here; {free >> 20} MiB are free")


def _python() -> Finding:
    found = shutil.which("python") or shutil.which("python3")
    if found is None:
        return Finding(False, "there is no python on PATH; activate the environment of your training")
    done = subprocess.run(
        [found, "-c", "import sys; print(sys.version.split()[0])"],
        capture_output=True,
        text=True,
        timeout=PROBE_LIMIT,
        check=False,
    )
    from reprokit.launch.command import elf_reason

    reason = elf_reason(Path(os.path.realpath(found))) if not _is_script(found) else ""
    if done.returncode != 0 or reason:
        return Finding(False, f"{found} {reason or 'does not run'}; the shim cannot work in it")
    return Finding(True, f"{found}, version {done.stdout.strip()}")


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


CHECKS: dict[str, Callable[[], Finding]] = {
    "reprokit": _reprokit,
    "platform": _platform,
    "shim": _shim,
    "preload": _preload,
    "address randomisation": _addresses,
    "current directory": _storage,
    "Python on PATH": _python,
}
