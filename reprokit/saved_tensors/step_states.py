"""Declares the states of a step, and the errors for missing values, with SageMaker Debugger's names."""

from __future__ import annotations

import enum

from reprokit.core.errors import TensorUnavailable


class StepAvailability(enum.Enum):
    """Whether the values of a step exist, may still arrive, or will never arrive."""

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


class TensorUnavailableForStep(TensorUnavailable):
    """The tensor was not saved at this step, or only its reductions were."""


class StepUnavailable(TensorUnavailable):
    """Nothing was saved at this step, and nothing will be."""


class StepNotYetAvailable(TensorUnavailable):
    """The training has not come to this step yet."""


class NoMoreData(TensorUnavailable):
    """The run has ended before this step."""


class InvalidWorker(TensorUnavailable):
    """No process of this name saved the tensor."""
