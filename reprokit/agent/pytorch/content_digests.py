"""Digests of the data of PyTorch trainings: batches, losses, arguments of models, and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from operator import is_

from ..core import trail_library as trail
from ..core.attributes import own_attributes
from ..core.digests import array_entry
from . import private_api
from .tensors import dtype_name, entry, is_nested, is_plain, lies_in_order, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_SALTS = 10_000
MAX_DEPTH = 16  # nested containers in a batch
MAX_NESTED = 8  # nested objects in the arguments of a model
MAX_VALUES = 1000  # values in the arguments of one call
_NUMBERS = frozenset([bool, int, float, complex])
_TEXTS = frozenset([str, bytes])
_ATOMS = frozenset([str, bytes, int, float, bool, complex, type(None)])


class PytorchContents:
    """Digests tensors, arrays, and containers of them."""

    def __init__(self, library: trail.Library, torch: Any, compiled: Any = None) -> None:
        self._library, self._compiled = library, compiled
        self._fold = library.fold
        self._tensor = torch.Tensor
        self._plain_classes = frozenset([torch.Tensor])
        self._strided = torch.strided
        self.has_unreadable = False  # whether the values of a tensor were not read
        self._salts: dict[Any, int] = {}  # of simple tensors, by the compiled step's key of dtype and shape
        self.native_state = torch.Tensor, torch.nn.Parameter, self._salts, self._simple_salt

    def are_tensors(self, values: Any) -> bool:
        """Return whether all values are exactly torch.Tensor, no subclass."""
        return self._plain_classes.issuperset(map(type, values))

    def is_tensor(self, value: Any) -> bool:
        """Return whether a value is a tensor, subclasses included."""
        return isinstance(value, self._tensor)

    def is_simple(self, tensor: Any) -> bool:
        """Return whether a tensor is a plain contiguous one in CPU memory."""
        return type(tensor) is self._tensor and lies_in_order(tensor)

    def _simple_salt(self, tensor: Any) -> int | None:
        """Return the salt of a simple tensor, else None."""
        if len(self._salts) > MAX_SALTS:
            self._salts.clear()
        return self.salt(tensor) if self.is_simple(tensor) else None

    def simple(self, digest: int, tensors: list[Any]) -> int | None:
        """Fold simple tensors into a digest; return None if one of them is not simple."""
        if self._compiled is not None:
            return self._compiled.fold(self.native_state, digest, tensors)  # type: ignore[no-any-return]
        if not all(map(self.is_simple, tensors)):
            return None
        for tensor in tensors:
            digest = self.tensor(digest, tensor)
        return digest

    def salt(self, tensor: Any) -> int:
        """Return the salt by which the dtype and shape of a tensor enter its digest."""
        return trail.salt(dtype_name(tensor), tensor.shape)

    def parameters(self, parameters: Sequence[Any]) -> int | None:
        """Return the digest of a list of parameters; None if one of them cannot be read."""
        if not (self.are_dense(parameters) and all(p.is_cpu for p in parameters)):
            return None
        in_order = [p.detach().contiguous() for p in parameters]
        each = [self._library.digest(p.data_ptr(), size_of(p), self.salt(p)) for p in in_order]
        return self._library.of_list(each)

    def are_dense(self, parameters: Sequence[Any]) -> bool:
        """Return whether all are plain and dense, on any device."""
        return all(is_plain(p) and p.layout is self._strided for p in parameters)

    def tensor(self, digest: int, tensor: Any) -> int:
        """Fold a tensor into a digest; return the new digest."""
        if self.is_simple(tensor):
            return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]
        if is_nested(tensor):
            for part in tensor.detach().unbind():
                digest = self.tensor(digest, part)
            return digest
        if type(tensor) is not self._tensor and not is_plain(tensor):
            self.has_unreadable = True
            return self._text(digest, type(tensor).__name__)
        if not tensor.is_cpu:
            self.has_unreadable = True
            return digest
        if tensor.layout is not self._strided or tensor.is_quantized:
            return trail.mix(digest + int(entry("", tensor)[3][7:23], 16))
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]

    def value(self, digest: int, value: Any, depth: int = 0) -> int:
        """Fold any value into a digest, containers part by part; return the new digest."""
        if isinstance(value, self._tensor):
            return self.tensor(digest, value)
        if isinstance(value, (list, tuple)) and depth < MAX_DEPTH and not _is_plain_sequence(value):
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


def _is_plain_sequence(values: Any) -> bool:
    """Return whether repr() of a sequence represents it exactly: it has only plain values."""
    return not values or (type(values[0]) in _ATOMS and _ATOMS.issuperset(map(type, values)))


# Arguments of models


class FetchedTensors:
    """The tensors of a batch: an argument that is an unchanged one of them is not digested again."""

    def __init__(self, tensors_and_changes: Sequence[Any]) -> None:
        self._tensors, self._changes = tensors_and_changes[::2], tensors_and_changes[1::2]

    def name(self, tensor: Any, salt: int) -> int:
        """Return a number for the unchanged batch tensor that shares all bytes with a tensor; 0 if there is none."""
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
    """Digests the arguments of one call, starting from the digest of earlier calls."""

    def __init__(
        self, digest: int, fetched: FetchedTensors | None, contents: PytorchContents, library: trail.Library
    ) -> None:
        self.digest = digest
        self.is_partial = False  # whether a value was skipped
        self.count = 0  # values that were digested
        self._fetched, self._contents, self._library = fetched, contents, library
        self._values_left = MAX_VALUES

    def take(self, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Digest positional and keyword arguments in order."""
        for value in (*arguments, *keywords.values()):
            if type(value) in _NUMBERS:
                self._add(self._contents.value(self.digest, value))
            else:
                self._digest_value(value, 0)

    def _add(self, digest: int) -> None:
        self.digest, self.count = digest, self.count + 1

    def _digest_value(self, value: Any, depth: int) -> None:
        self._values_left -= 1
        if self._contents.is_tensor(value):
            self._tensor(value)
        elif self._values_left < 0 or depth > MAX_NESTED:
            self.is_partial = True
        elif hasattr(type(value), "__array_interface__"):
            self._add(self._contents.value(self.digest, value))
        elif type(value) in _NUMBERS or type(value) in _TEXTS:
            self.is_partial = True
        elif value is not None:
            for part in _parts(value):
                self._digest_value(part, depth + 1)

    def _tensor(self, tensor: Any) -> None:
        try:
            digest = self._digest(tensor)
        except RuntimeError:  # the tensor has no storage, or no shape
            digest = None
        if digest is None:
            self.is_partial = True
        else:
            self._add(digest)

    def _digest(self, tensor: Any) -> int | None:
        """Digest a tensor; None if autograd computed it, so that it is no input, or if it is on a device."""
        is_nested_tensor = is_nested(tensor)
        if not ((is_nested_tensor or is_plain(tensor)) and tensor.is_cpu) or tensor.grad_fn is not None:
            return None
        fetched = None if is_nested_tensor else self._fetched
        name = 0 if fetched is None else fetched.name(tensor, self._contents.salt(tensor))
        if name:
            return self._library.fold(self.digest, 0, 0, name)  # type: ignore[no-any-return]
        return self._contents.tensor(self.digest, tensor)


def _parts(value: Any) -> Sequence[Any]:
    """Return the values in a container or in the attributes of an object, without calling code of its class."""
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, list):
        return list.__getitem__(value, slice(None))
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(None))
    return list(own_attributes(value).values())


# Buffers of models


class ModelBuffers:
    """The buffers of the models that an optimizer trains, digested after each of its steps.

    They are read at once, as the next forward pass changes them. Large buffers are usually constant tables and masks,
    and would take too long: buffers that are large in total, or on a GPU, are not digested.
    """

    def __init__(self, containers: list[dict[str, Any]], contents: PytorchContents) -> None:
        self._containers, self._contents = containers, contents
        self._tensors: list[Any] = []
        self._is_readable = False

    def digest(self) -> int | None:
        """Return the current digest; 0 if there are no buffers, None if some cannot be read."""
        if not any(self._containers):
            return 0
        tensors = [tensor for buffers in self._containers for tensor in buffers.values() if tensor is not None]
        if not (len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))):
            self._tensors = tensors
            self._is_readable = (
                all(map(self._contents.is_simple, tensors)) and sum(map(size_of, tensors)) <= trail.SMALL
            )
        return self._contents.simple(0, tensors) if self._is_readable else None
