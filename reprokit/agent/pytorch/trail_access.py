"""What the trail asks of PyTorch at each step: where tensors and generators lie, and digests of tensors."""

from __future__ import annotations

import functools

from . import generators, private_api
from .arguments import CallArguments, FetchedTensors
from .buffers import ModelBuffers
from .content_digests import PytorchContents
from .series import TrackedTensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..trail_library import Library
    from .devices import Devices

MAX_LOSS = 1024  # elements of a loss on a GPU


class StepReader:
    """PyTorch's tensors for the trail."""

    def __init__(self, torch: Any, library: Library, warn: Callable[[str], None], compiled: Any = None) -> None:
        self._torch, self._library, self._warn = torch, library, warn
        self._cuda = torch.cuda
        self.contents = contents = PytorchContents(library, torch)
        self.generator = generators.DefaultGenerator(torch)
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
        return FetchedTensors(tensors) if all(tensor.is_cpu for tensor in tensors) else None

    def arguments(self, digest: int, fetched: FetchedTensors | None) -> CallArguments:
        """What digests a call's arguments, on top of the calls before."""
        return CallArguments(digest, fetched, self.contents, self._library)

    def device_generators(self) -> int:
        """The digest of the states of the generators of devices, 0 where none is in use."""
        numbers = generators.of_devices(self._torch)
        return self._library.of_list(numbers) if numbers else 0

    def is_recording(self) -> bool:
        """Whether a CUDA graph is being recorded, into which nothing of ours may get."""
        return bool(private_api.uses_cuda(self._torch) and self._cuda.is_current_stream_capturing())

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
