"""Ends reprokit as the training ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from reprokit.launch.process import Ended


def end_as(ended: Ended) -> NoReturn:
    """The training's exit code, or its death by the same signal."""
    from reprokit.launch.process import die_by

    if ended.signal_number is not None:
        die_by(ended.signal_number)
    sys.exit(ended.exit_code)
