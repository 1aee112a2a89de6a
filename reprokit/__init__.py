"""Record, replay and verify an unmodified deep-learning training, bit by bit.

What a training may call: `log` and `log_predictions`. Outside a run they do nothing. `trial` reads a run's tensors,
`rules` judge them. The rest does what the commands of these names do; `%load_ext reprokit` brings `%%reprokit` to
notebooks.
"""

from __future__ import annotations

import sys
from types import ModuleType

from .agent.script_api import log, log_predictions
from .core.version import VERSION as __version__  # noqa: N811

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import Any

    from . import rules as rules
    from .api import (
        ReprokitError,
        Run,
        RunVerdict,
        ask,
        gate,
        locate,
        record,
        replay,
        resume,
        runs,
        verify,
    )
    from .saved_tensors.trial import TensorTrial

__all__ = [
    "ReprokitError",
    "Run",
    "RunVerdict",
    "__version__",
    "ask",
    "gate",
    "locate",
    "log",
    "log_predictions",
    "no_refresh",
    "record",
    "replay",
    "resume",
    "runs",
    "trial",
    "verify",
]


def trial(
    run: str | Path = "last", name: str | None = None, range_steps: tuple[int | None, int | None] | None = None
) -> TensorTrial:
    """Return the saved tensors of a run, by its path or name, with the methods of SageMaker Debugger's trials.

    ``name`` is the trial's own; ``range_steps`` is the first step to read and the one behind the last, or None.
    """
    from .saved_tensors.trial import TensorTrial

    return TensorTrial(run, name, range_steps)


def no_refresh(*trials: TensorTrial) -> AbstractContextManager[None]:
    """Have trials of a run that is still written stay as they are, so that several queries see the same steps."""
    from .saved_tensors.trial import as_they_are

    return as_they_are(trials)


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic %%reprokit, for %load_ext reprokit."""
    from .api.cell_magic import register

    register(shell)


class _Package(ModuleType):
    """Keeps functions in place of the packages of their names: importing one of these would bind it here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in __all__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


if not TYPE_CHECKING:
    sys.modules[__name__].__class__ = _Package

    def __getattr__(name):
        """Import the interface with the first use: a training that only calls `log` does without it."""
        if name == "rules":  # a package, of which invoke_rule is for scripts
            from importlib import import_module

            return import_module(".rules", __name__)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import api

        return getattr(api, name)
