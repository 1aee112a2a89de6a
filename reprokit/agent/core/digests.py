"""Digests of tensors and of objects made of tensors, as docs/format.md defines them."""

from __future__ import annotations

import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    # What metrics.jsonl holds of one tensor: name, dtype, shape, digest.
    Tensor = tuple[str, str, list[int], str]

    Bytes = bytes | bytearray | memoryview


MAX_SHORT, MAX_TEXTS = 100, 1000  # texts whose digests are kept
MAX_TENSORS = 50_000  # listed in one line, whose length readers limit


def tensor_digest(dtype: str, shape: Sequence[int], data: Bytes) -> str:
    """The digest of a tensor of which these are the bytes: C order, little-endian."""
    return digest_behind(tensor_head(dtype, shape), data)


def tensor_head(dtype: str, shape: Sequence[int]) -> bytes:
    """What a tensor's digest begins with."""
    return "reprokit-tensor-1\0{}\0{}\0".format(dtype, ",".join(str(size) for size in shape)).encode()


def digest_behind(head: bytes, data: Any) -> str:
    """The digest of these bytes behind that head."""
    state = hashlib.sha256(head)
    state.update(data)
    return "sha256:" + state.hexdigest()


def object_digest(tensors: Iterable[Tensor]) -> str:
    """The digest of named tensors, which must come in the order of their names."""
    state = hashlib.sha256(b"reprokit-object-1\0")
    for name, _, _, digest in tensors:
        state.update(name.encode("utf-8", "backslashreplace") + b"\0" + digest.encode() + b"\n")
    return "sha256:" + state.hexdigest()


_texts: dict[str, str] = {}  # short ones: an optimizer's settings come again with each epoch


def text_digest(text: str) -> str:
    """The digest of something that is no tensor: a tensor of dtype "text"."""
    digest = _texts.get(text)
    if digest is None:
        digest = tensor_digest("text", (), text.encode("utf-8", "backslashreplace"))
        if len(text) <= MAX_SHORT and len(_texts) < MAX_TEXTS:
            _texts[text] = digest
    return digest


def text_entry(name: str, text: str) -> Tensor:
    """A value that is no tensor among tensors."""
    return name, "text", [], text_digest(text)


def distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """In the order of names; a name that comes again gets #1, #2, ... in the order of appearance."""
    seen: dict[str, int] = {}
    result = []
    for name, dtype, shape, digest in tensors:
        count = seen[name] = seen.get(name, -1) + 1
        result.append((f"{name}#{count}" if count else name, dtype, shape, digest))
    return sorted(result, key=lambda tensor: tensor[0])


def weights_line(
    at: str, epoch: int | None, name: str, kind: str, tensors: list[Tensor], *, full: bool
) -> dict[str, object]:
    """A line of kind `weights`; only a full one lists the tensors."""
    line: dict[str, object] = {"at": at, "epoch": epoch, "object": name, "class": kind}
    line["digest"] = object_digest(tensors)
    if full and len(tensors) <= MAX_TENSORS:
        line["tensors"] = [list(tensor) for tensor in tensors]
    return line
