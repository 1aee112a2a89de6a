"""What the launcher reads of the agent's lines at the end of a run: who was there, and its warnings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from reprokit import rundir

MAX_READ = 64 << 20  # bytes of metrics.jsonl: processes start and frameworks are imported early
MAX_WARNINGS = 20
WANTED = (b'"agent"', b'"framework"', b'"seed"', b'"warning"')


@dataclass
class AgentFacts:
    """The agent's presence, the first process's Python, the frameworks and what went wrong."""

    loaded: bool = False
    python: dict[str, str] | None = None
    frameworks: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    seeds: int = 0
    seeds_replaced: int = 0  # in a replay: given the recorded value in the place of another


def read(run: Path) -> AgentFacts:
    """The facts so far; a line that is no JSON is somebody else's trouble, not this one's."""
    facts = AgentFacts()
    try:
        with open(run / rundir.METRICS, "rb", opener=rundir.open_regular) as file:
            lines = file.read(MAX_READ).split(b"\n")
    except OSError:
        return facts
    for line in lines:
        if any(wanted in line for wanted in WANTED):
            _take(facts, line)
    return facts


def _take(facts: AgentFacts, line: bytes) -> None:
    try:
        value = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    kind = value.get("k")
    if kind == "agent":
        facts.loaded = True
        if facts.python is None:
            facts.python = {key: str(value.get(key, "")) for key in ("python", "implementation", "executable")}
    elif kind == "framework":
        facts.frameworks.setdefault(str(value.get("name")), str(value.get("version")))
    elif kind == "seed":
        facts.seeds += 1
        facts.seeds_replaced += "asked" in value
    elif kind == "warning" and len(facts.warnings) < MAX_WARNINGS:
        facts.warnings.append(f"the agent: {value.get('text')}")
