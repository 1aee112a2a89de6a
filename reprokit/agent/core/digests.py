"""Computes digests of tensors and of objects made of tensors, as docs/format.md defines them.

NumPy is used only if the training imported it.
"""

from __future__ import annotations

import hashlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    # The entry of one tensor in metrics.jsonl: name, dtype, shape, digest.
    Tensor = tuple[str, str, list[int], str]

    Bytes = bytes | bytearray | memoryview


MAX_SHORT, MAX_TEXTS = 100, 1000  # characters and number of texts whose digests are cached
MAX_TENSORS = 50_000  # listed in one line, as readers limit its length


def tensor_digest(dtype: str, shape: Sequence[int], data: Bytes) -> str:
    """Return the digest of a tensor with these bytes (C order, little-endian)."""
    return digest_behind(tensor_head(dtype, shape), data)


def tensor_head(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the bytes that are hashed before a tensor's data."""
    return "reprokit-tensor-1\0{}\0{}\0".format(dtype, ",".join(str(size) for size in shape)).encode()


def digest_behind(head: bytes, data: Any) -> str:
    """Return the digest of a head and the bytes after it."""
    state = hashlib.sha256(head)
    state.update(data)
    return "sha256:" + state.hexdigest()


def object_digest(tensors: Iterable[Tensor]) -> str:
    """Return the digest of named tensors, which must be sorted by name."""
    text = "".join([f"{name}\0{digest}\n" for name, _, _, digest in tensors])
    return digest_behind(b"reprokit-object-1\0", text.encode("utf-8", "backslashreplace"))


_texts: dict[str, str] = {}  # digests of short texts, as an optimizer's settings repeat with each epoch


def text_digest(text: str) -> str:
    """Return the digest of a value that is no tensor, as of a tensor of dtype "text"."""
    digest = _texts.get(text)
    if digest is None:
        digest = tensor_digest("text", (), text.encode("utf-8", "backslashreplace"))
        if len(text) <= MAX_SHORT and len(_texts) < MAX_TEXTS:
            _texts[text] = digest
    return digest


def text_entry(name: str, text: str) -> Tensor:
    """Return the entry of a value that is no tensor, among those of tensors."""
    return name, "text", [], text_digest(text)


def distinct(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors sorted by name; repeated names get #1, #2, ... in the order of appearance."""
    counts: dict[str, int] = {}
    result = []
    for name, dtype, shape, digest in tensors:
        count = counts[name] = counts.get(name, -1) + 1
        result.append((f"{name}#{count}" if count else name, dtype, shape, digest))
    return sorted(result, key=lambda tensor: tensor[0])


def weights_line(
    at: str, epoch: int | None, name: str, kind: str, tensors: list[Tensor], *, full: bool
) -> dict[str, object]:
    """Return a line of kind `weights`; only a full one lists the tensors."""
    line: dict[str, object] = {"at": at, "epoch": epoch, "object": name, "class": kind}
    line["digest"] = object_digest(tensors)
    if full and len(tensors) <= MAX_TENSORS:
        line["tensors"] = [list(tensor) for tensor in tensors]
    return line


def describe_array(value: Any) -> dict[str, object]:
    """Return digest, shape and dtype of an array, a tensor or a list."""
    array = as_array(value)
    if array is None:
        return {"digest": text_digest(repr(value)), "shape": [], "dtype": "text"}
    _, dtype, shape, digest = array_entry("", array)
    return {"digest": digest, "shape": shape, "dtype": dtype}


def as_array(value: Any) -> Any:
    """Return the value as a NumPy array; None if the training has not imported NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if hasattr(value, "detach"):  # np.asarray fails for PyTorch's tensors that need a gradient or are on a GPU
        value = value.detach().cpu()
    return numpy.asarray(value)


def array_entry(name: str, array: Any) -> Tensor:
    """Return the entry of a NumPy array in metrics.jsonl."""
    shape, dtype = [int(size) for size in array.shape], str(array.dtype.name)
    if array.dtype.hasobject:
        return name, "text", shape, text_digest(repr(array.tolist()))
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    return name, dtype, shape, tensor_digest(dtype, shape, array_bytes(array))


def array_bytes(array: Any) -> Any:
    """Return the array's bytes in C order, without a copy if it is contiguous."""
    if array.size and array.flags.c_contiguous:
        return array.reshape(-1).view("u1").data
    return array.tobytes()
