"""Captures bad steps of a PyTorch training loop from the script itself, with or without the launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import UsageError

if TYPE_CHECKING:
    from reprokit.agent.capture import CaptureSession

ON_NAN = {"capture": "stop", "stop": "stop", "skip": "skip", "rollback": "rollback"}


def guard(
    model: Any,
    optimizer: Any,
    *,
    directory: str | os.PathLike[str] = "reprokit-snapshots",
    on_nan: str = "stop",
    capture_when: Sequence[str] = (),
    max_snapshots: int = 3,
    max_bytes: int | None = None,
    rollback_every: int = 100,
) -> Any:
    """Save the state before a step whose loss or gradients are not finite, and do not apply that step.

    ``optimizer`` is a PyTorch optimizer, or a list of them. ``on_nan`` is stop (exit with status 123), skip or
    rollback, to a state that is saved every ``rollback_every`` steps. ``capture_when`` adds conditions: "loss>X",
    "gradient-jump>X", "activations". Under ``reprokit record`` and ``run`` with --on-nan the command line's choice
    holds. Returns an object whose ``close()`` ends the guard; it is also a context manager.
    """
    capture = new_session(directory, on_nan, capture_when, max_snapshots, max_bytes, rollback_every)
    if is_captured_by_run():
        return InactiveGuard()
    optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    part = import_module("reprokit.agent.capture.torch_capture").TorchCapture(capture)
    part.begin("torch", import_module("torch"))
    return part.guard(model, optimizers)


def new_session(
    directory: str | os.PathLike[str],
    on_nan: str,
    capture_when: Sequence[str],
    max_snapshots: int,
    max_bytes: int | None,
    rollback_every: int,
) -> CaptureSession:
    """Return a capture session for the script; raises UsageError for invalid options."""
    from reprokit.agent.capture import CaptureSession, CaptureSettings
    from reprokit.core.native import trail_path

    if on_nan not in ON_NAN:
        raise UsageError(f"on_nan={on_nan!r}: choose one of {', '.join(ON_NAN)}")
    if rollback_every < 1:
        raise UsageError(f"rollback_every={rollback_every!r}: 1 step at least")
    library = trail_path()
    try:
        settings = CaptureSettings(
            directory=os.path.abspath(directory),
            action=ON_NAN[on_nan],
            max_snapshots=max_snapshots,
            max_bytes=max_bytes,
            conditions=capture_when,
            rollback_every=rollback_every,
            library=str(library) if library.exists() else None,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    return CaptureSession(settings)


class InactiveGuard:
    """A guard that does nothing, as the launcher's agent captures all optimizers of the process."""

    def close(self) -> None:
        """Do nothing: the agent captures until the run ends."""

    def __enter__(self) -> InactiveGuard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def is_captured_by_run() -> bool:
    """Return whether the launcher's agent captures in this process, so that its options apply."""
    return getattr(sys.modules.get("_reprokit_agent.capture"), "running", None) is not None
