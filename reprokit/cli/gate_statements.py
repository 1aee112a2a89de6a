"""What ``reprokit gate --sign`` writes: a statement for each pair of runs that it executed itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reprokit.cli.report import write_whole
from reprokit.errors import CannotWriteReport, ReprokitError, UsageError
from reprokit.gate.results import PASSED, REQUIRED, TROUBLE, Case, Judged

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from reprokit.gate.trainings import GateTraining

MAX_FAILURES = 50  # that are named in a statement


@dataclass(frozen=True)
class Statements:
    """A directory for them and the key to sign with, both looked at before the first training."""

    directory: Path
    key: Ed25519PrivateKey

    def __call__(self, judged: Judged) -> Judged:
        """Write the statements of a training; one that cannot be made is a case that did not pass."""
        if judged.is_cut_short:
            return judged
        unpassed = [case for case in judged.cases if case.outcome != PASSED]
        failures = [f"{case.suite}, {case.name}: {case.message}" for case in unpassed[:MAX_FAILURES]]
        if len(unpassed) > MAX_FAILURES:
            failures.append(f"and {len(unpassed) - MAX_FAILURES} more that did not pass")
        troubles = [self._trouble(judged, number, failures) for number in range(1, len(judged.pairs) + 1)]
        return replace(judged, cases=(*judged.cases, *filter(None, troubles)))

    def _trouble(self, judged: Judged, number: int, failures: list[str]) -> Case | None:
        try:
            self._write(judged, number, failures)
        except ReprokitError as error:
            return Case(suite=REQUIRED, name=f"statement {number}", outcome=TROUBLE, message=str(error))
        return None

    def _write(self, judged: Judged, number: int, failures: list[str]) -> None:
        from reprokit.report import envelope
        from reprokit.report.gather import Execution, gather
        from reprokit.report.statement import statement

        facts = gather([Path(path) for path in judged.pairs[number - 1]], Execution(tuple(failures), judged.notes))
        write_whole(
            self.directory / file_name(judged.name, number), envelope.sign(statement(facts, "bitwise-rerun"), self.key)
        )


def file_name(training: str, number: int) -> str:
    """Of the statement about a pair; no training has a + in its name."""
    return f"{training}.json" if number == 1 else f"{training}+{number}.json"


def prepare(key: Path | None, directory: Path | None, trainings: Iterable[GateTraining]) -> Statements | None:
    """What --sign and --statements ask for; statements of an earlier gate are removed: none is to be taken for new."""
    if (key is None) != (directory is None):
        raise UsageError("--sign KEY and --statements DIR go together")
    if key is None or directory is None:
        return None
    from reprokit.report import keys

    private = keys.read_private(key)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for training in trainings:
            for number in range(1, training.pairs + 1):
                (directory / file_name(training.name, number)).unlink(missing_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise CannotWriteReport(f"{directory}: {error.strerror}; choose another with --statements") from None
    return Statements(directory.absolute(), private)
