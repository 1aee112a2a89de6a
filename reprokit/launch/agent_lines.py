"""What the launcher reads of the agent's lines at the end of a run: who was there, and its warnings."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from reprokit import rundir
from reprokit.model.run import CaptureUnavailable

MAX_READ = 64 << 20  # bytes of metrics.jsonl: processes start and frameworks are imported early
MAX_WARNINGS = 20
PYTHON = ("python", "implementation", "executable", "build", "gil")
MAX_LAST = 4 << 20  # bytes of its end, where a longer one says what was imported
MAX_NAMES = 10_000  # of packages and files
MAX_PATCHES = 10_000  # lines of them
MAX_UNAVAILABLE = 20  # frameworks and versions whose steps were not captured
MAX_TEXT = 100  # characters of their names
TURNS = ("exact", "moved", "unused")
_WHOLE = b'{"k":"end"', b'{"k":"patch"', b'{"k":"capture_unavailable"', b'{"k":"orders"'
WANTED = (b'"agent"', b'"framework"', b'"seed"', b'"warning"', *_WHOLE)


class PatchLine(msgspec.Struct, frozen=True):
    """What became of a patch in one process."""

    process: str
    id: str
    value: str
    state: str
    why: str


class AgentFacts(msgspec.Struct):
    """The agent's presence, the first process's Python, the frameworks and what went wrong."""

    loaded: bool = False
    pids: set[int] = msgspec.field(default_factory=set)  # of the processes in which an agent began
    python: dict[str, str] | None = None
    frameworks: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)
    path: list[str] = msgspec.field(default_factory=list)  # sys.path of the first process
    packages: set[str] = msgspec.field(default_factory=set)  # top-level names that were imported
    modules: set[str] = msgspec.field(default_factory=set)  # files that were imported, of no package
    told: bool = False  # the first process lived to say what it had imported
    seeds: int = 0
    patches: list[PatchLine] = msgspec.field(default_factory=list)
    captures_unavailable: list[CaptureUnavailable] = msgspec.field(default_factory=list)
    seeds_replaced: int = 0  # in a replay: given the recorded value in the place of another
    orders: Counter[str] = msgspec.field(default_factory=Counter)  # in a replay: turns, by how they were given again


def read(run: Path) -> AgentFacts:
    """Return the facts so far; a line that is no JSON is somebody else's trouble, not this one's."""
    facts = AgentFacts()
    for line in _lines(run):
        if any(wanted in line for wanted in WANTED):
            _take(facts, line)
    return facts


def _lines(run: Path) -> list[bytes]:
    """Return the first lines of metrics.jsonl, and of a long one the last ones too; none where it cannot be read."""
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


def _take(facts: AgentFacts, line: bytes) -> None:
    try:
        value = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    kind = value.get("k")
    if kind == "agent":
        facts.loaded = True
        if type(value.get("pid")) is int:
            facts.pids.add(value["pid"])
        if facts.python is None:
            facts.python = {key: str(value[key]) for key in PYTHON if key in value}
            facts.python.update({"flags": " ".join(map(str, _texts(value, "flags")))})
            facts.path = _texts(value, "path")
    elif kind == "framework":
        facts.frameworks.setdefault(str(value.get("name")), str(value.get("version")))
    elif kind == "end":
        facts.told = facts.told or value.get("p") == "0"
        for known, key in ((facts.packages, "packages"), (facts.modules, "files")):
            known.update(_texts(value, key)[: max(0, MAX_NAMES - len(known))])
    elif kind == "seed":
        facts.seeds += 1
        facts.seeds_replaced += "asked" in value
    elif kind == "orders":
        facts.orders.update({name: count for name, count in value.items() if name in TURNS and type(count) is int})
    elif kind == "patch" and len(facts.patches) < MAX_PATCHES:
        names = ("p", "id", "value", "state", "why")
        facts.patches.append(PatchLine(*(str(value.get(name, "")) for name in names)))
    elif kind == "capture_unavailable":
        _take_unavailable(facts.captures_unavailable, value)
    elif kind == "warning" and len(facts.warnings) < MAX_WARNINGS:
        facts.warnings.append(f"the agent: {value.get('text')}")


def _take_unavailable(known: list[CaptureUnavailable], line: dict[str, Any]) -> None:
    """Count the processes in which steps of a framework were not captured."""
    fields = {name: str(line.get(name, ""))[:MAX_TEXT] for name in ("framework", "version", "reason")}
    with suppress(msgspec.ValidationError):  # not a reason of ours
        one = msgspec.convert(fields, CaptureUnavailable)
        place = next((n for n, other in enumerate(known) if msgspec.structs.replace(other, processes=1) == one), None)
        if place is not None:
            known[place] = msgspec.structs.replace(one, processes=known[place].processes + 1)
        elif len(known) < MAX_UNAVAILABLE:
            known.append(one)


def _texts(value: dict[str, Any], key: str) -> list[str]:
    found = value.get(key)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
