"""Tests PyTorch's gradients for numbers that are not finite, before an optimizer applies them.

On the CPU the library reads them where they lie. On any other device all of them set one flag, which is read once.
"""

from __future__ import annotations

import functools

from ..pytorch import private_api
from ..pytorch.tensors import dtype_name
from ..trail_library import FORMATS
from .finite import Finite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..trail_library import Library

MAX_TABLES = 64  # sets of gradients that an optimizer is known to have


class Gradients:
    """The tests of one process."""

    def __init__(self, torch: Any, library: Library | None, compiled: Any = None) -> None:
        self._torch = torch
        self._library = library
        formats = {getattr(torch, name): FORMATS[name] for name in FORMATS if hasattr(torch, name)}
        # Takes param_groups: whether all of their gradients are finite, None where it cannot tell.
        self.of_groups: Callable[[Any], bool | None] = _unknown
        if compiled is not None and hasattr(torch.Tensor, "nbytes"):  # PyTorch 2.1
            self.of_groups = functools.partial(compiled.finite_gradients, torch.Tensor, formats)
        self._only = frozenset([torch.Tensor])
        self._data_ptr, self._is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
        self._nbytes = getattr(getattr(torch.Tensor, "nbytes", None), "__get__", _size_of)
        self._is_cpu, self._dtype = torch.Tensor.is_cpu.__get__, torch.Tensor.dtype.__get__
        self._ones: dict[Any, Any] = {}

    def are_finite(self, table: Table, gradients: list[Any], losses: list[Any]) -> bool:
        """Whether all these gradients are finite, and the losses, which lie on a GPU."""
        try:
            if not losses and self.are_finite_here(table, gradients):
                return True
        except RuntimeError:  # one is sparse
            pass
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return self._are_finite([*gradients, *losses])

    def are_finite_here(self, table: Table, gradients: list[Any]) -> bool:
        """The same, and False also where they do not all lie on the CPU in order."""
        if self._library is None:
            return False
        if not self._only.issuperset(map(type, gradients)):
            gradients = [gradient for gradient in gradients if gradient is not None]
            if not self._only.issuperset(map(type, gradients)):
                return False
        if not all(map(self._is_cpu, gradients)):
            return False
        if not (all(map(self._is_contiguous, gradients)) or all(map(self._is_dense, gradients))):
            return False
        sizes, dtypes = list(map(self._nbytes, gradients)), list(map(self._dtype, gradients))
        return table.finite(self._library, sizes, dtypes).first(list(map(self._data_ptr, gradients))) is None

    def _is_dense(self, tensor: Any) -> bool:
        """Whether its elements are all that lies between the first and the last."""
        if tensor.is_contiguous():
            return True
        form = {4: self._torch.channels_last, 5: getattr(self._torch, "channels_last_3d", None)}.get(tensor.dim())
        return form is not None and bool(tensor.is_contiguous(memory_format=form))

    def _are_finite(self, tensors: Iterable[Any]) -> bool:
        far: dict[tuple[Any, Any], list[Any]] = {}
        for tensor in map(values_of, tensors):
            if tensor.is_cpu:
                if not bool(self._torch.isfinite(tensor).all()):
                    return False
            elif tensor.is_floating_point() or tensor.is_complex():
                far.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        return not any(flag.item() for flag in self._flags(far))

    def _flags(self, far: dict[tuple[Any, Any], list[Any]]) -> list[Any]:
        """One for each device, which all of its tensors set that are not finite; they stay what they are."""
        torch, flags = self._torch, {}
        for (device, _), tensors in far.items():
            if device not in flags:
                flags[device] = torch.zeros(1, device=device)
            if device not in self._ones:
                self._ones[device] = torch.ones(1, device=device)
            try:
                private_api.flag_not_finite(torch, tensors, flags[device], self._ones[device])
            except RuntimeError:  # not made for this device, or not for this dtype
                flags[device] += ~torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()
        return list(flags.values())

    def count(self, gradient: Any) -> tuple[int, int]:
        """How many elements are not finite, and of how many."""
        return int(self.not_finite(gradient)), int(gradient.numel())

    def not_finite(self, tensor: Any) -> Any:
        """How many elements are not finite, as a number on the device of the tensor."""
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return (~self._torch.isfinite(values_of(tensor))).sum()

    def norm(self, gradients: Sequence[Any]) -> float:
        """The norm of all gradients together."""
        torch = self._torch
        with torch.no_grad(), private_api.without_overrides(torch):
            norms = [torch.linalg.vector_norm(values_of(gradient).detach().float()) for gradient in gradients]
            device = norms[0].device
            return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))


class Table:
    """The sizes and dtypes that one set of parameters' gradients had, ready for the library."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._dtypes: list[Any] = []
        self._finite: Finite | None = None
        self._others: dict[tuple[tuple[int, ...], tuple[Any, ...]], Finite] = {}

    def finite(self, library: Library, sizes: list[int], dtypes: list[Any]) -> Finite:
        """The test for these."""
        if self._finite is None or sizes != self._sizes or dtypes != self._dtypes:
            self._sizes, self._dtypes = sizes, dtypes
            key = tuple(sizes), tuple(dtypes)
            self._finite = self._others.get(key)
            if self._finite is None:
                if len(self._others) >= MAX_TABLES:
                    self._others.clear()
                names = [str(dtype).rpartition(".")[2] for dtype in dtypes]
                self._finite = self._others[key] = Finite(library, sizes, names)
        return self._finite


def _unknown(_groups: Any) -> bool | None:
    return None


def _size_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def values_of(tensor: Any) -> Any:
    """The plain tensor that holds all numbers of a sparse or distributed one."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    tensor = private_api.stored_values(tensor)
    return tensor.float() if dtype_name(tensor).startswith("float8") else tensor
