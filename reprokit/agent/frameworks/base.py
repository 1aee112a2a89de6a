"""Base classes of framework adapters. The results of most frameworks must be logged by the script."""

from __future__ import annotations

import sys

from ..core.patching import Function, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent
    from .boosting import BoostingHooks

SEED_NAMES = ("seed", "random_state", "random_seed")


class Adapter:
    """Writes the framework's version; subclasses record more."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        """Patch a module of the framework that has just been imported."""
        self._agent.framework(name, module)

    def parts(self) -> list[Any]:
        """Return the objects to finish at the end, in that order."""
        return []

    def finish(self) -> None:
        """Write the final lines; if called again, write nothing twice."""
        for part in self.parts():
            self._agent.attempt(part.finish)

    def random_states(self) -> None:
        """Write the digests of the framework's random states, after everything else."""

    def write_random_state(self, name: str, digest: str) -> None:
        """Write the digest of a random state."""
        self._agent.journal.write("random_state", {"name": name, "digest": digest})

    def forget(self) -> None:
        """In a forked child: drop the state of the parent."""
        for part in self.parts():
            part.forget()


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
        ledger = self._agent.seeds

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
                    self._hooks.end_round()

        return train
