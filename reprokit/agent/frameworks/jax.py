"""JAX: its version and the seeds of its keys."""

from __future__ import annotations

from ..core.patching import replace
from ..seeds.ledger import seeding
from .base import Adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class JaxAdapter(Adapter):
    """Watches jax, and where its keys are made."""

    def instrument(self, name: str, module: ModuleType) -> None:
        if name == "jax":
            super().instrument(name, module)
            return
        for function in ("PRNGKey", "key"):
            call = f"jax.random.{function}"
            replace(module, function, lambda original, call=call: seeding(self._agent.seeds, call, original))  # type: ignore[misc]
