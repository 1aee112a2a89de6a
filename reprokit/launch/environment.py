"""Builds the child's environment, of a size that does not depend on the run directory's name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

import reprokit
from reprokit import rundir
from reprokit.errors import CannotWriteRun

RUN_PATH_SIZE = 512  # RK_RUN_PATH of native/urandom_hook.h
RUN, IDENTITY, PADDING = "REPROKIT_RUN", "REPROKIT_ID", "REPROKIT_PAD"
OWN = (RUN, IDENTITY, PADDING)

OPENSSL = "OPENSSL_ia32cap"
NO_RDRAND = "~0x4000000000000000:~0x40000"  # OPENSSL_ia32cap(3): bits 62 and 64+18

STEP = 8192  # a recording's environment has a multiple of this many bytes
LEAST_PADDING = 4096  # so that a replay has room for variables that came in between
MOST_PADDING = 128 << 10  # the kernel takes no longer string
LIST_SEPARATORS = re.compile(r"[\s:;]")  # what no path in LD_PRELOAD may hold: there is no way to quote it


class ChildEnvironment(msgspec.Struct, frozen=True):
    """The variables for the child and their total size."""

    variables: dict[str, str]
    size: int
    warning: str = ""


def size_of(variables: Mapping[str, str]) -> int:
    """Bytes of the strings NAME=value, each with its final NUL."""
    return sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in variables.items())


def inherited() -> dict[str, str]:
    """Return the variables that reprokit was started with.

    Python adds LC_CTYPE to its own where the locale is C (PEP 538), which is none of the command's business.
    """
    variables = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            if not any(entry.startswith(b"LC_CTYPE=") for entry in file.read().split(b"\0")):
                variables.pop("LC_CTYPE", None)
    except OSError:
        pass
    return variables


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the user's own environment: nothing of a run that reprokit might have been started from."""
    return {name: value for name, value in variables.items() if name not in OWN}


def without_rdrand(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with one that tells OpenSSL and BoringSSL that the processor has no RDRAND and RDSEED."""
    return {OPENSSL: NO_RDRAND, **variables}


def build(
    variables: Mapping[str, str], run: Path, shim: Path, bootstrap: Path, wanted_size: int | None
) -> ChildEnvironment:
    """Return the user's variables, the launcher's four, and padding up to the size wanted."""
    result = without_own(variables)
    result["LD_PRELOAD"] = in_front(shim, result.get("LD_PRELOAD"))
    result["PYTHONPATH"] = in_front(bootstrap, result.get("PYTHONPATH"))
    result[RUN] = rundir.padded(run, RUN_PATH_SIZE)
    result[IDENTITY] = "0"
    result[PADDING] = ""
    needed = size_of(result)
    size = wanted_size if wanted_size is not None else rounded(needed)
    warning = ""
    if not needed <= size < needed + MOST_PADDING:
        warning = f"the environment needs {needed} bytes and had {size} in the recording: addresses may differ"
        size = rounded(needed)
    result[PADDING] = " " * (size - needed)
    # In an order of their own: a replay has some of them from its recording, and Python's objects lie as they come.
    return ChildEnvironment(dict(sorted(result.items())), size, warning)


def build_plain(variables: Mapping[str, str], run: Path, bootstrap: Path) -> ChildEnvironment:
    """Return the user's variables with those that start the agent, and nothing of the shim's."""
    result = without_own(variables)
    result["PYTHONPATH"] = in_front(bootstrap, result.get("PYTHONPATH"))
    result[RUN] = rundir.padded(run, RUN_PATH_SIZE)
    result[IDENTITY] = "0"
    return ChildEnvironment(result, size_of(result))


def rounded(needed: int) -> int:
    """Return the next whole step that leaves the least padding free."""
    return -(-(needed + LEAST_PADDING) // STEP) * STEP


def in_front(path: Path, rest: str | None) -> str:
    """A search list that begins with the path; an empty list stays away, as it would mean the current directory."""
    return f"{path}{os.pathsep}{rest}" if rest else str(path)


class PreloadPaths(msgspec.Struct, frozen=True):
    """Where the child finds the shim and the directory of the agent's sitecustomize."""

    shim: Path
    bootstrap: Path


def agent_directory() -> Path:
    return Path(os.path.realpath(reprokit.__path__[0])) / "agent"


@contextmanager
def placed(shim: Path) -> Iterator[PreloadPaths]:
    """The installed paths, or links to them while the run lasts where those cannot be written in a list."""
    shim, agent = Path(os.path.realpath(shim)), agent_directory()
    if not LIST_SEPARATORS.search(f"{shim}{agent}"):
        yield PreloadPaths(shim, agent / "bootstrap")
        return
    import shutil  # few installations need it, and it takes long to load

    directory = _directory_to_link_in()
    try:
        (directory / shim.name).symlink_to(shim)
        (directory / "agent").symlink_to(agent, target_is_directory=True)
        yield PreloadPaths(directory / shim.name, directory / "agent" / "bootstrap")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _directory_to_link_in() -> Path:
    import tempfile

    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if not LIST_SEPARATORS.search(base) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="reprokit-", dir=base))
    raise CannotWriteRun("reprokit is installed below a path with spaces or colons, and there is no /tmp to link it in")
