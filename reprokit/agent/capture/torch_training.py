"""What the parts of a capture of PyTorch share: what was seen of the training, its names, and tools to look at it."""

from __future__ import annotations

import functools

from .. import trail_library as trail
from ..pytorch import private_api
from .random_states import RandomStates
from .torch_gradients import Gradients
from .torch_held import BufferCopies, Threads, TrainingStep
from .torch_ranks import Ranks
from .torch_snapshot import Names, Snapshooter
from .torch_updates import Updates
from .torch_watched import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..pytorch.state import Modules
    from . import CaptureSession
    from .settings import CaptureSettings
    from .trigger import Trigger


class Training:
    """What is known of the trainings of this process."""

    def __init__(self, capture: CaptureSession, torch: Any, modules: Modules) -> None:
        self.capture = capture
        self.torch = torch
        self.modules = modules
        self.watched = Watched()
        path = capture.settings.library
        library = capture.attempt(trail.Library, path) if path else None
        native = capture.attempt(private_api.compiled, torch, path) if library is not None else None
        self.gradients = Gradients(torch, library, native)
        self.snapshooter = Snapshooter(torch, self.gradients, self.watched)
        self.ranks = Ranks(torch)
        self.updates = Updates(torch, self.gradients)
        states = functools.partial(RandomStates, library, torch, native)
        self._make = lambda: TrainingStep(torch, states, BufferCopies(torch))
        self.threads = Threads(self._make)

    @property
    def settings(self) -> CaptureSettings:
        """The options of the capture."""
        return self.capture.settings

    def forget(self) -> None:
        """In a forked child: what the parent held is the parent's."""
        self.threads = Threads(self._make)

    def is_recorded(self) -> bool:
        """Whether operators get into a CUDA graph, into which nothing of ours may."""
        cuda = self.torch.cuda
        return bool(cuda._initialized and cuda.is_current_stream_capturing())

    def parameters_of_all(self) -> list[Any]:
        """The parameters of all optimizers."""
        return [parameter for record in self.watched.alive() for parameter in record.parameters()]

    def parameters(self) -> dict[str, Any]:
        """The same by their names."""
        return Names(self.models(), self.watched).parameters

    def models(self) -> list[Any]:
        """The models that have parameters of any optimizer."""
        return self.modules.owners(self.parameters_of_all(), self.torch.nn.Module)

    def gradient_triggers(self, records: list[Any]) -> list[Trigger]:
        """Which gradients of these optimizers are not finite."""
        return self.snapshooter.gradient_triggers(self.models(), records)
