"""Object stores: which objects a process reads, and of each what the store says it is: ETag, version, size.

An object is written down when its answer comes, once a process, as a line of objects.jsonl. Nothing of a request is
kept but bucket and key: its headers, its query and the credentials are secret.
"""

from __future__ import annotations

import os
import re
import sys

from ..core.json_text import to_json
from ..core.patching import replace, replace_in_static_type
from .base import Adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent

    Function = Callable[..., Any]

MAX_OBJECTS = 10_000  # of one process; known to launch/objects.py
LONGEST = 2000  # characters of a text that is kept
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
# Others than these are reached by fsspec through libraries that are not watched themselves.
_WATCHED_PROTOCOLS = frozenset(["", "file", "local", "memory", "s3", "s3a"])
_OF_ARROW = {"s3": "s3", "gcs": "gs"}


class ObjectsAdapter(Adapter):
    """Watches the clients of object stores; facts come from the answers that the script gets, where these hold any."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._noted: dict[str, tuple[str, str]] = {}  # the last ETag and version of each address
        self._versions: dict[str, str] | None = None

    def instrument(self, name: str, module: Any) -> None:
        if name == "botocore.client":
            replace(module.BaseClient, "__init__", self._make_client)
        elif name == "obstore":
            self._watch_obstore(module)
        elif name == "pyarrow.fs":
            for opening in ("open_input_file", "open_input_stream"):
                replace_in_static_type(module.FileSystem, opening, self._make_arrow_open)
        elif name == "fsspec.spec":
            replace(module.AbstractBufferedFile, "__init__", self._make_buffered)
        elif name == "s3torchconnector._s3client._s3client":
            replace(module.S3Client, "get_object", self._make_get_object)
        elif name == "tensorflow.python.lib.io.file_io":
            replace(module.FileIO, "__init__", self._make_gfile)

    def _note(self, url: str, etag: object, version: object = None, size: object = None) -> None:
        """Write an object down; a size is None where nobody tells."""
        url, facts = _without_secrets(url), (_text(etag).strip('"'), _text(version))
        if self._noted.get(url) == facts or len(self._noted) >= MAX_OBJECTS:
            return
        self._noted[url] = facts
        line = {"url": url, "etag": facts[0], "version": facts[1], "size": size if isinstance(size, int) else None}
        descriptor = os.open(self._agent.run + "/objects.jsonl", _FLAGS, 0o600)
        try:
            os.write(descriptor, (to_json(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def _knows(self, url: str) -> bool:
        return _without_secrets(url) in self._noted

    def _pinned(self, url: str) -> str:
        """Return the version that a replay is to ask for; empty where it may have any."""
        if self._versions is None:
            with open(self._agent.run + "/plan.json", encoding="utf-8") as file:
                text = file.read()
            self._versions = {}
            if '"versions"' in text:
                import json

                self._versions = json.loads(text)["versions"]
        return self._versions.get(url, "")

    # botocore, and with it boto3, s3fs and others

    def _make_client(self, original: Function) -> Function:
        def __init__(client: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
            original(client, *arguments, **keywords)
            self._agent.attempt(self._listen, client)

        return __init__

    def _listen(self, client: Any) -> None:
        if client.meta.service_model.service_name == "s3":
            client.meta.events.register("before-parameter-build.s3.GetObject", self._before_get)
            client.meta.events.register("after-call.s3.GetObject", self._after_get)

    def _before_get(self, params: Any, context: Any, **_: Any) -> None:
        self._agent.attempt(self._begin_get, params, context)

    def _begin_get(self, params: Any, context: Any) -> None:
        url = f"s3://{params['Bucket']}/{params['Key']}"
        context["reprokit"] = url
        version = self._pinned(url)
        if version:
            params.setdefault("VersionId", version)

    def _after_get(self, http_response: Any, parsed: Any, context: Any, **_: Any) -> None:
        if http_response.status_code < 300 and "reprokit" in context:
            self._agent.attempt(self._answered, context["reprokit"], parsed)

    def _answered(self, url: str, parsed: Any) -> None:
        whole = str(parsed.get("ContentRange") or "").rpartition("/")[2]
        size = int(whole) if whole.isdigit() else parsed.get("ContentLength")
        self._note(url, parsed.get("ETag"), parsed.get("VersionId"), size)

    # obstore

    def _watch_obstore(self, module: Any) -> None:
        replace(module, "get", self._make_get)
        replace(module, "get_async", self._make_get_async)
        for name in ("get_range", "get_ranges", "open_reader"):
            replace(module, name, self._make_ranged)
            replace(module, name + "_async", self._make_ranged_async)

    def _make_get(self, original: Function) -> Function:
        def get(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            result = original(store, path, *arguments, **self._with_version(store, path, arguments, keywords))
            self._agent.attempt(self._note_meta, store, path, lambda: result.meta)
            return result

        return get

    def _make_get_async(self, original: Function) -> Function:
        def get_async(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            future = original(store, path, *arguments, **self._with_version(store, path, arguments, keywords))
            self._when_done(future, store, path, lambda result: result.meta)
            return future

        return get_async

    def _make_ranged(self, original: Function) -> Function:
        """Ask for what the object is, as the answers to such reads do not say it; gets can ask for a version too."""

        def ranged(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            pieces = self._agent.attempt(self._pinned_pieces, store, path, keywords)
            if pieces:
                read = [sys.modules["obstore"].get(store, path, options={"range": piece}).bytes() for piece in pieces]
                return read if "starts" in keywords else read[0]
            self._agent.attempt(self._look, store, path)
            return original(store, path, *arguments, **keywords)

        return ranged

    def _make_ranged_async(self, original: Function) -> Function:
        def ranged_async(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            pieces = self._agent.attempt(self._pinned_pieces, store, path, keywords)
            if pieces:
                return _pieces_async(store, path, pieces, "starts" in keywords)
            self._agent.attempt(self._look_async, store, path)
            return original(store, path, *arguments, **keywords)

        return ranged_async

    def _pinned_pieces(self, store: Any, path: str, keywords: Any) -> list[tuple[int, int]]:
        """Return the ranges of a read that must have a certain version; none of any other, nor where one is empty."""
        if not self._pinned(_url_of(store, path)):
            return []
        several = "s" if "starts" in keywords else ""
        starts, ends, lengths = (keywords.get(name + several) for name in ("start", "end", "length"))
        if not several:
            starts, ends, lengths = ([value] if value is not None else None for value in (starts, ends, lengths))
        if starts is None:  # of open_reader
            return []
        if ends is None:
            ends = [start + length for start, length in zip(starts, lengths)]
        pieces = list(zip(starts, ends))
        return pieces if all(start < end for start, end in pieces) else []

    def _look(self, store: Any, path: str) -> None:
        url = _url_of(store, path)
        if url and not self._knows(url):
            self._note_meta(store, path, lambda: sys.modules["obstore"].head(store, path))

    def _look_async(self, store: Any, path: str) -> None:
        url = _url_of(store, path)
        if url and not self._knows(url):
            self._when_done(sys.modules["obstore"].head_async(store, path), store, path, lambda meta: meta)

    def _when_done(self, future: Any, store: Any, path: str, meta_of: Function) -> None:
        def done(finished: Any) -> None:
            if not finished.cancelled() and finished.exception() is None:
                self._agent.attempt(self._note_meta, store, path, lambda: meta_of(finished.result()))

        self._agent.attempt(lambda: future.add_done_callback(done))

    def _note_meta(self, store: Any, path: str, meta_of: Function) -> None:
        url = _url_of(store, path)
        if url:
            meta = meta_of()
            self._note(url, meta["e_tag"], meta["version"], meta["size"])

    def _with_version(self, store: Any, path: str, arguments: Any, keywords: Any) -> Any:
        """Return the keywords of a get, with the version that is to be read."""
        version = "" if arguments else self._agent.attempt(lambda: self._pinned(_url_of(store, path)))
        if not version:
            return keywords
        return {**keywords, "options": {"version": version, **(keywords.get("options") or {})}}

    # others

    def _make_arrow_open(self, original: Function) -> Function:
        def open_input(filesystem: Any, source: Any, *arguments: Any, **keywords: Any) -> Any:
            opened = original(filesystem, source, *arguments, **keywords)
            scheme = _OF_ARROW.get(filesystem.type_name)
            if scheme:
                self._agent.attempt(self._note_arrow, f"{scheme}://{source}", opened)
            return opened

        return open_input

    def _note_arrow(self, url: str, opened: Any) -> None:
        facts = {key.lower(): _text(value) for key, value in opened.metadata().items()}
        size = facts.get("content-length", "")
        self._note(url, facts.get("etag"), facts.get("versionid"), int(size) if size.isdigit() else None)

    def _make_buffered(self, original: Function) -> Function:
        def __init__(file: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
            original(file, *arguments, **keywords)
            self._agent.attempt(self._note_buffered, file)

        return __init__

    def _note_buffered(self, file: Any) -> None:
        protocol = file.fs.protocol if isinstance(file.fs.protocol, str) else file.fs.protocol[0]
        if file.mode == "rb" and protocol not in _WATCHED_PROTOCOLS:
            details = {str(key).lower(): value for key, value in (file.details or {}).items()}
            etag = details.get("etag") or details.get("md5hash") or details.get("content_md5")
            version = details.get("generation") or details.get("version_id")
            self._note(file.fs.unstrip_protocol(file.path), etag, version, details.get("size"))

    def _make_get_object(self, original: Function) -> Function:
        """Have s3torchconnector's readers know their object at once: some learn it later, others not at all."""

        def get_object(client: Any, bucket: str, key: str, **keywords: Any) -> Any:
            url = f"s3://{bucket}/{key}"
            if keywords.get("object_info") is None and not self._knows(url):
                keywords["object_info"] = self._agent.attempt(client.head_object, bucket, key)
            if keywords.get("object_info") is not None:
                self._agent.attempt(self._note_info, url, keywords["object_info"])
            return original(client, bucket, key, **keywords)

        return get_object

    def _note_info(self, url: str, info: Any) -> None:
        self._note(url, info.etag, None, info.size)

    def _make_gfile(self, original: Function) -> Function:
        def __init__(file: Any, name: Any, mode: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
            original(file, name, mode, *arguments, **keywords)
            if "://" in str(name) and str(mode).startswith("r"):
                self._agent.attempt(self._note_gfile, file, str(name))

        return __init__

    def _note_gfile(self, file: Any, name: str) -> None:
        if not self._knows(name):
            self._note(name, None, None, file.size())


async def _pieces_async(store: Any, path: str, pieces: list[tuple[int, int]], several: bool) -> Any:
    read = []
    for piece in pieces:
        answer = await sys.modules["obstore"].get_async(store, path, options={"range": piece})
        read.append(await answer.bytes_async())
    return read if several else read[0]


def _url_of(store: Any, path: str) -> str:
    """Return the address of an object of a store of obstore's; empty where it is none of a service."""
    kind = type(store).__name__
    if kind == "HTTPStore":
        return f"{store.url.rstrip('/')}/{path}"
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(kind)
    if scheme is None:
        return ""
    bucket = store.config.get("bucket") or store.config.get("container_name")
    return "/".join([part.strip("/") for part in (f"{scheme}://{bucket}", store.prefix or "", path) if part])


def _without_secrets(url: str) -> str:
    """Return an address without who asks there, and of the web's also without a query, which may sign the request."""
    scheme, mark, rest = url.partition("://")
    if re.match("https?$", scheme):
        rest = re.split("[?#]", rest, maxsplit=1)[0]
        host, slash, path = rest.partition("/")
        rest = host.rpartition("@")[2] + slash + path
    return f"{scheme}{mark}{rest}"[:LONGEST]


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    return text[:LONGEST]
