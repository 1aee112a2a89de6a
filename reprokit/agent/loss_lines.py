"""Lines of losses, written by the library where they wait: each step of a training pays for one."""

from __future__ import annotations

import struct

from . import trail_library
from .text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NUMBERS = 200  # bytes of a line beside its names
_FACTS = struct.Struct("<8Qd")  # struct rkt_loss of native/trail/trail.h


class LossLines:
    """Writes the lines of one process."""

    def __init__(self, run: str) -> None:
        library = trail_library.library_of(run)
        self._write: Any = None
        if library is not None:
            self._write = library.loss_line
            self._facts, self._address = library.buffer(_FACTS.size // 8)
        self._names: dict[tuple[str, str], tuple[int, int, int, Any]] = {}  # what a line needs, addresses, and buffers

    def size(self, identity: str, name: str) -> int:
        """The bytes that a line of this name needs at most; a number that no room has where lines are not written."""
        if self._write is None:
            return 1 << 62
        return (self._names.get((identity, name)) or self._prepare(identity, name))[0]

    def _prepare(self, identity: str, name: str) -> tuple[int, int, int, Any]:
        from ctypes import addressof, create_string_buffer

        head = create_string_buffer(f'{{"k":"loss","p":{identity},"n":'.encode())
        rest = create_string_buffer(f',"name":{to_json(name)},"step":'.encode())
        known = len(head) + len(rest) + NUMBERS, addressof(head), addressof(rest), (head, rest)
        self._names[identity, name] = known
        return known

    def write(
        self, place: int, room: int, names: tuple[str, str], number: int, at: int, step: int, dtype: str, value: float
    ) -> int:
        """Write a line where there is room; its bytes."""
        _, head, rest, _ = self._names[names]
        code = trail_library.FORMATS[dtype]
        _FACTS.pack_into(self._facts, 0, place, room, head, rest, number, at, step, code, value)
        return self._write(self._address)  # type: ignore[no-any-return]
