"""Starts the agent in a process: writes its first line, installs the import hook and handlers of fork and exit."""

from __future__ import annotations

import atexit
import os
import sys

from .core import import_hooks
from .core.agent import KEPT, ORDERS, TRAINING, Agent
from .core.journal import Journal
from .core.launch_plan import read_plan
from .frameworks import WATCHED
from .orders.children import ChildOrders
from .surroundings import directory_proxies, environ, import_listing
from .surroundings.call_sites import CallSites

FORMAT = 1
MAX_PATH = 64  # entries of sys.path


def start(run: str, identity: str) -> None:
    """Start the agent; errors become warnings, and the training goes on."""
    journal = Journal(run, identity.strip())
    agent = Agent(run, journal)
    sys.modules[__name__.rpartition(".")[0]].running = agent  # type: ignore[attr-defined]
    journal.write("agent", _facts())
    atexit.register(agent.finish)
    os.register_at_fork(after_in_child=agent.forget)
    agent.attempt(_follow_plan, agent)
    sites = CallSites(agent)
    agent.attempt(sites.watch)
    if agent.keeps == KEPT:
        agent.attempt(ChildOrders(agent).watch, sites.started)
    agent.attempt(_watch, agent)
    agent.attempt(_watch_reads, agent)


def _follow_plan(agent: Agent) -> None:
    """Start patches, observation and captures if the plan has their keys."""
    plan = read_plan(agent.run)
    if plan.get("patches"):
        from . import patches

        agent.attempt(patches.start, agent, plan["patches"])
    if plan.get("profiling"):
        from . import operators as observing

        observing.start(agent, plan["profiling"])
    if plan.get("question"):
        from . import questions

        agent.attempt(questions.start, agent, plan["question"])
    left_out = {TRAINING: "quiet", ORDERS: "no_orders"}
    agent.keeps -= {kind for kind, key in left_out.items() if plan.get(key)}
    if plan.get("observed"):
        agent.journal.name_processes()  # as there is no shim to do it
    if plan.get("capture"):
        from . import capture

        agent.attempt(capture.start, agent, plan["capture"])


def _watch(agent: Agent) -> None:
    adapted = WATCHED if TRAINING in agent.keeps else ()
    watched = sorted(set(adapted).union(*[names for names, _ in agent.listeners]))
    watcher = import_hooks.ImportWatcher(frozenset(watched), agent.loaded, agent.warn)
    watcher.finding = agent.import_listeners
    if agent.observer is not None:
        watcher.importing = agent.observer.importing
    sys.meta_path.insert(0, watcher)
    sys.meta_path.append(import_hooks.FallbackFinder())
    for name in watched:
        module = sys.modules.get(name)
        if module is not None:
            agent.loaded(name, module)


def _watch_reads(agent: Agent) -> None:
    if TRAINING not in agent.keeps:
        return
    import_listing.watch(sys.modules["_frozen_importlib_external"].FileFinder)
    recorder = directory_proxies.watch(agent)
    os.register_at_fork(after_in_child=recorder.forget)
    environ.watch(agent)


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
