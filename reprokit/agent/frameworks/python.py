"""Python's own random module: its seeding and its state at the end; and clashes of temporary names."""

from __future__ import annotations

import sys

from ..core.agent import Adapter
from ..core.digests import text_digest
from ..core.patching import replace
from ..seeds.ledger import seeds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any


NAME_TAKEN = "temporary-name-taken"  # code of the warning
# Beginnings of names that say nothing to the script: of directories that killed workers leave behind.
UNSEEN = ("pymp-",)


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
        ledger, initialize, instance = seeds_of(self._agent), random.Random.__init__.__code__, random._inst

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
            self._agent.attempt(self._warn_taken, _taken_path())
            yield from names

        return _get_candidate_names

    def _warn_taken(self, path: str) -> None:
        """Warn that a temporary name was taken, where the script sees the name that it gets instead."""
        if not path.rpartition("/")[2].startswith(UNSEEN):
            text = f"tempfile: {path or 'a name'} was there already, in a replay perhaps from the recording"
            self._agent.warn(f"{text}: the script got another temporary name", NAME_TAKEN, path)

    def random_states(self) -> None:
        random: Any = sys.modules.get("random")
        if random is not None:
            self.write_random_state("random", text_digest(repr(random.getstate())))


def _taken_path() -> str:
    """Return the path that tempfile could not make: `file` of its function, as in CPython 3.7 to 3.14; else nothing."""
    names_frame = sys._getframe(1)
    path = names_frame.f_back.f_locals.get("file") if names_frame.f_back is not None else None
    return path if isinstance(path, str) else ""
