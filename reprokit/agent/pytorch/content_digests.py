"""Digests of what trainings by PyTorch pass around: batches, losses, what models are called with, their buffers."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_

from .. import trail_library as trail
from ..core.attributes import own_attributes
from ..core.digests import array_entry
from . import private_api
from .series import size_of
from .tensors import dtype_name, entry, is_nested, is_plain, lies_in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_SALTS = 10_000
MAX_DEPTH = 16  # of what a DataLoader gives
MAX_NESTED = 8  # objects in objects that a model is called with
MAX_VALUES = 1000  # of one call
_NUMBERS = frozenset([bool, int, float, complex])
_TEXTS = frozenset([str, bytes])
_ATOMS = frozenset([str, bytes, int, float, bool, complex, type(None)])


class PytorchContents:
    """Digests of what trainings pass around: tensors, arrays, and what they come packed in."""

    def __init__(self, library: trail.Library, torch: Any, compiled: Any = None) -> None:
        self._library, self._compiled = library, compiled
        self._fold = library.fold
        self._tensor = torch.Tensor
        self._only = frozenset([torch.Tensor])
        self._strided = torch.strided
        self.missed = False  # a tensor that does not lie on this side
        self._salts: dict[Any, int] = {}  # of simple tensors, by what the compiled step knows dtype and shape
        self.known = torch.Tensor, torch.nn.Parameter, self._salts, self._simple_salt  # for compiled code

    def are_tensors(self, values: Any) -> bool:
        """Return whether these are tensors, and of no subclass."""
        return self._only.issuperset(map(type, values))

    def is_tensor(self, value: Any) -> bool:
        """Return whether it is a tensor, of a subclass or not."""
        return isinstance(value, self._tensor)

    def is_simple(self, tensor: Any) -> bool:
        """Return whether its bytes lie here and in order."""
        return type(tensor) is self._tensor and lies_in_order(tensor)

    def _simple_salt(self, tensor: Any) -> int | None:
        """Return what stands for its dtype and shape, None of a tensor whose bytes do not lie here and in order."""
        if len(self._salts) > MAX_SALTS:
            self._salts.clear()
        return self.salt(tensor) if self.is_simple(tensor) else None

    def simple(self, digest: int, tensors: list[Any]) -> int | None:
        """Return the digest so far with these tensors; None where the bytes of one do not lie here and in order."""
        if self._compiled is not None:
            return self._compiled.fold(self.known, digest, tensors)  # type: ignore[no-any-return]
        if not all(map(self.is_simple, tensors)):
            return None
        for tensor in tensors:
            digest = self.tensor(digest, tensor)
        return digest

    def salt(self, tensor: Any) -> int:
        """Return what stands for its dtype and shape."""
        return trail.salt(dtype_name(tensor), tensor.shape)

    def parameters(self, parameters: Sequence[Any]) -> int | None:
        """Return the digest of a list of parameters, None where one of them cannot be read where it lies."""
        if not (self.lie_in_order(parameters) and all(p.is_cpu for p in parameters)):
            return None
        each = [self._library.digest(p.data_ptr(), size_of(p), self.salt(p)) for p in parameters]
        return self._library.of_list(each)

    def lie_in_order(self, parameters: Sequence[Any]) -> bool:
        """Return whether the bytes of each, on whatever device, are what it is."""
        return all(is_plain(p) and p.layout is self._strided and p.is_contiguous() for p in parameters)

    def tensor(self, digest: int, tensor: Any) -> int:
        """Return the digest so far, and what this tensor adds to it."""
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
    """Return whether their text says all that there is."""
    return not values or (type(values[0]) in _ATOMS and _ATOMS.issuperset(map(type, values)))


# What models are called with


class FetchedTensors:
    """The tensors of a batch: an argument that is one of them is not digested again, as long as nobody changes it."""

    def __init__(self, tensors_and_changes: Sequence[Any]) -> None:
        self._tensors, self._changes = tensors_and_changes[::2], tensors_and_changes[1::2]

    def name(self, tensor: Any, salt: int) -> int:
        """What stands for the tensor that this is, or has all bytes of in their order, as it was; 0 for another one."""
        changes = private_api.changes(tensor)
        for number, fetched in enumerate(self._tensors, 1):
            if changes == self._changes[number - 1] and (tensor is fetched or _has_bytes_of(tensor, fetched)):
                return number if tensor.shape == fetched.shape else salt + number
        return 0


def _has_bytes_of(tensor: Any, fetched: Any) -> bool:
    return (
        tensor.data_ptr() == fetched.data_ptr()
        and tensor.dtype is fetched.dtype
        and size_of(tensor) == size_of(fetched)
        and tensor.is_contiguous()
        and fetched.is_contiguous()
    )


class CallArguments:
    """The digest of one call's arguments, on top of those before it."""

    def __init__(
        self, digest: int, fetched: FetchedTensors | None, contents: PytorchContents, library: trail.Library
    ) -> None:
        self.digest = digest
        self.is_partial = False  # something was left out
        self.count = 0  # of what was digested
        self._fetched, self._contents, self._library = fetched, contents, library
        self._left = MAX_VALUES

    def take(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Digest the arguments of a call, in their order."""
        for value in (*arguments, *keywords.values()):
            if type(value) in _NUMBERS:
                self._put(self._contents.value(self.digest, value))
            else:
                self._value(value, 0)

    def _put(self, digest: int) -> None:
        self.digest, self.count = digest, self.count + 1

    def _value(self, value: Any, depth: int) -> None:
        self._left -= 1
        if self._contents.is_tensor(value):
            self._tensor(value)
        elif self._left < 0 or depth > MAX_NESTED:
            self.is_partial = True
        elif hasattr(type(value), "__array_interface__"):
            self._put(self._contents.value(self.digest, value))
        elif type(value) in _NUMBERS or type(value) in _TEXTS:
            self.is_partial = True
        elif value is not None:
            for part in _parts(value):
                self._value(part, depth + 1)

    def _tensor(self, tensor: Any) -> None:
        try:
            digest = self._digest(tensor)
        except RuntimeError:  # of a tensor that has no storage, or no shape
            digest = None
        if digest is None:
            self.is_partial = True
        else:
            self._put(digest)

    def _digest(self, tensor: Any) -> int | None:
        """Digest a tensor; None of what autograd has computed, which is no input, and of what lies on a device."""
        is_plural = is_nested(tensor)
        if not ((is_plural or is_plain(tensor)) and tensor.is_cpu) or tensor.grad_fn is not None:
            return None
        fetched = None if is_plural else self._fetched
        name = 0 if fetched is None else fetched.name(tensor, self._contents.salt(tensor))
        if name:
            return self._library.fold(self.digest, 0, 0, name)  # type: ignore[no-any-return]
        return self._contents.tensor(self.digest, tensor)


def _parts(value: Any) -> Sequence[Any]:
    """Return what a container, or an object of the user's, holds; by no code of its class."""
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, list):
        return list.__getitem__(value, slice(None))
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(None))
    return list(own_attributes(value).values())


# Buffers of models


class ModelBuffers:
    """The buffers of the models that an optimizer trains, as they are after each of its steps.

    They are read at once, as the next forward computation changes them. Large ones are tables and masks as a rule, and
    take too long; where all together are large, or lie on a GPU, nothing is said of them.
    """

    def __init__(self, containers: list[dict[str, Any]], contents: PytorchContents) -> None:
        self._containers, self._contents = containers, contents
        self._tensors: list[Any] = []
        self._are_read = False

    def digest(self) -> int | None:
        """Their digest now, 0 where there are none; None where some cannot be read."""
        if not any(self._containers):
            return 0
        tensors = [tensor for buffers in self._containers for tensor in buffers.values() if tensor is not None]
        if not (len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))):
            self._tensors = tensors
            self._are_read = all(map(self._contents.is_simple, tensors)) and sum(map(size_of, tensors)) <= trail.SMALL
        return self._contents.simple(0, tensors) if self._are_read else None
