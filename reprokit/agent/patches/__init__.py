"""Patches in the training's process: which function is called when which module has been imported.

A function `NAME(module, value, tell)` stands in the file of its framework. It returns when it has done its work, raises
PatchUnfit where it cannot, and tells what is worth knowing: `tell("words")`. Where it can be taken back in the
process, it says how: `tell.undo_by(function)`; `tell.swap` puts a function in the place of another.
"""

from __future__ import annotations

import importlib
import operator
import re
import sys

from ..core.patching import swap
from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent

APPLIED, NOT_APPLIED, REFUSED = "applied", "not-applied", "refused"

# Of each id the modules that are waited for, and for each the file of this package with its function.
PLACES = {
    "torch-deterministic": {
        "torch": "torch.torch_deterministic",
        "torch._inductor.config": "torch.torch_deterministic_inductor",
    },
    "torch-deterministic-fill": {
        "torch": "torch.torch_deterministic_fill",
        "torch._inductor.config": "torch.torch_deterministic_inductor",
    },
    "torch-cudnn": {"torch": "torch.torch_cudnn"},
    "torch-operator": {
        "torch": "torch_operators.torch_operator",
        "torch._inductor.lowering": "torch_operators.torch_operator_compiled",
    },
    "torch-loader": {"torch.utils.data.dataloader": "torch.torch_loader"},
    "threads": {"torch": "torch.torch_threads", "tensorflow": "tensorflow.tf_threads"},
    "tf-deterministic": {"tensorflow": "tensorflow.tf_deterministic"},
    "tf1-determinism": {"tensorflow": "tensorflow.tf1_determinism"},
    "tf-segment-sum": {"tensorflow": "tensorflow.tf_segment_sum"},
    "tf-data": {"tensorflow": "tensorflow.tf_data"},
    "tf-threads": {"tensorflow": "tensorflow.tf_threads"},
    "seed": dict.fromkeys(("random", "numpy.random", "torch", "tensorflow"), "general.seed"),
    "xgboost-linear": {"xgboost": "general.xgboost_linear"},
    "imap-ordered": {"multiprocessing.pool": "general.imap_ordered"},
}

_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*([0-9.]+)")
_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
VERSION_PLACES = 4  # of a version: 1.14.0.0


class PatchUnfit(Exception):
    """Why a patch was left out, in words."""


class Tell:
    """Takes what a patch has to say while it is applied."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.undos: list[Callable[[], None]] = []

    def __call__(self, words: str) -> None:
        """Note something that a user should know."""
        self.words.append(words)

    def undo_by(self, function: Callable[[], None]) -> None:
        """Name a function that takes a part of the patch back; the last is called first."""
        self.undos.append(function)

    def swap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put make(original) in the place of a function, until the patch is taken back."""
        self.undo_by(swap(owner, name, make))

    def take_back(self) -> None:
        """Take back what was done."""
        for undo in reversed(self.undos):
            undo()
        self.undos.clear()


class PatchWish:
    """A patch that the plan asks for."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.id: str = entry["id"]
        self.value: str = entry.get("value", "")
        self.framework: str = entry.get("framework", "")
        self.versions: str = entry.get("versions", "")
        self.places: dict[str, str] = PLACES.get(self.id, {self.framework: ""} if self.framework else {})


class Patches:
    """The patches of one process, applied as the modules that they are for come."""

    def __init__(self, agent: Agent, wanted: list[PatchWish]) -> None:
        self._agent = agent
        self._wanted = wanted
        self._applied: dict[str, list[Tell]] = {}

    @property
    def modules(self) -> set[str]:
        """The modules that are waited for."""
        return {module for patch in self._wanted for module in patch.places}

    def loaded(self, name: str, module: ModuleType) -> None:
        """Apply what waits for this module."""
        for patch in self._wanted:
            if name in patch.places:
                self._agent.attempt(self._apply, patch, name, module)

    def _apply(self, patch: PatchWish, name: str, module: ModuleType) -> None:
        tell = Tell()
        state, why = self._attempt(patch, name, module, tell)
        if state != APPLIED:
            self._agent.attempt(tell.take_back)
        elif tell.undos:
            self._applied.setdefault(patch.id, []).append(tell)
        words = "; ".join([*tell.words, *([why] if why else [])])
        self._say(patch, name, state, words)

    def _attempt(self, patch: PatchWish, name: str, module: ModuleType, tell: Tell) -> tuple[str, str]:
        """Return the state that it comes to, and why."""
        package = sys.modules.get(patch.framework, module) if patch.framework else None
        version = str(getattr(package, "__version__", "") or "")
        if patch.versions and version and not fits(version, patch.versions):
            return NOT_APPLIED, f"it is for {patch.framework} {patch.versions}, this is {version}"
        file, _, function = patch.places[name].partition(".")
        if not file:  # its variables were set before the start
            return APPLIED, ""
        try:
            getattr(importlib.import_module(f"{__name__}.{file}"), function)(module, patch.value, tell)
        except PatchUnfit as error:
            return REFUSED, str(error)
        except Exception as error:
            pass_on(error)
            return REFUSED, f"it failed: {type(error).__name__}: {error}"
        return APPLIED, ""

    def _say(self, patch: PatchWish, module: str, state: str, why: str) -> None:
        fields = {"id": patch.id, "value": patch.value, "module": module, "state": state, "why": why[:1000]}
        self._agent.journal.write("patch", fields, aside=True)

    def undo(self, name: str) -> bool:
        """Take a patch back in this process; whether there was anything to take back."""
        applied = self._applied.pop(name, [])
        for tell in reversed(applied):
            tell.take_back()
        for patch in self._wanted if applied else ():
            if patch.id == name:
                self._say(patch, "", "undone", "")
        return bool(applied)


def start(agent: Agent, plan: bytes) -> None:
    """Wait for the modules of the plan's patches."""
    import json

    patches = Patches(agent, [PatchWish(entry) for entry in json.loads(plan).get("patches", [])])
    sys.modules[__name__].running = patches  # type: ignore[attr-defined]
    agent.listeners.append((patches.modules, patches.loaded))


def fits(version: str, specifier: str) -> bool:
    """Return whether a version meets all clauses, as far as its numbers say: 2.8.0rc1 counts as 2.8.0."""
    number = _number(version)
    return all(_COMPARISONS[sign](number, _number(bound)) for sign, bound in _CLAUSE.findall(specifier))


def _number(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", text)
    parts = [int(part) for part in found.group().split(".")] if found else []
    return tuple((parts + [0] * VERSION_PLACES)[:VERSION_PLACES])
