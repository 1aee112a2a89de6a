"""Object stores by URL, through obstore; credentials come from where obstore and boto3 look for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from reprokit.core.errors import StoreUnreachable, needed_for, reason

REMOTE = re.compile("(s3|gs|az|abfss?|https?)://.")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LONGEST = 300  # characters of a store's answer
MOST_AT_ONCE = 64 << 20  # bytes that are held in memory to be written by one request


def is_remote(text: str) -> bool:
    """Return whether this names an object or a prefix of a store."""
    return REMOTE.match(text) is not None


def library() -> Any:
    """Return obstore, an extra."""
    with needed_for("an object store", "obstore"):
        import obstore
    return obstore


def open_store(url: str, *, timeout: float | None = None) -> Any:
    """Return obstore's store whose root is the URL's path; with a time limit it does not try again for long."""
    library()
    from obstore.store import from_url

    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), "")
    settings: dict[str, Any] = {"client_options": {"allow_http": endpoint.startswith("http://")}}
    if timeout is not None:
        settings["client_options"] |= {"timeout": timedelta(seconds=timeout)}
        settings["retry_config"] = {"max_retries": 1, "retry_timeout": timedelta(seconds=timeout)}
    if url.startswith("s3://"):
        settings |= {"endpoint": endpoint} if endpoint else {}
        settings |= _credentials()
    with _refusals(url):
        return from_url(url, **settings)


def _credentials() -> dict[str, Any]:
    """Return boto3's provider where the environment has no keys: it reads profiles, which obstore does not."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):  # no boto3, or no credentials
        return {}


@contextmanager
def _refusals(url: str) -> Iterator[None]:
    """Raise StoreUnreachable with the place that the store refuses, and the first line of its answer."""
    try:
        yield
    except Exception as error:  # neither obstore's nor those of providers of credentials have a base of their own
        text = (str(error).splitlines() or [""])[0] or reason(error)
        message = f"{url}: {text[:LONGEST]}; name a place that the store has, and keys that may use it"
        raise StoreUnreachable(message) from None


def listed(store: Any, url: str) -> list[Any]:
    """Return what the store says of each object below its root: path, size, e_tag."""
    with _refusals(url):
        return [meta for batch in library().list(store) for meta in batch]


def found(store: Any, url: str, name: str) -> Any:
    """Return what the store says of one object; None if there is none."""
    with _refusals(f"{url}/{name}"), suppress(FileNotFoundError):
        return library().head(store, name)
    return None


def content(store: Any, url: str, name: str) -> Iterator[bytes]:
    """Yield the bytes of an object."""
    with _refusals(f"{url}/{name}"):
        yield from map(bytes, library().get(store, name).stream(min_chunk_size=1 << 20))


def create(store: Any, url: str, name: str, data: Path | bytes | IO[bytes]) -> None:
    """Write an object that must not be there yet; the store itself refuses that of all but the largest."""
    size = len(data) if isinstance(data, bytes) else os.stat(data if isinstance(data, Path) else data.fileno()).st_size
    mode = "create" if size <= MOST_AT_ONCE else "overwrite"  # only that goes in parts
    with _refusals(f"{url}/{name}"):
        library().put(store, name, data, mode=mode)


def write(store: Any, url: str, name: str, data: bytes) -> None:
    """Write an object, in the place of what is there."""
    with _refusals(f"{url}/{name}"):
        library().put(store, name, data)


class StoredObject:
    """An object as a source of bytes, as long as nobody overwrites it."""

    def __init__(self, store: Any, url: str, meta: Any):
        """Take name, size and version from what the store says about the object."""
        self.size: int = meta["size"]
        self._store, self._url, self._meta = store, url, meta

    def read(self, offset: int, length: int) -> bytes:
        """Return so many bytes from a place; fewer at the end."""
        end = min(self.size, offset + length)
        if offset >= end:
            return b""
        options = {"range": (offset, end), "if_match": self._meta["e_tag"]}
        with _refusals(f"{self._url}/{self._meta['path']}"):
            return bytes(library().get(self._store, self._meta["path"], options=options).bytes())

    def stream(self) -> Iterator[Any]:
        """Yield all bytes, by one request, as buffers."""
        with _refusals(f"{self._url}/{self._meta['path']}"):
            answer = library().get(self._store, self._meta["path"], options={"if_match": self._meta["e_tag"]})
            yield from answer.stream(min_chunk_size=1 << 16)  # obstore clears and copies each: in the L2 cache
