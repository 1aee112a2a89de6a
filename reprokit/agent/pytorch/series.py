"""The addresses of the gradients and parameters of an optimizer, for the worker that digests them."""

from __future__ import annotations

import functools

from ..core.trail_library import CHANGED_GRADIENTS as GRADIENTS
from ..core.trail_library import CHANGED_PARAMETERS as PARAMETERS
from . import private_api
from .tensors import dtype_name, here, is_plain, placement, size_of, storage_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.trail_library import Library, Named
    from .content_digests import PytorchContents
    from .generators import GeneratorDigests


class StepReader:
    """Reads the tensors of a step by compiled code (native/python/step.c); returns None for what Python must handle."""

    def __init__(self, contents: PytorchContents, random: GeneratorDigests, compiled: Any) -> None:
        self.batch: Callable[[int, Any], tuple[Any, ...] | None] = _not_compiled
        self.loss: Callable[[int, Any], object] = _not_compiled
        self.input: Callable[[int, Any, Any], object] = _not_compiled
        self.step: Callable[..., tuple[int, int, list[Any]] | None] = _not_compiled
        self.changes: Callable[[list[Any]], int] = private_api.changes_of  # sum of the version counters of tensors
        self.same: Callable[[list[Any], list[Any]], bool] = lambda one, other: [*map(id, one)] == [*map(id, other)]
        if compiled is not None:
            self.batch = functools.partial(compiled.trail_batch, contents.native_state)
            self.loss = functools.partial(compiled.trail_loss, contents.native_state)
            self.step = functools.partial(compiled.trail_step, contents.native_state[:2], random.default.native_state)
            self.input, self.changes, self.same = compiled.trail_input, compiled.changes, compiled.same


def _not_compiled(*_arguments: Any) -> None:
    """Stand in for compiled functions: return None, so that Python handles everything."""


class TrackedTensors:
    """The gradients and parameters of one optimizer, with their addresses at its last step.

    Of a DTensor that is the part which this rank has; its version counter and that of the part count both.
    """

    def __init__(self, parameters: list[Any], torch: Any, library: Library, reader: StepReader) -> None:
        self.parameters = list(parameters)
        self._are_shared_out = any(map(placement, parameters))
        parameters = self._here(parameters)
        self._first_changes = reader.changes(parameters)
        self.changes = self._changes_of_parts if self._are_shared_out else reader.changes
        devices = {parameter.device for parameter in parameters}
        # The GPU of all of them, else None.
        self.device = parameters[0].device if len(devices) == 1 and parameters[0].is_cuda else None
        self._strided, is_gpu = torch.strided, self.device is not None
        self._readable = [is_plain(p) and p.layout is self._strided and p.is_cpu is not is_gpu for p in parameters]
        self.sizes = [size_of(p) if is_readable else 0 for p, is_readable in zip(parameters, self._readable)]
        self._is_complete = all(self._readable)
        self._data_ptr, self._reader = torch.Tensor.data_ptr, reader
        self._nbytes = getattr(getattr(torch.Tensor, "nbytes", None), "__get__", size_of)
        self._pointers, self.address = library.buffer(2 * len(parameters))
        self._storages: list[Any] = [None] * len(parameters)  # keep the memory alive while it may be read
        self._addresses, self.addresses_at = library.buffer(len(parameters))
        self.referenced: list[Any] = []  # gradients and copies, kept alive while they are read
        self.watched: list[Any] = []  # the parameters, while they are read
        self._versions = (0, 0)

    def _here(self, tensors: list[Any]) -> list[Any]:
        return here(tensors) if self._are_shared_out else tensors

    def _changes_of_parts(self, parameters: list[Any]) -> int:
        """Return the count of what the training changed, and of what it changed in the parts by themselves."""
        return self._reader.changes([*parameters, *here(parameters)]) - self._first_changes

    def descriptions(self, names: Iterable[str]) -> list[Named]:
        """Return name, dtype, shape, size in bytes, and placement if there is one, of each parameter."""
        return [
            (name, dtype_name(p), [int(size) for size in p.shape], size, *placement(whole))
            for name, whole, p, size in zip(names, self.parameters, self._here(self.parameters), self.sizes)
        ]

    def are_unmoved(self, parameters: list[Any]) -> bool:
        """Return whether the parameters have the addresses and sizes of the last step."""
        if not (self._is_complete and self._reader.same(parameters, self.parameters)):
            return False
        parts = here(parameters) if self._are_shared_out else parameters
        return list(map(self._data_ptr, parts)) == self._addresses[:] and list(map(self._nbytes, parts)) == self.sizes

    def update_pointers(self, parameters: list[Any], *, with_gradients: bool = True) -> bool:
        """Store the addresses of gradients and parameters for the library; return whether all can be read."""
        gradients = [parameter.grad if with_gradients else None for parameter in parameters]
        referenced: list[Any] = [*gradients] if self._are_shared_out else []
        parameter_addresses = self._parameter_addresses(self._here(parameters), referenced)
        is_complete = self._is_complete
        gradient_addresses = []
        for gradient, size in zip(self._here(gradients), self.sizes):
            if gradient is None:
                gradient_addresses.append(0)
            elif gradient.layout is self._strided and gradient.is_contiguous() and size_of(gradient) == size:
                referenced.append(gradient)
                gradient_addresses.append(gradient.data_ptr())
            else:
                copy = self._copy(gradient, size)
                referenced.append(copy)
                gradient_addresses.append(0 if copy is None else copy.data_ptr())
                is_complete = is_complete and copy is not None
        self.referenced = referenced
        self._pointers[:] = gradient_addresses + parameter_addresses
        return is_complete

    def _parameter_addresses(self, parameters: list[Any], referenced: list[Any]) -> list[int]:
        """Return the addresses of the parameters; equal addresses mean the same storages, which are kept alive."""
        if self._is_complete:
            addresses = [parameter.data_ptr() for parameter in parameters]
            if addresses == self._addresses[:]:
                return addresses
        self._addresses[:], self._is_complete = [0] * len(parameters), True
        return [self._address(position, parameter, referenced) for position, parameter in enumerate(parameters)]

    def _address(self, position: int, parameter: Any, referenced: list[Any]) -> int:
        size = self.sizes[position]
        if self._readable[position] and parameter.is_contiguous() and size_of(parameter) == size and parameter.is_cpu:
            self._storages[position] = storage_of(parameter)
            self._addresses[position] = address = parameter.data_ptr()
            return address  # type: ignore[no-any-return]
        copy = self._copy(parameter, size) if self._readable[position] else None
        self._is_complete = self._is_complete and copy is not None
        referenced.append(copy)
        return 0 if copy is None else copy.data_ptr()

    def _copy(self, tensor: Any, size: int) -> Any:
        """Return a contiguous copy of a tensor; None if it has no dense bytes in CPU memory."""
        if tensor.layout is not self._strided or size_of(tensor) != size or not tensor.is_cpu:
            return None
        return tensor.detach().contiguous()

    def device_tensors(self, parameters: list[Any]) -> tuple[list[Any], bool]:
        """Return gradients and parameters on the GPU (None if unreadable), and whether all can be read."""
        both = self._here([*[parameter.grad for parameter in parameters], *parameters])
        tensors = [tensor if self._is_on_device(tensor, size) else None for tensor, size in zip(both, self.sizes * 2)]
        return tensors, all((tensor is None) is (readable is None) for tensor, readable in zip(both, tensors))

    def _is_on_device(self, tensor: Any, size: int) -> bool:
        is_dense = tensor is not None and tensor.layout is self._strided
        return is_dense and size_of(tensor) == size and tensor.device == self.device

    def watch(self, parameters: list[Any]) -> None:
        """Note the version counters: until release() the tensors should not change."""
        self.watched = list(parameters)
        self._versions = self._change_counts()

    def _change_counts(self) -> tuple[int, int]:
        """Return the sums of the version counters of gradients and of parameters."""
        gradients = [tensor for tensor in self.referenced if tensor is not None]
        return self._reader.changes(gradients), self.changes(self.watched)

    def release(self) -> int:
        """Release the tensors; return flags of the parts whose version counters changed since watch()."""
        gradients, parameters = self._change_counts()
        changed = GRADIENTS * (gradients != self._versions[0]) | PARAMETERS * (parameters != self._versions[1])
        self.referenced, self.watched = [], []
        return changed
