"""Digests of what trainings by PyTorch pass around: tensors, arrays, and what they come packed in."""

from __future__ import annotations

from collections.abc import Mapping

from .. import trail_library as trail
from ..core.digests import array_entry
from .series import size_of
from .tensors import dtype_name, entry, is_nested, is_plain, lies_in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_SALTS = 10_000
MAX_DEPTH = 16  # of what a DataLoader gives
_ATOMS = frozenset([str, bytes, int, float, bool, complex, type(None)])


class PytorchContents:
    """Digests of what trainings pass around: tensors, arrays, and what they come packed in."""

    def __init__(self, library: trail.Library, torch: Any) -> None:
        self._library = library
        self._fold = library.fold
        self._tensor = torch.Tensor
        self._only = frozenset([torch.Tensor])
        self._strided = torch.strided
        self.missed = False  # a tensor that does not lie on this side
        self.salts: dict[Any, int] = {}  # of simple tensors, by what the compiled step knows dtype and shape

    def are_tensors(self, values: Any) -> bool:
        """Whether these are tensors, and of no subclass."""
        return self._only.issuperset(map(type, values))

    def is_tensor(self, value: Any) -> bool:
        """Whether it is a tensor, of a subclass or not."""
        return isinstance(value, self._tensor)

    def is_simple(self, tensor: Any) -> bool:
        """Whether its bytes lie here and in order."""
        return type(tensor) is self._tensor and lies_in_order(tensor)

    def simple_salt(self, tensor: Any) -> int | None:
        """What stands for its dtype and shape, None of a tensor whose bytes do not lie here and in order."""
        if len(self.salts) > MAX_SALTS:
            self.salts.clear()
        return self.salt(tensor) if self.is_simple(tensor) else None

    def salt(self, tensor: Any) -> int:
        """What stands for its dtype and shape."""
        return trail.salt(dtype_name(tensor), tensor.shape)

    def parameters(self, parameters: Sequence[Any]) -> int | None:
        """The digest of a list of parameters, None where one of them cannot be read where it lies."""
        if not all(is_plain(p) and p.layout is self._strided and p.is_cpu and p.is_contiguous() for p in parameters):
            return None
        each = [self._library.digest(p.data_ptr(), size_of(p), self.salt(p)) for p in parameters]
        return self._library.of_list(each)

    def tensor(self, digest: int, tensor: Any) -> int:
        """The digest so far, and what this tensor adds to it."""
        if self.is_simple(tensor):
            return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]
        if is_nested(tensor):
            for part in tensor.detach().unbind():
                digest = self.tensor(digest, part)
            return digest
        if type(tensor) is not self._tensor and not is_plain(tensor):
            return self._text(digest, type(tensor).__name__)
        if not tensor.is_cpu:
            self.missed = True
            return digest
        if tensor.layout is not self._strided or tensor.is_quantized:
            return trail.mix(digest + int(entry("", tensor)[3][7:23], 16))
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]

    def value(self, digest: int, value: Any, depth: int = 0) -> int:
        """Likewise of anything, part by part."""
        if isinstance(value, self._tensor):
            return self.tensor(digest, value)
        if isinstance(value, (list, tuple)) and depth < MAX_DEPTH and not _are_atoms(value):
            for part in value:
                digest = self.value(digest, part, depth + 1)
            return digest
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            for key in value:
                digest = self.value(self._text(digest, repr(key)), value[key], depth + 1)
            return digest
        if hasattr(type(value), "__array_interface__"):
            return trail.mix(digest + int(array_entry("", value)[3][7:23], 16))
        is_atom = type(value) in _ATOMS or isinstance(value, (list, tuple))
        return self._text(digest, repr(value) if is_atom else type(value).__name__)

    def _text(self, digest: int, text: str) -> int:
        return trail.mix(digest + self._library.text(text))


def _are_atoms(values: Any) -> bool:
    """Whether their text says all that there is."""
    return not values or (type(values[0]) in _ATOMS and _ATOMS.issuperset(map(type, values)))
