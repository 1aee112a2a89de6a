"""Shows what rules raised: a line each, and as a JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from reprokit.findings import Finding
from reprokit.printable import printable
from reprokit.rules.evaluation import RuleSession

FORMAT = 1


def sentence(finding: Finding) -> str:
    """Return what is wrong where, with the evidence."""
    module = f" of {finding.module}" if finding.module and finding.module not in finding.subject else ""
    place = f" ({finding.where[0].file}:{finding.where[0].line})" if finding.where else ""
    return printable(f"{finding.rule} at step {finding.step}: {finding.subject}{module}{place}: {finding.why}", 1000)


def print_end(path: Path, session: RuleSession) -> None:
    """Print how many alarms there were, and what was not judged."""
    count = len(session.findings)
    print(printable(f"{path}: {count or 'no'} {'alarm' if count == 1 else 'alarms'} of {session.judged} rules"))
    for note in session.notes():
        print(printable(f"note: {note}", 2000))


def document(path: Path, session: RuleSession) -> dict[str, Any]:
    """Return everything as a JSON document."""
    found = msgspec.to_builtins(list(session.findings.values()))
    return {"format": FORMAT, "path": str(path), "findings": found, "notes": session.notes()}
