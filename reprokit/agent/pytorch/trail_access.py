"""What the trail asks of PyTorch at each step: where tensors and generators lie, and digests of tensors."""

from __future__ import annotations

import functools
from operator import attrgetter, is_

from .. import trail_library as trail
from ..core.attributes import own_attributes
from . import generators, private_api
from .content_digests import PytorchContents
from .series import TrackedTensors, size_of
from .tensors import is_nested, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..trail_library import Library
    from .devices import Devices

_is_here = attrgetter("is_cpu")
MAX_LOSS = 1024  # elements of a loss on a GPU
MAX_DEPTH = 8  # of objects in objects that a model is called with
MAX_VALUES = 1000  # of one call
_NUMBERS = frozenset([bool, int, float, complex])
_TEXTS = frozenset([str, bytes])


class StepReader:
    """PyTorch's tensors for the trail."""

    def __init__(self, torch: Any, library: Library, warn: Callable[[str], None], compiled: Any = None) -> None:
        self._torch, self._library, self._warn = torch, library, warn
        self._cuda = torch.cuda
        self.contents = contents = PytorchContents(library, torch)
        self.generator = generators.DefaultGenerator(torch)
        self.uses_devices: Callable[[], bool] = functools.partial(private_api.uses_cuda, torch)
        # How often tensors were changed in place, together.
        self.changes: Callable[[list[Any]], int] = private_api.changes_of
        # The step of the compiled module, where there is one.
        self.step: Callable[..., tuple[int, int, list[Any]] | None] | None = None
        if compiled is not None:
            classes = torch.Tensor, torch.nn.Parameter, contents.salts, contents.simple_salt
            self.step = functools.partial(compiled.trail_step, classes, self.generator.known)
            self.changes = compiled.changes
        self._devices: Devices | None = None

    def without_overrides(self) -> Any:
        """A context in which subclasses of tensors, and modes, do not see what is called."""
        return private_api.without_overrides(self._torch)

    def track(self, parameters: list[Any]) -> TrackedTensors:
        """What points at these and their gradients."""
        return TrackedTensors(parameters, self._torch, self._library, self.changes)

    def buffers(self, models: list[Any]) -> ModelBuffers:
        """The buffers of these models."""
        containers = [buffers for model in models for buffers in model.buffers()]
        return ModelBuffers(containers, self.contents, self._library, self._torch)

    def fetched(self, tensors: list[Any]) -> FetchedTensors | None:
        """The tensors of a batch as they are now; None where some lie on a device, so that no step digests them."""
        return FetchedTensors(tensors) if all(map(_is_here, tensors)) else None

    def arguments(self, digest: int, fetched: FetchedTensors | None) -> CallArguments:
        """What digests a call's arguments, on top of the calls before."""
        return CallArguments(digest, fetched, self.contents, self._library)

    def device_generators(self) -> int:
        """The digest of the states of the generators of devices."""
        return self._library.of_list(generators.of_devices(self._torch))

    def is_recording(self) -> bool:
        """Whether a CUDA graph is being recorded, into which nothing of ours may get."""
        return bool(self._cuda.is_current_stream_capturing())

    def far_loss(self, loss: Any) -> Any:
        """A loss on a GPU, to be digested with the step; None of another, and of a large one."""
        return loss.detach() if loss.is_cuda and loss.numel() <= MAX_LOSS else None

    def devices(self) -> Devices:
        """What digests on GPUs."""
        if self._devices is None:
            from .devices import Devices

            self._devices = Devices(self._torch, self._warn)
        return self._devices

    def forget(self) -> None:
        """In a forked child, which has no device of its parent's."""
        self._devices = None


# What models are called with


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


# Buffers of models


class ModelBuffers:
    """The buffers of the models that an optimizer trains, as they are after each of its steps.

    They are read at once, as the next forward computation changes them. Large ones are tables and masks as a rule, and
    take too long; where all together are large, or lie on a GPU, nothing is said of them.
    """

    def __init__(
        self, containers: list[dict[str, Any]], contents: PytorchContents, library: trail.Library, torch: Any
    ) -> None:
        self._containers = containers
        self._contents, self._library = contents, library
        self._data_ptr, self._numel = torch.Tensor.data_ptr, torch.Tensor.numel
        self._tensors: list[Any] = []
        self._places: list[tuple[int, int]] = []
        self._room: Any = None
        self._address = 0

    def digest(self) -> int | None:
        """Their digest now, 0 where there are none; None where some cannot be read."""
        tensors = [tensor for buffers in self._containers for tensor in buffers.values() if tensor is not None]
        if not tensors:
            return 0
        is_known = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not is_known or (self._address and self._lie(tensors) != self._places):
            self._look_at(tensors)
        return self._library.folded(0, self._address, len(tensors)) if self._address else None

    def _lie(self, tensors: list[Any]) -> list[tuple[int, int]]:
        return list(zip(map(self._data_ptr, tensors), map(self._numel, tensors)))

    def _look_at(self, tensors: list[Any]) -> None:
        self._tensors, self._address = tensors, 0
        if not all(map(self._contents.is_simple, tensors)):
            return
        items = [word for t in tensors for word in (t.data_ptr(), size_of(t), self._contents.salt(t))]
        if sum(items[1::3]) <= trail.SMALL:
            self._room, self._address = self._library.buffer(len(items))
            self._room[:] = items
            self._places = self._lie(tensors)
