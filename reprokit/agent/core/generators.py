"""The global random generators of this process, and whether anybody has touched them since they were made."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Generators:
    """What the generators' states were when their modules were imported: a hash of each."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Callable[[], Hashable], int]] = {}

    def begin(self, name: str, state: Callable[[], Hashable]) -> None:
        """A generator was made; `state` gives what it is now."""
        self._known[name] = state, hash(state())

    def untouched(self) -> list[str]:
        """Those that were neither seeded nor drawn from."""
        return [name for name, (state, first) in self._known.items() if hash(state()) == first]
