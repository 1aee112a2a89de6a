"""Collects environment.json: facts about the machine and the programs of a run, gathered while it runs.

The training's Python is not executed here: the agent's facts are added at the end. Every external
query has a timeout, and its failure never fails the run.
"""

from __future__ import annotations

import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from reprokit.core.errors import CannotWriteRun
from reprokit.core.messages import warn
from reprokit.model.environment import EnvironmentFile
from reprokit.run.file_digests import file_digest
from reprokit.run.platform_support import libc
from reprokit.run_files import rundir

if TYPE_CHECKING:
    from reprokit.run.agent_lines import AgentFacts
    from reprokit.run.git import Checkout


GPU_LIMIT = 5.0  # seconds
PATIENCE = 8.0  # seconds that the end of a run waits for facts still being collected
MAX_DRIVER = 400  # bytes
MAX_FILES = 64  # of the command's arguments that are checked
LIMITS = ("STACK", "DATA", "AS", "NOFILE", "NPROC", "FSIZE", "CORE", "MEMLOCK")


def system_facts() -> dict[str, str]:
    """Return kernel, C library and distribution."""
    name = os.uname()
    facts = {"os": name.sysname, "kernel": name.release, "machine": name.machine, "libc": libc()}
    with suppress(OSError):
        lines = dict(line.rstrip("\n").split("=", 1) for line in open("/etc/os-release") if "=" in line)  # noqa: SIM115
        facts["distribution"] = lines.get("PRETTY_NAME", "").strip('"')
    return facts


def cpu_facts() -> dict[str, Any]:
    """Return model, instruction sets and number of processors, by which libraries choose their code."""
    facts: dict[str, Any] = {"count": os.cpu_count(), "usable": len(os.sched_getaffinity(0)), "model": "", "flags": []}
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "CPU part"):
                facts["model"] = value.strip()
            elif key.strip() in ("flags", "Features"):
                facts["flags"] = sorted(value.split())
            elif not line.strip():
                break  # assume that all processors are alike
    return facts


def memory() -> int:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def limit_facts() -> dict[str, list[int]]:
    """Return soft and hard resource limits; that of the stack decides where memory is mapped."""
    import resource

    return {name.lower(): list(resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))) for name in LIMITS}


def driver_facts() -> dict[str, str]:
    """Return the NVIDIA driver's version, as the kernel reports it."""
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
        return {"driver": " ".join(file.readline(MAX_DRIVER).split())}
    return {}


def gpu_facts(directory: Path) -> list[str]:
    """Return one line per GPU: name, driver, memory."""
    places = (os.path.join(place, "nvidia-smi") for place in os.get_exec_path())  # as shutil finds it, slow to load
    tool = next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)
    if tool is None:
        return []
    query = "--query-gpu=name,driver_version,memory.total"
    lines = _output([tool, query, "--format=csv,noheader"], directory, GPU_LIMIT)
    return lines.splitlines() if lines else []


def _output(arguments: list[str], directory: Path, limit: float) -> str | None:
    """Return what a helper prints; None if it fails or takes too long. Ctrl-C at the terminal does not reach it."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            arguments,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit,
            start_new_session=True,
            check=True,
        )
        return done.stdout.decode("utf-8", "replace")
    return None


def command_files(arguments: Iterable[str], directory: Path) -> dict[str, str]:
    """Return the digests of files among a command's arguments, such as its script and configuration."""
    files = [name for name in dict.fromkeys(arguments) if name][:MAX_FILES]
    digests = {name: file_digest(directory / name, opener=rundir.open_following) for name in files}
    return {name: digest for name, digest in digests.items() if digest is not None}


class EnvironmentCollector:
    """Collects facts on a thread beside the training, and writes environment.json."""

    def __init__(
        self, run: Path, program: str, arguments: tuple[str, ...], directory: Path, data: tuple[str, ...] = ()
    ):
        self._run, self._program, self._arguments, self._directory = run, program, arguments, directory
        self._facts = EnvironmentFile(declared=list(data))
        self._deadline = math.inf  # for reading data; set at the end of the run
        self._interrupted: Callable[[], bool] = bool
        self._checkout: Checkout | None = None
        self._thread = threading.Thread(target=self._collect_safely, name="host facts", daemon=True)
        with suppress(RuntimeError):  # at the limit of threads there are no host facts
            self._thread.start()

    def _collect_safely(self) -> None:
        try:
            self._collect()
        except Exception as error:  # the training must not be affected
            warn(f"host facts are incomplete: {type(error).__name__}: {error}", "host-facts")

    def _collect(self) -> None:
        facts, directory = self._facts, self._directory
        facts.host, facts.git = os.uname().nodename, {"problem": "unfinished"}
        facts.files = command_files(self._arguments[1:], directory)
        program = os.path.realpath(directory / self._program)
        facts.program = {"path": program, "digest": file_digest(Path(program), opener=rundir.open_following) or ""}
        facts.system, facts.cpu, facts.memory, facts.limits = system_facts(), cpu_facts(), memory(), limit_facts()
        with suppress(CannotWriteRun):  # the end of the run tries again, and warns
            rundir.write_json(self._run / rundir.ENVIRONMENT, facts)
        # Imported after the start, as they would have delayed the training.
        from reprokit.run import data, sources

        data.record_inherited_files(self._run)
        facts.accelerator = driver_facts()
        self._checkout, facts.git = sources.checkout_facts(directory)
        facts.gpus = gpu_facts(directory)
        facts.data = data.declared(facts.declared, directory, self._has_no_time)

    def _has_no_time(self) -> bool:
        return time.monotonic() > self._deadline or self._interrupted()

    def complete(self, agent_facts: AgentFacts, interrupted: Callable[[], bool]) -> EnvironmentFile:
        """Wait a limited time for the facts, and add those of agent and shim."""
        from reprokit.run import data, packages, sources
        from reprokit.run_files import state_files

        self._interrupted, self._deadline = interrupted, time.monotonic() + data.PATIENCE
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        facts, directory = self._facts, self._directory
        facts.python, facts.frameworks = agent_facts.python, agent_facts.frameworks
        distributions = packages.installed(agent_facts.path)
        facts.packages = {package.name: package.version for package in distributions}
        if agent_facts.imports_reported:
            facts.imported = sorted(packages.imported(distributions, agent_facts.packages, agent_facts.modules))
        written = data.paths_written(self._run)
        code = sources.used(self._run, agent_facts.path, agent_facts.modules, written, directory)
        places = packages.places(distributions)
        facts.code = sources.digests(code, directory, places)
        unread = len(sources.unread(code - written, directory, places, facts.code))
        facts.code |= sources.digests(packages.built(distributions, facts.imported), directory, ())
        state_paths = state_files.made(self._run)  # an earlier run's files at the paths where this run wrote its own
        facts.files = {
            name: digest
            for name, digest in facts.files.items()
            if os.path.realpath(directory / name) not in state_paths
        }
        facts.data, facts.unlisted = data.with_read_files(self._run, facts.data, written, directory, self._has_no_time)
        objects_read, unlisted = _objects_read(self._run)
        facts.data, facts.unlisted = (
            facts.data + data.pipes(self._run, os.path.realpath(directory)) + objects_read,
            facts.unlisted + unlisted,
        )
        listed_paths = {os.path.normpath(os.path.join(os.path.realpath(directory), path)) for path in facts.code}
        listed_paths |= {
            os.path.normpath(os.path.join(os.path.realpath(directory), entry["path"])) for entry in facts.data
        }
        if self._checkout is not None and facts.git is not None:
            from reprokit.run import commit_files

            facts.git = sources.without(facts.git, written | listed_paths, directory)
            used = commit_files.compared(self._checkout, facts, directory, written, unread)
            facts.git["used"] = msgspec.to_builtins(used)
        return facts


def _objects_read(run: Path) -> tuple[list[dict[str, Any]], int]:
    if not (run / rundir.OBJECTS).exists():
        return [], 0
    from reprokit.run import objects

    return objects.read(run)


def started_at() -> float:
    """Return when this process began, in seconds since the epoch, as psutil computes it; 0 without /proc."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age
