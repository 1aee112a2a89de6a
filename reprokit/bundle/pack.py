"""Packs a run: the same run gives the same bytes, on any machine and at any time."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from reprokit import rundir
from reprokit.bundle import contents
from reprokit.bundle.contents import Contents, Packed
from reprokit.bundle.normalise import Normaliser, Verbatim
from reprokit.errors import CannotWriteReport, ExtraMissing, RunDamaged, RunExists
from reprokit.launch.variables import is_kept
from reprokit.rundir import Bundled, RunDirectory
from reprokit.version import VERSION

LEVEL = 10  # of zstd: its result depends on this and on the library's version


def pack(path: Path, output: Path, *, with_entropy: bool = False, keep_paths: bool = False) -> Contents:
    """Write the bundle of a finished run; the file is there whole or not at all."""
    run = RunDirectory(path)
    run.require_finished()
    if os.path.lexists(output):
        raise RunExists(f"{output} exists already; choose another name with -o")
    normaliser = Verbatim() if keep_paths else Normaliser(run.run.working_directory)
    try:
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=output.parent) as scratch:
            staging = Path(scratch)
            listed = _stage(run, staging, normaliser, with_entropy=with_entropy)
            partial = staging / "partial"
            _archive(staging, listed, partial)
            os.replace(partial, output)
    except OSError as error:
        raise CannotWriteReport(f"{output}: {error.strerror}; choose another place with -o") from None
    return listed


def _stage(run: RunDirectory, staging: Path, normaliser: Normaliser, *, with_entropy: bool) -> Contents:
    """Write what goes into the bundle, file by file, and list it."""
    directory = staging / "run"
    directory.mkdir()
    for name in contents.WHOLE:
        if run.has(name):
            _rewrite(directory / name, normaliser.value(run.decode(name, dict[str, Any])))
    environment = run.environment()
    if environment is not None:
        _rewrite(directory / rundir.ENVIRONMENT, normaliser.value(_without_variables(environment)))
    if run.has(rundir.METRICS):
        _metrics(run, directory / rundir.METRICS, normaliser)
    for name in contents.PATHS:
        if run.has(name):
            text = os.fsdecode(run.read(name, rundir.MAX_JSON))
            (directory / name).write_bytes(os.fsencode(normaliser.text(text)))
    for name in (*contents.DIRECTORIES, *(contents.SECRET if with_entropy else ())):
        _copies(run, name, directory)
    original = rundir.seal_file(run.path / rundir.RUN)
    assert original is not None
    _run_file(run, directory, normaliser, Bundled(entropy=with_entropy, original=original.digest))
    return Contents(
        reprokit=VERSION,
        run_id=run.run.run_id,
        entropy=with_entropy,
        normalised=not isinstance(normaliser, Verbatim),
        original=original.digest,
        left_out=list(_left_out(run, with_entropy=with_entropy)),
        files={name: _packed(directory / name) for name in _names(directory)},
    )


def _left_out(run: RunDirectory, *, with_entropy: bool) -> Iterator[str]:
    if not with_entropy:
        yield "the random profile and its key, which can be secret: --with-entropy adds them"
    if run.has("snapshots"):
        yield "snapshots, which hold data that was trained on: hand them over by themselves"


def _run_file(run: RunDirectory, directory: Path, normaliser: Normaliser, bundled: Bundled) -> None:
    """run.json, with seals of what the files have become."""
    facts = msgspec.convert(normaliser.value(msgspec.to_builtins(run.run)), rundir.RunFile)
    facts.variables = {name: value for name, value in facts.variables.items() if is_kept(name, value)}
    facts.key = facts.key if bundled.entropy else ""
    facts.launcher_pid, facts.launcher_started = 0, 0.0
    facts.metrics = rundir.seal_file(directory / rundir.METRICS) if run.has(rundir.METRICS) else None
    facts.bundled = bundled
    rundir.write_json(directory / rundir.RUN, facts)


def _without_variables(environment: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in environment.items() if key not in ("check", "variables")}


def _rewrite(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    rundir.write_json(path, content)


def _metrics(run: RunDirectory, path: Path, normaliser: Normaliser) -> None:
    """metrics.jsonl, line by line, as it can be large."""
    with open(path, "w", encoding="ascii") as file:
        for line in run.metrics():
            file.write(json.dumps(normaliser.value(line), separators=(",", ":")) + "\n")


def _copies(run: RunDirectory, name: str, directory: Path) -> None:
    """The files of a part of the run, those of names that reprokit gives."""
    place = run.path / name
    try:
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise RunDamaged(f"{place} is not a directory; the run cannot be packed")
    except FileNotFoundError:
        return
    (directory / name).mkdir()
    for entry in sorted(os.listdir(place)):
        member = f"{name}/{entry}"
        if contents.is_allowed(member):
            with os.fdopen(run.open(member), "rb") as source, open(directory / member, "wb") as target:
                for block in iter(lambda: source.read(1 << 20), b""):
                    target.write(block)


def _names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def _packed(path: Path) -> Packed:
    sealed = rundir.seal_file(path)
    assert sealed is not None
    return Packed(size=sealed.size, digest=sealed.digest)


def _archive(staging: Path, listed: Contents, output: Path) -> None:
    """The tar archive, compressed; everything in it that is not content is the same for everybody."""
    compressor = zstandard_library().ZstdCompressor(level=LEVEL)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with (
        os.fdopen(descriptor, "wb") as file,
        compressor.stream_writer(file, closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        head = json.dumps(msgspec.to_builtins(listed), indent=1).encode() + b"\n"
        _add(archive, contents.LIST, len(head), io.BytesIO(head))
        for name in sorted(listed.files):
            with open(staging / "run" / name, "rb") as content:
                _add(archive, contents.HOME + name, listed.files[name].size, content)


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, 0
    archive.addfile(member, content)


def zstandard_library() -> Any:
    """The package, which is one of an extra."""
    try:
        import zstandard
    except ImportError:
        raise ExtraMissing("bundles need zstandard: pip install 'reprokit-harness[report]'") from None
    return zstandard
