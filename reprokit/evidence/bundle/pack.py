"""Packs a run; the same run gives the same bytes on any machine and at any time."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import zstandard

from reprokit.core import private_keys
from reprokit.core.bounds import bounded_names
from reprokit.core.errors import CannotWriteReport, CannotWriteRun, ReprokitError, RunDamaged
from reprokit.core.redaction import Secrets
from reprokit.core.version import VERSION
from reprokit.evidence.bundle import manifest
from reprokit.evidence.bundle.manifest import BundleContents, PackedFile
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.model.run import Bundled, RunFile
from reprokit.run_files import console, names, numbers, rundir
from reprokit.run_files.rundir import BUNDLED_DIRECTORY, RunDirectory
from reprokit.run_files.variables import is_kept

_UNSEALED_KEYS = frozenset(
    ["command", "directory", "environment", "host", "notes"]
)  # keys of a snapshot's header that its digest does not cover
LEVEL = 10  # compression level of zstd: its result depends on this and on the library's version
USER, MACHINE = "/home/user", "host"
_HOMES = re.compile(r"/(?:home|Users)/([^/\s\"':;,]+)|/root(?![A-Za-z0-9._-])")
_HOST_KEYS = frozenset({"host", "hostname", "node"})  # keys whose value is a host name


@dataclass(frozen=True)
class BundleRequest:
    """The requested optional parts of a bundle."""

    entropy: bool = False
    snapshots: bool = False
    paths: bool = False  # keep paths and names unchanged


def pack(path: Path, output: Path, request: BundleRequest = BundleRequest()) -> BundleContents:
    """Write the bundle of a finished run, completely or not at all."""
    run = RunDirectory(path)
    run.require_finished()
    if os.path.lexists(output):
        raise CannotWriteReport(f"{output} exists already; choose another name with -o")
    try:
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=output.parent) as scratch:
            staging = Path(scratch)
            listed = stage(run, staging, request)
            partial = staging / "partial"
            _archive(staging, listed, partial)
            os.replace(partial, output)
    except OSError as error:
        raise CannotWriteReport(f"{output}: {error.strerror}; choose another place with -o") from None
    except CannotWriteRun as error:
        raise CannotWriteReport(f"{output}: {error}") from None
    return listed


def _normalizer(run: RunDirectory, request: BundleRequest) -> Secrets:
    """Return what replaces names; home directories may occur anywhere in command, variables and environment."""
    if request.paths:
        return Secrets()
    texts = json.dumps([run.run.command, run.run.variables, run.environment()])
    return Normalizer(run.run.working_directory, run.run.host, texts)


def stage(run: RunDirectory, staging: Path, request: BundleRequest) -> BundleContents:
    """Write the files of the bundle into a staging directory, and return their list."""
    normalizer = _normalizer(run, request)
    directory = staging / "run"
    directory.mkdir()
    for name in manifest.WHOLE:
        if run.has(name):
            _rewrite(directory / name, normalizer.value(run.decode(name, dict[str, Any])))
    environment = run.environment()
    if environment is not None:
        environment = {key: value for key, value in environment.items() if key not in ("check", "variables")}
        _rewrite(directory / rundir.ENVIRONMENT, normalizer.value(environment))
    if run.has(rundir.METRICS):
        _metrics(run, directory / rundir.METRICS, normalizer)
    _numbers(run, directory / rundir.NUMBERS, normalizer)
    for name in manifest.TEXTS:
        if text := _text(run, name):
            (directory / name).write_bytes(os.fsencode(normalizer.text(os.fsdecode(text))))
    outputs = _outputs(run)
    if outputs is not None:
        _rewrite(directory / rundir.OUTPUTS, normalizer.value(msgspec.to_builtins(outputs)))
    for name in manifest.DIRECTORIES:
        _copies(run, name, directory)
    _console(run, directory, normalizer)
    _remove_private_keys(directory / rundir.KEPT)
    _entropy(run, directory, request)
    if request.snapshots:
        _snapshots(run, directory, normalizer)
    original = rundir.seal_file(run.path / rundir.RUN)
    assert original is not None
    _run_file(run, directory, normalizer, Bundled(entropy=request.entropy, original=original.digest))
    return BundleContents(
        reprokit=VERSION,
        run_id=run.run.run_id,
        entropy=request.entropy,
        normalized=not request.paths,
        snapshots=request.snapshots,
        original=original.digest,
        left_out=list(_left_out(run, request, outputs)),
        files=dict(_packed(directory)),
    )


def _left_out(run: RunDirectory, request: BundleRequest, outputs: OutputsFile | None) -> Iterator[str]:
    if not request.entropy:
        yield "the random profile and its key, which can be secret: --with-entropy adds them"
    if run.has(rundir.SNAPSHOTS) and not request.snapshots:
        yield "snapshots, which hold data that was trained on: --with-snapshots adds them"
    if run.has(rundir.PROFILE):
        yield f"what each process of the profiled run wrote, which {rundir.FINDINGS} sums up"
    if keys := sum(file.private_key for file in outputs.files) if outputs is not None else 0:
        yield f"private keys among the outputs: of {keys} files there are digests only"


def _outputs(run: RunDirectory) -> OutputsFile | None:
    """Pack outputs.json without copies of private keys, which earlier versions kept, and of what the run found."""
    listed = run.outputs()
    if listed is None:
        return None
    found = [msgspec.structs.replace(file, kept=None, digest=None) for file in listed.found]
    return msgspec.structs.replace(listed, files=[_without_key(run, file) for file in listed.files], found=found)


def _without_key(run: RunDirectory, file: OutputFile) -> OutputFile:
    with suppress(OSError, ReprokitError):  # the copy was removed
        if file.kept is not None:
            with os.fdopen(run.open_kept(file), "rb") as copy:
                if private_keys.is_private_key(copy):
                    return msgspec.structs.replace(file, kept=None, private_key=True)
    return file


def _run_file(run: RunDirectory, directory: Path, normalizer: Secrets, bundled: Bundled) -> None:
    """Write run.json with seals of the rewritten files."""
    facts = msgspec.convert(normalizer.value(msgspec.to_builtins(run.run)), RunFile)
    facts.variables = {name: value for name, value in facts.variables.items() if is_kept(name, value)}
    facts.key = facts.key if bundled.entropy else ""
    facts.launcher_pid, facts.launcher_started = 0, 0.0
    facts.metrics = rundir.seal_file(directory / rundir.METRICS)
    facts.numbers = numbers.seal(directory / rundir.NUMBERS)
    facts.environment = rundir.seal_file(directory / rundir.ENVIRONMENT)
    facts.outputs = rundir.seal_file(directory / rundir.OUTPUTS)
    facts.console = rundir.seal_console(directory) if run.keeps_console else None
    facts.keyframes = None  # they stay behind
    facts.bundled = bundled
    rundir.write_json(directory / rundir.RUN, facts)


def _rewrite(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rundir.write_json(path, content)


def _metrics(run: RunDirectory, path: Path, normalizer: Secrets) -> None:
    """Pack metrics.jsonl line by line, as it can be large."""
    with open(path, "w", encoding="ascii") as file:
        for line in run.metrics():
            file.write(json.dumps(normalizer.value(line), separators=(",", ":")) + "\n")


def _numbers(run: RunDirectory, directory: Path, normalizer: Secrets) -> None:
    """Pack the numbers, of which only the names are replaced."""
    for process in numbers.read(run):
        directory.mkdir(exist_ok=True)
        with open(directory / process.name, "wb") as file:
            file.writelines(process.rewritten(normalizer.text))


def _remove_private_keys(copies: Path) -> None:
    for path in copies.iterdir() if copies.is_dir() else ():
        with open(path, "rb") as copy:
            if private_keys.is_private_key(copy):
                path.unlink()


def _text(run: RunDirectory, name: str) -> bytes:
    if name == rundir.READ:
        return b"".join(line + b"\n" for line in names.read_lines(run.path))
    return run.read(name, rundir.MAX_JSON) if run.has(name) else b""


def _copies(run: RunDirectory, name: str, directory: Path) -> None:
    """Pack the files of a directory of the run, if they have names that reprokit gives."""
    for entry in _entries(run, name):
        if manifest.is_allowed(f"{name}/{entry}"):
            _copy(run, f"{name}/{entry}", directory)


def _entries(run: RunDirectory, name: str) -> list[str]:
    """Return the names in a directory of the run; none if it does not exist."""
    place = run.path / name
    try:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise RunDamaged(f"{place} is not a directory; the run cannot be packed")
    except FileNotFoundError:
        return []
    return bounded_names(place, "")


def _copy(run: RunDirectory, member: str, directory: Path) -> None:
    """Pack one file unchanged: by a link to it, or a copy where there can be none."""
    source, target = f"{run.path}/{member}", f"{directory}/{member}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with suppress(OSError):
        os.link(source, target, follow_symlinks=False)
        if stat.S_ISREG(os.lstat(target).st_mode):
            return
        os.unlink(target)
    with os.fdopen(run.open(member), "rb") as file, open(target, "wb") as copy:
        for block in iter(lambda: file.read(1 << 20), b""):
            copy.write(block)


def _console(run: RunDirectory, directory: Path, normalizer: Secrets) -> None:
    """Pack the printed text, piece by piece."""
    for head in console.heads(run).values():
        printed = console.read(run, head)
        first, last = (
            [piece._replace(data=_normalized(piece.data, normalizer)) for piece in console.joined(pieces)]
            for pieces in (printed.first, printed.last)
        )
        text = msgspec.structs.replace(printed, first=first, last=last)
        _write_console(directory, head.file, console.encode(head, text))
    for name in console.never_begun(run):
        _write_console(directory, name, b"")


def _write_console(directory: Path, name: str, data: bytes) -> None:
    (directory / rundir.CONSOLE).mkdir(exist_ok=True)
    (directory / rundir.CONSOLE / name).write_bytes(data)


def _normalized(data: bytes, normalizer: Secrets) -> bytes:
    return normalizer.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _entropy(run: RunDirectory, directory: Path, request: BundleRequest) -> None:
    """Pack the random profile if requested; the file that counts missed requests is always packed."""
    for entry in _entries(run, rundir.ENTROPY):
        member = f"{rundir.ENTROPY}/{entry}"
        if manifest.is_allowed(member) and (request.entropy or member == manifest.FRESH):
            _copy(run, member, directory)
    if request.entropy and run.has(rundir.VARIABLE_KEY):
        _copy(run, rundir.VARIABLE_KEY, directory)


def _snapshots(run: RunDirectory, directory: Path, normalizer: Secrets) -> None:
    """Pack snapshots: tensors unchanged, their headers without names that no digest covers."""
    for entry in _entries(run, rundir.SNAPSHOTS):
        place = f"{rundir.SNAPSHOTS}/{entry}"
        header, tensors = f"{place}/{manifest.HEADER}", f"{place}/{manifest.TENSORS}"
        if manifest.is_allowed(header) and {manifest.HEADER, manifest.TENSORS} <= set(_entries(run, place)):
            _copy(run, tensors, directory)
            _rewrite(directory / header, _header(run.decode(header, dict[str, Any]), normalizer))


def _header(header: dict[str, Any], normalizer: Secrets) -> dict[str, Any]:
    """Return the normalized header of a snapshot; names of tensors, values and digest stay."""
    for key in _UNSEALED_KEYS & header.keys():
        header[key] = normalizer.value(header[key], key)
    for trigger in (header.get("trigger"), *(header.get("also") or ())):
        if isinstance(trigger, dict) and "where" in trigger:
            trigger["where"] = normalizer.value(trigger["where"])
    return header


def _packed(directory: Path) -> Iterator[tuple[str, PackedFile]]:
    """Yield every file with its size and digest, in the order of their names."""
    for path in sorted(filter(Path.is_file, directory.rglob("*")), key=Path.as_posix):
        sealed = rundir.seal_file(path)
        assert sealed is not None
        yield path.relative_to(directory).as_posix(), PackedFile(size=sealed.size, digest=sealed.digest)


def _archive(staging: Path, listed: BundleContents, output: Path) -> None:
    """Write the compressed tar archive, with the same metadata on all machines."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with (
        os.fdopen(descriptor, "wb") as file,
        compressor.stream_writer(file, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        head = encoded(listed)
        _add(archive, manifest.LIST, len(head), io.BytesIO(head))
        for name in sorted(listed.files):
            with open(staging / "run" / name, "rb") as content:
                _add(archive, manifest.HOME + name, listed.files[name].size, content)


def encoded(listed: BundleContents) -> bytes:
    """Return the encoded bundle.json."""
    return json.dumps(msgspec.to_builtins(listed), indent=1).encode() + b"\n"


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, 0
    archive.addfile(member, content)


class Normalizer(Secrets):
    """Replaces the working directory, the home directories, user and host name of one run."""

    def __init__(self, working_directory: str, host: str = "", texts: str = "") -> None:
        self._directory = working_directory.rstrip("/")
        users = {name for name in _HOMES.findall(f"{working_directory} {texts}") if name not in ("", "user")}
        self._users = _alternatives(r"(?<=/)(?:{})(?=[/\s\"':;,]|$)", users)
        # A host name such as "train" also occurs as a word in texts; it is replaced only under the keys of host names.
        hosts = {host} if re.search("[0-9-]", host) else set()
        self._host = _alternatives(r"(?<![A-Za-z0-9._-])(?:{})(?![A-Za-z0-9_-])", hosts)

    def text(self, text: str) -> str:
        """Return a text with its paths and names replaced."""
        text = super().text(text)
        if len(self._directory) > 1:
            text = re.sub(re.escape(self._directory) + r"(?![A-Za-z0-9._-])", BUNDLED_DIRECTORY, text)
        text = _HOMES.sub(USER, text)
        text = self._users.sub("user", text) if self._users else text
        return self._host.sub(MACHINE, text) if self._host else text

    def named(self, text: str, key: str) -> str:
        """Return the normalized text of a key; some keys hold a host name."""
        return MACHINE if key in _HOST_KEYS and text else self.text(text)


def _alternatives(pattern: str, names: set[str]) -> re.Pattern[str] | None:
    alternatives = "|".join(map(re.escape, sorted(names)))
    return re.compile(pattern.format(alternatives)) if alternatives else None
