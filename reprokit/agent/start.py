"""Starts the agent in a process: writes its first line, and starts the features of registry.py that apply to it."""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module

from . import registry
from .core.agent import ORDERS, TRAINING, Adapters, Agent
from .core.journal import Journal
from .core.launch_plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

FORMAT = 1
MAX_PATH = 64  # entries of sys.path


def start(run: str, identity: str) -> None:
    """Start the agent; errors become warnings, and the training goes on."""
    features = [(Feature(f"{module}.start"), needed) for module, needed in registry.EACH_PROCESS]
    for feature, _ in features:
        feature.load()
    journal = Journal(run, identity.strip())
    agent = Agent(run, journal, Adapters(registry.WATCHED, registry.load))
    sys.modules[__package__].running = agent  # type: ignore[attr-defined]
    journal.write("agent", _facts())
    atexit.register(agent.finish)
    os.register_at_fork(after_in_child=agent.forget)
    plan = agent.attempt(read_plan, run) or {}
    agent.attempt(_leave_out, agent, plan)
    _register(agent)
    for key, module in registry.PLANNED.items():
        if plan.get(key):
            agent.attempt(Feature(f"{module}.start"), agent, plan[key])
    for feature, needed in features:
        if needed <= agent.keeps:
            agent.attempt(feature, agent)


class Feature:
    """A feature's function at a place below this package, as MODULE.FUNCTION; imported with the first call."""

    def __init__(self, place: str, *arguments: object) -> None:
        self.__qualname__ = place  # for warnings
        self._arguments = arguments

    def load(self) -> Callable[..., Any]:
        """Import the function's module."""
        module, _, name = self.__qualname__.rpartition(".")
        function: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
        return function

    def __call__(self, *arguments: object) -> Any:
        return self.load()(*self._arguments, *arguments)


def _leave_out(agent: Agent, plan: Mapping[str, Any]) -> None:
    """Note what the plan does not ask for, or what there is not."""
    left_out = {TRAINING: "quiet", ORDERS: "no_orders"}
    agent.keeps -= {kind for kind, key in left_out.items() if plan.get(key)}
    if plan.get("observed"):
        agent.journal.name_processes()  # as there is no shim to do it


def _register(agent: Agent) -> None:
    """Register the features that the training loads as it comes to need them."""
    for name, place in registry.SCRIPT.items():
        setattr(agent, name, Feature(place, agent))
    if TRAINING not in agent.keeps:
        return
    agent.listeners += [(modules, Feature(place, agent)) for modules, place in registry.MODULES]
    agent.fact_writers += [(frozenset(modules), Feature(place, agent)) for modules, place in registry.LAST_FACTS]


def _facts() -> dict[str, object]:
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "implementation": sys.implementation.name,
        "executable": sys.executable or "",
        "argv": _arguments(),
        "pid": os.getpid(),
        "agent": FORMAT,
        "build": " ".join(sys.version.split()),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "flags": _flags(),
        "path": [entry for entry in sys.path if type(entry) is str][:MAX_PATH],
    }


def _flags() -> list[str]:
    """Return the interpreter's options that differ from their defaults."""
    usual = {"hash_randomization": 1, "int_max_str_digits": 4300, "gil": 1}
    names = [name for name in dir(sys.flags) if name[0] != "_" and name[:2] != "n_" and name not in ("count", "index")]
    pairs = [(name, getattr(sys.flags, name)) for name in names]
    return [f"{name}={value}" for name, value in pairs if value is not None and value not in (usual.get(name, 0), -1)]


def _arguments() -> list[str]:
    """Return the whole command line; before 3.10 from /proc, as sys.argv is not set this early."""
    original: list[str] | None = getattr(sys, "orig_argv", None)
    if original is not None:
        return list(original)
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "argv", []))
