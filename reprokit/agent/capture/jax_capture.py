"""Reports that steps of a JAX training are not captured."""

from __future__ import annotations

import sys

from ..core.patching import noting, replace
from .settings import NEEDS_OTHER_FRAMEWORK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from . import CaptureSession


class JaxCapture:
    """Reports it when gradients are requested, as TensorFlow, too, imports JAX if it is installed."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture

    def begin(self, _name: str, module: ModuleType) -> None:
        """Wrap jax.value_and_grad, which jax.grad calls, too."""
        replace(module, "value_and_grad", noting(self._capture.attempt, self._note))  # jax.grad calls it

    def _note(self, *_call: object) -> None:
        self._capture.unavailable("jax", sys.modules["jax"].__version__, NEEDS_OTHER_FRAMEWORK)

    def forget(self) -> None:
        """Do nothing, in a forked child: there is no state."""
