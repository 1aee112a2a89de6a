"""JAX: its version, the seeds of its keys, and the settings of distributed processes."""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.patching import replace
from ..seeds.ledger import seeding, seeds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class JaxAdapter(Adapter):
    """Patches jax, and the functions that create its keys."""

    def instrument(self, name: str, module: ModuleType) -> None:
        if name == "jax":
            super().instrument(name, module)
            return
        if name == "jax._src.distributed":  # from which jax.distributed imports its function
            self._agent.note_calls(module, "initialize", self._note_processes)
            return
        for function in ("PRNGKey", "key"):
            call = f"jax.random.{function}"
            replace(module, function, lambda original, call=call: seeding(seeds_of(self._agent), call, original))  # type: ignore[misc]

    def _note_processes(self, *_call: Any) -> None:
        jax: Any = sys.modules["jax"]
        state = getattr(sys.modules["jax._src.distributed"], "global_state", None)
        facts = {
            "ranks": getattr(state, "num_processes", None),
            "backend": getattr(jax.config, "jax_cpu_collectives_implementation", None),
        }
        self._agent.computed("collectives JAX", "collectives", facts)
