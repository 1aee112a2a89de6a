"""Says of a training by JAX that its steps are not captured: nobody tests its gradients."""

from __future__ import annotations

import sys

from ..core.patching import noting, replace
from .settings import NEEDS_OTHER_FRAMEWORK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from . import CaptureSession


class JaxCapture:
    """Speaks when gradients are asked for: TensorFlow, too, imports JAX where it is installed."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture

    def begin(self, _name: str, module: ModuleType) -> None:
        """Watch the functions that make others which compute gradients; jax has them from here."""
        replace(module, "value_and_grad", noting(self._capture.attempt, self._note))  # jax.grad calls it

    def _note(self, *_call: object) -> None:
        self._capture.unavailable("jax", sys.modules["jax"].__version__, NEEDS_OTHER_FRAMEWORK)

    def forget(self) -> None:
        """Do nothing in a forked child: no step was kept."""
