"""A framework of which only the version is written down: its results are the script's to log."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from ..agent import Agent


class VersionOnly:
    """Writes the framework's version."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def instrument(self, name: str, module: ModuleType) -> None:
        self._agent.framework(name, module)

    def finish(self) -> None:
        pass

    def random_states(self) -> None:
        pass

    def forget(self) -> None:
        pass
