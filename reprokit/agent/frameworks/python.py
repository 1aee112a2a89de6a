"""Python's own random module: its seeding and its state at the end."""

from __future__ import annotations

import sys

from ..digests import text_digest
from ..patching import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent


class Adapter:
    """Watches the module random."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        replace(module, "seed", lambda original: seeding(self._agent, "random.seed", original))

    def finish(self) -> None:
        pass

    def random_states(self) -> None:
        random = sys.modules.get("random")
        if random is not None:
            line = {"name": "random", "digest": text_digest(repr(random.getstate()))}
            self._agent.journal.write("random_state", line)

    def forget(self) -> None:
        pass


def seeding(agent: Agent, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A seeding function that is written down and then called."""

    def seed(*arguments: Any, **keywords: Any) -> Any:
        agent.attempt(agent.seed, call, arguments, keywords, sys._getframe(1))
        return original(*arguments, **keywords)

    return seed
