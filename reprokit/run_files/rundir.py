"""The run directory: names, format versions, reading and writing.

A run directory may come from somebody else, so everything here treats it as hostile: files are
opened without following symbolic links, sizes are bounded before anything is read, and JSON is
decoded into typed structs that refuse what does not fit. Nothing is imported, executed or unpickled.
docs/format.md describes every file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import (
    CannotWriteRun,
    RunDamaged,
    RunError,
    RunInProgress,
    RunNotFound,
    RunNotReadable,
    RunTooNew,
    reason,
    refused_as,
)
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.model.run import FINISHED, FORMAT, OLDEST, RUNNING, RunFile, SealedFile
from reprokit.run_files import unflushed as pending_lines

RUN = "run.json"
ENVIRONMENT = "environment.json"
AGENT_PLAN = "plan.json"
SHIM_PLAN = "shim.plan"
OPTIONS = "options.json"  # what a recording was asked that no replay repeats, for a run that goes on from it
METRICS = "metrics.jsonl"
VARIABLE_KEY = "variables.key"  # of the digests of variables that scripts read; secret
SEEDS = "seeds.jsonl"  # of a replay: what the recording seeded with, for the agents
PIPES = "pipes.list"  # what was read from pipes, digests
OBJECTS = "objects.jsonl"  # of stores, as agents see them read
ORDERS = "orders.jsonl"  # of a replay: who came first in the recording, for the agents
TURNS = "turns"  # of workers of pools, while these live
OUTPUTS = "outputs.json"
WRITTEN = "written.paths"
READ = "read.paths"
FOUND_LIST = "found.paths"  # what was there when a recording began, and that it was about to change
READ_BY = "reads"  # the same of processes that read much, files of their own
MODULES = "modules.paths"
FINDINGS = "findings.json"
RESUMPTION = "resumption.json"  # of a training that was interrupted and resumed as well: what came of it
DIVERGENCE = "divergence.json"  # the first operator that gave another result than in another run, or replay
SYSTEM_CALLS = "profile/system-calls.json"
PROFILE = "profile"  # what the agents of a profiled run observed, a file a process
ENTROPY = "entropy"
KEPT = "outputs"  # copies of small outputs, named by numbers
FOUND = "found"  # copies of what FOUND_LIST names, by device and inode
EVALUATION = "evaluation"
TRAIL = "trail"
NUMBERS = "numbers"  # losses and logged values, a file for each process
SAMPLES = "samples"  # of each optimizer step
ANSWERS = "answers"  # of a replay that was asked something: what its agents kept
KEYFRAMES = "keyframes"  # all of the training state at some steps: shards, and an index for each process
TENSORS = "tensors"  # values that were saved: shards, and an index for each process
CONSOLE = "console"  # what processes printed, a file each
SNAPSHOTS = "snapshots"
HOSTS = "hosts"  # of a run of several hosts, which has no files of its own: the run of each, by its name
OVER = "over"  # in ENTROPY, once no process of the run is left: what starts later is no part of it
STOPPED = "stopped"
SIGNALS = "signals"
KILLED = "killed"
BUNDLED_DIRECTORY: Final = "/working-directory"  # which stands in bundles for the working directory of a run
RESERVE = "reserve"  # room on the disk for what is written at the end

FILES = frozenset(
    {
        RUN,
        ENVIRONMENT,
        AGENT_PLAN,
        SHIM_PLAN,
        OPTIONS,
        METRICS,
        VARIABLE_KEY,
        SEEDS,
        OBJECTS,
        PIPES,
        ORDERS,
        OUTPUTS,
        WRITTEN,
        READ,
        FOUND_LIST,
        MODULES,
        FINDINGS,
        RESUMPTION,
        DIVERGENCE,
        STOPPED,
        SIGNALS,
        KILLED,
        RESERVE,
    }
)
DIRECTORIES = frozenset(
    {
        ANSWERS,
        PROFILE,
        ENTROPY,
        READ_BY,
        KEPT,
        FOUND,
        EVALUATION,
        TRAIL,
        NUMBERS,
        SAMPLES,
        CONSOLE,
        SNAPSHOTS,
        TENSORS,
        KEYFRAMES,
        TURNS,
        pending_lines.DIRECTORY,
    }
)

MAX_JSON = 64 << 20  # bytes of run.json, environment.json, outputs.json
MAX_METRICS = 4 << 30  # bytes of metrics.jsonl
MAX_LINE = 16 << 20  # bytes of one of its lines
MAX_TEXT = 1 << 20  # characters of one in run.json and outputs.json
MAX_NUMBER = (1 << 63) - 1  # of what is counted there
MAX_SECONDS = 1e11
MAX_LOOKED_AT = 1 << 12  # files whose times are read
BLOCK = 1 << 20  # bytes that are read at a time


T = TypeVar("T")


def padded(path: Path, size: int) -> str:
    """Return the absolute path with leading slashes up to size bytes: the same file, always as long."""
    text = os.fsencode(path)
    if not text.startswith(b"/") or len(text) > size:
        limit = f"the path must be absolute and of at most {size} bytes"
        raise CannotWriteRun(f"{path}: {limit}; choose a shorter one with -o")
    return os.fsdecode(text.rjust(size, b"/"))


class RunDirectory:
    """A run directory to read: every method bounds what it reads and names a damaged file."""

    def __init__(self, path: Path):
        self.path = path
        self._outputs: OutputsFile | None = None  # once it was read, of a run that has ended
        self._check_directory()
        self.run = self.decode(RUN, RunFile)

    def _check_directory(self) -> None:
        try:
            mode = os.stat(self.path).st_mode
            if not stat.S_ISDIR(mode):
                raise RunNotFound(f"{self.path} is not a directory; name a run directory, or 'last'")
            os.lstat(self.path / RUN)
        except PermissionError:
            advice = "run as its owner or ask for a copy"
            raise RunNotReadable(f"{self.path} may not be read by this user; {advice}") from None
        except FileNotFoundError:
            if os.path.isdir(self.path / HOSTS):
                advice = f"name the run of one of its hosts, such as {self.path / HOSTS}/NAME"
                raise RunNotFound(f"{self.path} holds runs of several hosts; {advice}") from None
            if os.path.isdir(self.path):
                raise RunNotFound(f"{self.path} holds no {RUN}: it is not a run directory") from None
            raise RunNotFound(f"{self.path} does not exist; 'reprokit record' makes a run") from None
        except (OSError, ValueError) as error:
            raise RunNotFound(f"{self.path}: {reason(error)}; name a run directory, or 'last'") from None

    @property
    def in_progress(self) -> bool:
        """Whether the launcher is alive on this machine."""
        run = self.run
        here = run.status == RUNNING and run.host == platform.node()
        return here and process_alive(run.launcher_pid, run.launcher_started)

    @property
    def recorded_at(self) -> float:
        """When files with numbers were last seen to change, in seconds since 1970; 0: there are none."""
        times = [0.0]
        for path in (self.path / METRICS, *islice((self.path / NUMBERS).glob("*"), MAX_LOOKED_AT)):
            with suppress(OSError):
                times.append(os.lstat(path).st_mtime)
        return max(times)

    @property
    def orphaned(self) -> bool:
        """Whether the launcher has died on this machine, so that its training may still be running here."""
        return self.unfinished and self.run.host == platform.node()

    @property
    def unfinished(self) -> bool:
        """Whether the launcher died, or runs on another machine, before it could write the end."""
        return self.run.status == RUNNING and not self.in_progress

    def require_finished(self) -> None:
        """Refuse a run that is being written right now."""
        if self.in_progress:
            raise RunInProgress(f"{self.path} is being written by process {self.run.launcher_pid}; wait for it to end")

    def decode(self, name: str, kind: type[T], limit: int = MAX_JSON, sealed: SealedFile | None = None) -> T:
        """Return a sealed JSON object of the run, as what it must be, and as it was where run.json says so."""
        path = self.path / name
        data = self.read(name, limit)
        if sealed is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" != sealed.digest:
            raise RunDamaged(f"{path} was altered since the run ended; the run cannot be used")
        try:
            content = untrusted_json.loads(data)
            if not isinstance(content, dict):
                raise RunDamaged(f"{path} is not a JSON object; the run cannot be used")
            version = content.get("format")
            if type(version) is int and version > FORMAT:
                newer = f"has format {version}, this reprokit reads up to {FORMAT}"
                raise RunTooNew(f"{path} {newer}; upgrade reprokit")
            _check_seal(path, content, data)
            if kind is RunFile and type(version) is int and version < FORMAT:
                if version < OLDEST:
                    older = f"has format {version} of an earlier reprokit, this one reads {OLDEST} to {FORMAT}"
                    raise RunNotReadable(f"{path} {older}; record the run again")
                _give_codes(content)
            if kind in (RunFile, OutputsFile):
                _check_range(content, "")
            return msgspec.convert(content, kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RunDamaged(f"{path}: {reason(error)}; the run cannot be used") from None

    def open(self, name: str) -> int:
        """Return a descriptor of a regular file inside the run, never through a symbolic link."""
        return open_file(self.path / name)

    def read(self, name: str, limit: int, most: int | None = None) -> bytes:
        """Return the whole of a small file, or its first bytes."""
        with os.fdopen(self.open(name), "rb") as file:
            too_large = RunDamaged(f"{self.path / name} is larger than {limit} bytes; the run cannot be used")
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise too_large
            try:
                data = file.read(size + 1 if most is None else most)
            except OSError as error:
                raise RunError(f"{self.path / name}: {reason(error)}") from None
        if len(data) > size:  # it grows while it is read
            raise too_large
        return data

    def is_never_begun(self, name: str) -> bool:
        """Return whether a file is empty or zeros alone: its process had no memory, room or descriptor to begin it."""
        with os.fdopen(self.open(name), "rb") as file:
            return not any(block.strip(b"\0") for block in iter(lambda: file.read(BLOCK), b""))

    def has(self, name: str) -> bool:
        return os.path.lexists(f"{self.path}/{name}")

    @property
    def keeps_console(self) -> bool:
        """Whether printed text was kept, even if there was none."""
        return self.run.console is not None or self.has(CONSOLE)

    def outputs(self) -> OutputsFile | None:
        """Read outputs.json, where the run has written it; what is sealed is read once."""
        if self._outputs is None or self.run.outputs is None:
            self._outputs = self._written(OUTPUTS, OutputsFile, self.run.outputs)
        return self._outputs

    def open_kept(self, file: OutputFile) -> int:
        """Return a descriptor of the copy of an output, which lies in the run directory itself."""
        return self._open_copy(KEPT, str(file.kept))

    def open_found(self, kept: str) -> int:
        """Return a descriptor of the copy of what a recording found, which lies in the run directory itself."""
        return self._open_copy(FOUND, kept)

    def _open_copy(self, directory: str, name: str) -> int:
        place = f"{self.path}/{directory}"
        if os.path.islink(place):
            raise RunDamaged(f"{place} is not a directory")
        return open_file(os.path.join(place, name))

    def environment(self) -> dict[str, Any] | None:
        """Read environment.json, where the run has written it."""
        return self._written(ENVIRONMENT, dict[str, Any], self.run.environment)

    def _written(self, name: str, kind: type[T], sealed: SealedFile | None) -> T | None:
        return None if sealed is None and not self.has(name) else self.decode(name, kind, sealed=sealed)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of metrics.jsonl in the order written; a last line cut short by a crash ends it.

        Behind them come those that processes of a run in progress, or cut off, still held together. Where run.json
        holds the file's digest, damage is raised at the latest after the last line.
        """
        sealed = self.run.metrics
        if not self.has(METRICS):
            if sealed is not None:
                raise RunDamaged(f"{self.path / METRICS} is missing; the run cannot be used")
            return
        path = self.path / METRICS
        digest = hashlib.sha256()
        waiting = pending_lines.read(self.path) if sealed is None else {}
        with os.fdopen(self.open(METRICS), "rb", buffering=1 << 18) as file:
            self._check_size(path, os.fstat(file.fileno()).st_size)
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                if sealed is not None:
                    digest.update(line)
                if not line.endswith(b"\n"):
                    self._check_cut_line(path, number, len(line))
                    break
                waiting.pop(line, None)
                yield _line(path, number, line)
        if sealed is not None and "sha256:" + digest.hexdigest() != sealed.digest:
            raise RunDamaged(f"{path} was altered since the run ended; the run cannot be used")
        for number, line in enumerate(waiting, 1):
            yield _line(self.path / pending_lines.DIRECTORY, number, line)

    def _check_size(self, path: Path, size: int) -> None:
        sealed = self.run.metrics
        if size > MAX_METRICS:
            raise RunDamaged(f"{path} is larger than {MAX_METRICS} bytes; the run cannot be used")
        if sealed is not None and size != sealed.size:
            raise RunDamaged(f"{path} has {size} bytes, at the end of the run it had {sealed.size}")

    def _check_cut_line(self, path: Path, number: int, size: int) -> None:
        """Refuse a file that ends within a line, unless the run was killed or is running."""
        if size >= MAX_LINE:
            raise RunDamaged(f"{path}, line {number} is longer than {MAX_LINE} bytes; the run cannot be used")
        if self.run.status == FINISHED and self.run.signal is None:
            raise RunDamaged(f"{path}, line {number} is cut short; the run cannot be used")


def _line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Decode one line of metrics.jsonl."""
    try:
        content = untrusted_json.loads(line)
        if isinstance(content, dict):
            return content
        raise ValueError("not a JSON object")
    except ValueError as error:
        raise RunDamaged(f"{path}, line {number}: {reason(error)}; the run cannot be used") from None


def _check_range(value: Any, place: str) -> None:
    """Refuse what no launcher writes: numbers that are no count, size or time, and endless texts."""
    if isinstance(value, dict):
        if any(len(key) > MAX_TEXT for key in value):
            raise ValueError(f"a key of more than {MAX_TEXT} characters - at `$.{place[:80]}`")
        for key, part in value.items():
            is_in_range = type(part) is int and 0 <= part <= MAX_NUMBER  # decides most values without a call
            if not (part is None or is_in_range or (type(part) is str and len(part) <= MAX_TEXT)):
                _check_range(part, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for part in value:
            _check_range(part, place)
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise ValueError(f"a text of {len(value)} characters - at `$.{place[:80]}`")
    elif value is not None and not 0 <= value <= (MAX_SECONDS if isinstance(value, float) else MAX_NUMBER):
        raise ValueError(f"{str(value)[:40]} is out of range - at `$.{place[:80]}`")


def _give_codes(content: dict[str, Any]) -> None:
    """Make warnings of what were texts before there were codes."""
    texts = content.get("warnings")
    if isinstance(texts, list):
        content["warnings"] = [{"text": text} for text in texts]


def _seal(content: dict[str, Any]) -> str:
    """Return the check of a JSON object: SHA-256 of its sorted, compact text without the check itself."""
    rest = {key: value for key, value in content.items() if key != "check"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _check_seal(path: Path, content: dict[str, Any], data: bytes) -> None:
    """Refuse a sealed JSON object that was altered or lost its end; takes the check out of it."""
    if not data.endswith(b"\n"):
        raise RunDamaged(f"{path} is cut short; the run cannot be used")
    if content.pop("check", None) != _seal(content):
        raise RunDamaged(f"{path} was altered: its check does not fit; the run cannot be used")


def open_regular(path: str, flags: int) -> int:
    """Return an opener for open(): follows no symbolic link and waits for no FIFO."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def open_following(path: str, flags: int) -> int:
    """Return an opener for open(): follows symbolic links, and opens no FIFO: its writer would write to nobody."""
    if stat.S_ISFIFO(os.stat(path).st_mode):
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE), path)
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def beginning(path: Path, limit: int) -> bytes:
    """Return the first bytes of a regular file; none where there is no such file, or it cannot be read."""
    with suppress(OSError), open(path, "rb", opener=open_regular) as file:
        return file.read(limit)
    return b""


def size_of(path: Path) -> int:
    """Return the bytes of the files below a directory, without following links."""
    total = 0
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                is_directory = entry.is_dir(follow_symlinks=False)
                total += size_of(Path(entry.path)) if is_directory else entry.stat(follow_symlinks=False).st_size
    return total


def seal_files(directory: Path, names: list[str], kind: str) -> SealedFile | None:
    """Return the size of these files and a digest of their names and contents; None if there are none."""
    digest, size = hashlib.sha256(f"{kind}\0".encode()), 0
    for name in names:
        refused = refused_as(RunDamaged, directory / name, "the run cannot be used")
        with refused, open(directory / name, "rb", opener=open_regular) as file:
            digest.update(os.fsencode(name) + b"\0" + os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
            for block in iter(lambda: file.read(BLOCK), b""):
                digest.update(block)
                size += len(block)
    return SealedFile(size=size, digest="sha256:" + digest.hexdigest()) if names else None


def seal_evaluation(run: Path) -> SealedFile | None:
    """Return size and digest of the files of predictions and true values."""
    return seal_files(run / EVALUATION, bounded_names(run / EVALUATION, ".npy"), "reprokit-evaluation-1")


def seal_console(run: Path) -> SealedFile:
    """Return size and digest of the files of printed text, of which there may be none."""
    kind, names = "reprokit-console-1", bounded_names(run / CONSOLE, ".console")
    nothing = SealedFile(size=0, digest=f"sha256:{hashlib.sha256(kind.encode()).hexdigest()}")
    return seal_files(run / CONSOLE, names, kind) or nothing


def seal_file(path: Path) -> SealedFile | None:
    """Return size and digest of a file at the end of a run; None if there is none."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            return sealed(file)
    except OSError:
        return None


def sealed(file: IO[bytes]) -> SealedFile:
    """Return size and digest of the rest of an open file."""
    digest, size = hashlib.sha256(), 0
    for block in iter(lambda: file.read(BLOCK), b""):
        digest.update(block)
        size += len(block)
    return SealedFile(size=size, digest=f"sha256:{digest.hexdigest()}")


def is_running(pid: int) -> bool:
    """Return whether a process of this id is here and has not ended, also where nobody waited for it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])
    except OSError:
        return False


def process_alive(pid: int, started: float) -> bool:
    """Return whether the process that began at that time (seconds since the epoch) still runs here.

    One that has ended and that nobody waits for, as under a container's first process, does not.
    """
    import psutil  # imported here because it is slow to load and rarely needed

    try:
        return pid > 0 and is_running(pid) and abs(psutil.Process(pid).create_time() - started) < 2.0
    except (psutil.Error, OverflowError, ValueError):
        return False


def _indented(text: str) -> bytes:
    """Indent JSON as json.dumps does, which is slow; msgspec takes no lone surrogates."""
    try:
        return msgspec.json.format(text.encode(), indent=2)
    except msgspec.DecodeError:
        return json.dumps(json.loads(text), indent=2).encode()


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole or not at all, readable by its owner only; an object is sealed by a check."""
    content = msgspec.to_builtins(value)
    if isinstance(content, dict):
        content["check"] = _seal(content)
    with refused_as(CannotWriteRun, path):
        write_whole(path, _indented(json.dumps(content)) + b"\n")


def write_whole(path: Path, data: bytes, *, synced: bool = False, mode: int = 0o600) -> None:
    """Replace a file whole or not at all, by default readable by its owner only; raises OSError."""
    partial = path.with_name(path.name + ".partial")
    try:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(fd)
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        raise


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
