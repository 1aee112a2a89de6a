"""Reads the agent's lines at the end of a run: which agents were loaded, and their warnings."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from reprokit.model.run import CaptureUnavailable
from reprokit.model.run_warning import RunWarning, distinct
from reprokit.run_files import rundir

MAX_READ = 64 << 20  # bytes read of metrics.jsonl: processes start and frameworks are imported early
MAX_WARNINGS = 20
PYTHON = ("python", "implementation", "executable", "build", "gil")
MAX_LAST = 4 << 20  # bytes read from the end of a longer file, where imports are listed
MAX_NAMES = 10_000  # of packages and files
MAX_PATCHES = 10_000  # lines about patches
MAX_UNAVAILABLE = 20  # frameworks and versions whose steps were not captured
MAX_TEXT = 100  # characters of their names
TURNS = ("exact", "moved", "unused")
_WHOLE = b'{"k":"end"', b'{"k":"patch"', b'{"k":"capture_unavailable"', b'{"k":"orders"', b'{"k":"shared"'
WANTED = (b'"agent"', b'"framework"', b'"seed"', b'"warning"', *_WHOLE)


class PatchLine(msgspec.Struct, frozen=True):
    """The state of a patch in one process."""

    process: str
    id: str
    value: str
    state: str
    why: str


class AgentFacts(msgspec.Struct):
    """What the agents of all processes reported."""

    loaded: bool = False
    pids: set[int] = msgspec.field(default_factory=set)  # of processes with an agent
    python: dict[str, str] | None = None
    frameworks: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: list[RunWarning] = msgspec.field(default_factory=list)  # each thing that is warned of once
    path: list[str] = msgspec.field(default_factory=list)  # sys.path of the first process
    packages: set[str] = msgspec.field(default_factory=set)  # top-level names of imported modules
    modules: set[str] = msgspec.field(default_factory=set)  # imported files outside of packages
    used: set[str] = msgspec.field(default_factory=set)  # packages that the script's own code names
    unreported: set[str] = msgspec.field(default_factory=set)  # processes that began and have not reported their end
    imports_reported: bool = False  # whether the first process reported its imports at its end
    seeds: int = 0
    patches: list[PatchLine] = msgspec.field(default_factory=list)
    captures_unavailable: Counter[CaptureUnavailable] = msgspec.field(default_factory=Counter)  # number of processes
    seeds_replaced: int = 0  # in a replay: seeds that got their recorded value in place of another
    shared: set[str] = msgspec.field(default_factory=set)  # memory that processes share without a lock: what and where
    orders: Counter[str] = msgspec.field(
        default_factory=Counter
    )  # in a replay: number of turns by how they were replayed

    def may_use(self, package: str) -> bool:
        """Return whether the script's own code names a package, or that is not known of all processes."""
        return package in self.used or not self.loaded or bool(self.unreported)


def read(run: Path) -> AgentFacts:
    """Return the facts reported so far; invalid lines are ignored here."""
    facts = AgentFacts()
    for line in _lines(run):
        if any(keyword in line for keyword in WANTED):
            _add_line(facts, line)
    return facts


def _lines(run: Path) -> list[bytes]:
    """Return the first lines of metrics.jsonl and the last ones of a long file; none if it cannot be read."""
    try:
        with open(run / rundir.METRICS, "rb", opener=rundir.open_regular) as file:
            lines = file.read(MAX_READ).split(b"\n")
            size = file.seek(0, os.SEEK_END)
            if size > MAX_READ:
                file.seek(max(MAX_READ, size - MAX_LAST))
                lines += file.read(MAX_LAST).split(b"\n")
            return lines
    except OSError:
        return []


def _add_line(facts: AgentFacts, line: bytes) -> None:
    try:
        value = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    kind = value.get("k")
    if kind == "agent":
        facts.loaded = True
        facts.unreported.add(str(value.get("p")))
        if type(value.get("pid")) is int:
            facts.pids.add(value["pid"])
        if facts.python is None:
            facts.python = {key: str(value[key]) for key in PYTHON if key in value}
            facts.python.update({"flags": " ".join(map(str, _text_list(value, "flags")))})
            facts.path = _text_list(value, "path")
    elif kind == "framework":
        facts.frameworks.setdefault(str(value.get("name")), str(value.get("version")))
    elif kind == "end":
        facts.imports_reported = facts.imports_reported or value.get("p") == "0"
        facts.unreported.discard(str(value.get("p")))
        for imports, key in ((facts.packages, "packages"), (facts.modules, "files"), (facts.used, "used")):
            imports.update(_text_list(value, key)[: max(0, MAX_NAMES - len(imports))])
    elif kind == "seed":
        facts.seeds += 1
        facts.seeds_replaced += "asked" in value
    elif kind == "orders":
        facts.orders.update({name: count for name, count in value.items() if name in TURNS and type(count) is int})
    elif kind == "shared" and len(facts.shared) < MAX_WARNINGS:
        facts.shared.add(str(value.get("what"))[:MAX_TEXT])
    elif kind == "patch" and len(facts.patches) < MAX_PATCHES:
        names = ("p", "id", "value", "state", "why")
        facts.patches.append(PatchLine(*(str(value.get(name, "")) for name in names)))
    elif kind == "capture_unavailable":
        _count_unavailable(facts.captures_unavailable, value)
    elif kind == "warning" and len(facts.warnings) < MAX_WARNINGS:
        text, code, path = (str(value.get(name, "")) for name in ("text", "code", "path"))
        warning = RunWarning(text, code, path, said=value.get("said") is True)
        facts.warnings = distinct([*facts.warnings, warning])


def _count_unavailable(unavailable: Counter[CaptureUnavailable], line: dict[str, Any]) -> None:
    """Count the processes in which steps of a framework were not captured."""
    fields = {name: str(line.get(name, ""))[:MAX_TEXT] for name in ("framework", "version", "reason")}
    with suppress(msgspec.ValidationError):  # an unknown reason
        entry = msgspec.convert(fields, CaptureUnavailable)
        if entry in unavailable or len(unavailable) < MAX_UNAVAILABLE:
            unavailable[entry] += 1


def _text_list(value: dict[str, Any], key: str) -> list[str]:
    texts = value.get(key)
    return [text for text in texts if isinstance(text, str)] if isinstance(texts, list) else []
