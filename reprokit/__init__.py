"""Record, replay and verify an unmodified deep-learning training, bit by bit.

What a script may call: `log` and `log_predictions`. Outside a run they do nothing. `trial` reads the tensors of a run.
"""

from __future__ import annotations

from .agent.script_api import log, log_predictions
from .core.version import VERSION as __version__  # noqa: N811

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from .saved_tensors.trial import TensorTrial

__all__ = ["__version__", "log", "log_predictions", "trial"]


def trial(run: str | Path = "last") -> TensorTrial:
    """Return the saved tensors of a run, by its path or name, with the methods of SageMaker Debugger's trials."""
    from .saved_tensors.trial import TensorTrial

    return TensorTrial(run)
