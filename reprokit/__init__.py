"""Record, replay and verify an unmodified deep-learning training, bit by bit.

What a script may call: `log` and `log_predictions`. Outside a run they do nothing.
"""

from __future__ import annotations

from .agent.script_api import log, log_predictions
from .version import VERSION as __version__  # noqa: N811

__all__ = ["__version__", "log", "log_predictions"]
