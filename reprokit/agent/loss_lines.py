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
        # By name: the bytes that a line needs at most, the addresses of its parts, and the parts.
        self.names: dict[str, tuple[int, int, int, Any]] = {}

    def prepare(self, identity: str, name: str) -> tuple[int, int, int, Any]:
        """What lines of a name need: more than there can be, where no library writes any."""
        if self._write is None:
            known: tuple[int, int, int, Any] = 1 << 62, 0, 0, None
        else:
            from ctypes import addressof, create_string_buffer

            head = create_string_buffer(f'{{"k":"loss","p":{identity},"n":'.encode())
            rest = create_string_buffer(f',"name":{to_json(name)},"step":'.encode())
            known = len(head) + len(rest) + NUMBERS, addressof(head), addressof(rest), (head, rest)
        self.names[name] = known
        return known

    def write(
        self, place: int, known: tuple[int, int, int, Any], number: int, at: int, step: int, dtype: str, value: float
    ) -> int:
        """Write a line where there is room for it; its bytes."""
        room, head, rest, _ = known
        code = trail_library.FORMATS[dtype]
        _FACTS.pack_into(self._facts, 0, place, room, head, rest, number, at, step, code, value)
        return self._write(self._address)  # type: ignore[no-any-return]
