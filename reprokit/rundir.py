"""The run directory: names, format versions, reading and writing.

A run directory may come from somebody else, so everything here treats it as hostile: files are
opened without following symbolic links, sizes are bounded before anything is read, and JSON is
decoded into typed structs that refuse what does not fit. Nothing is imported, executed or unpickled.
docs/format.md describes every file.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reprokit.errors import (
    CannotWriteRun,
    RunDamaged,
    RunInProgress,
    RunNotFound,
    RunNotReadable,
    RunTooNew,
)

FORMAT = 1

RUN = "run.json"
ENVIRONMENT = "environment.json"
AGENT_PLAN = "plan.json"
SHIM_PLAN = "shim.plan"
METRICS = "metrics.jsonl"
OUTPUTS = "outputs.json"
WRITTEN = "written.paths"
ENTROPY = "entropy"
STOPPED = "stopped"

MAX_JSON = 64 << 20  # bytes of run.json, environment.json, outputs.json
MAX_METRICS = 4 << 30  # bytes of metrics.jsonl
MAX_LINE = 16 << 20  # bytes of one of its lines

RUNNING, FINISHED, FAILED = "running", "finished", "failed-to-start"


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay answered the requests for entropy (requests and bytes, by kind of match)."""

    exact: int = 0
    moved: int = 0
    derived: int = 0
    live: int = 0
    exact_bytes: int = 0
    moved_bytes: int = 0
    derived_bytes: int = 0
    live_bytes: int = 0
    unused: int = 0  # recorded events that nobody asked for

    @property
    def requests(self) -> int:
        return self.exact + self.moved + self.derived + self.live


class ProfileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The random profile of a recorded run in numbers, with the digest that seals it."""

    digest: str  # "sha256:..." over names and contents of the entropy files
    files: int = 0
    size: int = 0  # bytes on disk
    processes: int = 0
    threads: int = 0
    events: int = 0
    entropy: int = 0  # bytes that the training was given
    withheld: int = 0  # requests of cryptographic libraries, whose bytes are not recorded
    sealed: bool = True  # False: a process of the run was still alive at its end


class ReplayOf(msgspec.Struct, frozen=True, kw_only=True):
    """Which recording a replay replayed."""

    path: str
    run_id: str
    profile_digest: str


class RunFile(msgspec.Struct, kw_only=True):
    """run.json: what was run, how, and how it ended."""

    format: int = FORMAT
    run_id: str
    kind: str  # "record" or "replay"
    reprokit: str  # version that wrote the run
    command: list[str]
    working_directory: str
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    policy: str = "derive"
    key: str = ""  # hex, 32 bytes: from which derived bytes come; secret
    status: str = RUNNING
    exit_code: int | None = None
    signal: str | None = None
    started: str = ""  # ISO 8601, UTC
    ended: str | None = None
    duration: float | None = None  # seconds; shown, never compared
    launcher_pid: int = 0
    launcher_started: float = 0.0  # with the pid it names one process of one machine
    host: str = ""
    address_randomization: str = ""  # "off", or "on: <why>"
    environment_size: int = 0  # bytes of the environment handed to the command
    shim: str = ""  # "loaded", or "not loaded: <why>"
    agent: str = ""  # "loaded", or "not loaded: <why>"
    replay_of: ReplayOf | None = None
    profile: ProfileFacts | None = None
    fidelity: Fidelity | None = None
    changed: list[str] = msgspec.field(default_factory=list)  # replay: what is different now
    warnings: list[str] = msgspec.field(default_factory=list)


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the run wrote and that was there at its end."""

    path: str  # relative to the working directory where it lies below it
    size: int
    digest: str  # "sha256:...", or "" where it was not read
    content: str = ""  # digest without a container's noise (zip timestamps), where there is any
    container: str = ""  # "zip", "keras", ...: which rule made content
    note: str = ""  # why there is no digest


class OutputsFile(msgspec.Struct, frozen=True, kw_only=True):
    """outputs.json"""

    format: int = FORMAT
    files: list[OutputFile] = msgspec.field(default_factory=list)
    left_out: int = 0  # files beyond the bounds, see docs/limitations.md


T = TypeVar("T")


def padded(path: Path, size: int) -> str:
    """The absolute path with leading slashes up to size bytes: the same file, always as long."""
    text = os.fsencode(path)
    if not text.startswith(b"/") or len(text) > size:
        raise CannotWriteRun(f"{path}: the path must be absolute and of at most {size} bytes; choose a shorter one with -o")
    return os.fsdecode(text.rjust(size, b"/"))


class RunDirectory:
    """A run directory to read: every method bounds what it reads and names the file that is bad."""

    def __init__(self, path: Path):
        self.path = path
        self._check_directory()
        self.run = self._decode(RUN, RunFile)

    def _check_directory(self) -> None:
        try:
            mode = os.stat(self.path).st_mode
            if not stat.S_ISDIR(mode):
                raise RunNotFound(f"{self.path} is not a directory; name a run directory, or 'last'")
            if RUN not in os.listdir(self.path):
                raise RunNotFound(f"{self.path} holds no {RUN}: it is not a run directory")
        except FileNotFoundError:
            raise RunNotFound(f"{self.path} does not exist; 'reprokit record' makes a run") from None
        except PermissionError:
            raise RunNotReadable(f"{self.path} may not be read by this user; run as its owner or ask for a copy") from None

    @property
    def in_progress(self) -> bool:
        """Whether its launcher is still alive on this machine."""
        run = self.run
        return run.status == RUNNING and run.host == os.uname().nodename and process_alive(run.launcher_pid, run.launcher_started)

    def require_finished(self) -> None:
        """Refuse a run that is being written right now."""
        if self.in_progress:
            raise RunInProgress(f"{self.path} is being written by process {self.run.launcher_pid}; wait for it to end")

    def _decode(self, name: str, kind: type[T]) -> T:
        data = self.read(name, MAX_JSON)
        with suppress(msgspec.MsgspecError):
            version = msgspec.json.decode(data, type=dict[str, Any]).get("format")
            if isinstance(version, int) and version > FORMAT:
                raise RunTooNew(f"{self.path / name} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RunDamaged(f"{self.path / name}: {error}; the run cannot be used") from None

    def open(self, name: str) -> int:
        """A descriptor of a regular file inside the run, never through a symbolic link."""
        path = self.path / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise RunDamaged(f"{path} is missing") from None
        except PermissionError:
            raise RunNotReadable(f"{path} may not be read by this user; run as its owner or ask for a copy") from None
        except OSError as error:
            raise RunDamaged(f"{path}: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RunDamaged(f"{path} is not a regular file")
        return fd

    def read(self, name: str, limit: int) -> bytes:
        """The whole of a small file."""
        with os.fdopen(self.open(name), "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise RunDamaged(f"{self.path / name} is larger than {limit} bytes")
        return data

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def outputs(self) -> OutputsFile | None:
        return self._decode(OUTPUTS, OutputsFile) if self.has(OUTPUTS) else None

    def environment(self) -> dict[str, Any] | None:
        return self._decode(ENVIRONMENT, dict[str, Any]) if self.has(ENVIRONMENT) else None

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl in the order written; a last line cut short by a crash ends it."""
        if not self.has(METRICS):
            return
        fd = self.open(METRICS)
        with os.fdopen(fd, "rb") as file:
            if os.fstat(fd).st_size > MAX_METRICS:
                raise RunDamaged(f"{self.path / METRICS} is larger than {MAX_METRICS} bytes")
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                if not line.endswith(b"\n"):
                    if len(line) >= MAX_LINE:
                        raise RunDamaged(f"{self.path / METRICS}, line {number} is longer than {MAX_LINE} bytes")
                    if self.run.status == FINISHED:
                        raise RunDamaged(f"{self.path / METRICS}, line {number} is cut short")
                    return
                try:
                    yield msgspec.json.decode(line, type=dict[str, Any])
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    raise RunDamaged(f"{self.path / METRICS}, line {number}: {error}") from None


def process_alive(pid: int, started: float) -> bool:
    """Whether the process that began at that time (seconds since the epoch) still runs here."""
    import psutil

    try:
        return pid > 0 and abs(psutil.Process(pid).create_time() - started) < 2.0
    except psutil.Error:
        return False


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole or not at all, readable by its owner only."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    partial = path.with_name(path.name + ".partial")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise CannotWriteRun(f"{path}: {error.strerror}") from None


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
