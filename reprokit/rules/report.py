"""Presents the findings of rules, as lines and as a JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.printable import cut, listed, printable
from reprokit.rules.evaluation import RuleSession
from reprokit.run_files.findings import Finding

FORMAT = 1
NAME = 80  # characters of a further tensor's name
MORE = 3  # names of further tensors


def sentence(finding: Finding, *further: Finding) -> str:
    """Describe what a rule raised at once in a sentence: a finding with place and evidence, further ones by name."""
    module = f" of {finding.module}" if finding.module and finding.module not in finding.subject else ""
    place = f" ({finding.where[0].file}:{finding.where[0].line})" if finding.where else ""
    names = listed([cut(one.subject, NAME) for one in further], MORE)
    more = f" (and {len(further)} more: {names})" if further else ""
    what = f"{finding.rule} at step {finding.step}: {finding.subject}{module}{place}: {finding.why}"
    return printable(what, 1000) + printable(more)


def print_end(path: Path, session: RuleSession) -> None:
    """Print the number of alarms, and notes on rules that judged nothing."""
    count = len(session.findings)
    print(printable(f"{path}: {count or 'no'} {'alarm' if count == 1 else 'alarms'} of {session.judged} rules"))
    for note in session.notes():
        print(printable(f"note: {note}", 2000))


def document(path: Path, session: RuleSession) -> dict[str, Any]:
    """Return the findings and notes as a JSON document."""
    raised = msgspec.to_builtins(list(session.findings.values()))
    return {"format": FORMAT, "path": str(path), "findings": raised, "notes": session.notes()}
