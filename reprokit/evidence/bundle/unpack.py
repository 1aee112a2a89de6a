"""Unpacks an untrusted bundle: only names of a run directory, within bounds, each file as its list describes it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import zstandard

from reprokit.core import untrusted_json
from reprokit.core.errors import BadBundle, CannotWriteReport, reason, refused_as
from reprokit.evidence.bundle import manifest
from reprokit.evidence.bundle.manifest import BundleContents, PackedFile
from reprokit.run_files.rundir import RUN, RunDirectory

WINDOW = 128 << 20  # bytes of memory that the decompressor may use
MAX_EXTENSION = 64 << 10  # bytes of an extended header, which holds long names and sizes
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


MAX_CHAINED = 4  # extended headers in front of one member
RESERVE = 256 << 20  # bytes of the disk that stay free; at most a quarter of a small disk
BLOCK = 4096  # minimum of bytes that a file occupies on disk


class Archive(tarfile.TarFile):
    """An archive that is read as a stream."""

    chained = 0  # number of nested headers being read


class BoundedTarInfo(tarfile.TarInfo):
    """A member of the archive; bounds what tarfile reads into memory before the member's name is known."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> BoundedTarInfo:
        """Return the next member; tarfile calls this again for the member behind an extended header."""
        assert isinstance(archive, Archive)
        if archive.chained >= MAX_CHAINED:
            raise tarfile.ReadError("too many headers stand before one file")
        archive.chained += 1
        try:
            return super().fromtarfile(archive)
        finally:
            archive.chained -= 1

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedTarInfo:
        """Return the header; refuses sparse files and long extended headers."""
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENSIONS and member.size > MAX_EXTENSION:
            raise tarfile.ReadError("a header is too long")
        if member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("it holds a file with holes")
        return member


def unpack(path: Path, output: Path) -> BundleContents:
    """Make a run directory of a bundle; nothing remains of a refused one."""
    if os.path.lexists(output):
        raise CannotWriteReport(f"{output} exists already; choose another directory with -o")
    with refused_as(CannotWriteReport, output, "choose another place with -o"):
        scratch = Path(tempfile.mkdtemp(prefix=".unpack-", dir=output.parent))
    try:
        listed = _extract(path, scratch)
        if RunDirectory(scratch).run.run_id != listed.run_id:
            raise BadBundle(f"{path}: its list names another run than {RUN}")
        os.rename(scratch, output)
    except OSError as error:
        raise CannotWriteReport(f"{output}: {error.strerror}; nothing was unpacked") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return listed


def _extract(path: Path, scratch: Path) -> BundleContents:
    with refused_as(BadBundle, path):
        file = open(path, "rb")  # noqa: SIM115
    decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    try:
        with (
            file,
            decompressor.stream_reader(file) as stream,
            Archive.open(fileobj=stream, mode="r|", tarinfo=BoundedTarInfo) as archive,
        ):
            return _extract_members(path, archive, scratch)
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as error:
        raise BadBundle(f"{path} is not a bundle, or was cut or changed: {_short_reason(error)}") from None


def _extract_members(path: Path, archive: tarfile.TarFile, scratch: Path) -> BundleContents:
    listed: BundleContents | None = None
    seen: set[str] = set()
    for member in archive:
        if listed is None:
            listed = _read_list(path, archive, member)
            require_room(str(path), listed.files.values(), scratch)
            continue
        name = member.name.removeprefix(manifest.HOME)
        if member.name == name or not member.isreg() or name in seen or not manifest.is_allowed(name):
            raise BadBundle(f"{path} holds {member.name[:200]!r}, which no run directory has")
        if name not in listed.files or listed.files[name].size != member.size:
            raise BadBundle(f"{path}: {name} differs from the bundle's list of contents")
        write_listed(str(path), _content(archive, member), scratch / name, listed.files[name])
        seen.add(name)
    if listed is None or seen != set(listed.files):
        raise BadBundle(f"{path} is cut short: files of its list are missing")
    return listed


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source = archive.extractfile(member)
    assert source is not None
    yield from iter(lambda: source.read(1 << 20), b"")


def _read_list(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> BundleContents:
    """Read bundle.json, the first member, which lists all others before any is written."""
    if member.name != manifest.LIST or not member.isreg() or member.size > manifest.MAX_LIST:
        raise BadBundle(f"{path} is not a bundle: it does not begin with {manifest.LIST}")
    file = archive.extractfile(member)
    return decoded(str(path), file.read() if file is not None else b"")


def decoded(place: str, data: bytes) -> BundleContents:
    """Return the decoded bundle.json; raises BadBundle if it exceeds the bounds."""
    try:
        listed = msgspec.convert(untrusted_json.loads(data), BundleContents)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadBundle(f"{place}: {manifest.LIST}: {_short_reason(error)}") from None
    if listed.format > manifest.FORMAT:
        raise BadBundle(f"{place} has format {listed.format}, this reprokit reads {manifest.FORMAT}; upgrade reprokit")
    size = sum(file.size for file in listed.files.values())
    if len(listed.files) > manifest.MAX_FILES or size > manifest.MAX_SIZE:
        raise BadBundle(f"{place} holds {len(listed.files)} files of {size} bytes, more than a run directory has")
    return listed


def require_room(place: str, files: Iterable[PackedFile], scratch: Path) -> None:
    """Raise CannotWriteReport if the files would fill the disk: a small bundle can unpack into very much."""
    disk = shutil.disk_usage(scratch)
    size = sum(file.size + BLOCK for file in files)
    free = max(0, disk.free - min(RESERVE, disk.total // 4))
    if size > free:
        raise CannotWriteReport(
            f"{place} unpacks into {size} bytes, and {free} are free beside a reserve; choose another place with -o"
        )


def write_listed(place: str, blocks: Iterable[bytes], target: Path, listed: PackedFile) -> None:
    """Write one file, and never more bytes than its entry lists."""
    _make_parents(target.parent)
    hasher, left = hashlib.sha256(), listed.size
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        for block in blocks:
            left -= len(block)
            if left < 0:
                break
            hasher.update(block)
            file.write(block)
    if left or "sha256:" + hasher.hexdigest() != listed.digest:
        raise BadBundle(f"{place}: {target.name} differs from the bundle's list of contents")


def _make_parents(directory: Path) -> None:
    """Make a directory and its parents, readable by their owner only; mkdir's mode applies to the last one alone."""
    if not directory.exists():
        _make_parents(directory.parent)
        directory.mkdir(mode=0o700)


def _short_reason(error: Exception) -> str:
    return reason(error)[:200]
