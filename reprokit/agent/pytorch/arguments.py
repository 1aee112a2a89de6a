"""Digests of what a training calls its models with: the tensors among the arguments, and the numbers."""

from __future__ import annotations

from ..core.attributes import own_attributes
from . import private_api
from .series import size_of
from .tensors import is_nested, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..trail_library import Library
    from .content_digests import PytorchContents

MAX_DEPTH = 8  # of objects in objects
MAX_VALUES = 1000  # of one call
_NUMBERS = frozenset([bool, int, float, complex])
_TEXTS = frozenset([str, bytes])


class FetchedTensors:
    """The tensors of a batch and how often each was changed: an argument that is one of them is not digested again."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = tensors
        self._changes = private_api.changes_each(tensors)

    def is_first(self, arguments: Sequence[Any]) -> bool:
        """Whether the one argument is the first tensor, as it came: in most trainings it is."""
        tensors = self._tensors
        if len(arguments) != 1 or not tensors or arguments[0] is not tensors[0]:
            return False
        return private_api.changes(tensors[0]) == self._changes[0]

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
        self, digest: int, fetched: FetchedTensors | None, contents: PytorchContents, library: Library
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
        elif self._left < 0 or depth > MAX_DEPTH:
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
        """What autograd knows the origin of is no input; what lies on a device would have to be waited for."""
        is_plural = is_nested(tensor)
        if not ((is_plural or is_plain(tensor)) and tensor.is_cpu) or tensor.grad_fn is not None:
            return None
        fetched = None if is_plural else self._fetched
        name = 0 if fetched is None else fetched.name(tensor, self._contents.salt(tensor))
        if name:
            return self._library.fold(self.digest, 0, 0, name)  # type: ignore[no-any-return]
        return self._contents.tensor(self.digest, tensor)


def _parts(value: Any) -> Sequence[Any]:
    """What a container, or an object of the user's, holds; by no code of its class."""
    if isinstance(value, dict):
        return list(dict.values(value))
    if isinstance(value, list):
        return list.__getitem__(value, slice(None))
    if isinstance(value, tuple):
        return tuple.__getitem__(value, slice(None))
    return list(own_attributes(value).values())
