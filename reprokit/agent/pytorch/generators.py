"""The states of PyTorch's random generators, as the trail asks for them at each step."""

from __future__ import annotations

import struct

from .. import trail_library as library
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WORD = (1 << 64) - 1


class DefaultGenerator:
    """The state of PyTorch's own generator. It is asked for only when the memory that it stands for has changed."""

    def __init__(self, torch: Any) -> None:
        self._generator = torch.default_generator
        self._tensor = self._generator.get_state()
        self._now: Any = None  # the memory
        self._seen = b""
        self._address: int = self._tensor.data_ptr()
        self.size: int = self._tensor.numel()
        self.salt = library.salt("uint8", (self.size,))
        try:
            self._now = _engine(torch)(self._generator)
        except Exception:  # another PyTorch, which is asked each time
            pass

    @property
    def is_watched(self) -> bool:
        """Whether its place in memory was found."""
        return self._now is not None

    def state(self) -> int:
        """Where a copy of the state lies as it is now."""
        if self._now is not None:
            now = self._now.raw
            if now == self._seen:
                return self._address
            self._seen = now
        self._tensor = self._generator.get_state()
        self._address = self._tensor.data_ptr()
        return self._address


def _engine(torch: Any) -> Any:
    """Gives the part of a generator's memory on which its state depends, proved by a generator of our own."""
    from ctypes import c_char, string_at

    words, before, behind = 624, 24, 32

    def find(generator: Any) -> Any:
        state = bytes(generator.get_state().tolist())
        wanted = struct.pack("<%dI" % words, *struct.unpack_from("<%dQ" % words, state, before))
        place = string_at(private_api.address(generator), 256 + 4 * words).find(wanted)
        if not before <= place <= 256:
            raise ValueError("not found")
        start = private_api.address(generator) + place - before
        return (c_char * (before + 4 * words + behind)).from_address(start)

    mine = torch.Generator()
    memory = find(mine)
    states: dict[bytes, list[int]] = {}
    for draw in (torch.randn, torch.randn, torch.randn, torch.rand, torch.randn):  # a second normal number is kept
        draw(1, generator=mine)
        state = mine.get_state().tolist()
        if states.setdefault(memory.raw, state) != state:
            raise ValueError("it does not tell")
    return find


def of_devices(torch: Any) -> list[int]:
    """Seed and offset of the generators of all devices in use, without waiting for one."""
    numbers = []
    for generator in torch.cuda.default_generators if private_api.uses_cuda(torch) else ():
        numbers += [generator.initial_seed(), generator.get_offset() if hasattr(generator, "get_offset") else 0]
    return [number & _WORD for number in numbers]
