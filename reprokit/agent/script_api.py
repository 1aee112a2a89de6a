"""The functions for training scripts: reprokit.log and reprokit.log_predictions."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core.agent import Agent


def log(*, step: int | None = None, epoch: int | None = None, **values: Any) -> None:
    """Write down values of the run: numbers, strings, NumPy, PyTorch and TensorFlow scalars; they are compared exactly.

    Outside a run of reprokit it does nothing. It never raises: what cannot be written becomes a warning of the run.
    """
    agent = _agent()
    if agent is not None:
        agent.attempt(agent.log, step, epoch, values)


def log_predictions(y_true: Any, y_pred: Any, task: str | None = None) -> None:
    """Write down what a model predicted beside what was true; every prediction is compared, with accuracy or error.

    Predictions are labels, scores of classes (a column each) or numbers; the task, "classification" or "regression",
    is told by them or given. What is true may be None.
    Outside a run of reprokit it does nothing. It never raises: what cannot be written becomes a warning of the run.
    """
    agent = _agent()
    if agent is not None:
        agent.attempt(agent.log_predictions, y_true, y_pred, task)


# Compiled code breaks its graph to call these (as torch._dynamo.disable does, without importing it).
log._torchdynamo_disable = True  # type: ignore[attr-defined]
log_predictions._torchdynamo_disable = True  # type: ignore[attr-defined]


def _agent() -> Agent | None:
    """Return the agent of this process, if it has one; the script's reprokit may be another copy than the agent's."""
    return getattr(sys.modules.get("_reprokit_agent"), "running", None)
