"""Keeps the inputs and outputs of some calls of an operator, as safetensors beside the log of calls."""

from __future__ import annotations

import os

from ..capture.store import index_of, write_tensors
from ..capture.torch_state import Tensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_CALLS = 64
MAX_BYTES = 1 << 30  # of all calls of a process together
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class CallKeeper:
    """Keeps the calls of one operator at one place of the user's code."""

    def __init__(self, keep: Mapping[str, Any]) -> None:
        self._name, self._line = keep["operator"], keep["place"]
        self._left, self._room = MAX_CALLS, MAX_BYTES

    def wants(self, name: str, where: list[Any]) -> bool:
        """Return whether a call is to be kept."""
        place = list(where[0][:2]) if where else []
        return name == self._name and place == self._line and self._left > 0 and self._room > 0

    def inputs(self, tensors: list[Any]) -> list[Any]:
        """Return copies of the inputs, as the call may change them."""
        self._left -= 1
        self._room -= sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return [tensor.detach().clone() for tensor in tensors] if self._room > 0 else []

    def outputs(self, path: str, inputs: list[Any], tensors: list[Any]) -> None:
        """Write a call to files whose names begin so."""
        for kind, values in (("inputs", inputs), ("outputs", tensors)):
            kept = Tensors()
            for position, tensor in enumerate(values):
                kept.put(f"{kind}.{position}", tensor)
            with open(os.open(f"{path}.{kind}", _NEW, 0o600), "wb", buffering=0) as file:
                write_tensors(file, index_of(kept.parts), kept.parts)
