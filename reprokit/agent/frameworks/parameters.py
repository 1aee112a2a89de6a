"""The base class of adapters for boosting, whose seeds are parameters of train and cv."""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.patching import Function, replace
from ..seeds.ledger import seeds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .boosting import BoostingHooks

SEED_NAMES = ("seed", "random_state", "random_seed")


class ParametersAdapter(Adapter):
    """Records seeds and rounds of train and cv, which the library's scikit-learn classes call too."""

    _hooks: BoostingHooks | None = None

    def parts(self) -> list[Any]:
        return [] if self._hooks is None else [self._hooks]

    def instrument(self, name: str, module: ModuleType) -> None:
        if "." not in name:
            super().instrument(name, module)
            return
        for function in ("train", "cv"):
            call = f"{name.partition('.')[0]}.{function}"
            replace(module, function, lambda original, call=call: self._make(call, original))  # type: ignore[misc]

    def _make(self, call: str, original: Function) -> Function:
        ledger = seeds_of(self._agent)

        def train(params: Any, *arguments: Any, **keywords: Any) -> Any:
            for name in SEED_NAMES if isinstance(params, dict) else ():
                requested = params.get(name)
                seed = ledger.seed(f"{call} {name}", requested, sys._getframe(1))
                if seed is not requested:
                    params = {**params, name: seed}
            try:
                return original(params, *arguments, **keywords)
            finally:
                if self._hooks is not None:
                    self._hooks.end_training()

        return train
