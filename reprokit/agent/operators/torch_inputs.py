"""Inputs and results of PyTorch's operators: copies with equal layout, digests of bits, states of generators."""

from __future__ import annotations

import hashlib

from ..capture.random_states import RandomStates, put_back
from ..pytorch.tensors import entry, tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_ALLOWANCE = 4096  # bytes by which a storage may exceed its tensors and still be copied whole
STATES = ("seed", "offset", "rng", "workspace", "reserve", "debug", "unused", "philox")  # names of such results


def size(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))


def map_tensors(torch: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested containers with function(tensor) for each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([map_tensors(torch, item, function) for item in value])
    if type(value) is dict:
        return {key: map_tensors(torch, item, function) for key, item in value.items()}
    return value


class TensorCopier:
    """Copies tensors with strides, offsets and shared storages."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._storages: dict[tuple[Any, int], Any] = {}

    def copy(self, value: Any) -> Any:
        """Return a copy of nested arguments."""
        return map_tensors(self._torch, value, self._copy)

    def _copy(self, tensor: Any) -> Any:
        tensor = tensor.detach()
        if not self._is_simple(tensor):
            return tensor.clone()
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr())
        copied = self._storages.get(key)
        if copied is None:
            copied = self._storages[key] = storage.clone()
        new = self._torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        new.set_(copied, tensor.storage_offset(), tensor.size(), tensor.stride())
        return new

    def _is_simple(self, tensor: Any) -> bool:
        if (
            tensor.is_nested
            or tensor.layout != self._torch.strided
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            return False
        used = tensor.numel() * tensor.element_size()
        return bool(0 < tensor.untyped_storage().nbytes() <= 2 * used + _ALLOWANCE)


def digest_of(torch: Any, values: Any) -> str:
    """Return one digest of the bits of all tensors in values."""
    digest = hashlib.sha256()
    for tensor in tensors_in(values):
        for part in tensor.detach().unbind() if tensor.is_nested else [tensor.detach()]:
            digest.update(entry("", part.coalesce() if part.layout == torch.sparse_coo else part)[3].encode())
    return digest.hexdigest()


def comparable_results(torch: Any, operator: Any, result: Any) -> list[Any]:
    """Return the results to compare: without generator states, workspaces and changed arguments."""
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    if operator.name in ("aten::_embedding_bag", "aten::_embedding_bag_forward_only"):
        return values[:1]  # the other results are uninitialized in some modes
    names = operator.returns if len(operator.returns) == len(values) else [""] * len(values)
    results = []
    for number, (name, value) in enumerate(zip(names, values)):
        if name is None or any(part in name for part in STATES):  # None: one of the arguments
            continue
        if number == 0 or not is_bytes(torch, value):
            results.append(value)
    return results


def is_bytes(torch: Any, value: Any) -> bool:
    """Return whether a value is a tensor of bytes, as are workspaces, which operators do not fill completely."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


class GeneratorStates:
    """The saved states of the generators."""

    def __init__(self, torch: Any, inputs: Any, *, foreign: bool) -> None:
        args, kwargs = inputs
        generators = [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Generator)]
        if torch.cuda.is_initialized():
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self._states = [(generator, generator.get_state()) for generator in [torch.default_generator, *generators]]
        self.processor = self._states[0][1]
        others = RandomStates()
        if foreign:  # a foreign operator may use any generator
            others.keep()
        self._others = others.kept()

    def restore(self) -> None:
        """Restore all states."""
        for generator, state in self._states:
            generator.set_state(state)
        put_back(self._others)


# Inputs in files


def encode(torch: Any, value: Any) -> Any:
    """Return a value in which texts stand for dtypes and the like, so that it is loaded without unpickling objects."""
    if type(value) in (list, tuple):
        return [encode(torch, item) for item in value]
    if type(value) is dict:
        return {key: encode(torch, item) for key, item in value.items()}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).partition("torch.")[2]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    return None if isinstance(value, torch.Generator) else value


def decode(torch: Any, value: Any) -> Any:
    """Return the value that encode() was given."""
    if type(value) is list:
        return [decode(torch, item) for item in value]
    if type(value) is dict and list(value) == ["torch"]:
        return getattr(torch, value["torch"])
    if type(value) is dict and list(value) == ["device"]:
        return torch.device(value["device"])
    if type(value) is dict:
        return {key: decode(torch, item) for key, item in value.items()}
    return value
