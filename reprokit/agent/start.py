"""Starts the agent in a process: the first line of its metrics, the import hook, what happens at fork and exit."""

from __future__ import annotations

import atexit
import os
import sys

from . import importing, listing
from .agent import Agent
from .frameworks import WATCHED
from .journal import Journal

FORMAT = 1


def start(run: str, identity: str) -> None:
    """Begin to watch this process; whatever fails is written down, and the training goes on."""
    journal = Journal(run, identity.strip())
    agent = Agent(run, journal)
    sys.modules[__name__.rpartition(".")[0]].running = agent  # type: ignore[attr-defined]
    journal.write("agent", _facts())
    agent.attempt(_watch, agent)
    atexit.register(agent.finish)
    os.register_at_fork(after_in_child=agent.forget)
    agent.attempt(_see_listings, agent)


def _watch(agent: Agent) -> None:
    sys.meta_path.insert(0, importing.Watcher(WATCHED, agent.loaded, agent.warn))
    sys.meta_path.append(importing.Fallback())
    for name in WATCHED:
        module = sys.modules.get(name)
        if module is not None:
            agent.loaded(name, module)


def _see_listings(agent: Agent) -> None:
    notes = listing.watch(agent)
    os.register_at_fork(after_in_child=notes.forget)


def _facts() -> dict[str, object]:
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "implementation": sys.implementation.name,
        "executable": sys.executable or "",
        "argv": _arguments(),
        "pid": os.getpid(),
        "agent": FORMAT,
    }


def _arguments() -> list[str]:
    """The whole command line; before 3.10 the kernel is asked, as sys.argv is not set this early."""
    original: list[str] | None = getattr(sys, "orig_argv", None)
    if original is not None:
        return list(original)
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return list(getattr(sys, "argv", []))
