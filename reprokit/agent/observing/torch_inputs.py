"""Inputs and results of PyTorch's operators: copies that behave alike, digests of bits, states of generators."""

from __future__ import annotations

import hashlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_ALLOWANCE = 4096  # bytes that a storage may be larger than its tensor and still be copied whole
_STATES = ("seed", "offset", "rng", "workspace", "reserve", "debug", "unused", "philox")  # in names of results


def tensors(torch: Any, value: Any) -> Iterator[Any]:
    """All tensors in arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(torch, item)
    elif isinstance(value, dict):
        yield from tensors(torch, list(value.values()))


def size(torch: Any, value: Any) -> int:
    """Bytes of all tensors in it."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(torch, value))


def mapped(torch: Any, value: Any, function: Callable[[Any], Any]) -> Any:
    """The same with another tensor in the place of each."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([mapped(torch, item, function) for item in value])
    if type(value) is dict:
        return {key: mapped(torch, item, function) for key, item in value.items()}
    return value


class Copier:
    """Copies tensors with strides, offsets, and what of their memory they share."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._storages: dict[tuple[Any, int], Any] = {}

    def copy(self, value: Any) -> Any:
        """A copy of arguments."""
        return mapped(self._torch, value, self._copy)

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


class Digester:
    """Digests the bits of results."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def of(self, values: Any) -> bytes:
        """One digest of all tensors in values."""
        digest = hashlib.sha256()
        for tensor in tensors(self._torch, values):
            self._add(digest, tensor.detach())
        return digest.digest()

    def _add(self, digest: Any, tensor: Any) -> None:
        if tensor.is_nested:
            for part in tensor.unbind():
                self._add(digest, part)
            return
        if tensor.layout == self._torch.sparse_coo:
            tensor = tensor.coalesce() if not tensor.is_coalesced() else tensor
            parts = [tensor.indices(), tensor.values()]
        elif tensor.layout != self._torch.strided:
            parts = [tensor.to_dense()]
        else:
            parts = [tensor]
        for part in parts:
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            self._add_bytes(digest, part)

    def _add_bytes(self, digest: Any, tensor: Any) -> None:
        import ctypes

        plain = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        length = plain.numel() * plain.element_size()
        if length and not plain.data_ptr():
            raise ValueError("it has no contents")
        if length:
            digest.update(memoryview((ctypes.c_char * length).from_address(plain.data_ptr())))


def compared(torch: Any, operator: Any, result: Any, args: tuple[Any, ...]) -> list[Any]:
    """The results that say anything: no states of generators, and no memory of the operator's own."""
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    if operator.name in ("aten::_embedding_bag", "aten::_embedding_bag_forward_only"):
        return values[:1]  # the others are left uninitialised in some modes
    names = operator.returns if len(operator.returns) == len(values) else [""] * len(values)
    kept = []
    for number, (name, value) in enumerate(zip(names, values)):
        if name is None or any(part in name for part in _STATES):  # None: one of the arguments
            continue
        is_workspace = number > 0 and isinstance(value, torch.Tensor) and value.dtype == torch.uint8
        if not is_workspace:
            kept.append(value)
    return kept


class States:
    """The states of the generators, to be put back."""

    def __init__(self, torch: Any, values: Any, foreign: bool) -> None:
        self._torch = torch
        self._generators: list[tuple[Any, Any]] = []
        self._others: list[tuple[Callable[[Any], object], Any]] = []
        generators = [torch.default_generator, *_explicit(torch, values)]
        if torch.cuda.is_initialized():
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        for generator in generators:
            self._generators.append((generator, generator.get_state()))
        if foreign:  # an operator that is not PyTorch's may ask whom it likes
            self._add_others()

    def _add_others(self) -> None:
        random = sys.modules.get("random")
        if random is not None:
            self._others.append((random.setstate, random.getstate()))
        numpy_random = getattr(sys.modules.get("numpy"), "random", None)
        if numpy_random is not None:
            self._others.append((numpy_random.set_state, numpy_random.get_state()))

    @property
    def processor(self) -> Any:
        """The state of the generator of the CPU."""
        return self._generators[0][1]

    def restore(self) -> None:
        """Put all back."""
        for generator, state in self._generators:
            generator.set_state(state)
        for put_back, state in self._others:
            put_back(state)


def _explicit(torch: Any, values: Any) -> list[Any]:
    args, kwargs = values
    return [value for value in [*args, *kwargs.values()] if isinstance(value, torch.Generator)]
