"""Predictions and true values: their rows, scores and digests. The first prediction of a process loads the rest."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.agent import Agent
    from .log import PredictionLog


def predictions_of(agent: Agent) -> PredictionLog:
    """Return the log of predictions of this process; create it on first use."""
    from .log import PredictionLog

    return agent.log_of(PredictionLog, lambda agent: PredictionLog(agent.run, agent.journal, agent.warn))


def log_predictions(agent: Agent, y_true: object, y_pred: object, task: object) -> None:
    """Write the predictions that the script passes to reprokit.log_predictions."""
    predictions_of(agent).note("log_predictions", y_pred, y_true, task=None if task is None else str(task))
