"""Objects of stores that a run read, by what the store said of each: ETag, version and size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from reprokit import object_stores, rundir
from reprokit.errors import ReprokitError
from reprokit.launch.data import DataFile

MAX_OBJECTS = 10_000  # of a run, as of a process: MAX_OBJECTS of agent/frameworks/objects.py
MAX_READ = 64 << 20  # bytes of objects.jsonl: of all processes
PATIENCE = 5.0  # seconds that the start of a replay waits for stores
LOOKED_AT = 1000  # objects before the start
SCHEME = "etag"  # of digests


class ObjectRead(msgspec.Struct, frozen=True):
    """A line of objects.jsonl."""

    url: str
    etag: str
    version: str
    size: int | None


def read(run: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of environment.json's data, and how many objects are not among them."""
    answers: dict[str, list[ObjectRead]] = {}
    for line in rundir.beginning(run / rundir.OBJECTS, MAX_READ).splitlines():
        try:
            found = msgspec.json.decode(line, type=ObjectRead)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # the last line of a process that was killed
        answers.setdefault(found.url, []).append(found)
    kept = sorted(answers)[:MAX_OBJECTS]
    return [msgspec.to_builtins(_entry(url, answers[url])) for url in kept], len(answers) - len(kept)


def _entry(url: str, answers: list[ObjectRead]) -> DataFile:
    etags, versions = {one.etag for one in answers}, {one.version for one in answers}
    last = answers[-1]
    if len(etags) > 1:
        return DataFile(url, last.size or 0, "", f"it was overwritten meanwhile: {len(etags)} ETags were seen")
    digest = f"{SCHEME}:{last.etag}" if last.etag else ""
    note = "" if digest else "the library does not tell its ETag"
    return DataFile(url, last.size or 0, digest, note, version=last.version if len(versions) == 1 else "")


def _recorded(environment: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yield address, ETag and version of what a recording read; its file may be anybody's."""
    listed = environment.get("data")
    for entry in listed[:MAX_OBJECTS] if isinstance(listed, list) else ():
        if isinstance(entry, dict):
            url, digest, version = (entry.get(key, "") for key in ("path", "digest", "version"))
            if isinstance(url, str) and isinstance(digest, str) and isinstance(version, str):
                scheme, _, etag = digest.partition(":")
                if object_stores.is_remote(url) and scheme == SCHEME:
                    yield url, etag, version


def versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each object that was read, where its store keeps versions."""
    return {url: version for url, _, version in _recorded(environment) if version not in ("", "null")}


def changes(environment: Mapping[str, Any]) -> list[str]:
    """Return what the stores have otherwise now; nothing where obstore is not there to ask them."""
    recorded = list(_recorded(environment))[:LOOKED_AT]
    if not recorded:
        return []
    try:
        obstore = object_stores.library()
    except ReprokitError:
        return []
    import asyncio  # which takes as long as all else that most runs need at their end

    return asyncio.run(_look(obstore, recorded))


async def _look(obstore: Any, recorded: list[tuple[str, str, str]]) -> list[str]:
    import asyncio

    stores: dict[str, Any] = {}
    waited = [asyncio.create_task(_changed(obstore, stores, url, etag)) for url, etag, _ in recorded]
    done, late = await asyncio.wait(waited, timeout=PATIENCE)
    for task in late:
        task.cancel()
    answers = [task.result() for task in done]
    unknown = len(late) + answers.count(None)
    found = sorted(filter(None, answers))
    return found + ([f"{unknown} objects were not looked at before the start: no answer came"] if unknown else [])


async def _changed(obstore: Any, stores: dict[str, Any], url: str, etag: str) -> str | None:
    """Return what is different, in words; None where the store does not say."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    try:
        root = f"{scheme}://{bucket}"
        store = stores.get(root) or stores.setdefault(root, object_stores.open_store(root, timeout=PATIENCE))
        now = str((await obstore.head_async(store, key))["e_tag"] or "").strip('"')
    except FileNotFoundError:
        return f"{url}: it is not there any more"
    except Exception:  # no right to look, or no store: the replay sees what its script gets
        return None
    return f"{url}: it was overwritten since (another ETag)" if now != etag else ""
