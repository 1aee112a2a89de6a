"""Shows the saved tensors of a run, a row each with a sparkline over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from reprokit.core.errors import TensorUnavailable
from reprokit.core.screen import Cells, print_rows
from reprokit.saved_tensors.trial import TensorTrial, TrialTensor

WIDTH = 24  # characters of a sparkline
BARS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "×"


def document(trial: TensorTrial) -> dict[str, Any]:
    """Return facts about all saved tensors as a JSON document."""
    rows = [_facts(trial.tensor(name)) for name in trial.tensor_names()]
    return {"path": str(trial.path), "complete": trial.loaded_all_steps, "workers": trial.workers(), "tensors": rows}


def print_tensors(trial: TensorTrial) -> None:
    """Print a row for each tensor: steps, shape, and a sparkline of its mean, mean absolute value or l2 norm."""
    facts = document(trial)["tensors"]
    print_rows(f"{trial.path}: {len(facts)} tensors", [Cells(row(tensor)) for tensor in facts])


def row(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return name, number of steps, shape, and sparkline of a tensor; and how many steps are of an eager replay."""
    shape, eager = "x".join(map(str, facts["shape"])) or "0-d", facts["eager"]
    steps = f"{facts['steps']} steps" + (f", {eager} of an eager replay" if eager else "")
    return facts["name"], steps, shape, sparkline(facts["means"])


def sparkline(numbers: Sequence[float | str | None]) -> str:
    """Return numbers as bars between minimum and maximum; a cross marks one that is not finite."""
    finite = [number for number in numbers if isinstance(number, float)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)

    def bar(number: float | str | None) -> str:
        if not isinstance(number, float):
            return " " if number is None else NOT_FINITE
        return BARS[round((number - low) / span * (len(BARS) - 1)) if span else 0]

    return "".join(map(bar, numbers))


def _facts(tensor: TrialTensor) -> dict[str, Any]:
    steps = tensor.steps()
    means = [_mean(tensor, step) for step in steps[:: max(1, -(-len(steps) // WIDTH))]]
    return {
        "name": tensor.name,
        "collections": list(tensor.collections),
        "steps": len(steps),
        "first": steps[0] if steps else None,
        "last": steps[-1] if steps else None,
        "eager": sum(tensor.is_eager(step) for step in steps),
        "shape": list(tensor.shape(steps[0])) if steps else [],
        "means": [number if number is None or math.isfinite(number) else repr(number) for number in means],
    }


def _mean(tensor: TrialTensor, step: int) -> float | None:
    for name, is_absolute in (("mean", False), ("mean", True), ("l2", False)):
        try:
            return tensor.reduction_value(step, name, abs=is_absolute)
        except TensorUnavailable:
            continue
    return None
