"""Frameworks whose training takes its seed in a dictionary of parameters: their results are the script's to log."""

from __future__ import annotations

import sys

from ..core.patching import replace
from .version_only import VersionOnly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]

NAMES = ("seed", "random_state", "random_seed")


class ParametersAdapter(VersionOnly):
    """Writes the framework's version and the seeds of train and cv, which its scikit-learn classes call too."""

    def instrument(self, name: str, module: ModuleType) -> None:
        if "." not in name:
            super().instrument(name, module)
            return
        for function in ("train", "cv"):
            call = f"{name.partition('.')[0]}.{function}"
            replace(module, function, lambda original, call=call: self._make(call, original))  # type: ignore[misc]

    def _make(self, call: str, original: Function) -> Function:
        ledger = self._agent.seeds

        def train(params: Any, *arguments: Any, **keywords: Any) -> Any:
            for name in NAMES if isinstance(params, dict) else ():
                asked = params.get(name)
                given = ledger.seed(f"{call} {name}", asked, sys._getframe(1))
                if given is not asked:
                    params = {**params, name: given}
            return original(params, *arguments, **keywords)

        return train
