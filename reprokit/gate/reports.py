"""The files that a gate writes: where they go is looked at before the first training, as it would be lost after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from reprokit.errors import CannotWriteReport
from reprokit.gate import findings_reports, github, junit
from reprokit.gate.results import GateVerdict


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """Which are wanted."""

    junit: Path | None = None
    sarif: Path | None = None
    gitlab: Path | None = None
    summary: Path | None = None  # to which a summary is appended

    def _wanted(self) -> Iterator[tuple[Path, str, Callable[[GateVerdict], str]]]:
        texts: tuple[tuple[Path | None, str, Callable[[GateVerdict], str]], ...] = (
            (self.junit, "w", junit.text),
            (self.sarif, "w", lambda verdict: findings_reports.text(findings_reports.sarif(verdict))),
            (self.gitlab, "w", lambda verdict: findings_reports.text(findings_reports.code_quality(verdict))),
            (self.summary, "a", github.summary),
        )
        yield from ((path, mode, text) for path, mode, text in texts if path is not None)

    def require_places(self) -> None:
        """Refuse what cannot be written."""
        for path, _, _ in self._wanted():
            place = path if path.exists() else path.absolute().parent
            if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
                raise CannotWriteReport(f"{path} cannot be written; choose a file in a directory of yours")

    def write(self, verdict: GateVerdict) -> None:
        """Write them all; one that cannot be written keeps none of the others from it."""
        problems = []
        for path, mode, text in self._wanted():
            try:
                with open(path, mode, encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text(verdict))
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        if problems:
            raise CannotWriteReport("; ".join(problems))
