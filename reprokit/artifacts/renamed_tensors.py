"""Finds tensors that two files have under other names: equal content is told from content that is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from reprokit.artifacts import tensors
from reprokit.artifacts.descriptions import described
from reprokit.artifacts.elements import Limits, Part, TensorPart
from reprokit.difference import Difference, Verdict
from reprokit.errors import ArtifactDamaged

MOST_COMPARED = 2000  # pairs of tensors of the same type and shape


class RenamedTensors:
    """The tensors that the right file alone has, with their places, by type and shape."""

    def __init__(self, limits: Limits):
        self._limits, self._left = limits, MOST_COMPARED
        self._alone: dict[tuple[str, tuple[int, ...]], list[tuple[int, TensorPart]]] = defaultdict(list)

    def add(self, place: int, tensor: TensorPart) -> None:
        """Keep a tensor of the right file."""
        self._alone[tensor.dtype, tensor.shape].append((place, tensor))

    def take(self, part: Part) -> TensorPart | None:
        """Return the tensor that has the content of one that the left file alone has; it is taken once."""
        same = self._alone.get((part.dtype, part.shape), []) if isinstance(part, TensorPart) else []
        for number, (_, other) in enumerate(same):
            if self._are_equal(part, other):
                return same.pop(number)[1]
        return None

    def _are_equal(self, left: Part, right: TensorPart) -> bool:
        self._left -= 1
        if self._left < 0 or not isinstance(left, TensorPart) or 0 in left.shape:
            return False
        try:
            return not tensors.compare(left, right, self._limits).differing
        except ArtifactDamaged:
            return False

    def rest(self) -> Iterator[tuple[int, TensorPart]]:
        """Yield those that nobody has taken, with their places."""
        for same in self._alone.values():
            yield from same


def renamed(file: str, left: Part, right: Part) -> Difference:
    """Return the leaf of a tensor that the right file has under another name."""
    detail = f"renamed: {right.name} in the right file has equal content"
    return Difference(f"{file}/{left.name}", Verdict.DIFFERENT, described(left), described(right), detail)
