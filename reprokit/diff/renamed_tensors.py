"""Finds renamed tensors: tensors of equal content that two files have under different names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff import tensors
from reprokit.diff.descriptions import described
from reprokit.diff.elements import Limits, Part, TensorPart

MOST_COMPARED = 2000  # pairs of tensors of the same dtype and shape that are compared


class RenamedTensors:
    """The tensors that only the right file has, with their positions, by dtype and shape."""

    def __init__(self, limits: Limits):
        self._limits, self._comparisons_left = limits, MOST_COMPARED
        self._right_only: dict[tuple[str, tuple[int, ...]], list[tuple[int, TensorPart]]] = defaultdict(list)

    def add(self, position: int, tensor: TensorPart) -> None:
        """Add a tensor that only the right file has."""
        self._right_only[tensor.dtype, tensor.shape].append((position, tensor))

    def take(self, part: Part) -> TensorPart | None:
        """Remove and return a tensor equal to `part`, which only the left file has; None if there is none."""
        candidates = self._right_only.get((part.dtype, part.shape), []) if isinstance(part, TensorPart) else []
        for number, (_, tensor) in enumerate(candidates):
            if self._are_equal(part, tensor):
                return candidates.pop(number)[1]
        return None

    def _are_equal(self, left: Part, right: TensorPart) -> bool:
        self._comparisons_left -= 1
        if self._comparisons_left < 0 or not isinstance(left, TensorPart) or 0 in left.shape:
            return False
        try:
            return not tensors.compare(left, right, self._limits).differing
        except ArtifactDamaged:
            return False

    def rest(self) -> Iterator[tuple[int, TensorPart]]:
        """Yield the tensors that were not taken, with their positions."""
        for group in self._right_only.values():
            yield from group


def renamed(file: str, left: Part, right: Part) -> Difference:
    """Return the leaf of a tensor that has another name in the right file."""
    detail = f"renamed: {right.name} in the right file has equal content"
    return Difference(f"{file}/{left.name}", Verdict.DIFFERENT, described(left), described(right), detail)
