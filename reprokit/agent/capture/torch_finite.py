"""Tests whether PyTorch's tensors are finite.

On the CPU compiled code reads them in place. On any other device all of them set one flag, which is read once.
"""

from __future__ import annotations

import functools

from ..core.signal_errors import pass_on
from ..core.trail_library import FORMATS
from ..pytorch import private_api
from ..pytorch.tensors import dtype_name, numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any


class FiniteTests:
    """Tests whether tensors are finite, on any device."""

    def __init__(self, torch: Any, compiled: Any = None) -> None:
        self._torch = torch
        # Returns whether all tensors of a list are finite, or None if it cannot tell.
        self.at_once: Callable[[list[Any]], bool | None] = lambda _tensors: None
        if compiled is not None and hasattr(torch.Tensor, "nbytes"):  # PyTorch 2.1
            formats = {getattr(torch, name): FORMATS[name] for name in FORMATS if hasattr(torch, name)}
            self.at_once = functools.partial(compiled.finite, torch.Tensor, formats)
        self._unit_scales: dict[Any, Any] = {}

    def are_finite(self, tensors: list[Any]) -> bool:
        """Return whether all of these tensors are finite; waits for each GPU only once."""
        try:
            answer = self.at_once(tensors)
        except Exception as error:  # the slower test below handles it, or raises its own error
            pass_on(error)
            answer = None
        if answer is not None:
            return answer
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return self._are_finite(tensors)

    def _are_finite(self, tensors: Iterable[Any]) -> bool:
        by_device: dict[tuple[Any, Any], list[Any]] = {}
        for tensor in map(values_of, tensors):
            if tensor.is_cpu:
                if not bool(self._torch.isfinite(tensor).all()):
                    return False
            elif tensor.is_floating_point() or tensor.is_complex():
                by_device.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        return not any(flag.item() for flag in self._flags(by_device))

    def _flags(self, by_device: dict[tuple[Any, Any], list[Any]]) -> list[Any]:
        """Return one flag for each device, which is not 0 if any tensor there is not finite; tensors stay unchanged."""
        torch, flags = self._torch, {}
        for (device, _), tensors in by_device.items():
            if device not in flags:
                flags[device] = torch.zeros(1, device=device)
            if device not in self._unit_scales:
                self._unit_scales[device] = torch.ones(1, device=device)
            try:
                private_api.flag_not_finite(torch, tensors, flags[device], self._unit_scales[device])
            except RuntimeError:  # not implemented for this device or dtype
                flags[device] += ~torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()
        return list(flags.values())

    def count(self, tensor: Any) -> tuple[int, int]:
        """Return how many elements are not finite, and how many there are."""
        return int(self.not_finite(tensor)), int(tensor.numel())

    def not_finite(self, tensor: Any) -> Any:
        """Return how many elements are not finite, as a scalar tensor on the tensor's device."""
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return (~self._torch.isfinite(values_of(tensor))).sum()

    def norm(self, gradients: Sequence[Any]) -> float:
        """Return the L2 norm of all gradients together."""
        torch = self._torch
        with torch.no_grad(), private_api.without_overrides(torch):
            norms = [torch.linalg.vector_norm(numbers(values_of(gradient)).float()) for gradient in gradients]
            device = norms[0].device
            return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))


def values_of(tensor: Any) -> Any:
    """Return the plain tensor with all stored numbers of a sparse or distributed tensor (then, of its local shard)."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    tensor = private_api.stored_values(tensor)
    return tensor.float() if dtype_name(tensor).startswith("float8") else tensor
