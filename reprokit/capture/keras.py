"""Captures bad steps of Keras and TensorFlow from the script itself, with or without the launcher.

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

from .loop_guard import is_captured_by_run, new_session

try:
    _keras: Any = import_module("keras")
except ImportError:  # Keras 2 under its other name
    _keras = import_module("tf_keras")

__all__ = ["Callback", "GuardedModel", "watch"]

_parts: list[Any] = []  # at most one TensorFlowCapture: Keras' methods are wrapped once per process


def watch(
    *,
    directory: str | os.PathLike[str] = "reprokit-snapshots",
    on_nan: str = "stop",
    capture_when: Sequence[str] = (),
    max_snapshots: int = 3,
    max_bytes: int | None = None,
    rollback_every: int = 100,
) -> None:
    """Save the state before a step whose loss or gradients are not finite, and do not apply that step.

    ``on_nan`` is stop (exit with status 123), skip or rollback, to a state that is saved every
    ``rollback_every`` steps; ``capture_when`` adds conditions:
    "loss>X", "gradient-jump>X", "activations". The first call in a process decides; under ``reprokit record`` and
    ``run`` with --on-nan the command line's choice holds. Models whose training has begun must be compiled anew.
    """
    capture = new_session(directory, on_nan, capture_when, max_snapshots, max_bytes, rollback_every)
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
    """Calls ``watch`` with its options, for the fit that it is passed to and all later ones."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        watch(**options)

    def set_model(self, model: Any) -> None:
        """Have the model build its training step again, as an existing one is not watched."""
        super().set_model(model)
        _drop_train_function(model)


class GuardedModel:
    """A base class to put before keras.Model: trainings are watched from compile() on."""

    reprokit_options: ClassVar[dict[str, Any]] = {}  # keywords for ``watch``

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        """Compile the model, so that its steps are watched."""
        watch(**self.reprokit_options)
        return super().compile(*arguments, **keywords)  # type: ignore[misc]


def _drop_train_function(model: Any) -> None:
    if model.train_function is not None and not hasattr(model.train_function, "_reprokit_captured"):
        model.train_function = None
