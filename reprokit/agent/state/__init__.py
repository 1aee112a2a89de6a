"""The state of a training: what of it there is, by name and kind, and how it is put back."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events


def listener(agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> EventListener | None:
    """Return the listener that answers questions about the state of this framework's training."""
    from .answers import StateAnswers

    answers = StateAnswers(agent, question)
    if framework == "torch":
        from .pytorch_state import PytorchState

        return PytorchState(agent, answers)
    if framework == "tensorflow":
        from .keras_state import KerasState

        return KerasState(agent, answers, events)
    if framework in ("xgboost", "lightgbm"):
        from .boosting_state import BoostingState

        return BoostingState(answers)
    return None
