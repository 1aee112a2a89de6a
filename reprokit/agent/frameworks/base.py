"""What the agent asks of a framework's adapter; of most frameworks the results are the script's to log."""

from __future__ import annotations

import sys

from ..core.patching import Function, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..agent import Agent
    from .boosting import BoostingHooks

SEED_NAMES = ("seed", "random_state", "random_seed")


class Adapter:
    """Writes the framework's version, and nothing else."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        """Attach to a module of the framework that has just been executed."""
        self._agent.framework(name, module)

    def parts(self) -> list[Any]:
        """Return what holds something to write at the end, in that order."""
        return []

    def finish(self) -> None:
        """Write what is known at the end; may be called again, and then writes nothing twice."""
        for part in self.parts():
            self._agent.attempt(part.finish)

    def random_states(self) -> None:
        """Write the digests of the framework's random states, last of all."""

    def write_random_state(self, name: str, digest: str) -> None:
        """Write the digest of one of them."""
        self._agent.journal.write("random_state", {"name": name, "digest": digest})

    def forget(self) -> None:
        """In a forked child: drop what the parent noted."""
        for part in self.parts():
            part.forget()


class ParametersAdapter(Adapter):
    """Writes the seeds among the parameters of train and cv, which scikit-learn classes call too, and their rounds."""

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
                asked = params.get(name)
                given = ledger.seed(f"{call} {name}", asked, sys._getframe(1))
                if given is not asked:
                    params = {**params, name: given}
            try:
                return original(params, *arguments, **keywords)
            finally:
                if self._hooks is not None:
                    self._hooks.end_round()

        return train
