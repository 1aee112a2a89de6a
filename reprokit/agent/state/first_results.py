"""Gives the first results of models again, in place of computing them: what a fast-forwarded training gets."""

from __future__ import annotations

import copy

from ..core.signal_errors import pass_on
from ..pytorch.state import has_parameters
from ..pytorch.tensors import is_tensor, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_RESULTS = 256  # that are remembered
MAX_BYTES = 2 << 30  # of the tensors in them
MAX_COPIED = 4 << 20  # bytes of a tensor that the script may change in place
MAX_DEPTH = 8
_BY_VALUE = frozenset([bool, int, str, type(None)])


class FirstResults:
    """The first result of each model for each kind of arguments: their shapes, and the values of plain ones."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._results: dict[Any, Any] = {}
        self._owners: list[Any] = []  # models, so that their ids stay unique
        self._bytes = 0
        self._is_within = False  # a call whose result is being computed

    def clear(self) -> None:
        """Forget all results."""
        self._results, self._owners = {}, []

    def of(
        self, original: Callable[..., Any], module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Return the first result of such a call; compute it in the first, and where it cannot be given again."""
        if self._is_within or not has_parameters(module):
            return original(module, *arguments, **keywords)
        key = id(module), module.training, self._torch.is_grad_enabled(), _kind(arguments), _kind(keywords)
        if key not in self._results:
            self._is_within = True
            try:
                result = original(module, *arguments, **keywords)
            finally:
                self._is_within = False
            self._remember(key, module, result)
            return result
        return self._again(self._results[key])

    def _remember(self, key: Any, module: Any, result: Any) -> None:
        try:
            kept = _mapped(result, lambda tensor: (tensor.detach(), tensor.requires_grad))
            size = sum(size_of(tensor) for tensor in _tensors(result))
        except Exception as error:  # of an object that cannot be copied: the model computes it each time
            pass_on(error)
            return
        if len(self._results) < MAX_RESULTS and self._bytes + size <= MAX_BYTES:
            self._bytes += size
            self._owners.append(module)
            self._results[key] = kept

    def _again(self, kept: Any) -> Any:
        return _mapped(kept, self._tensor_again)

    def _tensor_again(self, kept: Any) -> Any:
        tensor, requires_grad = kept
        if not (requires_grad and self._torch.is_grad_enabled()):
            return tensor.clone() if size_of(tensor) <= MAX_COPIED else tensor
        leaf = tensor.detach().requires_grad_()
        return leaf.clone() if size_of(tensor) <= MAX_COPIED else leaf.view_as(leaf)


class _Kept(tuple):  # type: ignore[type-arg]
    """A tensor of a result, and whether it requires a gradient."""

    __slots__ = ()


def _kind(value: Any, depth: int = 0) -> Any:
    """Return what calls must share to have results of the same shapes."""
    if is_tensor(value):
        return tuple(value.shape), value.dtype, value.device
    if type(value) in _BY_VALUE:
        return value
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        return tuple([_kind(item, depth + 1) for item in value])
    if depth < MAX_DEPTH and isinstance(value, dict):
        return tuple([(str(key), _kind(value[key], depth + 1)) for key in value])
    return type(value)


def _tensors(value: Any) -> list[Any]:
    tensors: list[Any] = []
    _mapped(value, tensors.append)
    return tensors


def _mapped(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return a value with other tensors, in containers and objects of the same classes."""
    if type(value) is _Kept:
        return change(value)
    if is_tensor(value):
        changed = change(value)
        return _Kept(changed) if type(changed) is tuple else changed
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, tuple):
        items = [_mapped(item, change, depth + 1) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_mapped(item, change, depth + 1) for item in value]
    if isinstance(value, dict):
        new = copy.copy(value)
        for key in list(value):
            new[key] = _mapped(value[key], change, depth + 1)
        return new
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        new = copy.copy(value)
        for name, part in list(vars(value).items()):
            vars(new)[name] = _mapped(part, change, depth + 1)
        return new
    return value
