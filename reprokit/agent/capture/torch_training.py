"""What the parts of a capture of PyTorch share: what was seen of the training, and its names."""

from __future__ import annotations

import functools
import sys

from .. import trail_library as trail
from ..pytorch.state import Modules
from . import compiled
from .random_states import RandomStates
from .settings import ROLLBACK
from .torch_gradients import Gradients
from .torch_held import Buffers, Held, Threads
from .torch_ranks import Ranks
from .torch_snapshot import Names, Snapshooter
from .torch_state import Copy
from .torch_updates import Updates
from .torch_watched import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Capture


class Training:
    """What is known of the trainings of this process."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._settings = capture.settings
        self._rolls_back = capture.settings.action == ROLLBACK
        self._mark = f"_reprokit_captured_{id(capture)}"  # a script may guard several trainings by several captures
        self._modules = Modules()
        self._watched = Watched()
        self._torch: Any = None
        self._is_compiling: Callable[[], bool] = lambda: False
        self._only: set[int] | None = None  # optimizers that the script guards by itself
        self._copy: Copy | None = None  # the state to roll back to
        self._since_copy = 0
        self._steps = 0

    def _attach(self, torch: Any) -> None:
        """PyTorch is there."""
        self._torch = torch
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._is_compiling)
        self._is_grad_enabled = torch.is_grad_enabled
        self._tensor = torch.Tensor
        self._above = self._settings.conditions.loss_above
        self._jumps = self._settings.conditions.gradient_jump is not None
        path = self._settings.library
        self._library = self._capture.attempt(trail.Library, path) if path else None
        self._compiled = self._capture.attempt(compiled.load, path) if self._library is not None else None
        if self._compiled is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            self._capture.attempt(self._compiled.use_exchange, torch.Tensor)
        self._gradients = Gradients(torch, self._library, self._compiled)
        self._threads = self._new_threads()
        self._hooks = sys.modules["torch.nn.modules.module"]._global_forward_pre_hooks
        self._snapshooter = Snapshooter(torch, self._gradients, self._watched)
        self._ranks = Ranks(torch)
        self._updates = Updates(torch, self._gradients)

    def _new_threads(self) -> Threads:
        parts = self._library, self._compiled

        def make() -> Held:
            states = functools.partial(RandomStates, parts[0], self._torch, parts[1])
            return Held(self._torch, states, Buffers(self._torch, *parts))

        return Threads(make)

    def _is_recorded(self) -> bool:
        """Whether operators get into a CUDA graph, into which nothing of ours may."""
        cuda = self._torch.cuda
        return bool(cuda._initialized and cuda.is_current_stream_capturing())

    def _warn(self, where: str, error: Exception) -> None:
        def fail() -> None:
            raise error

        fail.__qualname__ = f"TorchCapture.{where}"
        self._capture.attempt(fail)

    def _parameters_of_all(self) -> list[Any]:
        return [parameter for record in self._watched.alive() for parameter in record.parameters()]

    def _parameters(self) -> dict[str, Any]:
        """The parameters of all optimizers, by their names."""
        return Names(self._models(), self._watched).parameters

    def _models(self) -> list[Any]:
        """The models that have parameters of any optimizer."""
        parameters = [p for record in self._watched.alive() for p in record.parameters()]
        return self._modules.owners(parameters, self._torch.nn.Module)
