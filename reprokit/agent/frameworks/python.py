"""Python's own random module: its seeding and its state at the end; and clashes of temporary names."""

from __future__ import annotations

import sys

from ..core.digests import text_digest
from ..core.patching import replace
from .base import Adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any


TAKEN = "tempfile: a name was taken; in a replay perhaps by what the recording left there: names then differ"


class PythonAdapter(Adapter):
    """Patches the modules random and tempfile."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "tempfile":
            replace(module, "_get_candidate_names", self._make_names)
            return
        self._agent.attempt(self._agent.generators.begin, "python", module.getstate)
        replace(module.Random, "seed", lambda original: self._make_seed(module, original))
        is_method = getattr(module.seed, "__self__", None) is module._inst
        if is_method:
            module.seed = module._inst.seed

    def _make_seed(self, random: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        # The class itself is not replaced; its constructor calls seed, and so do subclasses with their own seed.
        ledger, initialize, instance = self._agent.seeds, random.Random.__init__.__code__, random._inst

        def seed(self: Any, a: Any = None, version: int = 2) -> Any:
            if a is not None:
                call = "random.seed" if self is instance else "random.Random.seed"
                caller: FrameType | None = sys._getframe(1)
                if caller is not None and caller.f_code is initialize:
                    call, caller = "random.Random", caller.f_back
                a = ledger.seed(call, a, caller)
            return original(self, a, version)

        return seed

    def _make_names(self, original: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        def _get_candidate_names() -> Iterator[str]:
            names = original()
            yield next(names)
            self._agent.warn(TAKEN)
            yield from names

        return _get_candidate_names

    def random_states(self) -> None:
        random: Any = sys.modules.get("random")
        if random is not None:
            self.write_random_state("random", text_digest(repr(random.getstate())))
