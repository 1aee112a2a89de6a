"""Lists the objects of stores that a run read, with the ETag, version and size that the store reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.run.data import DataFile
from reprokit.run_files import object_stores, rundir

MAX_OBJECTS = 10_000  # of a run; the agent has the same limit per process (agent/frameworks/objects.py)
MAX_READ = 64 << 20  # bytes read of objects.jsonl, which all processes write
PATIENCE = 5.0  # seconds that the start of a replay waits for stores
LOOKED_AT = 1000  # objects checked before the start of a replay
SCHEME = "etag"  # of the digests of objects


class ObjectRead(msgspec.Struct, frozen=True):
    """A line of objects.jsonl."""

    url: str
    etag: str
    version: str
    size: int | None


def read(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the entries for environment.json's data, and the number of objects left out."""
    reads: dict[str, list[ObjectRead]] = {}
    for line in rundir.beginning(run / rundir.OBJECTS, MAX_READ).splitlines():
        try:
            object_read = msgspec.json.decode(line, type=ObjectRead)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # an incomplete line of a killed process
        reads.setdefault(object_read.url, []).append(object_read)
    listed = sorted(reads)[:MAX_OBJECTS]
    return [msgspec.to_builtins(_entry(url, reads[url])) for url in listed], len(reads) - len(listed)


def _entry(url: str, reads: list[ObjectRead]) -> DataFile:
    etags, versions = {object_read.etag for object_read in reads}, {object_read.version for object_read in reads}
    last = reads[-1]
    if len(etags) > 1:
        return DataFile(url, last.size or 0, "", f"it was overwritten meanwhile: {len(etags)} ETags were seen")
    digest = f"{SCHEME}:{last.etag}" if last.etag else ""
    note = "" if digest else "the library does not tell its ETag"
    return DataFile(url, last.size or 0, digest, note, version=last.version if len(versions) == 1 else "")


def _recorded(environment: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield URL, ETag and version of each object that a recording read; its file may be untrusted."""
    entries = environment.get("data")
    for entry in entries[:MAX_OBJECTS] if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            url, digest, version = (entry.get(key, "") for key in ("path", "digest", "version"))
            if isinstance(url, str) and isinstance(digest, str) and isinstance(version, str):
                scheme, _, etag = digest.partition(":")
                if object_stores.is_remote(url) and scheme == SCHEME:
                    yield url, etag, version


def versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each object that was read, if its store keeps versions."""
    return {url: version for url, _, version in _recorded(environment) if version not in ("", "null")}


def changes(environment: Mapping[str, Any]) -> list[str]:
    """Return which objects have changed in their stores; nothing if obstore is not installed."""
    recorded = list(_recorded(environment))[:LOOKED_AT]
    if not recorded:
        return []
    try:
        obstore = object_stores.library()
    except ReprokitError:
        return []
    import asyncio  # imported late: slow to load, and most runs read no objects

    return asyncio.run(_find_changes(obstore, recorded))


async def _find_changes(obstore: Any, recorded: list[tuple[str, str, str]]) -> list[str]:
    import asyncio

    stores: dict[str, Any] = {}
    tasks = [asyncio.create_task(_change_of(obstore, stores, url, etag)) for url, etag, _ in recorded]
    done, pending = await asyncio.wait(tasks, timeout=PATIENCE)
    for task in pending:
        task.cancel()
    answers = [task.result() for task in done]
    unknown = len(pending) + answers.count(None)
    changes_found = sorted(filter(None, answers))
    return changes_found + (
        [f"{unknown} objects were not looked at before the start: no answer came"] if unknown else []
    )


async def _change_of(obstore: Any, stores: dict[str, Any], url: str, etag: str) -> str | None:
    """Return the change of an object, in words, empty if there is none; None if the store does not answer."""
    scheme, _, path = url.partition("://")
    bucket, _, key = path.partition("/")
    try:
        root = f"{scheme}://{bucket}"
        store = stores.get(root) or stores.setdefault(root, object_stores.open_store(root, timeout=PATIENCE))
        current = str((await obstore.head_async(store, key))["e_tag"] or "").strip('"')
    except FileNotFoundError:
        return f"{url}: it is not there any more"
    except Exception:  # no permission, or no store: the replay itself shows what its script reads
        return None
    return f"{url}: it was overwritten since (another ETag)" if current != etag else ""
