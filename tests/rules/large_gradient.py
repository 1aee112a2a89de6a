"""Rules of a user's own."""

from __future__ import annotations

import os
import signal
from typing import Any


class LargeGradient:
    """As the rules of SageMaker Debugger are written."""

    def __init__(self, base_trial: Any, threshold: float = 10.0) -> None:
        self.base_trial, self.threshold = base_trial, threshold

    def invoke_at_step(self, step: int) -> bool:
        names = self.base_trial.tensor_names(step=step, collection="gradients")
        sizes = [self.base_trial.tensor(name).reduction_value(step, "max", abs=True) for name in names]
        return any(size > self.threshold for size in sizes)


class Broken:
    """A rule with a mistake."""

    def __init__(self, base_trial: Any) -> None:
        self.base_trial = base_trial

    def invoke_at_step(self, step: int) -> bool:
        raise KeyError(step)


class Crash:
    """A rule that takes its process with it."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def invoke_at_step(self, step: int) -> bool:
        print("what a rule prints is no report")
        if step == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return step == 1
