"""Diagnoses a profiled run: joins its operations with known facts into findings, the most urgent first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from reprokit.core.printable import bounded
from reprokit.knowledge import Fact, load
from reprokit.profiling import lines, sources
from reprokit.profiling.operators import Operators
from reprokit.profiling.surroundings import Surroundings
from reprokit.run_files.findings import COMPILED, MAX_FINDINGS, VERDICTS, Finding, FindingsFile
from reprokit.run_files.rundir import RunDirectory

MAX_NOTES = 50
MAX_CONFIRMED = 100_000  # re-executed calls
MAX_SCALES = 10_000  # processes and frameworks


class Diagnosis:
    """Collects the observed lines of one run."""

    def __init__(self, facts: Sequence[Fact]):
        self.operators, self.surroundings = Operators(facts), Surroundings(facts)
        self.notes: list[str] = []
        self.files: set[int] = set()
        self.helpers: set[int] = set()  # ids of processes that agents started to measure
        self._confirmed: list[tuple[int, lines.ConfirmedCall]] = []
        self._scale: dict[tuple[object, str], float] = {}
        self._left_out = 0
        self._adders: dict[type, Callable[[int, Any], None]] = {
            lines.OperatorLine: self.operators.add,
            lines.CompiledCode: self.operators.add_compiled,
            lines.Function: self.surroundings.add_function,
            lines.Setting: self.surroundings.add_setting,
            lines.Loader: self.surroundings.add_loader,
            lines.Completion: self.surroundings.add_completion,
            lines.ConfirmedCall: self._add_confirmed,
            lines.ObservedProcess: self._add_process,
            lines.Sampling: self._add_sampling,
            lines.Helper: lambda _, line: self.helpers.add(line.pid),
            lines.Note: lambda _, line: self.notes.append(line.text) if len(self.notes) < 2 * MAX_NOTES else None,
        }

    def add_line(self, process: int, line: lines.Observed) -> None:
        """Add one observed line."""
        self.files.add(process)
        self._adders[type(line)](process, line)

    def _add_confirmed(self, process: int, line: lines.ConfirmedCall) -> None:
        if len(self._confirmed) < MAX_CONFIRMED:
            self._confirmed.append((process, line))
        else:
            self._left_out += 1

    def _add_sampling(self, process: int, line: lines.Sampling) -> None:
        if len(self._scale) < MAX_SCALES:
            self._scale[process, line.framework] = line.steps / line.observed if line.observed else 1.0

    def _add_process(self, process: int, line: lines.ObservedProcess) -> None:
        self._left_out += line.left_out
        if line.sampled_steps:
            self.surroundings.scale[process] = line.steps / line.sampled_steps

    def findings(self, versions: dict[str, str]) -> list[Finding]:
        """Return the findings from all lines."""
        for process, line in self._confirmed:  # only now: the calls have created their groups
            self.operators.confirm(process, line)
        if self._left_out or self.operators.left_out:
            self.notes.append(f"{self._left_out + self.operators.left_out} distinct calls are left out: too many")
        of_operators = list(self.operators.findings(self.surroundings.threads, self._scale))
        facts_seen = {finding.fact for finding in of_operators if finding.fact is not None}
        devices = self.operators.devices | {"cpu"}
        compiles = any(finding.kind == COMPILED for finding in of_operators)
        draws = self.operators.draws
        return [
            *of_operators,
            *self.surroundings.findings(versions, devices, facts_seen, compiles=compiles, draws=draws),
        ]


def analyze(run: RunDirectory, facts: Sequence[Fact] | None = None) -> FindingsFile:
    """Return the findings of a profiled run; raises a RunError if it cannot be read at all."""
    reader, diagnosis = lines.ObservedLines(run), Diagnosis(load() if facts is None else facts)
    for process, line in reader:
        diagnosis.add_line(process, line)
    run_facts = sources.read_metrics(run)
    notes = [*reader.notes, *run_facts.notes]
    all_findings = [
        *diagnosis.findings(run_facts.versions),
        *sources.of_seeds(run.run, run_facts),
        *sources.of_processes(run, diagnosis.helpers, notes),
    ]
    notes += [*_reading_notes(run, reader, diagnosis), *diagnosis.notes]
    return FindingsFile(run_id=run.run.run_id, findings=_ordered(all_findings, notes), notes=_bounded(notes))


def _reading_notes(run: RunDirectory, reader: lines.ObservedLines, diagnosis: Diagnosis) -> Iterable[str]:
    if not diagnosis.files:
        yield "no Python process was observed: only sources of randomness are told"
    if reader.bad:
        yield f"{reader.bad} lines of what was observed could not be read"
    profiling = run.run.profiling
    if profiling is not None and not profiling.confirm and diagnosis.operators.groups:
        yield "nothing was measured: with --confirm, each distinct call of an operator is executed again"


def _ordered(all_findings: Iterable[Finding], notes: list[str]) -> list[Finding]:
    """Return findings with unique ids, the most urgent first; those beyond the limit are dropped with a note."""
    ordered = sorted(
        all_findings,
        key=lambda finding: (VERDICTS.index(finding.verdict), -finding.rank, finding.id, finding.fact or ""),
    )
    if len(ordered) > MAX_FINDINGS:
        notes.append(f"{len(ordered) - MAX_FINDINGS} findings of lower rank are left out")
    ids: dict[str, int] = {}
    with_unique_ids = []
    for finding in ordered[:MAX_FINDINGS]:
        number = ids[finding.id] = ids.get(finding.id, 0) + 1
        with_unique_ids.append(replace(finding, id=f"{finding.id}~{number}") if number > 1 else finding)
    return with_unique_ids


def _bounded(notes: Sequence[str]) -> list[str]:
    return list(bounded(dict.fromkeys(text[:1000] for text in notes), MAX_NOTES, " notes"))
