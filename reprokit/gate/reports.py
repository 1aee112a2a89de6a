"""Presents a verdict on the screen and as JSON, and writes the report files of a gate."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core.errors import CannotWriteReport
from reprokit.core.screen import Cells, print_rows
from reprokit.gate import findings_reports, github, junit
from reprokit.gate.results import FAILED, NOT_CHECKED, PASSED, SUITES, TROUBLE, GateVerdict
from reprokit.verify.ignores import behind_verdict
from reprokit.verify.verdict import ALL_REPEAT, switched_off_words

SHOWN = 20  # cases of a training that did not pass
STYLES = {PASSED: "bold green", FAILED: "bold red"}
HEADLINES = {
    PASSED: ALL_REPEAT,
    FAILED: "failed",
    TROUBLE: "trouble: something could not be checked, which is not a pass",
    NOT_CHECKED: "interrupted: not everything was checked, which is not a pass",
}


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """The reports to write."""

    junit: Path | None = None
    sarif: Path | None = None
    gitlab: Path | None = None
    summary: Path | None = None  # file to which a summary is appended

    def _requested(self) -> Iterator[tuple[Path, str, Callable[[GateVerdict], str]]]:
        texts: tuple[tuple[Path | None, str, Callable[[GateVerdict], str]], ...] = (
            (self.junit, "w", junit.text),
            (self.sarif, "w", lambda verdict: findings_reports.text(findings_reports.sarif(verdict))),
            (self.gitlab, "w", lambda verdict: findings_reports.text(findings_reports.code_quality(verdict))),
            (self.summary, "a", github.summary),
        )
        yield from ((path, mode, text) for path, mode, text in texts if path is not None)

    def require_places(self) -> None:
        """Raise CannotWriteReport for unwritable paths before the first training: the verdict would be lost."""
        for path, _, _ in self._requested():
            place = path if path.exists() else path.absolute().parent
            if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
                raise CannotWriteReport(f"{path} cannot be written; choose a file in a directory of yours")

    def write(self, verdict: GateVerdict) -> None:
        """Write all reports, also after an error in one of them."""
        problems = []
        for path, mode, text in self._requested():
            try:
                with open(path, mode, encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text(verdict))
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            raise CannotWriteReport("; ".join(problems))


def print_verdict(verdict: GateVerdict) -> None:
    """Print the verdict: a line per training, with the cases that did not pass."""
    cells = []
    for training in verdict.trainings:
        words = [f"{suite} {training.outcome(suite)}" for suite in SUITES if training.outcome(suite)]
        outcome = training.outcome() or TROUBLE
        cells.append(
            Cells((training.name, outcome, f"{', '.join(words)}; {len(training.cases)} cases"), STYLES.get(outcome, ""))
        )
        for case in training.unpassed[:SHOWN]:
            cells.append(Cells(("", case.suite, case.words)))
        if len(training.unpassed) > SHOWN:
            cells.append(Cells(("", "", f"and {len(training.unpassed) - SHOWN} more (--json has them all)")))
        cells += [Cells(("", "note", note)) for note in training.notes]
        cells += [Cells(("", "ignored", str(use))) for use in training.ignores]
    to_look_at = (training for training in verdict.trainings if training.outcome() not in (PASSED, NOT_CHECKED))
    footer = [f"run: {run}" for training in to_look_at for run in training.runs]
    behind = behind_verdict(verdict.ignores) + switched_off_words(verdict.switched_off)
    headline = f"gate {HEADLINES[verdict.outcome]}{behind}"
    print_rows(headline, cells, footer, STYLES.get(verdict.outcome, "bold yellow"))


def document(verdict: GateVerdict) -> dict[str, Any]:
    """Return the whole verdict as a JSON document."""
    content: dict[str, Any] = msgspec.to_builtins(verdict)
    trainings = [
        {**fields, "ignores": [use.document() for use in result.ignores], "outcome": result.outcome() or TROUBLE}
        for fields, result in zip(content["trainings"], verdict.trainings, strict=True)
    ]
    return {**content, "outcome": verdict.outcome, "trainings": trainings}
