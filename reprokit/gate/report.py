"""A verdict on the screen and in a log, and as a JSON document."""

from __future__ import annotations

from typing import Any

import msgspec

from reprokit.gate.results import FAILED, NOT_CHECKED, PASSED, SUITES, TROUBLE, GateVerdict
from reprokit.screen import Cells, print_rows

SHOWN = 20  # cases of a training that did not pass
STYLES = {PASSED: "bold green", FAILED: "bold red"}
HEADLINES = {
    PASSED: "passed: every training is bitwise identical",
    FAILED: "failed",
    TROUBLE: "trouble: something could not be checked, which is never green",
    NOT_CHECKED: "interrupted: not all was checked, which is never green",
}


def print_verdict(verdict: GateVerdict) -> None:
    """Print it: a line a training, then what did not pass."""
    cells = []
    for one in verdict.trainings:
        words = [f"{suite} {one.outcome(suite)}" for suite in SUITES if one.outcome(suite)]
        outcome = one.outcome() or TROUBLE
        cells.append(Cells((one.name, outcome, f"{', '.join(words)}; {len(one.cases)} cases"), STYLES.get(outcome, "")))
        unpassed = [case for case in one.cases if case.outcome != PASSED]
        for case in unpassed[:SHOWN]:
            cells.append(Cells(("", case.suite, f"{case.name}: {case.message}")))
        if len(unpassed) > SHOWN:
            cells.append(Cells(("", "", f"and {len(unpassed) - SHOWN} more (--json has them all)")))
        cells += [Cells(("", "note", note)) for note in one.notes]
    to_look_at = (one for one in verdict.trainings if one.outcome() not in (PASSED, NOT_CHECKED))
    footer = [f"run: {run}" for one in to_look_at for run in one.runs]
    print_rows(f"gate {HEADLINES[verdict.outcome]}", cells, footer, STYLES.get(verdict.outcome, "bold yellow"))


def document(verdict: GateVerdict) -> dict[str, Any]:
    """Everything as a JSON document."""
    content: dict[str, Any] = msgspec.to_builtins(verdict)
    trainings = [
        {**one, "outcome": judged.outcome() or TROUBLE}
        for one, judged in zip(content["trainings"], verdict.trainings, strict=True)
    ]
    return {**content, "outcome": verdict.outcome, "trainings": trainings}
