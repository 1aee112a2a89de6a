"""Reads and writes the tensors and arrays among the variables of a PyTorch script."""

from __future__ import annotations

import sys
from array import array

from ..capture.store import DTYPES
from ..capture.torch_state import SnapshotReader, digest, leaf
from ..pytorch.tensors import dtype_name, has_memory, is_plain, is_tensor, size_of, storage_of
from .answers import NUMBERS, array_text, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..capture.trees import Node


class TorchVariables:
    """The tensors and arrays of a script, without those that share memory with another part of the state."""

    def __init__(
        self, other_parts: Iterable[Any], reader: SnapshotReader | None = None, *, copies: bool = False
    ) -> None:
        self._addresses = {_address(tensor) for tensor in other_parts if _is_readable(tensor)}
        self._reader, self._copies = reader, copies

    def is_left_out(self, value: Any) -> bool:
        if is_tensor(value):
            return not _is_readable(value) or _address(value) in self._addresses
        return hasattr(value, "dtype") and value.dtype.kind not in NUMBERS

    def size(self, value: Any) -> int:
        return size_of(value) if is_tensor(value) else int(getattr(value, "nbytes", 0))

    def leaf(self, value: Any) -> Node | None:
        return None if isinstance(value, array) else leaf(value)  # it is a sequence of numbers

    def node(self, value: Any) -> Node:
        if is_tensor(value):
            held = {"held": value.detach().clone() if self._copies else value}
            return held if value.device.type == "cpu" else {"on": [str(value.device), held]}
        if hasattr(value, "nbytes") and not hasattr(value, "__setitem__"):  # a number of NumPy
            return {"number": {"held": sys.modules["numpy"].asarray(value)}}
        return {"held": value.copy() if self._copies and hasattr(value, "copy") else value}

    def text(self, node: Node) -> str:
        ((kind, value),) = node.items()
        if kind != "held":
            return self.text(value if kind == "number" else value[1])
        if is_tensor(value):
            return repr(value.item()) if value.numel() == 1 else "#" + shorten(digest(value))
        return array_text(value if hasattr(value, "dtype") else sys.modules["numpy"].asarray(value))

    def restore(self, node: Node, own: Any) -> Any:
        assert self._reader is not None
        ((kind, content),) = node.items()
        if kind == "number":
            return self._reader.value(content)[()]
        new = self._reader.value(content[1]).to(content[0]) if kind == "on" else self._reader.value(node)
        if is_tensor(new) and self._can_overwrite(own, new):
            own.data.copy_(new)
            return own
        if hasattr(new, "flags") and type(own) is type(new) and own.base is None and own.flags.writeable:
            if own.shape == new.shape and own.dtype == new.dtype:
                own[...] = new
                return own
        return new

    def _can_overwrite(self, own: Any, new: Any) -> bool:
        """Return whether a tensor like the new one has memory of its own, which no other part of the state shares."""
        if not is_tensor(own) or self.is_left_out(own) or own.is_inference():
            return False
        is_alike = own.shape == new.shape and own.dtype == new.dtype and own.device == new.device
        return bool(is_alike and storage_of(own).nbytes() == size_of(own))


def _is_readable(tensor: Any) -> bool:
    is_dense = is_plain(tensor) and str(tensor.layout) == "torch.strided" and not tensor.is_quantized
    return is_dense and dtype_name(tensor) in DTYPES and has_memory(tensor)


def _address(tensor: Any) -> int:
    return int(storage_of(tensor).data_ptr())
