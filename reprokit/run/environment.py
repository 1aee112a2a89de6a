"""Builds the child's environment, whose size does not depend on the length of the run directory's name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

import reprokit
from reprokit.core import native
from reprokit.core.errors import CannotWriteRun
from reprokit.run_files import rundir

RUN_PATH_SIZE = 512  # RK_RUN_PATH of native/urandom_hook.h
RUN, IDENTITY, PADDING = "REPROKIT_RUN", "REPROKIT_ID", "REPROKIT_PAD"
OWN = (RUN, IDENTITY, PADDING)

# AddressSanitizer's runtime refuses to stand behind a preloaded library without this option
# (native/shim/identity/children.c).
SANITIZER, SANITIZER_ORDER = "ASAN_OPTIONS", "verify_asan_link_order=0"

LEAK_SEARCH, NO_LEAK_SEARCH = "LSAN_OPTIONS", "detect_leaks=0"

OPENSSL = "OPENSSL_ia32cap"
NO_RDRAND = "~0x4000000000000000:~0x40000"  # OPENSSL_ia32cap(3): bits 62 and 64+18

STEP = 8192  # bytes: the size of a recording's environment is a multiple of this
LEAST_PADDING = 4096  # bytes of padding that leave a replay room for new variables
MOST_PADDING = 128 << 10  # bytes: the kernel accepts no longer string
BYTECODE = "__pycache__"
LIST_SEPARATORS = re.compile(r"[\s:;]")  # not allowed in paths of LD_PRELOAD, which cannot be quoted


class ChildEnvironment(msgspec.Struct, frozen=True):
    """The child's variables and their total size in bytes."""

    variables: dict[str, str]
    size: int
    warning: str = ""


def size_of(variables: Mapping[str, str]) -> int:
    """Return the bytes of the strings NAME=value, each with its final NUL."""
    return sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in variables.items())


def inherited() -> dict[str, str]:
    """Return the variables that reprokit was started with.

    In the C locale Python adds LC_CTYPE to its own variables (PEP 538); the command must not get that one.
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
    """Return the user's variables without those of a run from which reprokit may have been started."""
    return {name: value for name, value in variables.items() if name not in OWN}


def without_rdrand(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with one that hides RDRAND and RDSEED from OpenSSL and BoringSSL."""
    return {OPENSSL: NO_RDRAND, **variables}


def without_leak_search(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with one that keeps LeakSanitizer's search from a program under strace: it would not end."""
    return {**variables, LEAK_SEARCH: behind(NO_LEAK_SEARCH, variables.get(LEAK_SEARCH))}


def build(
    variables: Mapping[str, str], run: Path, preload: Path, bootstrap: Path, required_size: int | None
) -> ChildEnvironment:
    """Return the user's variables with the launcher's five, and padding up to the required size."""
    result = without_own(variables)
    result["LD_PRELOAD"] = in_front(preload, result.get("LD_PRELOAD"))
    result[SANITIZER] = behind(SANITIZER_ORDER, result.get(SANITIZER))
    result["PYTHONPATH"] = in_front(bootstrap, result.get("PYTHONPATH"))
    result[RUN] = rundir.padded(run, RUN_PATH_SIZE)
    result[IDENTITY] = "0"
    result[PADDING] = ""
    needed = size_of(result)
    size = required_size if required_size is not None else rounded(needed)
    warning = ""
    if not needed <= size < needed + MOST_PADDING:
        warning = f"the environment needs {needed} bytes and had {size} in the recording: addresses may differ"
        size = rounded(needed)
    result[PADDING] = " " * (size - needed)
    # Sorted, as a replay takes some from its recording, and their order decides where Python's objects lie in memory.
    return ChildEnvironment(dict(sorted(result.items())), size, warning)


def build_plain(variables: Mapping[str, str], run: Path, bootstrap: Path) -> ChildEnvironment:
    """Return the user's variables with those that start the agent, and none for the shim."""
    result = without_own(variables)
    result["PYTHONPATH"] = in_front(bootstrap, result.get("PYTHONPATH"))
    result[RUN] = rundir.padded(run, RUN_PATH_SIZE)
    result[IDENTITY] = "0"
    return ChildEnvironment(result, size_of(result))


def rounded(needed: int) -> int:
    """Return the next multiple of STEP that leaves at least LEAST_PADDING free."""
    return -(-(needed + LEAST_PADDING) // STEP) * STEP


def in_front(path: Path, search_list: str | None) -> str:
    """Return the search list with this path first; an empty entry would mean the current directory."""
    return f"{path}{os.pathsep}{search_list}" if search_list else str(path)


def behind(option: str, options: str | None) -> str:
    """Return a sanitizer's options with one behind them, which counts where the same is given twice."""
    return f"{options}:{option}" if options else option


class PreloadPaths(msgspec.Struct, frozen=True):
    """The paths by which the child finds the shim, what loads it, and the directory of the agent's sitecustomize."""

    shim: Path
    preload: Path
    bootstrap: Path


def agent_directory() -> Path:
    return Path(os.path.realpath(reprokit.__path__[0])) / "agent"


def complete_bytecode(agent: Path) -> None:
    """Compile the agent's modules that no installer has compiled for this interpreter, if that may be written there.

    Those of its start are put into one file besides, which is written anew when the agent was installed anew.
    Processes of a run write no bytecode: one that did would leave the next one's memory in another state than its own.
    """
    tag = sys.implementation.cache_tag
    if tag is None or sys.dont_write_bytecode or sys.pycache_prefix is not None:
        return
    with suppress(OSError):
        if _lacks_bytecode(str(agent), f".{tag}.pyc") and os.access(agent, os.W_OK):
            import compileall  # imported late: slow to load, and rarely needed

            compileall.compile_dir(agent, quiet=2, optimize=0)
        archive = agent / BYTECODE / f"start.{tag}.archive"
        if _is_older(archive, agent / "start.py") and os.access(archive.parent, os.W_OK):
            from reprokit.run import agent_archive  # imported late: slow to load, and rarely needed

            agent_archive.write(agent, archive)


def _is_older(file: Path, other: Path) -> bool:
    """Return whether a file is older than another, or not there."""
    try:
        return file.stat().st_mtime < other.stat().st_mtime
    except FileNotFoundError:
        return True


def _lacks_bytecode(directory: str, ending: str) -> bool:
    """Return whether a module in a directory, or below, has no bytecode; the agent takes none that is out of date.

    Names alone are looked at, as each run waits for this.
    """
    names = set(os.listdir(directory))
    compiled = set(os.listdir(f"{directory}/{BYTECODE}")) if BYTECODE in names else set()
    if any(name.endswith(".py") and name[:-3] + ending not in compiled for name in names):
        return True
    return any(_lacks_bytecode(f"{directory}/{name}", ending) for name in names if "." not in name and name != BYTECODE)


@contextmanager
def preload_paths() -> Iterator[PreloadPaths]:
    """Yield the installed paths; by a temporary link to the package if these cannot be written in a search list."""
    package = agent_directory().parent
    complete_bytecode(agent_directory())
    if not LIST_SEPARATORS.search(str(package)):
        yield _paths_in(package)
        return
    import shutil  # imported late: slow to load, and rarely needed

    directory = _directory_to_link_in()
    try:
        (directory / package.name).symlink_to(package, target_is_directory=True)
        yield _paths_in(directory / package.name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _paths_in(package: Path) -> PreloadPaths:
    shim, preload = native.shim_path(), native.preload_path()
    libraries = package / shim.parent.name
    return PreloadPaths(libraries / shim.name, libraries / preload.name, package / "agent" / "bootstrap")


def _directory_to_link_in() -> Path:
    import tempfile

    for base in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        if not LIST_SEPARATORS.search(base) and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="reprokit-", dir=base))
    raise CannotWriteRun("reprokit is installed below a path with spaces or colons, and there is no /tmp to link it in")
