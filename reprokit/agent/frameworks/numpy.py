"""NumPy: its version, its seeding and its global random state at the end.

RandomState(seed) is not written down: it is a class, and one that stands in for it would not be it.
"""

from __future__ import annotations

import sys

from ..digests import text_digest
from ..patching import replace
from .python import seeding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..agent import Agent


class Adapter:
    """Watches numpy and numpy.random."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        if name == "numpy":
            self._agent.framework(name, module)
            return
        for function in ("seed", "default_rng"):
            call = f"numpy.random.{function}"
            replace(module, function, lambda original, call=call: seeding(self._agent, call, original))  # type: ignore[misc]

    def finish(self) -> None:
        pass

    def random_states(self) -> None:
        random = sys.modules.get("numpy.random")
        if random is not None:
            line = {"name": "numpy", "digest": text_digest(repr(_plain(random.get_state())))}
            self._agent.journal.write("random_state", line)

    def forget(self) -> None:
        pass


def _plain(value: Any) -> Any:
    """Arrays as lists and scalars as Python's, whose text NumPy's print settings do not change."""
    if isinstance(value, dict):
        return sorted((key, _plain(value[key])) for key in value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
