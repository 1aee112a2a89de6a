"""Where the gradients and parameters of an optimizer lie, for those who read them beside the training."""

from __future__ import annotations

import functools

from ..trail_library import CHANGED_GRADIENTS as GRADIENTS
from ..trail_library import CHANGED_PARAMETERS as PARAMETERS
from . import private_api
from .tensors import dtype_name, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..trail_library import Library, Named
    from .content_digests import PytorchContents
    from .generators import GeneratorDigests


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor; PyTorch before 2.0 has no nbytes."""
    return tensor.numel() * tensor.element_size()  # type: ignore[no-any-return]


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


class StepReader:
    """What each step asks of its tensors, by compiled code (native/python/step.c), which leaves the rest to Python."""

    def __init__(self, contents: PytorchContents, random: GeneratorDigests, compiled: Any) -> None:
        self.batch: Callable[[int, Any], tuple[Any, ...] | None] = _not_compiled
        self.loss: Callable[[int, Any], object] = _not_compiled
        self.input: Callable[[int, Any, Any], object] = _not_compiled
        self.step: Callable[..., tuple[int, int, list[Any]] | None] = _not_compiled
        self.changes: Callable[[list[Any]], int] = private_api.changes_of  # how often tensors were changed in place
        self.same: Callable[[list[Any], list[Any]], bool] = lambda one, other: [*map(id, one)] == [*map(id, other)]
        if compiled is not None:
            self.batch = functools.partial(compiled.trail_batch, contents.known)
            self.loss = functools.partial(compiled.trail_loss, contents.known)
            self.step = functools.partial(compiled.trail_step, contents.known[:2], random.default.known)
            self.input, self.changes, self.same = compiled.trail_input, compiled.changes, compiled.same


def _not_compiled(*_arguments: Any) -> None:
    """Leave everything to Python."""


class TrackedTensors:
    """The gradients and parameters of one optimizer, and where they lay at its last step."""

    def __init__(self, parameters: list[Any], torch: Any, library: Library, reader: StepReader) -> None:
        devices = {parameter.device for parameter in parameters}
        self.parameters = list(parameters)
        self.device = parameters[0].device if len(devices) == 1 and parameters[0].is_cuda else None  # of all of them
        self._strided, is_far = torch.strided, self.device is not None
        self._readable = [is_plain(p) and p.layout is self._strided and p.is_cpu is not is_far for p in parameters]
        self.sizes = [size_of(p) if known else 0 for p, known in zip(parameters, self._readable)]
        self._whole = all(self._readable)
        self._data_ptr, self._reader = torch.Tensor.data_ptr, reader
        self._nbytes = getattr(getattr(torch.Tensor, "nbytes", None), "__get__", size_of)
        self._pointers, self.address = library.buffer(2 * len(parameters))
        self._storages: list[Any] = [None] * len(parameters)  # what is read stays mapped, whoever lets go of it
        self._seen, self.seen_at = library.buffer(len(parameters))
        self.held: list[Any] = []  # what is pointed at, while it is read
        self.watched: list[Any] = []  # the parameters, while they are read
        self._versions = (0, 0)

    def described(self, names: Iterable[str]) -> list[Named]:
        """Name, dtype, shape and bytes of each parameter."""
        return [
            (name, dtype_name(p), [int(size) for size in p.shape], size)
            for name, p, size in zip(names, self.parameters, self.sizes)
        ]

    def lie_still(self, parameters: list[Any]) -> bool:
        """Return whether the parameters lie where the last step left them, and as large as they were."""
        return (
            self._whole
            and self._reader.same(parameters, self.parameters)
            and list(map(self._data_ptr, parameters)) == self._seen[:]
            and list(map(self._nbytes, parameters)) == self.sizes
        )

    def point(self, parameters: list[Any]) -> bool:
        """Write down where gradients and parameters lie; whether all that there are can be read."""
        held: list[Any] = []
        of_parameters = self._of_parameters(parameters, held)
        whole = self._whole
        of_gradients = []
        for parameter, size in zip(parameters, self.sizes):
            gradient = parameter.grad
            if gradient is None:
                of_gradients.append(0)
            elif gradient.layout is self._strided and gradient.is_contiguous() and size_of(gradient) == size:
                held.append(gradient)
                of_gradients.append(gradient.data_ptr())
            else:
                copy = self._copy(gradient, size)
                held.append(copy)
                of_gradients.append(0 if copy is None else copy.data_ptr())
                whole = whole and copy is not None
        self.held = held
        self._pointers[:] = of_gradients + of_parameters
        return whole

    def _of_parameters(self, parameters: list[Any], held: list[Any]) -> list[int]:
        """One that lies where it lay is what it was, as its storage is held."""
        if self._whole:
            addresses = [parameter.data_ptr() for parameter in parameters]
            if addresses == self._seen[:]:
                return addresses
        self._seen[:], self._whole = [0] * len(parameters), True
        return [self._address(position, parameter, held) for position, parameter in enumerate(parameters)]

    def _address(self, position: int, parameter: Any, held: list[Any]) -> int:
        size = self.sizes[position]
        if self._readable[position] and parameter.is_contiguous() and size_of(parameter) == size and parameter.is_cpu:
            self._storages[position] = _storage(parameter)
            self._seen[position] = address = parameter.data_ptr()
            return address  # type: ignore[no-any-return]
        copy = self._copy(parameter, size) if self._readable[position] else None
        self._whole = self._whole and copy is not None
        held.append(copy)
        return 0 if copy is None else copy.data_ptr()

    def _copy(self, tensor: Any, size: int) -> Any:
        """In C order; None of what has no such bytes on this side."""
        if tensor.layout is not self._strided or size_of(tensor) != size or not tensor.is_cpu:
            return None
        return tensor.detach().contiguous()

    def far_tensors(self, parameters: list[Any]) -> tuple[list[Any], bool]:
        """Gradients and parameters on a GPU, None for what cannot be read; whether all that there are can."""
        given = [*[parameter.grad for parameter in parameters], *parameters]
        tensors = [tensor if self._is_far(tensor, size) else None for tensor, size in zip(given, self.sizes * 2)]
        return tensors, all((tensor is None) is (found is None) for tensor, found in zip(given, tensors))

    def _is_far(self, tensor: Any, size: int) -> bool:
        is_dense = tensor is not None and tensor.layout is self._strided
        return is_dense and size_of(tensor) == size and tensor.device == self.device

    def watch(self, parameters: list[Any]) -> None:
        """From here to let_go() nobody should change what was pointed at."""
        self.watched = list(parameters)
        self._versions = self._count()

    def _count(self) -> tuple[int, int]:
        """Return what changes in place raise."""
        changes = self._reader.changes
        return changes([tensor for tensor in self.held if tensor is not None]), changes(self.watched)

    def let_go(self) -> int:
        """Nothing is read any more; which parts were changed meanwhile, as far as their tensors know."""
        gradients, parameters = self._count()
        changed = GRADIENTS * (gradients != self._versions[0]) | PARAMETERS * (parameters != self._versions[1])
        self.held, self.watched = [], []
        return changed
