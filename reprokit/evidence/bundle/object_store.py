"""Pushes a run to an object store and pulls it: its bundle's files as single objects, the list of contents last."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from reprokit.core.bounds import open_file
from reprokit.core.errors import BadBundle, CannotWriteReport, ReprokitError, refused_as
from reprokit.core.messages import warn
from reprokit.evidence.bundle import manifest
from reprokit.evidence.bundle.manifest import BundleContents
from reprokit.evidence.bundle.pack import BundleRequest, encoded, stage
from reprokit.evidence.bundle.unpack import decoded, require_room, write_listed
from reprokit.model.run import RUNNING
from reprokit.run_files import object_stores, rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.index import ENDING, keys

POLL = 1.0  # seconds between polls, at least
SHARE = 20  # the wait before the next upload, as a multiple of the duration of the last one


def push(path: Path, url: str, request: BundleRequest) -> tuple[BundleContents, int]:
    """Write a finished run below a URL; returns its list of contents, and how many files already existed there."""
    run = RunDirectory(path)
    run.require_finished()
    url = url.rstrip("/")
    store = object_stores.open_store(url)
    existing = {meta["path"] for meta in object_stores.listed(store, url)}
    with tempfile.TemporaryDirectory(prefix="reprokit-push-") as scratch:
        listed = stage(run, Path(scratch), request)
        digests = {manifest.HOME + name: file.digest for name, file in listed.files.items()}
        digests[manifest.LIST] = _digest([encoded(listed)])
        for name in sorted(existing & digests.keys()):  # verify all existing objects before writing any
            if _digest(object_stores.content(store, url, name)) != digests[name]:
                raise CannotWriteReport(f"{url}/{name} is of something else than this run; choose another prefix")
        for name in sorted(digests.keys() - existing - {manifest.LIST}):
            object_stores.create(store, url, name, Path(scratch, name))
        if manifest.LIST not in existing:
            object_stores.create(store, url, manifest.LIST, encoded(listed))
    return listed, len(existing & digests.keys() - {manifest.LIST})


def pull(url: str, output: Path) -> tuple[BundleContents, int]:
    """Make a run directory of a pushed run; returns its list of contents, and how many files an earlier try fetched."""
    if os.path.lexists(output):
        raise CannotWriteReport(f"{output} exists already; choose another directory")
    url = url.rstrip("/")
    store = object_stores.open_store(url)
    meta = object_stores.found(store, url, manifest.LIST)
    if meta is None or meta["size"] > manifest.MAX_LIST:
        raise BadBundle(f"{url} has no {manifest.LIST}, which a push writes last; check the URL, or push the run again")
    listed = decoded(url, b"".join(object_stores.content(store, url, manifest.LIST)))
    for name in listed.files:
        if not manifest.is_allowed(name):
            raise BadBundle(f"{url} holds {name[:200]!r}, which no run directory has")
    with refused_as(CannotWriteReport, output, "choose another place"):
        return listed, _place(store, url, listed, output)


def _place(store: object, url: str, listed: BundleContents, output: Path) -> int:
    """Fetch missing files into a directory next to the output, and rename it when it is complete."""
    scratch = output.parent / f".pull-{output.name}"
    scratch.mkdir(mode=0o700, exist_ok=True)
    directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _lock(directory, scratch)
        fetched = _fetched_before(scratch, listed)
        missing = sorted(listed.files.keys() - fetched)
        require_room(url, (listed.files[name] for name in missing), scratch)
        for name in missing:
            blocks = object_stores.content(store, url, manifest.HOME + name)
            write_listed(url, blocks, scratch / name, listed.files[name])
        if RunDirectory(scratch).run.run_id != listed.run_id:
            shutil.rmtree(scratch)
            raise BadBundle(f"{url}: its list names another run than {rundir.RUN}")
        os.rename(scratch, output)
    finally:
        os.close(directory)
    return len(fetched)


def _lock(directory: int, scratch: Path) -> None:
    """Lock the directory; refuse one of another user, or one that another pull is filling."""
    if os.fstat(directory).st_uid != os.geteuid():
        raise CannotWriteReport(f"{scratch} belongs to another user; choose another place")
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotWriteReport(f"{scratch} is being filled by another pull; wait for it") from None


def _fetched_before(scratch: Path, listed: BundleContents) -> set[str]:
    """Return the files that an earlier try fetched completely; its other files are removed."""
    fetched = set()
    for path in list(scratch.rglob("*")):
        mode, name = path.lstat().st_mode, path.relative_to(scratch).as_posix()
        if stat.S_ISDIR(mode):
            continue
        sealed = rundir.seal_file(path) if stat.S_ISREG(mode) and name in listed.files else None
        if sealed is not None and sealed.digest == listed.files[name].digest:
            fetched.add(name)
        else:
            path.unlink()
    return fetched


def _digest(blocks: Iterable[bytes]) -> str:
    hasher = hashlib.sha256()
    for block in blocks:
        hasher.update(block)
    return "sha256:" + hasher.hexdigest()


class FollowedTensors:
    """The tensors of a run that the store holds so far."""

    def __init__(self, run: Path, url: str) -> None:
        self._directory = run / rundir.TENSORS
        self._url = f"{url.rstrip('/')}/{manifest.HOME}{rundir.TENSORS}"
        self._store = object_stores.open_store(self._url)
        self._shards = {str(meta["path"]) for meta in object_stores.listed(self._store, self._url)}
        self._sizes: dict[str, int] = {}  # uploaded bytes of each index

    def upload(self) -> None:
        """Write finished shards, then the indexes that refer to them."""
        for key in keys(self._directory):
            index = self._directory / f"{key}{ENDING}"
            with os.fdopen(open_file(index), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._sizes.get(key):
                    continue
                self._upload_shards(key)
                object_stores.write(self._store, self._url, index.name, file.read(size))
            self._sizes[key] = size

    def _upload_shards(self, key: str) -> None:
        for path in sorted(self._directory.glob(f"{key}-*.safetensors")):
            if path.name not in self._shards:
                with os.fdopen(open_file(path), "rb") as shard:
                    object_stores.create(self._store, self._url, path.name, shard)
                self._shards.add(path.name)


def follow(path: Path, url: str) -> None:
    """Upload the tensors that a run saves until it has ended; retries while the store cannot be reached."""
    tensors, failure = FollowedTensors(path, url), ""
    run = RunDirectory(path)
    while run.run.status == RUNNING and not run.orphaned:
        began = time.monotonic()
        try:
            tensors.upload()
            failure = ""
        except ReprokitError as error:
            if not failure:
                warn(f"{error}; trying again", error.slug)
            failure = str(error)
        time.sleep(max(POLL, SHARE * (time.monotonic() - began)))
        run = RunDirectory(path)
    tensors.upload()
