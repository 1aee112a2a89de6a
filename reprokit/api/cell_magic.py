"""The cell magic %%reprokit: records a cell in a process of its own, and shows the run."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from reprokit.api.commands import recorded
from reprokit.api.results import Run
from reprokit.core.errors import UsageError

LONGEST = 100 << 10  # bytes; Linux bounds a word of a command at 128 KiB


def register(shell: Any) -> None:
    """Register it with an IPython shell."""
    shell.register_magic_function(reprokit, magic_kind="cell")


def reprokit(line: str, cell: str) -> Run:
    """Record the cell as a Python program of its own: %%reprokit [OPTIONS OF RECORD].

    It sees no variable of the notebook, and the notebook none of its own. Replay it by `_.replay()`.
    """
    if len(cell.encode()) > LONGEST:
        raise UsageError(
            f"the cell has more than {LONGEST >> 10} KiB; write it to a file: %%writefile, reprokit.record"
        )
    return Run(recorded(shlex.split(line), [sys.executable, "-c", cell]).path)
