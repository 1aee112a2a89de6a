"""Tests the same tensors step by step for numbers that are not finite, where they lie in memory."""

from __future__ import annotations

import struct

from ..trail_library import FORMATS, SMALL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..trail_library import Library


class Finite:
    """Tensors of these sizes in bytes and of these dtypes, wherever they lie: a step is one call of the library."""

    def __init__(self, library: Library, sizes: Sequence[int], dtypes: Sequence[str]) -> None:
        self._count = len(sizes)
        self._kept, self._at = library.buffer(max(1, self._count))
        self._numbers, numbers_at = library.buffer(max(1, 2 * self._count))
        self._numbers_at = numbers_at
        for place, (size, dtype) in enumerate(zip(sizes, dtypes)):
            self._numbers[2 * place], self._numbers[2 * place + 1] = size, FORMATS.get(dtype, 0)
        self._put = struct.Struct("<%dQ" % self._count).pack_into
        # What takes longer lets other threads have the interpreter meanwhile.
        self._test = library.finite if sum(sizes) <= SMALL else library.long_finite

    def first(self, addresses: Sequence[int]) -> int | None:
        """The place of the first tensor that has a number that is not finite. An address of 0 is no tensor."""
        self._put(self._kept, 0, *addresses)
        found: int = self._test(self._at, self._numbers_at, self._count)
        return found if found < self._count else None
