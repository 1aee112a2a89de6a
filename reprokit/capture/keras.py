"""Guards trainings by Keras and TensorFlow in the script itself, with or without the launcher.

    model.fit(x, y, callbacks=[reprokit.capture.keras.Callback()])

    class Net(reprokit.capture.keras.GuardedModel, keras.Model): ...

All trainings of the process are watched from then on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

from .loop_guard import is_captured_by_run, made

try:
    _keras: Any = import_module("keras")
except ImportError:  # Keras 2 under its other name
    _keras = import_module("tf_keras")

__all__ = ["Callback", "GuardedModel", "watch"]

_parts: list[Any] = []  # of this process: methods of Keras are replaced once


def watch(
    *,
    directory: str | os.PathLike[str] = "reprokit-snapshots",
    on_nan: str = "stop",
    capture_when: Sequence[str] = (),
    max_snapshots: int = 3,
    max_bytes: int | None = None,
    rollback_every: int = 100,
) -> None:
    """Keep the state before a step whose loss or gradients are not finite, and do not apply that step.

    ``on_nan`` is stop (the training ends with status 123), skip or rollback, to a state that is held every
    ``rollback_every`` steps; ``capture_when`` adds conditions:
    "loss>X", "gradient-jump>X", "activations". The first call in a process decides; under ``reprokit record`` and
    ``run`` with --on-nan the command line's choice holds. Models whose training has begun must be compiled anew.
    """
    capture = made(directory, on_nan, capture_when, max_snapshots, max_bytes, rollback_every)
    if _parts or is_captured_by_run():
        return
    from reprokit.agent.capture import PARTS

    import_module("tensorflow")
    part = import_module("reprokit.agent.capture.tensorflow_capture").TensorFlowCapture(capture)
    for name, place in PARTS.items():
        if place == PARTS["tensorflow"] and name in sys.modules:
            part.begin(name, sys.modules[name])
    _parts.append(part)


class Callback(_keras.callbacks.Callback):  # type: ignore[misc]
    """Watches the fit that it is given to, and all that follow; takes what ``watch`` takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        watch(**options)

    def set_model(self, model: Any) -> None:
        """Build the model's step anew, as the one that it may have is not watched."""
        super().set_model(model)
        _renew(model)


class GuardedModel:
    """Put before keras.Model among a class's bases: its trainings are watched from compile on."""

    reprokit_options: ClassVar[dict[str, Any]] = {}  # what ``watch`` is given

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """Compile the model, whose steps are then watched."""
        watch(**self.reprokit_options)
        return super().compile(*arguments, **keywords)  # type: ignore[misc]


def _renew(model: Any) -> None:
    if model.train_function is not None and not hasattr(model.train_function, "_reprokit_captured"):
        model.train_function = None
