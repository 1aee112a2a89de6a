"""Patches in the training's process: which function is called when which module has been imported.

A function `NAME(module, value, context)` stands in the file of its framework. It returns once the patch is applied, or
raises PatchRefused. It reports what a user should know: `context("message")`. If the patch can be undone in the
process, it registers how: `context.on_undo(function)`; `context.swap` replaces a function and undoes that.
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

    from ..core.agent import Agent

APPLIED, NOT_APPLIED, REFUSED = "applied", "not-applied", "refused"

# For each patch the modules that it patches, and for each module the file of this package with its function.
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


class PatchRefused(Exception):
    """Raised by a patch that cannot be applied; the message gives the reason."""


class PatchContext:
    """Collects the messages and undo functions of a patch while it is applied."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.undos: list[Callable[[], None]] = []

    def __call__(self, message: str) -> None:
        """Add a message for the user."""
        self.messages.append(message)

    def on_undo(self, function: Callable[[], None]) -> None:
        """Register a function that undoes a part of the patch; the last one is called first."""
        self.undos.append(function)

    def swap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a function by make(original) until the patch is undone."""
        self.on_undo(swap(owner, name, make))

    def undo(self) -> None:
        """Undo the patch."""
        for undo in reversed(self.undos):
            undo()
        self.undos.clear()


class RequestedPatch:
    """A patch that the plan asks for."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.id: str = entry["id"]
        self.value: str = entry.get("value", "")
        self.framework: str = entry.get("framework", "")
        self.versions: str = entry.get("versions", "")
        self.places: dict[str, str] = PLACES.get(self.id, {self.framework: ""} if self.framework else {})


class Patches:
    """The patches of one process, each applied as its modules are imported."""

    def __init__(self, agent: Agent, requested: list[RequestedPatch]) -> None:
        self._agent = agent
        self._requested = requested
        self._applied: dict[str, list[PatchContext]] = {}

    @property
    def modules(self) -> set[str]:
        """The names of the modules to be patched."""
        return {module for patch in self._requested for module in patch.places}

    def loaded(self, name: str, module: ModuleType) -> None:
        """Apply the patches of a module that has been imported."""
        for patch in self._requested:
            if name in patch.places:
                self._agent.attempt(self._apply, patch, name, module)

    def _apply(self, patch: RequestedPatch, name: str, module: ModuleType) -> None:
        context = PatchContext()
        state, why = self._attempt(patch, name, module, context)
        if state != APPLIED:
            self._agent.attempt(context.undo)
        elif context.undos:
            self._applied.setdefault(patch.id, []).append(context)
        message = "; ".join([*context.messages, *([why] if why else [])])
        self._write_state(patch, name, state, message)

    def _attempt(self, patch: RequestedPatch, name: str, module: ModuleType, context: PatchContext) -> tuple[str, str]:
        """Apply a patch to a module; return its state and the reason."""
        package = sys.modules.get(patch.framework, module) if patch.framework else None
        version = str(getattr(package, "__version__", "") or "")
        if patch.versions and version and not fits(version, patch.versions):
            return NOT_APPLIED, f"it is for {patch.framework} {patch.versions}, this is {version}"
        file, _, function = patch.places[name].partition(".")
        if not file:  # the launcher has set its environment variables
            return APPLIED, ""
        try:
            getattr(importlib.import_module(f"{__name__}.{file}"), function)(module, patch.value, context)
        except PatchRefused as error:
            return REFUSED, str(error)
        except Exception as error:
            pass_on(error)
            return REFUSED, f"it failed: {type(error).__name__}: {error}"
        return APPLIED, ""

    def _write_state(self, patch: RequestedPatch, module: str, state: str, why: str) -> None:
        fields = {"id": patch.id, "value": patch.value, "module": module, "state": state, "why": why[:1000]}
        self._agent.journal.write("patch", fields, aside=True)

    def undo(self, name: str) -> bool:
        """Undo a patch in this process; return whether there was anything to undo."""
        applied = self._applied.pop(name, [])
        for context in reversed(applied):
            context.undo()
        for patch in self._requested if applied else ():
            if patch.id == name:
                self._write_state(patch, "", "undone", "")
        return bool(applied)


def start(agent: Agent, entries: list[dict[str, Any]]) -> None:
    """Apply the plan's patches as their modules are imported."""
    patches = Patches(agent, [RequestedPatch(entry) for entry in entries])
    sys.modules[__name__].running = patches  # type: ignore[attr-defined]
    agent.listeners.append((patches.modules, patches.loaded))


def fits(version: str, specifier: str) -> bool:
    """Return whether a version meets all clauses; only its numbers count: 2.8.0rc1 is taken for 2.8.0."""
    number = _number(version)
    return all(_COMPARISONS[sign](number, _number(bound)) for sign, bound in _CLAUSE.findall(specifier))


def _number(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    parts = [int(part) for part in match.group().split(".")] if match else []
    return tuple((parts + [0] * VERSION_PLACES)[:VERSION_PLACES])
