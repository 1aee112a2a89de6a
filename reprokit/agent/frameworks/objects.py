"""Object stores: which objects a process reads, each with ETag, version and size as reported by the store.

An object is recorded once a process, when the store responds, as a line of objects.jsonl. Of a request only bucket and
key are recorded: headers, query and credentials are secret.
"""

from __future__ import annotations

import os
import re
import sys
from functools import partial

from ..core.agent import Adapter
from ..core.json_text import to_json
from ..core.launch_plan import read_plan
from ..core.patching import Function, noting, replace, replace_in_static_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

MAX_OBJECTS = 10_000  # of one process; known to run/objects.py
MAX_TEXT = 2000  # characters of a recorded text
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
# For all other protocols fsspec uses libraries that are not patched themselves.
_WATCHED_PROTOCOLS = frozenset(["", "file", "local", "memory", "s3", "s3a"])
_OF_ARROW = {"s3": "s3", "gcs": "gs"}


class ObjectsAdapter(Adapter):
    """Patches clients of object stores; takes facts from the responses to the script where these contain any."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._recorded: dict[str, tuple[str, str]] = {}  # the last ETag and version of each address

    def instrument(self, name: str, module: Any) -> None:
        if name == "botocore.client":
            self._agent.note_calls(module.BaseClient, "__init__", self._watch_client)
        elif name == "obstore":
            self._watch_obstore(module)
        elif name == "pyarrow.fs":
            for opening in ("open_input_file", "open_input_stream"):
                replace_in_static_type(module.FileSystem, opening, noting(self._agent.attempt, self._note_arrow))
        elif name == "fsspec.spec":
            self._agent.note_calls(module.AbstractBufferedFile, "__init__", self._note_buffered)
        elif name == "s3torchconnector._s3client._s3client":
            replace(module.S3Client, "get_object", self._make_get_object)
        elif name == "tensorflow.python.lib.io.file_io":
            self._agent.note_calls(module.FileIO, "__init__", self._note_gfile)

    def _note(self, url: str, etag: object, version: object = None, size: object = None) -> None:
        """Record an object; size is None if it is unknown."""
        url, facts = _without_secrets(url), (_text(etag).strip('"'), _text(version))
        if self._recorded.get(url) == facts or len(self._recorded) >= MAX_OBJECTS:
            return
        self._recorded[url] = facts
        line = {"url": url, "etag": facts[0], "version": facts[1], "size": size if isinstance(size, int) else None}
        descriptor = os.open(self._agent.run + "/objects.jsonl", _FLAGS, 0o600)
        try:
            os.write(descriptor, (to_json(line) + "\n").encode())
        finally:
            os.close(descriptor)

    def _is_recorded(self, url: str) -> bool:
        return _without_secrets(url) in self._recorded

    def _pinned_version(self, url: str) -> str:
        """Return the version that a replay must request; empty if any will do."""
        version: str = read_plan(self._agent.run).get("versions", {}).get(url, "")
        return version

    # botocore, and with it boto3, s3fs and others

    def _watch_client(self, _result: Any, arguments: Any, _keywords: Any) -> None:
        client = arguments[0]
        if client.meta.service_model.service_name == "s3":
            for operation in ("GetObject", "HeadObject"):  # whose size and ETag the requests of download_file rest on
                client.meta.events.register(f"before-parameter-build.s3.{operation}", self._before_get)
            client.meta.events.register("after-call.s3.GetObject", self._after_get)

    def _before_get(self, params: Any, context: Any, **_: Any) -> None:
        self._agent.attempt(self._begin_get, params, context)

    def _begin_get(self, params: Any, context: Any) -> None:
        url = f"s3://{params['Bucket']}/{params['Key']}"
        context["reprokit"] = url
        version = self._pinned_version(url)
        if version:
            params.setdefault("VersionId", version)

    def _after_get(self, http_response: Any, parsed: Any, context: Any, **_: Any) -> None:
        if http_response.status_code < 300 and "reprokit" in context:
            self._agent.attempt(self._note_response, context["reprokit"], parsed)

    def _note_response(self, url: str, parsed: Any) -> None:
        whole = str(parsed.get("ContentRange") or "").rpartition("/")[2]
        size = int(whole) if whole.isdigit() else parsed.get("ContentLength")
        self._note(url, parsed.get("ETag"), parsed.get("VersionId"), size)

    # obstore

    def _watch_obstore(self, module: Any) -> None:
        for suffix in ("", "_async"):
            head = getattr(module, "head" + suffix)
            replace(module, "head" + suffix, partial(self._make_head, suffix))
            replace(module, "get" + suffix, self._make_get)
            for name in ("get_range", "get_ranges", "open_reader"):
                replace(module, name + suffix, partial(self._make_ranged, suffix, head))

    def _make_head(self, suffix: str, original: Function) -> Function:
        """Request a pinned version's facts by a get without content, as a head cannot name a version."""

        def head(store: Any, path: str) -> Any:
            options = self._with_version(store, path, (), {"options": {"head": True}})["options"]
            if "version" not in options:
                return original(store, path)
            return _head_async(store, path, options) if suffix else _get("")(store, path, options=options).meta

        return head

    def _make_get(self, original: Function) -> Function:
        def get(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            result = original(store, path, *arguments, **self._with_version(store, path, arguments, keywords))
            self._agent.attempt(self._when_done, result, store, path, lambda answer: answer.meta)
            return result

        return get

    def _make_ranged(self, suffix: str, head: Function, original: Function) -> Function:
        """Request the object's facts separately, as such responses lack them; a pinned version is read by gets.

        A reader cannot name a version, so the facts are those of the current one.
        """

        def ranged(store: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
            ranges = self._agent.attempt(self._pinned_ranges, store, path, keywords)
            if ranges and suffix:
                return _read_ranges(store, path, ranges, "starts" in keywords)
            if ranges:
                parts = [_get("")(store, path, options={"range": span}).bytes() for span in ranges]
                return parts if "starts" in keywords else parts[0]
            self._agent.attempt(self._read_head, store, path, head)
            return original(store, path, *arguments, **keywords)

        return ranged

    def _pinned_ranges(self, store: Any, path: str, keywords: Any) -> list[tuple[int, int]]:
        """Return the byte ranges of a read whose version is pinned; none for other reads, or if a range is empty."""
        if not self._pinned_version(_url_of(store, path)):
            return []
        several = "s" if "starts" in keywords else ""
        starts, ends, lengths = (keywords.get(name + several) for name in ("start", "end", "length"))
        if not several:
            starts, ends, lengths = ([value] if value is not None else None for value in (starts, ends, lengths))
        if starts is None:  # a call of open_reader
            return []
        if ends is None:
            ends = [start + length for start, length in zip(starts, lengths)]
        ranges = list(zip(starts, ends))
        return ranges if all(start < end for start, end in ranges) else []

    def _read_head(self, store: Any, path: str, head: Function) -> None:
        url = _url_of(store, path)
        if url and not self._is_recorded(url):
            self._when_done(head(store, path), store, path, lambda meta: meta)

    def _when_done(self, response: Any, store: Any, path: str, meta_of: Function) -> None:
        """Record an object by a response, or by the result of a future."""

        def done(future: Any) -> None:
            if not future.cancelled() and future.exception() is None:
                self._agent.attempt(self._note_meta, store, path, meta_of(future.result()))

        if hasattr(response, "add_done_callback"):
            response.add_done_callback(done)
        else:
            self._note_meta(store, path, meta_of(response))

    def _note_meta(self, store: Any, path: str, meta: Any) -> None:
        url = _url_of(store, path)
        if url:
            self._note(url, meta["e_tag"], meta["version"], meta["size"])

    def _with_version(self, store: Any, path: str, arguments: Any, keywords: Any) -> Any:
        """Return the keywords of a get, with the pinned version added."""
        version = "" if arguments else self._agent.attempt(lambda: self._pinned_version(_url_of(store, path)))
        if not version:
            return keywords
        return {**keywords, "options": {"version": version, **(keywords.get("options") or {})}}

    # others

    def _note_arrow(self, opened: Any, arguments: Any, keywords: Any) -> None:
        scheme = _OF_ARROW.get(arguments[0].type_name)
        if scheme:
            source = arguments[1] if len(arguments) > 1 else keywords["path"]
            facts = {key.lower(): _text(value) for key, value in opened.metadata().items()}
            size = facts.get("content-length", "")
            whole = int(size) if size.isdigit() else None
            self._note(f"{scheme}://{source}", facts.get("etag"), facts.get("versionid"), whole)

    def _note_buffered(self, _result: Any, arguments: Any, _keywords: Any) -> None:
        file = arguments[0]
        protocol = file.fs.protocol if isinstance(file.fs.protocol, str) else file.fs.protocol[0]
        if file.mode == "rb" and protocol not in _WATCHED_PROTOCOLS:
            details = {str(key).lower(): value for key, value in (file.details or {}).items()}
            etag = details.get("etag") or details.get("md5hash") or details.get("content_md5")
            version = details.get("generation") or details.get("version_id")
            self._note(file.fs.unstrip_protocol(file.path), etag, version, details.get("size"))

    def _make_get_object(self, original: Function) -> Function:
        """Give s3torchconnector's readers the facts of their object at once: some request them later, others never."""

        def get_object(client: Any, bucket: str, key: str, **keywords: Any) -> Any:
            url = f"s3://{bucket}/{key}"
            if keywords.get("object_info") is None and not self._is_recorded(url):
                keywords["object_info"] = self._agent.attempt(client.head_object, bucket, key)
            if keywords.get("object_info") is not None:
                self._agent.attempt(self._note_info, url, keywords["object_info"])
            return original(client, bucket, key, **keywords)

        return get_object

    def _note_info(self, url: str, info: Any) -> None:
        self._note(url, info.etag, None, info.size)

    def _note_gfile(self, _result: Any, arguments: Any, _keywords: Any) -> None:
        file, name = arguments[0], str(arguments[0].name)
        if "://" in name and str(file.mode).startswith("r") and not self._is_recorded(name):
            self._note(name, None, None, file.size())


def _get(suffix: str) -> Function:
    """Return the wrapped get, which adds a pinned version."""
    return getattr(sys.modules["obstore"], "get" + suffix)  # type: ignore[no-any-return]


async def _head_async(store: Any, path: str, options: Any) -> Any:
    return (await _get("_async")(store, path, options=options)).meta


async def _read_ranges(store: Any, path: str, ranges: list[tuple[int, int]], several: bool) -> Any:
    parts = []
    for span in ranges:
        response = await _get("_async")(store, path, options={"range": span})
        parts.append(await response.bytes_async())
    return parts if several else parts[0]


def _url_of(store: Any, path: str) -> str:
    """Return the URL of an object in an obstore store; empty if the store is not a service."""
    kind = type(store).__name__
    if kind == "HTTPStore":
        return f"{store.url.rstrip('/')}/{path}"
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}.get(kind)
    if scheme is None:
        return ""
    bucket = store.config.get("bucket") or store.config.get("container_name")
    return "/".join([part.strip("/") for part in (f"{scheme}://{bucket}", store.prefix or "", path) if part])


def _without_secrets(url: str) -> str:
    """Return a URL without user and password; of http also without the query, which may sign the request."""
    scheme, mark, rest = url.partition("://")
    if re.match("https?$", scheme):
        rest = re.split("[?#]", rest, maxsplit=1)[0]
        host, slash, path = rest.partition("/")
        rest = host.rpartition("@")[2] + slash + path
    return f"{scheme}{mark}{rest}"[:MAX_TEXT]


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    return text[:MAX_TEXT]
