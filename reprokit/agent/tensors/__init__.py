"""Saves tensors of chosen steps, for questions."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events


def listener(agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> EventListener | None:
    """Return the listener that saves tensors of this framework."""
    from .saved_steps import SavedSteps

    steps = SavedSteps(agent, question, framework, events)
    if framework == "torch":
        from .torch_tensors import PytorchTensors

        return PytorchTensors(agent, steps)
    if framework in ("xgboost", "lightgbm"):
        from .boosting_tensors import BoostingTensors

        return BoostingTensors(agent, steps)
    from .tensorflow_tensors import TensorflowTensors

    return TensorflowTensors(agent, steps)
